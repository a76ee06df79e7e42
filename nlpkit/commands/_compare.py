"""The runs of an experiment: planned, searched for their learning rates, trained, scored."""

import json
import math
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from nlpkit import registry
from nlpkit.checkpoints import files
from nlpkit.checkpoints.nearest import suggest_start
from nlpkit.commands._options import Common
from nlpkit.commands._runs import Run, Runner, call
from nlpkit.commands._series import Series
from nlpkit.contracts.abilities import Continues
from nlpkit.contracts.task import Task
from nlpkit.disk import read_json, user_path, write_json
from nlpkit.errors import DivergedError, FileError, NlpkitError, RecipeError, UsageError
from nlpkit.evaluate import experiment_table as table
from nlpkit.evaluate.experiment import PAIRS, PART, Experiment, Sections, is_score
from nlpkit.evaluate.suite import place, without_target
from nlpkit.json_types import JsonObject
from nlpkit.models.adapter_config import Config as Adapters
from nlpkit.recipe import Resolved
from nlpkit.recipe.places import Document
from nlpkit.report.history import FIGURES
from nlpkit.score import named
from nlpkit.train.log import Log
from nlpkit.train.state import LOSS
from nlpkit.units import format_bytes, format_duration

if TYPE_CHECKING:
    from nlpkit.runs.planned import Planned

_PRECISION = "train.precision"


@dataclass
class Runs:
    """The runs of an experiment in a folder; `state` is what is known beside them."""

    found: Experiment
    document: Document
    out: Path
    folder: str
    common: Common
    state: JsonObject = field(default_factory=lambda: {"plans": {}, "rates": {}})

    def __post_init__(self) -> None:
        """Read what earlier calls have planned and searched; raise an error if the file changed."""
        if self.out.is_file():
            raise FileError(f"{self.out}: is a file, not a directory")
        if (path := self.out / table.STATE).is_file():
            self.state |= read_json(path)
            try:
                self.found.check_unchanged(self.state["file"], self.document, self.out)
            except (KeyError, ValueError) as error:  # of pydantic, too
                what = "no record of this experiment; give another --out"
                raise FileError(f"{path}: {what}") from error
        else:
            self.found.check_decided(self.document)

    def write_state(self) -> None:
        """Write it, with the file as it is now."""
        self.out.mkdir(parents=True, exist_ok=True)
        self.state |= {"file": self.found.dump(), "hash": self.found.hash()}
        write_json(self.out / table.STATE, self.state)

    def make_series(self, name: str) -> Series:
        """Return the runs of a condition."""
        trained = self.found.find_trained(name)
        base, plan = self.found.find_base(trained), self.state["plans"].get(trained, {"steps": 1})
        changes = self.found.list_changes(name, self.folder, plan["steps"])
        if chosen := plan.get(_PRECISION):  # `auto` times batches: seeds may differ
            changes.append(f"{_PRECISION}={chosen}")
        return Series(
            *(trained, self.found.conditions[trained].recipe, self.out, self.common),
            changes=changes,
            explain=partial(
                place, entry=("conditions", name), title=f"condition {name}", document=self.document
            ),
            seeds=self.found.seed_numbers,
            rates=self.found.list_rates(name),
            rate=self.state["rates"].get(trained, {}).get("chosen"),
            base=None if base is None else self.out / base,
        )

    def plan(self, log: Log) -> None:
        """Check all, then plan a run of each condition that is not planned yet; begin nothing."""
        objectives: dict[str, str] = {}
        tokenizers: dict[str, str] = {}  # of those whose loss is one of tokens
        judged: dict[str, tuple[str, str]] = {}  # the text and the pairs that each is judged by
        for name in self.found.conditions:
            series = self.make_series(name)
            runs = [*series.list_trials(series.rates), *series.list_runs()]
            if name in self.found.trained:
                self._check_start(name)
                series.check(runs)
            recipe = runs[-1].resolved.recipe
            objectives[name] = "+".join(each.name for each in recipe.objective)
            parts = {"valid"} if recipe.data.valid else {"train", "valid_fraction", "valid_group"}
            judged[name] = recipe.data.model_dump_json(include=parts), str(recipe.eval.pairs)
            if recipe.tokenizer and any(each.objective.predicts_text for each in recipe.objective):
                tokenizers[name] = recipe.tokenizer.model_dump_json()
        least = 1 / math.comb(2 * self.found.seeds, self.found.seeds)  # p that so many can reach
        if least > self.found.rule.level and any(each.better for each in self.found.expect):
            log.warn(f"seeds: {self.found.seeds}: too few for a verdict on what is better")
        for number, each in enumerate(self.found.expect):
            sides = (each.better or each.same, each.than)
            one, other = (", ".join(sorted({objectives[n] for n in side})) for side in sides)
            if each.by in FIGURES and one != other:
                what = f"{each.by} of {one} and of {other}: their targets may differ"
                log.warn(f"expect.{number}.by: {what}")
            texts = [{judged[name][each.by == PAIRS] for name in side} for side in sides]
            if texts[0] != texts[1]:
                log.warn(f"expect.{number}.by: {each.by} is of other held-out data on each side")
            first, than = ({tokenizers.get(name) for name in side} for side in sides)
            if each.by in FIGURES[:2] and first != than and None not in first | than:
                what = f"{each.by} is of tokens, of other tokenizers; take bits_per_character"
                log.warn(f"expect.{number}.by: {what}")
        plans = self.state["plans"]
        for name in self.found.trained:
            if name not in plans:
                plans[name] = said = self._plan(name)
                memory = format_bytes(said["peak_memory_bytes"])
                size = f"{said['parameters']:,} parameters, {said['trained_parameters']:,} of them"
                cost = f"{said['steps']:,} steps, {format_duration(said['seconds'])}, {memory}"
                log.info(f"plan: {name}: {size} trained, {cost}")
        if len(kinds := {each[_PRECISION] for each in plans.values() if _PRECISION in each}) > 1:
            what = f"auto has chosen {' and '.join(sorted(kinds))}"
            log.warn(f"{_PRECISION}: {what} for conditions; to compare them in one, set it")
        starts = [name for name in self.found.trained if not self.found.conditions[name].start]
        tops = {*Sections.model_fields, "equal", "parameters"} & self.found.model_fields_set
        for key in sorted(tops) if not starts else ():
            log.warn(self.document.locate(f"{key}: has no effect: all conditions have from"))
        sizes = {name: plans[name]["parameters"] for name in starts}
        most = self.found.parameters
        if most is not None and sizes and max(sizes.values()) > (1 + most) * min(sizes.values()):
            listed = ", ".join(f"{name} {size:,}" for name, size in sizes.items())
            what = f"parameters: sizes differ by more than {most:g}: {listed}"
            raise RecipeError([self.document.locate(what)])

    def _check_start(self, name: str) -> None:
        start, known = self.found.conditions[name].start, self.found.list_before(name)
        if start is None or start in known:
            return
        path = user_path(start)
        if not (path.exists() or files.find_named(path)):
            near = registry.suggest(start, known) or suggest_start(path)
            what = f"{start} is no condition before it, and no checkpoint{near}"
            raise FileError(self.document.locate(f"conditions.{name}.from: {what}"))

    def _plan(self, name: str) -> JsonObject:
        resolved, adapters = self._resolve(name)
        try:
            said = call(_estimate, resolved, adapters, self.common.device, self.found, name)
        except NlpkitError as error:
            series = self.make_series(name)
            is_option = str(error).startswith("--device")
            if not (is_option or series.locate(error, series.make(1, "seed-1"))):
                error.args = (self.document.locate(f"conditions.{name}: {error}"),)
            raise
        if isinstance(said, str):
            raise RecipeError([self.document.locate(said)])
        steps, equal = said["steps"], self.found.equal
        if equal is not None and self.found.conditions[name].start is None:
            steps = equal.count_steps(said)
            key, has = "tokens", f"{said['tokens']:,} tokens"
            if equal.flops:
                key, has = "flops", f"{said['flops_per_step']:.3g} FLOPs"
            if not steps:
                what = f"equal.{key}: a step of {name} has more: {has}"
                raise RecipeError([self.document.locate(what)])
        rest = said["evaluation_seconds"] + said["saving_seconds"]
        seconds = steps * said["seconds_per_step"] + rest
        found = said | {"steps": steps, "seconds": seconds}
        if resolved.recipe.train.precision == "auto":
            found[_PRECISION] = said["precision"].split()[0]
        return found

    def _resolve(self, name: str) -> tuple[Resolved, Adapters | None]:
        """Return the recipe to plan and its adapters; a base without weights yet is untrained."""
        series, base = self.make_series(name), self.found.find_base(name)
        resolved = series.make(1, "seed-1").resolved
        if base is None:
            return resolved, None
        described = without_target(self._resolve(base)[0].dump())
        keys = ("init_from", "model", "attention", "tokenizer")
        sets = [f"{key}={json.dumps(described[key])}" for key in keys]
        return series.make(1, "seed-1", [*sets, "lora=null"]).resolved, resolved.recipe.lora

    def train(self, runner: Runner) -> dict[str, int]:
        """Train what is left, bases first, and nothing that diverged; return what failed."""
        failed: dict[str, int] = {}
        waiting = self.found.trained
        while waiting:
            now = [name for name in waiting if self.found.find_base(name) not in waiting]
            waiting = [name for name in waiting if name not in now]
            runs: list[Run] = []
            for name in now:
                series = self.make_series(name)
                if series.rates and series.rate is None:
                    self.state["rates"][name], wrong = series.search(LOSS, runner.train)
                    self.write_state()
                    failed |= wrong
                    series = self.make_series(name)
                runs += filter(series.is_ready, series.list_runs())
            failed |= runner.train(sorted(runs, key=lambda run: run.resolved.recipe.seed))
            failed |= runner.train(self._list_scorings())
        return {name: code for name, code in failed.items() if code != DivergedError.exit_code}

    def _list_scorings(self) -> list[Run]:
        """Return the calls of `nlpkit eval` for the scores that finished runs have not."""
        runs = []
        for name, each in table.measure(self.found, self.out, self.state).items():
            scores = {e.by for e in self.found.expect if name in e.conditions and is_score(e.by)}
            scores |= {*each.plan.get("written", ())}  # the table has them of all conditions
            own = {} if name in self.found.trained else self.found.conditions[name].eval
            more = [f"--{key.replace('_', '-')}={value}" for key, value in own.items()]
            resolved = self.make_series(name).make(1, "seed-1").resolved
            for run in each.list_runs("finished"):
                if lacks := sorted(scores - {*run.final}):
                    words = ["eval", str(run.path / "checkpoints" / "latest"), "--json", "-q"]
                    words += ["--metrics", ",".join(lacks), "--device", self.common.device, *more]
                    output = self.out / run.label / table.SCORES
                    runs.append(Run(f"{run.label}: scores", resolved, words, output))
        return runs


def _estimate(
    resolved: Resolved, adapters: Adapters | None, device: str, found: Experiment, name: str
) -> JsonObject | str:
    """Return what `nlpkit plan` says, the model with `adapters`, or a setting and its mistake."""
    from nlpkit import plan as planning
    from nlpkit.models import lora
    from nlpkit.plan.probe import probe

    try:
        plan = planning.make(resolved, user_path(resolved.recipe.out), device, Log(0))
        for number, each in enumerate(found.expect):
            for other in each.conditions:
                lack = _find_lack(each.by, plan, name != other)
                if lack is not None and found.find_trained(other) == name:
                    return f"expect.{number}.by: {other} {lack}"
        if adapters is not None:
            targets = lora.find_targets(adapters, plan.part.module(), plan.part.config)
            part = replace(plan.part, lora=adapters, targets=targets, base_hash="")
            plan = replace(plan, part=part)
        said = planning.describe(plan)["model"] | probe(plan)
        if isinstance(plan.data.objective, Continues):
            scores = {each.by for each in found.expect if is_score(each.by)}
            said["written"] = sorted(e for e in scores if _find_lack(e, plan, False) is None)
    except RecipeError as error:  # which cannot be sent from process to process
        raise UsageError(str(error)) from None
    return said if said["fits"] else f"conditions.{name}: {said['advice']}"


def _find_lack(figure: str, plan: "Planned", evaluates: bool) -> str | None:
    """Return why runs do not have a figure after their last step, or None if they do."""
    objective = plan.data.objective
    if plan.data.held_out is None:
        return "has no data.valid"
    writes = isinstance(objective, Continues)
    if evaluates and not (writes and is_score(figure)):
        return f"has the same {figure} as the runs that it evaluates"
    parts = [part for part in objective.parts if part not in objective.scores]
    has = [LOSS, *(f"{PART}{part}" for part in parts), *objective.scores]
    has += FIGURES[1:] if objective.predicts_text else ()
    if figure in has:
        return None
    if figure == PAIRS:
        return "has no pairs; name their files: eval: {pairs: [FILE]}"
    if not (isinstance(objective, Task) and is_score(figure)):
        return f"has no {figure}; it has {', '.join(has)}"
    answers = objective.config.setting("labels") or (["one", "two"] if writes else ["0", "1"])
    return named.explain_unreadable(figure, answers)
