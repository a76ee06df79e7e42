"""The directory of a run: its lock, its recipe and its status.

Imports no torch, so that a finished or locked run is recognized quickly.
"""

import fcntl
import json
import os
import re
import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from nlpkit import recipe
from nlpkit.checkpoints import files
from nlpkit.disk import name_path_in_errors, sync, write_json
from nlpkit.errors import FileError, TryAgain, UsageError

RECIPE, STATUS, METRICS, LOCK = "recipe.yaml", "run.json", "metrics.jsonl", "lock"
_DECIDED = "decided_by_size"  # in run.json


def process_rank() -> int:
    """Return the rank of this process under `accelerate launch` or `torchrun`, else 0."""
    return int(os.environ.get("RANK", "0"))


def seed_runs(directory: Path) -> list[tuple[int, Path]]:
    """Return the seed and the directory of each run that `finetune --seeds` made in `directory`."""
    runs = [path for path in directory.glob("seed-*") if (path / RECIPE).is_file()]
    return sorted((int(path.name[5:]), path) for path in runs if path.name[5:].isdecimal())


def runs_inside(directory: Path) -> list[Path]:
    """Return the runs in a directory, to a depth of three: `lr-0.001`, `lr-0.001/seed-1`."""
    depths = ("*", "*/*", "*/*/*")
    found = {path.parent for at in depths for path in directory.glob(f"{at}/{RECIPE}")}
    return sorted(found, key=lambda path: [_by_number(part) for part in path.parts])


def _by_number(name: str) -> list[tuple[float, str]]:
    """Return a key by which `seed-2` comes before `seed-10`."""
    words = re.split(r"(\d+(?:\.\d+)?(?:e-?\d+)?)", name)
    return [(float(w), "") if n % 2 else (0.0, w) for n, w in enumerate(words)]


class RunDirectory:
    """`runs/NAME`: recipe.yaml, run.json, metrics.jsonl, tokenizer/, checkpoints/."""

    def __init__(self, path: Path):
        self.path = path

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the directory in this context; the kernel releases the lock if the process dies.

        A new directory is removed after an error if nothing was trained.

        Raises:
            TryAgain: another process has the lock.
            FileError: the directory cannot be created or written.
            UsageError: it is the root of the file system.
        """
        if self.path.resolve().parent == self.path.resolve():
            raise UsageError(f"{self.path}: is no directory for a run; give --out another one")
        if process_rank() != 0:  # rank 0 has the lock for all processes of a launch
            yield
            return
        with name_path_in_errors(self.path):
            is_new = not self.path.exists()
            self.path.mkdir(parents=True, exist_ok=True)
            file = open(self.path / LOCK, "a+b", buffering=0)  # noqa: SIM115
        # A forked worker would keep the lock after this process is killed.
        os.register_at_fork(after_in_child=file.close)
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                file.seek(0)
                owner = file.read().decode().strip() or "another process"
                raise TryAgain(f"{self.path} is in use by {owner}") from error
            with name_path_in_errors(self.path / LOCK):
                file.truncate(0)
                file.write(f"process {os.getpid()} on {socket.gethostname()}\n".encode())
            files.remove_drafts(self.path)
            try:
                yield
            except BaseException:
                if is_new:
                    self._remove_unused()
                raise

    def _remove_unused(self) -> None:
        """Remove the directory if no step was logged and there is no subdirectory (`cache/`)."""
        metrics = self.path / METRICS
        trained = metrics.exists() and metrics.stat().st_size > 0
        if not trained and not any(path.is_dir() for path in self.path.iterdir()):
            shutil.rmtree(self.path, ignore_errors=True)

    def status(self) -> dict[str, Any]:
        """Return `run.json`, or an empty dict before the first step."""
        path = self.path / STATUS
        try:
            status = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, RecursionError) as error:
            raise FileError(f"{path}: cannot be read: {error}") from error
        if not isinstance(status, dict):
            raise FileError(f"{path}: is not a JSON object; remove it to continue")
        return status

    def set_status(self, **values: object) -> None:
        """Add `values` to `run.json`."""
        write_json(self.path / STATUS, self.status() | values)

    def as_begun(self, resolved: recipe.Resolved) -> recipe.Resolved:
        """Return the recipe; settings that are newer than this run get their old fixed values."""
        path = self.path / RECIPE
        if not path.exists() or not files.list_checkpoints(self.path):
            return resolved
        names = self.status().get(_DECIDED)
        names = names if isinstance(names, list) else None
        from nlpkit.recipe.earlier import as_begun

        return as_begun(resolved, recipe.load(str(path)), names)

    def differences(self, resolved: recipe.Resolved) -> dict[str, str]:
        """Return the settings that differ from those this run was started with, and their values.

        The settings of a run without a checkpoint may change.
        """
        path = self.path / RECIPE
        if not files.list_checkpoints(self.path):
            return {}
        if not path.exists():
            return {RECIPE: f"{RECIPE}: lost"}
        before, now = self.as_begun(recipe.load(str(path))).dump(), resolved.dump()
        return {
            key: f"{key}: {_value(before, key)} then, {_value(now, key)} now"
            for key in recipe.changed(before, now)
        }

    def changed(self, resolved: recipe.Resolved, allow_change: bool) -> list[str]:
        """Return the settings that differ from those with which this run was started.

        Writes nothing. The run may still refuse them: `runs/resume`.

        Raises:
            UsageError: settings that change the result differ and `allow_change` is False, or
                settings of the tokenizer differ, which belongs to the model.
            FileError: the run has lost its recipe and `allow_change` is False.
        """
        changed = self.differences(resolved)
        if RECIPE in changed and not allow_change:
            raise FileError(
                f"{self.path / RECIPE}: no such file, and the settings of the run are recorded "
                "only there; restore it, or give --out another directory, or --allow-change to "
                "continue with the current settings"
            )
        for key, values in changed.items():
            if allow_change and key.partition(".")[0] == "tokenizer":
                raise UsageError(
                    f"{values}; a run keeps its tokenizer, also with --allow-change; start another "
                    f"run from this one: --out DIR and init_from: {self.path}"
                )
            if key == "train.optimizer.name":  # also with --allow-change: its state is another one
                raise UsageError(
                    f"{values}; a run keeps its optimizer, whose state is in its checkpoints; "
                    f"start another run from this one: --out DIR and init_from: {self.path}"
                )
        if changed and not allow_change:
            raise UsageError(
                f"{self.path} was started with other settings:\n"
                + "\n".join(f"  {values}" for values in changed.values())
                + "\ngive --out another directory, or --allow-change to continue with the new ones"
                + self._longer([*changed])
            )
        return [*changed]

    def _longer(self, changed: list[str]) -> str:
        """Return how to make a run longer that has a checkpoint from before its decay."""
        stable = files.directory(self.path) / files.STABLE
        lengths = (["train.steps"], ["train.epochs"], ["train.budget"])
        if changed not in lengths or not stable.exists():
            return ""
        return f"; from before its decay: --resume {stable} --out another directory"

    def write_recipe(self, resolved: recipe.Resolved) -> None:
        """Write `recipe.yaml` with all settings, including defaults; note what a size decided."""
        path = self.path / RECIPE
        with name_path_in_errors(path):
            draft = path.with_name(f".{RECIPE}")
            draft.write_text(resolved.to_yaml(), encoding="utf-8")
            sync(draft)
            draft.replace(path)
        if (names := resolved.autosized) or _DECIDED in self.status():
            self.set_status(**{_DECIDED: names})

    def finished(self) -> Path | None:
        """Return the final checkpoint of a finished run, or None."""
        status = self.status()
        if not status.get("finished"):
            return None
        path = files.read_pointer(self.path, "latest")
        return path if path and (path / files.MANIFEST).is_file() else None


def _value(data: Any, key: str) -> str:
    """Return the value at a dotted key as JSON, or `not set`."""
    for step in key.split("."):
        inside = data.get(step) if isinstance(data, dict) else data
        if isinstance(data, list):
            inside = data[int(step)] if int(step) < len(data) else None
        data = inside
    return "not set" if data is None else json.dumps(data, ensure_ascii=False)
