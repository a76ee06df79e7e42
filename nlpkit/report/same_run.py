"""Compares two runs of one recipe to the bit, and says at which step and figure they part.

Compared are tokenizers, what the text was turned into, each record of `metrics.jsonl`, and the
files of each checkpoint that both have. What measures time or memory is left out.
"""

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from nlpkit.checkpoints import files
from nlpkit.checkpoints.run_directory import METRICS, STATUS
from nlpkit.disk import file_sha256, read_json
from nlpkit.json_types import JsonMapping, JsonObject
from nlpkit.recipe.places import dotted, flatten
from nlpkit.report import history
from nlpkit.train.log import TIME_KEYS

# Facts of `run.json` that may explain a difference; what is not called by its name.
_VERSIONS = ("nlpkit", "code", "torch", "numpy", "tokenizers", "python")
_FACTS = (*_VERSIONS, "machine", "threads", "precision")
IN_WORDS = {"code": "source files of nlpkit", "machine": "processor"}
# Files of a checkpoint that are compared by their content, or have the version of nlpkit.
_NOT_HASHED = (files.TRAINING, files.EVALUATED, "nlpkit.json")
_HASH = "SHA-256"


@dataclass(frozen=True)
class Difference:
    """Where two runs differ: `there` is the first run, `here` the second; None: it has no value."""

    step: int
    file: str
    figure: str
    there: object
    here: object

    def __str__(self) -> str:
        values = [
            f"{str(value)[:12] if self.figure == _HASH else json.dumps(value)} {where}"
            for value, where in ((self.there, "there"), (self.here, "here"))
        ]
        return f"step {self.step}: {self.file}: {self.figure} {', '.join(values)}"


@dataclass(frozen=True)
class Comparison:
    """What two runs have in common, in steps, and all differences, the first step first.

    `facts` are those of the machine and of versions that differ, as [there, here].
    """

    steps: int
    records: int
    evaluations: int
    checkpoints: list[int]
    differences: list[Difference]
    facts: JsonObject


def compare(there: Path, here: Path, steps: int | None = None) -> Comparison:
    """Compare the run `here` with the run `there`, or only their first steps.

    Raises:
        FileError: one of them is no run, or is damaged.
    """
    runs = [history.read(path, str(path)) for path in (there, here)]
    old, new = runs
    last = steps
    if last is None:  # a run that was stopped where they part has no more steps
        ends = old.last_step, new.last_step
        last = max(ends) if new.status.get("finished") else min(ends)
    saved = [{each.step: each.path for each in files.list_checkpoints(p)} for p in (there, here)]
    common = sorted(step for step in saved[0].keys() & saved[1].keys() if step <= last)
    stateless = {
        step for step in common for p in saved if not files.training_file(p[step]).is_file()
    }
    values = [
        _list_figures(run, last) | _list_saved({step: paths[step] for step in common}, stateless)
        for run, paths in zip(runs, saved, strict=True)
    ]
    found = [
        Difference(*key, values[0].get(key), values[1].get(key))
        for key in {**values[0], **values[1]}
        if values[0].get(key) != values[1].get(key)
    ]
    found.sort(key=lambda each: each.step)
    facts = {
        name: [old.status.get(name), new.status.get(name)]
        for name in _FACTS
        if old.status.get(name) != new.status.get(name)
    }
    records = [each["step"] for each in new.steps if each["step"] <= last]
    evaluations = sum(step <= last for step in new.evaluations)
    return Comparison(max(records, default=0), len(records), evaluations, common, found, facts)


Figures = dict[tuple[int, str, str], object]  # step, file and figure -> value


def _list_figures(run: history.History, last: int) -> Figures:
    """Return the hashes of what a run has read, and its figures up to a step."""
    found: Figures = {
        (0, path.relative_to(run.path).as_posix(), _HASH): file_sha256(path)
        for path in sorted((run.path / "tokenizer").rglob("*"))
        if path.is_file()
    }
    found[0, f"{STATUS}: tokenised text", _HASH] = run.status.get("data")
    pairs = run.status.get("pairs") or {}  # of `eval.pairs`
    found |= {(0, f"{STATUS}: pairs", name): value for name, value in pairs.items()}
    for record in run.steps:
        found |= {(record["step"], METRICS, name): of for name, of in _flatten(record).items()}
    for step, figures in run.evaluations.items():
        record = _flatten(figures)
        found |= {(step, METRICS, f"held_out.{name}"): of for name, of in record.items()}
    return {key: value for key, value in found.items() if key[0] <= last}


def _flatten(record: JsonMapping) -> JsonObject:
    """Return the figures of a record that are not measured, those of its parts by dotted names."""
    return {dotted(k): value for k, value in flatten(record) if k[0] not in TIME_KEYS}


def _list_saved(checkpoints: Mapping[int, Path], stateless: Collection[int]) -> Figures:
    """Return the hashes and the state that checkpoints have, without times.

    Steps in `stateless` have none in one of the runs.
    """
    found: Figures = {}
    for step, path in checkpoints.items():
        manifest = json.loads((path / files.MANIFEST).read_text("utf-8"))["files"]
        for name in sorted(manifest.keys() - _NOT_HASHED):
            found[step, f"{path.name}/{name}", _HASH] = manifest[name]["sha256"]
            if name == "adapter_config.json":  # earlier versions wrote the same in another order
                text = json.dumps(read_json(path / name), sort_keys=True)
                found[step, f"{path.name}/{name}", _HASH] = sha256(text.encode()).hexdigest()
        if step in stateless:
            continue
        state = json.loads(files.training_file(path).read_text("utf-8"))["state"]
        for name in state.keys() - {"times"}:
            found[step, f"{path.name}/{files.TRAINING}", name] = state[name]
    return found
