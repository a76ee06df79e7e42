"""The runs of an experiment: planned, searched for their learning rates, trained, scored, read."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from nlpkit import recipe
from nlpkit.commands import _runs
from nlpkit.commands._options import Common
from nlpkit.commands._runs import Run, Runner
from nlpkit.commands._series import Series
from nlpkit.disk import read_json, user_path, write_json
from nlpkit.errors import DivergedError, NlpkitError, RecipeError, UsageError
from nlpkit.evaluate import experiment_table as table
from nlpkit.evaluate.experiment import Experiment, check_unchanged, place
from nlpkit.json_types import JsonObject
from nlpkit.recipe.places import Document
from nlpkit.train.state import LOSS
from nlpkit.units import format_bytes, format_duration

if TYPE_CHECKING:
    from nlpkit.models.adapter_config import Config as Adapters
    from nlpkit.recipe import Resolved
    from nlpkit.train.log import Log

STATE = "experiment.json"


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

    def make_series(self, name: str) -> Series:
        """Return the runs of a condition."""
        trained, changes = self.found.find_trained(name), self.found.list_changes(name, self.folder)
        condition, base = self.found.conditions[trained], self.found.find_base(trained)
        if condition.start is not None and base is None:
            changes.insert(0, f"init_from={json.dumps(condition.start)}")
        if self.found.counts_steps(trained) and trained in self.state["plans"]:
            changes.append(f"train.steps={self.state['plans'][trained]['steps']}")
        return Series(
            *(trained, condition.recipe, self.out, self.common, changes),
            explain=partial(place, name=name, document=self.document),
            seeds=range(1, self.found.seeds + 1),
            rates=self.found.list_rates(name),
            base=None if base is None else self.out / base,
        )

    def check(self) -> None:
        """Raise an error if a recipe, a file or a directory is wrong; nothing is begun."""
        first = {}
        for name, condition in self.found.conditions.items():
            series = self.make_series(name)
            try:
                recipe.find(series.recipe)
            except NlpkitError as error:
                trained = self.found.find_trained(name)
                said = self.document.locate(f"conditions.{trained}.recipe: {error}")
                raise type(error)(said) from error
            runs = series.list_runs(self.find_rate(name))
            first[name] = runs[0].resolved
            if condition.evaluates is None:
                _runs.check([*series.list_trials(series.rates), *runs], self.common)
            elif not table.writes_text(first[name]):
                what = "evaluates: its runs write no text, so nothing differs"
                raise RecipeError([self.document.locate(f"conditions.{name}.{what}")])
        for number, each in enumerate(self.found.expect):
            for name in each.conditions:
                lack = table.find_lack(each.by, self.found.conditions[name], first[name])
                if lack is not None:
                    what = f"expect.{number}.by: {lack.format(name)}"
                    raise RecipeError([self.document.locate(what)])

    def plan(self, log: "Log") -> None:
        """Plan a run of each condition, if it is not planned yet: sizes, FLOPs, time, memory.

        Raises:
            UsageError: a condition cannot run, does not fit into memory, or has another size.
        """
        plans, sizes = self.state["plans"], {}
        for name, condition in self.found.conditions.items():
            if condition.evaluates is not None:
                continue
            if name not in plans:
                plans[name] = said = self._plan(name)
                size, trained = said["parameters"], said["trained_parameters"]
                log.info(
                    f"plan: {name}: {size:,} parameters, "
                    f"{f'{trained:,} of them trained, ' if trained < size else ''}"
                    f"{said['steps']:,} steps, {format_duration(said['seconds'])}, "
                    f"{format_bytes(said['peak_memory_bytes'])}"
                )
            if condition.start is None:
                sizes[name] = plans[name]["parameters"]
        most = self.found.parameters
        if most is not None and max(sizes.values()) > (1 + most) * min(sizes.values()):
            listed = ", ".join(f"{name} {size:,}" for name, size in sizes.items())
            what = f"parameters: sizes differ by more than {most:g}: {listed}"
            raise RecipeError([self.document.locate(what)])

    def _plan(self, name: str) -> JsonObject:
        series, base = self.make_series(name), self.found.find_base(name)
        resolved = series.make(1, "seed-1").resolved
        adapters = resolved.recipe.lora if base else None
        if base is not None:  # not trained yet: the model is that of the first base, untrained
            while (before := self.found.find_base(base)) is not None:
                base = before
            described = self.make_series(base).make(1, "seed-1").resolved.dump()
            keys = ("init_from", "model", "attention", "tokenizer")
            sets = [f"{key}={json.dumps(described[key])}" for key in keys]
            resolved = series.make(1, "seed-1", [*sets, "lora=null"]).resolved
        named = [each for each in self.found.conditions if self.found.find_trained(each) == name]
        figures = [figure for each in named for figure in self.found.list_figures(each)]
        said = _runs.call(_estimate, resolved, adapters, self.common.device, figures)
        if isinstance(said, str):
            raise UsageError(f"condition {name}: {said}")
        steps, equal = said["steps"], self.found.equal
        if self.found.counts_steps(name):
            assert equal is not None
            per_step = said["flops_per_step"] if equal.flops else said["tokens"] / steps
            steps = int((equal.flops or equal.tokens or 0) / per_step)
            if steps < 1:
                raise UsageError(f"condition {name}: equal: a step has more: {per_step:,.0f}")
        rest = said["evaluation_seconds"] + said["saving_seconds"]
        seconds = steps * said["seconds_per_step"] + rest
        keys = ("parameters", "trained_parameters", "flops_per_step", "peak_memory_bytes")
        return {key: said[key] for key in keys} | {"steps": steps, "seconds": seconds}

    def train(self, runner: Runner) -> dict[str, int]:
        """Train what is left, conditions after those that they begin with; return what failed.

        A run that diverged is not trained again.
        """
        failed: dict[str, int] = {}
        waiting = [name for name, each in self.found.conditions.items() if not each.evaluates]
        while waiting:
            now = [name for name in waiting if self.found.find_base(name) not in waiting]
            waiting = [name for name in waiting if name not in now]
            runs: list[Run] = []
            for name in now:
                series = self.make_series(name)
                if series.rates and name not in self.state["rates"]:
                    rates, wrong = series.search(LOSS, runner.train)
                    failed |= wrong
                    if rates["chosen"] is None:
                        continue
                    self.state["rates"][name] = rates
                    self.write_state()
                runs += filter(series.is_ready, series.list_runs(self.find_rate(name)))
            failed |= runner.train(sorted(runs, key=lambda run: run.resolved.recipe.seed))
            failed |= runner.train(self._list_scorings())
        return {name: code for name, code in failed.items() if code != DivergedError.exit_code}

    def _list_scorings(self) -> list[Run]:
        """Return the calls of `nlpkit eval` for the scores that finished runs have not."""
        runs = []
        for name, each in table.measure(self.found, self.out, self.state).items():
            condition = self.found.conditions[name]
            named = {f for f in self.found.list_figures(name) if table.is_score(f)}
            for run in each.list_runs("finished"):
                if not (lacks := sorted(named - {*run.final})):
                    continue
                words = ["eval", str(run.path / "checkpoints" / "latest"), "--json", "-q"]
                words += ["--metrics", ",".join(lacks), "--device", self.common.device]
                # A run knows its own settings.
                for key, value in (condition.eval if condition.evaluates else {}).items():
                    words += [f"--{key.replace('_', '-')}", str(value)]
                resolved = self.make_series(name).make(1, "seed-1").resolved
                output = self.out / run.label / table.SCORES
                runs.append(Run(f"{run.label}: scores", resolved, words, output))
        return runs


def _estimate(
    resolved: "Resolved", adapters: "Adapters | None", device: str, figures: Sequence[str]
) -> JsonObject | str:
    """Return what `nlpkit plan` says of a run, or why it cannot run or have these figures.

    An untrained model gets `adapters`.
    """
    from nlpkit import plan as planning
    from nlpkit.models import lora
    from nlpkit.plan.probe import probe
    from nlpkit.train.log import Log

    try:
        plan = planning.make(resolved, user_path(resolved.recipe.out), device, Log(0))
        for figure in figures:
            table.check_readable(figure, plan.data.objective)
        if adapters is not None:
            targets = lora.find_targets(adapters, plan.part.module(), plan.part.config)
            part = replace(plan.part, lora=adapters, targets=targets, base_hash="")
            plan = replace(plan, part=part)
        found = planning.describe(plan)["model"] | probe(plan)
    except NlpkitError as error:
        return str(error)
    return found if found["fits"] else str(found["advice"])
