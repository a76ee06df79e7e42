"""The inputs of the proofs of batches, training loop and checkpoints."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nlpkit.recipe import Resolved
from nlpkit.runs.run import Run
from nlpkit.selftest.subject import Subject
from nlpkit.train.log import Log
from nlpkit.train.signals import StopFlag

STEPS, SAVE_EVERY, EVAL_EVERY = 6, 2, 3  # of the interrupted run


class Once(Log):
    """Prints a warning on the `outer` log only the first time: the proofs prepare many runs."""

    def __init__(self, outer: Log, said: set[str], verbosity: int):
        super().__init__(verbosity)
        self.outer, self.said = outer, said

    def warn(self, text: str) -> None:
        """Print a warning that was not printed yet."""
        if text not in self.said:
            self.said.add(text)
            self.outer.warn(text)


@dataclass
class Bench:
    """The inputs of all proofs: the prepared run, in a temporary directory."""

    run: Run
    subject: Subject
    small: Resolved  # the recipe with the shrunk model
    shrunk: dict[str, tuple[Any, Any]]  # setting -> (recipe's value, used value)
    workdir: Path
    device: str
    precision: str
    attention: str
    stop: StopFlag
    log: Log  # of the runs that the proofs make


def check(stop: StopFlag) -> None:
    """Raise the exception that ends the program if a stop was requested."""
    if stop.raised:
        raise stop.ending("the proofs are not finished")
