"""Train a finished run again, and say whether the two are equal to the bit."""

import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from nlpkit.commands._options import Common, argument, option, shared
from nlpkit.disk import user_path
from nlpkit.errors import NlpkitError, TryAgain, UsageError
from nlpkit.json_types import JsonMapping, JsonObject
from nlpkit.plural import number_of

if TYPE_CHECKING:
    from nlpkit.report.same_run import Comparison
    from nlpkit.train.log import Log

_SHOWN = 5  # differences

Run = Annotated[str, argument("RUN", "the directory of a run")]


class NotReproduced(NlpkitError):
    """Two runs of one recipe are not equal: a check has failed, as with `--fail-under`."""

    exit_code = 6


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
    from nlpkit.report import same_run
    from nlpkit.runs import again

    path = user_path(run)
    out = user_path(common.out or f"{os.path.normpath(run)}-reproduced")
    if out.resolve() == path.resolve():
        raise UsageError(f"--out {out}: is RUN itself; name another directory")
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise UsageError("reproduce trains with one process; start it without a launcher")
    log = common.open_log()
    status = again.check(path, asked.steps)
    _train(path, out, status, common, asked.steps, log)
    found = same_run.compare(path, out, asked.steps)
    facts, unknown = same_run.explain(status, again.check(out, 1))
    lines = [_describe(path, found), *_explain(found, facts, unknown)]
    values: JsonObject = {
        "equal": not found.differences,
        "run": str(path),
        "reproduced": str(out),
        **asdict(found),
        "differing_facts": facts,
        "unrecorded_facts": unknown,
    }
    common.print_result("\n".join(lines), **values)
    if found.differences:
        first = found.differences[0]
        raise NotReproduced(f"{path} is not reproduced: the runs part at step {first.step}")


def _train(
    run: Path, out: Path, status: JsonMapping, common: Common, steps: int | None, log: "Log"
) -> None:
    """Train the run again in `out`, up to the first step with another loss, or after `steps`."""
    from nlpkit.cli import exit_now
    from nlpkit.commands.pretrain import train_in_directory
    from nlpkit.report import history
    from nlpkit.runs import again
    from nlpkit.train.signals import catch_signals

    old = history.read(run, str(run))
    if steps is not None and steps > old.last_step:
        raise UsageError(f"--steps {steps}: {run} has {number_of(old.last_step, 'steps')}")
    if steps is not None and _last_step(out) > steps:
        log.info(f"{out} has these steps; nothing to do")
        return
    with catch_signals(exit_now) as stop:
        with stop.abortable():
            paths = again.find_files(run, stop.check)
        log.info("data: every file is the one that the run has read")
        resolved = again.load(run, out, status, paths)
        again.keep_times(run, out)
        _set_threads(status, log)
        losses = {record["step"]: record["loss"] for record in old.steps}
        watch = again.Watch(log.verbosity, stop, losses, steps)
        try:
            train_in_directory(resolved, common, False, watch, stop)
        except TryAgain:
            if not watch.reached:
                raise


def _last_step(out: Path) -> int:
    from nlpkit.checkpoints import files
    from nlpkit.report import history

    return history.read(out, str(out)).last_step if files.list_checkpoints(out) else 0


def _set_threads(status: JsonMapping, log: "Log") -> None:
    import torch

    threads = status.get("threads")
    if isinstance(threads, int) and threads != torch.get_num_threads():
        log.info(f"threads: {threads}, as the run had")
        torch.set_num_threads(threads)


def _describe(run: Path, found: "Comparison") -> str:
    """Return the verdict."""
    steps = ", ".join(map(str, found.checkpoints))
    saved = f"checkpoints (step {steps})" if steps else "no checkpoint, as both have none of a step"
    what = (
        f"{number_of(found.records, 'records')} of steps up to {found.steps}, "
        f"{number_of(found.evaluations, 'evaluations')}, {saved}, tokenizer, tokenised text"
    )
    if not found.differences:
        return f"equal to the bit: {run}: {what}"
    return f"different from step {found.differences[0].step} on: {run}: compared {what}"


def _explain(found: "Comparison", facts: JsonMapping, unknown: list[str]) -> list[str]:
    """Return the differences, and what of machine and versions may explain them, a line each."""
    from nlpkit.report.same_run import FACTS

    lines = [str(each) for each in found.differences[:_SHOWN]]
    if (more := len(found.differences) - _SHOWN) > 0:
        lines.append(f"and {number_of(more, 'differences')} more (--json)")
    for name, (there, here) in facts.items():
        values = "another one here" if name == "code" else f"{there} there, {here} here"
        lines.append(f"{FACTS[name]}: {values}")
    if found.differences:
        if not facts:
            lines.append("machine, versions and data are the same, as far as they are recorded")
        if unknown:
            lines.append(f"not recorded there: {', '.join(FACTS[name] for name in unknown)}")
    return lines
