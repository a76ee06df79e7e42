"""`nlpkit eval` with --task: the rows of a task are scored without tuning."""

from nlpkit.commands._call import Call


def run_task(call: Call) -> None:
    """Score the rows of the task and print the figures."""
