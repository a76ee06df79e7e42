"""What benchmarks of many runs share: the command `nlpkit`, figures that are kept."""

import json
import os
import re
import resource
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from nlpkit import disk, recipe


class Runs:
    """Runs `nlpkit` below a folder, on the data of another, and keeps figures."""

    def __init__(self, out: Path, data: Path, threads: int = 1):
        self.out, self.data, self.threads = out, data, threads
        out.mkdir(parents=True, exist_ok=True)

    def nlpkit(self, *arguments: str, log: str) -> str:
        """Return the stdout of a command; its stderr goes to the file `log`."""
        environment = {**os.environ, "OMP_NUM_THREADS": str(self.threads)}
        command = [sys.executable, "-m", "nlpkit", *arguments]
        with open(self.out / f"{log}.log", "a", encoding="utf-8") as file:
            done = subprocess.run(command, stdout=subprocess.PIPE, stderr=file, env=environment)
        if done.returncode:
            raise SystemExit(f"{' '.join(command)}: exit {done.returncode}; see {file.name}")
        return done.stdout.decode()

    def timed(self, *arguments: str, log: str) -> tuple[str, float]:
        """Return the stdout of `nlpkit`, and the CPU seconds of its process; no other may run."""
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        stdout = self.nlpkit(*arguments, log=log)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return stdout, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    def kept(self, place: Path, make: Callable[[], Any]) -> Any:
        """Return the figures that lie in `place`; if there are none, make them and keep them."""
        file = place / "figures.json"
        if file.exists():
            return json.loads(file.read_text(encoding="utf-8"))
        figures = make()
        place.mkdir(parents=True, exist_ok=True)
        disk.write_json(file, figures)
        return figures


def bracketed(rates: Sequence[str], first: str, loss: Callable[[str], float]) -> dict[str, float]:
    """Return the loss of the rates that were tried, in their order; the search begins with `first`.

    The best one has a worse one on both sides, unless it is an end of `rates`.
    """
    tried = {rates.index(first): loss(first)}
    while True:
        best = min(tried, key=lambda place: tried[place])
        beside = [p for p in (best - 1, best + 1) if 0 <= p < len(rates) and p not in tried]
        if not beside:
            return {rates[place]: tried[place] for place in sorted(tried)}
        tried[beside[0]] = loss(rates[beside[0]])


def from_nothing(base: str, home: Path) -> list[str]:
    """Return the settings of a model as in the recipe `base`, untrained; `home` has a tokenizer."""
    model = json.dumps(recipe.load(base).dump()["model"])
    return ["init_from=null", f"tokenizer.path={json.dumps(str(home))}", f"model={model}"]


def as_options(settings: Sequence[str]) -> list[str]:
    """Return settings as options of the command line."""
    return [word for each in settings for word in ("--set", each)]


def plain(name: str) -> str:
    """Return a name that is fit for a file."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower().replace("λ = ", "l")).strip("-")


def mean_and_deviation(values: Sequence[float | None], digits: int = 3) -> str:
    """Return mean and sample standard deviation as text."""
    known = [value for value in values if value is not None]
    if len(known) < len(values):
        return "undefined"
    deviation = f" ± {statistics.stdev(known):.{digits}f}" if len(known) > 1 else ""
    return f"{statistics.fmean(known):.{digits}f}{deviation}"
