"""The directory of a run: its lock, its recipe and its status.

Imports no torch, so that a finished or locked run is recognized quickly.
"""

import fcntl
import os
import re
import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from nlpkit import recipe
from nlpkit.checkpoints import files
from nlpkit.disk import name_path_in_errors, read_json, write_json, write_text
from nlpkit.errors import TryAgain, UsageError
from nlpkit.json_types import JsonObject

RECIPE, STATUS, METRICS, LOCK = "recipe.yaml", "run.json", "metrics.jsonl", "lock"
DATA_FILES = "data_files.json"  # paths and hashes of the files that were read
DECIDED = "decided_by_size"  # in run.json


def process_rank() -> int:
    """Return the rank of this process under `accelerate launch` or `torchrun`, else 0."""
    return int(os.environ.get("RANK", "0"))


def seed_runs(directory: Path) -> list[tuple[int, Path]]:
    """Return the seed and the directory of each run that `finetune --seeds` made in `directory`."""
    runs = [path for path in directory.glob("seed-*") if (path / RECIPE).is_file()]
    return sorted((int(path.name[5:]), path) for path in runs if path.name[5:].isdecimal())


def runs_inside(directory: Path) -> list[Path]:
    """Return the runs in a directory, to a depth of four: `TASK/pretrained/lr-0.001/seed-1`."""
    depths = ("*", "*/*", "*/*/*", "*/*/*/*")
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

    def status(self) -> JsonObject:
        """Return `run.json`, or an empty dict before the first step."""
        path = self.path / STATUS
        return read_json(path) if path.exists() else {}

    def set_status(self, **values: object) -> None:
        """Add `values` to `run.json`."""
        write_json(self.path / STATUS, self.status() | values)

    def write_recipe(self, resolved: recipe.Resolved) -> None:
        """Write `recipe.yaml` with all settings, including defaults; note what a size decided."""
        write_text(self.path / RECIPE, resolved.to_yaml())
        if (names := resolved.autosized) or DECIDED in self.status():
            self.set_status(**{DECIDED: names})

    def finished(self) -> Path | None:
        """Return the final checkpoint of a finished run, or None."""
        if not self.status().get("finished"):
            return None
        path = files.read_pointer(self.path, "latest")
        return path if path and (path / files.MANIFEST).is_file() else None
