"""The state of a run in a checkpoint: `training.json`."""

import json
from pathlib import Path
from typing import Any

from nlpkit import __version__
from nlpkit.checkpoints import files
from nlpkit.errors import FileError
from nlpkit.runs.run import Run
from nlpkit.train.state import State

FITTED = "fitted"  # what `train.memory` chose when the run began; also in run.json


def read(path: Path, best_by: str) -> tuple[dict[str, Any], State]:
    """Return `training.json` of a checkpoint and the state in it.

    If `best_by` has changed after it was saved, the state has no best value.
    """
    file = path / files.TRAINING
    try:
        file = files.training_file(path)
        saved = json.loads(file.read_text(encoding="utf-8"))
        state = State.from_json(saved["state"], best_by)
        if not isinstance(saved["data"], str) or not all(map(_is_number, _numbers(state))):
            raise TypeError("a value is of the wrong type")
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise FileError(f"{file}: not the state of a run: {error}") from error
    if saved.get("best_by", best_by) != best_by:  # --allow-change
        state.best_value, state.best_step, state.evaluations_without_gain = None, 0, 0
    return saved, state


def _numbers(state: State) -> list[Any]:
    values = state.to_json()
    best = values.pop("best_value")
    # A score may be negative, and None means that there is no best value yet.
    values["best_value"] = abs(best) if isinstance(best, (int, float)) else best or 0
    return [*values.pop("position"), *values.pop("times", {}).values(), *values.values()]


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value >= 0


def to_text(run: Run, state: State) -> str:
    """Return the content of `training.json`."""
    content = {
        "state": state.to_json(),
        "best_by": run.settings.best_by,
        "optimizer": run.settings.optimizer.name,
        "zero_at_last_step": run.settings.zero_at_last_step,
        "data": run.data.fingerprint,
        "nlpkit": __version__,
    }
    if fitted := run.directory.status().get(FITTED):
        content[FITTED] = fitted
    return json.dumps(content, indent=1) + "\n"
