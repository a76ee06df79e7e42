"""The runs of an experiment: planned, searched for their learning rates, trained, read."""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from nlpkit.checkpoints.run_directory import RunDirectory
from nlpkit.commands import _sweep, finetune, pretrain
from nlpkit.commands._grid import GridRun
from nlpkit.commands._options import Common
from nlpkit.contracts.abilities import Continues
from nlpkit.contracts.task import Task
from nlpkit.disk import read_json, write_json
from nlpkit.errors import DivergedError, RecipeError, TryAgain, UsageError
from nlpkit.evaluate import experiment_table as table
from nlpkit.evaluate import suite_table
from nlpkit.evaluate.experiment import Experiment, place
from nlpkit.json_types import JsonObject
from nlpkit.recipe import fit
from nlpkit.recipe.places import Document
from nlpkit.report.history import FIGURES, History
from nlpkit.score.named import WrongScore
from nlpkit.train.state import LOSS
from nlpkit.units import format_bytes, format_duration

if TYPE_CHECKING:
    from nlpkit.recipe import Resolved
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
        """Read what earlier calls have planned and searched."""
        path = self.out / STATE
        self.state = read_json(path) if path.is_file() else {}
        self.state = {"file": None, "plans": {}, "rates": {}} | self.state

    def write_state(self) -> None:
        """Write it, with the file as it is now."""
        self.out.mkdir(parents=True, exist_ok=True)
        self.state["file"] = self.found.dump()
        self.state["hash"] = self.found.hash()
        write_json(self.out / STATE, self.state)

    def list_seeds(self, name: str) -> list[GridRun]:
        """Return the runs of a condition, with the chosen rate."""
        trained = self.found.find_trained(name)
        rate = self.state["rates"].get(trained, {}).get("chosen")
        more = [] if rate is None else [f"train.lr={rate!r}"]
        seeds = range(1, self.found.seeds + 1)
        return [self._make(name, seed, more, f"{trained}/seed-{seed}") for seed in seeds]

    def list_trials(self, name: str) -> list[GridRun]:
        """Return a run for each rate to try: the first seed, scored on training text or rows."""
        held_out = ["data.valid=[]", f"data.valid_fraction={HELD_OUT}", "eval.pairs=null"]
        return [
            self._make(name, 1, [*held_out, f"train.lr={rate!r}"], f"{name}/search/lr-{rate:g}")
            for rate in self.found.list_rates(name)
        ]

    def _make(self, name: str, seed: int, more: Sequence[str], where: str) -> GridRun:
        trained = self.found.find_trained(name)
        condition, base = self.found.conditions[trained], self.found.find_base(trained)
        changes = [*self.found.list_changes(name, self.folder), *self._length(trained), *more]
        changes.append(f"seed={seed}")
        common = replace(self.common, overrides=changes, out=str(self.out / where))
        start = str(self.out / base / f"seed-{seed}") if base else condition.start
        words = ["pretrain" if start is None else "finetune", condition.recipe]
        words += [] if start is None else ["--from", start]
        words += [] if common.device == "auto" else ["--device", common.device]
        words += ["-q"] if common.quiet else []
        try:
            if start is None or base:  # a base may not be trained yet
                of_base = [] if start is None else [f"init_from={json.dumps(start)}"]
                resolved = common.load(condition.recipe, of_base)
            else:
                resolved = finetune.load_task(common, condition.recipe, finetune.Start(start))
        except RecipeError as error:
            problems = [place(each, name, self.document) for each in error.problems]
            raise RecipeError(sorted(set(problems))) from error
        sets = [word for each in changes for word in ("--set", each)]
        return GridRun(where, resolved, [*words, *sets, "--out", str(self.out / where)])

    def _length(self, name: str) -> list[str]:
        steps = self.state["plans"].get(name, {}).get("equal_steps")
        return [] if steps is None else [f"train.steps={steps}"]

    def check(self) -> None:
        """Raise an error if a recipe, a file or a directory is wrong; nothing is begun."""
        for name in self.found.conditions:
            seeds = self.list_seeds(name)
            if self.found.find_trained(name) == name:
                runs = [*self.list_trials(name), *seeds]
                _sweep.check_surroundings(runs[0])
                for run in runs:
                    pretrain.check_directory(run.resolved, Common(), False)
            elif not _writes(seeds[0].resolved):
                what = "evaluates: its runs write no text, so nothing differs"
                raise RecipeError([self.document.locate(f"conditions.{name}.{what}")])
        for number, each in enumerate(self.found.expect):
            if what := self._find_lack(each.by, (each.first, each.than)):
                raise RecipeError([self.document.locate(f"expect.{number}.by: {what}")])

    def _find_lack(self, figure: str, names: Iterable[str]) -> str:
        """Return why a condition has no such figure, or an empty text."""
        try:
            table.find_sign(figure)
        except WrongScore as error:
            return error.what
        for name in names:
            resolved, evaluates = self.list_seeds(name)[0].resolved, self.found.conditions[name]
            if not (resolved.recipe.data.valid or resolved.recipe.data.valid_fraction):
                return f"{name} has no data.valid"
            if evaluates.evaluates and not table.is_score(figure):
                return f"{name} evaluates {evaluates.evaluates}, so both have the same {figure}"
            if not _has_figure(resolved, figure):
                known = "pairs with eval.pairs, scores with a task"
                return f"{name} has no {figure}; {', '.join(FIGURES)} are always there, {known}"
        return ""

    def plan(self, log: "Log") -> None:
        """Plan a run of each condition, if it is not planned yet: sizes, FLOPs, time, memory.

        Raises:
            UsageError: a condition cannot run, does not fit into memory, or has another size.
        """
        for name in self.found.conditions:
            condition = self.found.conditions[name]
            tuned = condition.start is not None or condition.evaluates is not None
            if name not in self.state["plans"] and not tuned:
                self.state["plans"][name] = self._plan(name)
                said = self.state["plans"][name]
                time, size = format_duration(said["seconds"]), format_bytes(said["memory"])
                log.info(
                    f"plan: {name}: {said['parameters']:,} parameters, {said['steps']:,} steps, "
                    f"{time}, {size}"
                )
        sizes = {name: each["parameters"] for name, each in self.state["plans"].items()}
        most = self.found.parameters
        if most is not None and max(sizes.values()) > (1 + most) * min(sizes.values()):
            said = ", ".join(f"{name} {size:,}" for name, size in sizes.items())
            raise RecipeError(
                [self.document.locate(f"parameters: sizes differ by more than {most:g}: {said}")]
            )

    def _plan(self, name: str) -> JsonObject:
        equal = self.found.equal
        run = self._make(name, 1, [], f"{name}/seed-1")
        described = _ask(["plan", *run.arguments[1:-2]], name)
        model, estimate = described["model"], described["estimate"]
        found: JsonObject = {"parameters": model["parameters"]}
        found["flops_per_step"] = model.get("flops_per_step")
        steps, tokens = estimate["steps"], estimate["tokens"]
        if equal is not None and (equal.tokens or equal.flops):
            per_step = model["flops_per_step"] if equal.flops else tokens / steps
            steps = int((equal.flops or equal.tokens or 0) / per_step)
            if steps < 1:
                raise UsageError(f"condition {name}: equal: a step has more: {per_step:,.0f}")
            found["equal_steps"] = steps
        if not estimate["fits"]:
            raise UsageError(f"condition {name}: does not fit into memory; see nlpkit plan")
        training = steps * estimate["seconds_per_step"]
        rest = estimate["evaluation_seconds"] + estimate["saving_seconds"]
        return found | {
            "steps": steps,
            "seconds": training + rest,
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
            runs = []
            for name in now:
                failed |= self._search(name, train)
                if self.found.list_rates(name) and name not in self.state["rates"]:
                    continue  # no rate was found
                runs.append([run for run in self.list_seeds(name) if self._has_base(name, run)])
            by_seed = [run for seed in zip(*runs, strict=False) for run in seed]
            by_seed += [run for of_one in runs for run in of_one if run not in by_seed]
            failed |= train(by_seed)
        self._score(end, jobs, log)
        return {name: code for name, code in failed.items() if code != DivergedError.exit_code}

    def _score(self, end: float | None, jobs: int, log: "Log") -> None:
        """Let `nlpkit eval` compute the scores that finished runs have not, and keep them.

        Raises:
            TryAgain: the time `end` is reached.
            UsageError: it failed.
        """

        def score(name: str, run: History, figures: list[str]) -> None:
            settings = (
                self.found.conditions[name].eval if self.found.find_trained(name) != name else {}
            )
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
            named = [e.by for e in self.found.expect if name in (e.first, e.than)]
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
        done = [run for run in runs if RunDirectory(run.path).finished()]
        scores = {r.resolved.recipe.train.lr: suite_table.read_score(r.path, LOSS) for r in done}
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
            trained = self.found.find_trained(name)
            rate = self.state["rates"].get(trained, {}).get("chosen")
            rates = self.found.list_rates(name)
            left = 0
            if rates and rate is None:
                trials = [self.out / name / "search" / f"lr-{each:g}" for each in rates]
                left = sum(not RunDirectory(path).finished() for path in trials)
            runs = table.read_runs(self.out, name, trained, self.found.seeds)
            plan = self.state["plans"].get(trained, {})
            found[name] = table.Measured(runs, self.found.seeds, plan, rate, left)
        return found


def _has_figure(resolved: "Resolved", figure: str) -> bool:
    """Return whether runs may have a figure after their last step."""
    if not table.is_score(figure):
        return figure != table.PAIRS or bool(resolved.recipe.eval.pairs)
    made = fit.classes(resolved.recipe.objective)
    own = any(figure in each.scores for each in made)
    return own or len(made) > 1 or issubclass(made[0], Task)


def _writes(resolved: "Resolved") -> bool:
    """Return whether the answers of a task are texts that the model writes."""
    made = fit.classes(resolved.recipe.objective)
    return any(issubclass(each, Task) and issubclass(each, Continues) for each in made)


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
