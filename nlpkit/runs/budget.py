"""Starts the clock of a run with a budget of time, and keeps the ticks of steps that were lost.

After a kill, the steps after the newest checkpoint are computed again with the times that were
logged. They are copied to `replay.jsonl`, because `metrics.jsonl` loses them when the run resumes:
it may be killed again before it has logged them anew.
"""

import json
from collections.abc import Mapping

from nlpkit.checkpoints.run_directory import METRICS
from nlpkit.disk import name_path_in_errors, sync
from nlpkit.errors import FileError
from nlpkit.plural import number_of
from nlpkit.runs.run import Run
from nlpkit.train import snapshot
from nlpkit.train.budget import Clock, Recorded, recorded
from nlpkit.train.state import Pace, State, Tick

REPLAY = "replay.jsonl"


def start_pace(run: Run, state: State) -> Pace:
    """Return the pace of the run: a clock if it has a budget. Call it before `Metrics` opens.

    Raises:
        FileError: `train.replay` is not the log of a run with a budget.
    """
    if run.settings.budget_seconds is None:
        return Pace(run.settings)
    snapshot.import_early()
    state.times.follow(run.settings)
    found = Recorded()
    if run.accelerator.is_main_process:
        other = _of_other_run(run)
        lost = _lost(run, state)
        ticks = {**other, **lost.ticks}
        found = Recorded({n: t for n, t in ticks.items() if n > state.step}, lost.spent)
    return Clock(run.settings, run.data.held_out is not None, state, found)


def _lost(run: Run, state: State) -> Recorded:
    """Return the ticks of steps after the checkpoint, and keep them; none if the budget changed."""
    path, kept = run.directory.path / METRICS, run.directory.path / REPLAY
    before, now = recorded(kept), recorded(path)
    spent = max(before.spent, now.spent)
    ticks = {n: t for n, t in {**before.ticks, **now.ticks}.items() if n > state.step}
    if run.directory.status().get("budget_seconds") != run.settings.budget_seconds:
        ticks = {}
    if ticks or kept.exists():
        _write(run, ticks, spent)
    if ticks:
        run.log.info(
            f"{number_of(len(ticks), 'steps')} after the checkpoint, up to step {max(ticks)}, are "
            "computed again with their times"
        )
    return Recorded(ticks, spent)


def _write(run: Run, ticks: Mapping[int, Tick], spent: float) -> None:
    path = run.directory.path / REPLAY
    draft = path.with_name(f".{REPLAY}")
    rows = [{"spent": spent}, *({"step": n, **t._asdict()} for n, t in sorted(ticks.items()))]
    with name_path_in_errors(path):
        draft.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        sync(draft)
        draft.replace(path)


def _of_other_run(run: Run) -> Mapping[int, Tick]:
    """Return the ticks of the file `train.replay`."""
    if (name := run.settings.replay) is None:
        return {}
    path = run.resolved.path(name)
    if not path.is_file():
        raise FileError(f"{path}: no such file (train.replay)")
    if not (ticks := recorded(path).ticks):
        raise FileError(f"{path}: no step has a time: it is no {METRICS} of a run with a budget")
    return ticks
