"""What the proofs of batches, loop and checkpoints work on, and how they are stopped."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nlpkit.recipe import Resolved
from nlpkit.runs.run import Run
from nlpkit.selftest.subject import Subject
from nlpkit.train.signals import StopFlag

STEPS, SAVE_EVERY, EVAL_EVERY = 6, 2, 3  # of the run that is interrupted


@dataclass
class Bench:
    """Everything the proofs need: the run that would be, in a directory that will be removed."""

    run: Run
    subject: Subject
    small: Resolved  # the recipe with the shrunk model
    shrunk: dict[str, tuple[Any, Any]]  # setting -> (the recipe's, the one used)
    room: Path
    device: str
    precision: str
    attention: str
    stop: StopFlag


def check(stop: StopFlag) -> None:
    """Raise what ends the program if it is to stop."""
    if stop.raised:
        raise stop.ending("the proofs are not finished")
