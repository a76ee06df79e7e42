"""Score files: METRIC HYP REF..., such as bleu, or a tool of its own, such as bm25.

`nlpkit score` lists them. Light: neither this nor what it imports may import typer.
"""

from nlpkit.errors import UsageError
from nlpkit.score import command


def main(arguments: list[str]) -> None:
    """Run `nlpkit score` with these arguments."""
    try:
        command.run(arguments)
    except MemoryError as error:
        raise UsageError("out of memory: all lines of the files are held in it") from error
