"""The runs of an experiment: planned, searched for their learning rates, trained, read."""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from nlpkit.checkpoints.run_directory import RunDirectory
from nlpkit.commands import _sweep, pretrain
from nlpkit.commands._grid import GridRun
from nlpkit.commands._options import Common
from nlpkit.disk import read_json, write_json
from nlpkit.errors import DivergedError, RecipeError, TryAgain, UsageError
from nlpkit.evaluate import experiment_table as table
from nlpkit.evaluate import suite_table
from nlpkit.evaluate.experiment import Experiment, check_unchanged, place
from nlpkit.json_types import JsonObject
from nlpkit.recipe.places import Document
from nlpkit.report.history import History
from nlpkit.train.state import LOSS
from nlpkit.units import format_bytes, format_duration

if TYPE_CHECKING:
    from nlpkit.train.log import Log

STATE = "experiment.json"
HELD_OUT = 0.1  # of the training text or rows, in the search
Train = Callable[[Sequence[GridRun]], dict[str, int]]


@dataclass
class Runs:
    """The runs of an experiment in a folder; `state` is what is known beside them."""

    found: Experiment
    document: Document
    out: Path
    folder: str
    common: Common
    state: JsonObject = field(default_factory=dict)

    def read_state(self) -> None:
        """Read what earlier calls have planned and searched; raise an error if the file changed."""
        path = self.out / STATE
        self.state = {"plans": {}, "rates": {}} | (read_json(path) if path.is_file() else {})
        if "file" in self.state:
            check_unchanged(self.state["file"], self.found, self.document, self.out)

    def write_state(self) -> None:
        """Write it, with the file as it is now."""
        self.out.mkdir(parents=True, exist_ok=True)
        self.state |= {"file": self.found.dump(), "hash": self.found.hash()}
        write_json(self.out / STATE, self.state)

    def find_rate(self, name: str) -> float | None:
        """Return the rate that was chosen for a condition, or None."""
        return self.state["rates"].get(self.found.find_trained(name), {}).get("chosen")

    def list_seeds(self, name: str) -> list[GridRun]:
        """Return the runs of a condition, with the chosen rate."""
        rate = self.find_rate(name)
        more = [] if rate is None else [f"train.lr={rate!r}"]
        return [self._make(name, seed, more) for seed in range(1, self.found.seeds + 1)]

    def list_trials(self, name: str) -> list[GridRun]:
        """Return a run for each rate to try: the first seed, scored on training text or rows."""
        held_out = ["data.valid=[]", f"data.valid_fraction={HELD_OUT}", "eval.pairs=null"]
        return [
            self._make(name, 1, [*held_out, f"train.lr={rate!r}"], f"search/lr-{rate:g}")
            for rate in self.found.list_rates(name)
        ]

    def _make(self, name: str, seed: int, more: Sequence[str] = (), where: str = "") -> GridRun:
        """Return a run of a condition; `where` is its directory, by default that of its seed."""
        trained = self.found.find_trained(name)
        where = f"{trained}/{where or f'seed-{seed}'}"
        recipe, equal = self.found.conditions[trained].recipe, self.found.equal
        changes = self.found.list_changes(name, self.folder)
        if start := self._find_start(trained, seed):
            changes.insert(0, f"init_from={json.dumps(start)}")
        elif equal and (equal.tokens or equal.flops) and trained in self.state["plans"]:
            changes.append(f"train.steps={self.state['plans'][trained]['steps']}")
        changes += [*more, f"seed={seed}"]
        out = str(self.out / where)
        try:
            resolved = replace(self.common, overrides=changes, out=out).load(recipe)
        except RecipeError as error:
            problems = [place(each, name, self.document) for each in error.problems]
            raise RecipeError(sorted(set(problems))) from error
        words = [word for each in changes for word in ("--set", each)]
        words += [] if self.common.device == "auto" else ["--device", self.common.device]
        words += ["-q"] if self.common.quiet else []
        return GridRun(where, resolved, ["pretrain", recipe, *words, "--out", out])

    def _find_start(self, name: str, seed: int) -> str | None:
        base = self.found.find_base(name)
        return str(self.out / base / f"seed-{seed}") if base else self.found.conditions[name].start

    def _describe_base(self, name: str) -> list[str]:
        """Return the settings of the untrained model that a tuned condition begins with.

        They are those of its base, or of what that was tuned from, and stand in for it in a plan.
        Adapters need the weights, so that all of the model is planned.
        """
        base = self.found.find_base(name)
        if base is None:
            return []
        while (before := self.found.find_base(base)) is not None:
            base = before
        described = self._make(base, 1).resolved.dump()
        keys = ("init_from", "model", "attention", "tokenizer")
        return [*(f"{key}={json.dumps(described[key])}" for key in keys), "lora=null"]

    def check(self) -> None:
        """Raise an error if a recipe, a file or a directory is wrong; nothing is begun."""
        for name, condition in self.found.conditions.items():
            seeds = self.list_seeds(name)
            if condition.evaluates is None:
                runs = [*self.list_trials(name), *seeds]
                _sweep.check_surroundings(runs[0])
                for run in runs:
                    pretrain.check_directory(run.resolved, Common(), False)
            elif not table.writes_text(seeds[0].resolved):
                what = "evaluates: its runs write no text, so nothing differs"
                raise RecipeError([self.document.locate(f"conditions.{name}.{what}")])
        for number, each in enumerate(self.found.expect):
            for name in (*each.first, *each.than):
                condition = self.found.conditions[name]
                lack = table.find_lack(each.by, condition, self._make(name, 1).resolved)
                if lack is not None:
                    what = f"expect.{number}.by: {lack.format(name)}"
                    raise RecipeError([self.document.locate(what)])

    def plan(self, log: "Log") -> None:
        """Plan a run of each condition, if it is not planned yet: sizes, FLOPs, time, memory.

        Raises:
            UsageError: a condition cannot run, does not fit into memory, or has another size.
        """
        sizes = {}
        for name, condition in self.found.conditions.items():
            if name not in self.state["plans"] and condition.evaluates is None:
                self.state["plans"][name] = said = self._plan(name)
                time, size = format_duration(said["seconds"]), format_bytes(said["memory"])
                log.info(
                    f"plan: {name}: {said['parameters']:,} parameters, {said['steps']:,} steps, "
                    f"{time}, {size}"
                )
            if condition.start is None and condition.evaluates is None:
                sizes[name] = self.state["plans"][name]["parameters"]
        most = self.found.parameters
        if most is not None and max(sizes.values()) > (1 + most) * min(sizes.values()):
            listed = ", ".join(f"{name} {size:,}" for name, size in sizes.items())
            what = f"parameters: sizes differ by more than {most:g}: {listed}"
            raise RecipeError([self.document.locate(what)])

    def _plan(self, name: str) -> JsonObject:
        equal = None if self.found.conditions[name].start else self.found.equal
        run = self._make(name, 1, self._describe_base(name))
        described = _ask(["plan", *run.arguments[1:-2]], name)
        model, estimate = described["model"], described["estimate"]
        steps = estimate["steps"]
        if equal is not None and (equal.tokens or equal.flops):
            per_step = model["flops_per_step"] if equal.flops else estimate["tokens"] / steps
            steps = int((equal.flops or equal.tokens or 0) / per_step)
            if steps < 1:
                raise UsageError(f"condition {name}: equal: a step has more: {per_step:,.0f}")
        if not estimate["fits"]:
            raise UsageError(f"condition {name}: does not fit into memory; see nlpkit plan")
        rest = estimate["evaluation_seconds"] + estimate["saving_seconds"]
        return {
            "parameters": model["parameters"],
            "flops_per_step": model.get("flops_per_step"),
            "steps": steps,
            "seconds": steps * estimate["seconds_per_step"] + rest,
            "memory": estimate["peak_memory_bytes"],
        }

    def train(self, limit: float | None, jobs: int, log: "Log") -> dict[str, int]:
        """Train what is left, conditions after those that they begin with; return what failed.

        A run that diverged is not trained again.
        """
        end = None if limit is None else time.monotonic() + limit

        def train(runs: Sequence[GridRun]) -> dict[str, int]:
            left = None if end is None else end - time.monotonic()
            return _sweep.train_all([r for r in runs if not _diverged(r)], left, log, jobs)

        failed: dict[str, int] = {}
        waiting = [name for name, each in self.found.conditions.items() if not each.evaluates]
        while waiting:
            self._score(end, jobs, log)
            now = [name for name in waiting if self.found.find_base(name) not in waiting]
            waiting = [name for name in waiting if name not in now]
            runs: list[GridRun] = []
            for name in now:
                failed |= self._search(name, train)
                if not self.found.list_rates(name) or name in self.state["rates"]:
                    runs += [run for run in self.list_seeds(name) if self._has_base(name, run)]
            failed |= train(sorted(runs, key=lambda run: int(run.path.name.partition("-")[2])))
        self._score(end, jobs, log)
        return {name: code for name, code in failed.items() if code != DivergedError.exit_code}

    def _score(self, end: float | None, jobs: int, log: "Log") -> None:
        """Let `nlpkit eval` compute the scores that finished runs have not, and keep them.

        Raises:
            TryAgain: the time `end` is reached.
            UsageError: it failed.
        """

        def score(name: str, run: History, figures: list[str]) -> None:
            condition = self.found.conditions[name]
            settings = condition.eval if condition.evaluates else {}  # a run knows its own
            words = ["eval", str(run.path / "checkpoints" / "latest")]
            words += ["--metrics", ",".join(figures), "--device", self.common.device]
            for key, value in settings.items():
                words += [f"--{key.replace('_', '-')}", str(value)]
            found = _ask(words, name, end)
            (self.out / run.label).mkdir(parents=True, exist_ok=True)
            write_json(self.out / run.label / table.SCORES, found)
            log.info(f"scores: {run.label}")

        asked = []
        for name, each in self.measure().items():
            named = [e.by for e in self.found.expect if name in (*e.first, *e.than)]
            for run in each.histories:
                lacks = {f for f in named if table.is_score(f)} - {*table.list_figures(run)}
                if run.state == table.FINISHED and lacks:
                    asked.append((name, run, sorted(lacks)))
        with ThreadPoolExecutor(jobs) as pool:
            list(pool.map(lambda each: score(*each), asked))

    def _has_base(self, name: str, run: GridRun) -> bool:
        base = self.found.find_base(name)
        of_base = self.out / (base or "") / run.path.name
        return base is None or RunDirectory(of_base).finished() is not None

    def _search(self, name: str, train: Train) -> dict[str, int]:
        """Choose the rate of a condition, unless it is chosen; the first seed tries each."""
        if not self.found.list_rates(name) or name in self.state["rates"]:
            return {}
        runs = self.list_trials(name)
        failed = train(runs)
        scores = {
            run.resolved.recipe.train.lr: suite_table.read_score(run.path, LOSS)
            for run in runs
            if RunDirectory(run.path).finished()
        }
        losses = {rate: loss for rate, loss in scores.items() if loss is not None}
        if {*failed.values()} - {DivergedError.exit_code} or not losses:
            return failed
        best = min(losses, key=lambda rate: losses[rate])
        tried = {f"{rate:g}": losses.get(rate) for rate in self.found.list_rates(name)}
        self.state["rates"][name] = {"chosen": best, "tried": tried}
        self.write_state()
        return failed

    def measure(self) -> dict[str, table.Measured]:
        """Return what is known of each condition."""
        found = {}
        for name in self.found.conditions:
            trained, rate = self.found.find_trained(name), self.find_rate(name)
            trials = [] if rate is not None or trained != name else self.found.list_rates(name)
            folders = [self.out / name / "search" / f"lr-{each:g}" for each in trials]
            left = sum(not RunDirectory(path).finished() for path in folders)
            runs = table.read_runs(self.out, name, trained, self.found.seeds)
            plan = self.state["plans"].get(trained, {})
            found[name] = table.Measured(runs, self.found.seeds, plan, rate, left)
        return found


def _diverged(run: GridRun) -> bool:
    return bool(RunDirectory(run.path).status().get("diverged"))


def _ask(words: Sequence[str], name: str, end: float | None = None) -> JsonObject:
    """Return what `nlpkit WORDS --json` prints, about a condition."""
    command = [sys.executable, "-m", "nlpkit", *words, "--json", *([] if "-q" in words else ["-q"])]
    left = None if end is None else end - time.monotonic()
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=left)
    except subprocess.TimeoutExpired as error:
        raise TryAgain("the time limit is reached; the same command goes on") from error
    if done.returncode:
        said = done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
        raise UsageError(f"condition {name}: {said[0].removeprefix('nlpkit: ')}")
    return json.loads(done.stdout)
