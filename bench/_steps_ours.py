"""nlpkit's command line as a subject of `bench/steps.py`."""

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from _turns import Turns, redirect

# Loaded here, as the command line would later: memory is counted from what libraries take.
from nlpkit import cli, verbs  # noqa: F401
from nlpkit.runs import pretrain
from nlpkit.train import spinning
from nlpkit.train.log import Metrics


class _Enough(BaseException):
    """The last round is over; nothing is saved."""


class Ours:
    """`nlpkit pretrain` or `finetune`, which waits between rounds."""

    def __init__(self, command: list[str], log: Path, per_round: int):
        redirect(log)
        self.command, self.per_round = command, per_round

    def run(self, turns: Turns) -> None:
        """Run the command line; the first round has all that comes before the first step."""
        next(turns)
        per_round = self.per_round

        class Waiting(Metrics):
            """`metrics.jsonl`; after the line of a round's last step the run waits."""

            def write(self, record: Mapping[str, object]) -> None:
                super().write(record)
                if int(str(record["step"])) % per_round == 0 and next(turns, None) is None:
                    raise _Enough

        pretrain.Metrics = Waiting  # type: ignore[misc]
        # While the others have their turns, it would find the machine busy, and for some seconds of
        # its own turn, too. Its threads spin, as on a quiet machine and as Trainer's do.
        spinning.start = lambda *given: None
        with suppress(_Enough):
            code = cli.run(self.command)
            raise SystemExit(f"nlpkit has ended before the last round, with exit code {code}")
