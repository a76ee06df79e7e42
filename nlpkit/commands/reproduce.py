"""Train a finished run again, and say whether the two are equal to the bit."""

import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from nlpkit.commands._options import Common, argument, option, shared
from nlpkit.disk import user_path
from nlpkit.errors import CheckFailed, TryAgain, UsageError
from nlpkit.json_types import JsonObject
from nlpkit.plural import number_of

if TYPE_CHECKING:
    from nlpkit.report.history import History
    from nlpkit.report.same_run import Comparison
    from nlpkit.train.log import Log

_SHOWN = 5  # differences

Run = Annotated[str, argument("RUN", "the directory of a run")]


@dataclass(frozen=True)
class Asked:
    """How much is compared."""

    steps: int | None = option("--steps N", "compare only the first N steps", min=1)


@shared("out", "device")
def command(run: Run, common: Common, asked: Asked) -> None:
    """Train a run again, and say whether the two are equal to the bit.

    Recipe, data and precision are those that the directory of RUN names; data with another hash is
    an error before anything is trained. The directory of the new run is --out, or RUN-reproduced;
    the same command resumes it. It stops at the first step whose loss is another.

    Compared are the tokenizer, the tokenised text, each record of metrics.jsonl, and weights,
    optimizer and state of each checkpoint that both runs have. If they are equal the exit code is
    0, else 6; then the step, file and figure are named where they part first, and whether the
    machine or a version is another one. With a budget of time, each step takes the progress that
    was measured in RUN.
    """
    from nlpkit.report import history, same_run

    path = user_path(run)
    named = os.path.normpath(run)
    if Path(named).name in ("", ".."):  # `.` is no name
        named = str(path.resolve())
    out = user_path(common.out or f"{named}-reproduced")
    if out.resolve() == path.resolve():
        raise UsageError(f"--out {out}: is RUN itself; name another directory")
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise UsageError("reproduce trains with one process; start it without a launcher")
    old = history.read(path, str(path))
    if asked.steps is not None and asked.steps > old.last_step:
        raise UsageError(f"--steps {asked.steps}: {path} has {number_of(old.last_step, 'steps')}")
    _train(old, out, common, asked.steps, common.open_log())
    found = same_run.compare(path, out, asked.steps)
    values: JsonObject = {"equal": not found.differences, "run": str(path), "reproduced": str(out)}
    common.print_result("\n".join(_describe(path, found)), **values, **asdict(found))
    if found.differences:
        first = found.differences[0]
        raise CheckFailed(f"{path} is not reproduced: the runs part at step {first.step}")


def _train(old: "History", out: Path, common: Common, steps: int | None, log: "Log") -> None:
    """Train the run again in `out`, up to the first step with another loss, or after `steps`."""
    import torch

    from nlpkit.commands.pretrain import train_in_directory
    from nlpkit.evaluate import train_again

    status = old.status
    train_again.check(old.path, status, steps)
    with common.catch_signals() as stop:
        with stop.abortable():
            resolved = train_again.load(old.path, out, status, stop.check)
        log.info("data: every file is the one that the run has read")
        train_again.keep_times(old.path, out, status.get("budget_seconds"))
        if (threads := status.get("threads")) not in (None, torch.get_num_threads()):
            log.info(f"threads: {threads}, as the run had")
            torch.set_num_threads(threads)
        losses = {record["step"]: record["loss"] for record in old.steps}
        try:
            watch = train_again.Watch(log.verbosity, stop, losses, steps)
            train_in_directory(resolved, common, None, watch, stop)
        except TryAgain:
            if not stop.raised:  # the directory is in use
                raise


def _describe(run: Path, found: "Comparison") -> list[str]:
    """Return the verdict, the differences, and what of machine and versions may explain them."""
    from nlpkit.report.same_run import IN_WORDS

    steps = ", ".join(map(str, found.checkpoints))
    saved = f"checkpoints (step {steps})" if steps else "no checkpoint (no step has one in both)"
    what = (
        f"{number_of(found.records, 'records')} of steps up to {found.steps}, "
        f"{number_of(found.evaluations, 'evaluations')}, {saved}, tokenizer, tokenised text"
    )
    lines = [f"equal to the bit: {run}: {what}"]
    if found.differences:
        first = found.differences[0].step
        lines = [f"different from step {first} on: {run}: compared {what}"]
    lines += map(str, found.differences[:_SHOWN])
    if (more := len(found.differences) - _SHOWN) > 0:
        lines.append(f"and {number_of(more, 'differences')} more (--json)")
    for name, values in found.facts.items():
        there, here = ["not recorded" if value is None else value for value in values]
        shown = f"{there} there, {here} here" if name != "code" else "not those of that run"
        lines.append(f"{IN_WORDS.get(name, name)}: {shown}")
    if found.differences and not found.facts:
        lines.append("machine, versions and data are the same")
    return lines
