"""Compares two runs of one recipe to the bit, and says at which step and figure they part.

Compared are tokenizers, what the text was turned into, each record of `metrics.jsonl`, and the
files of each checkpoint that both have. What measures time or memory is left out.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open

from nlpkit.checkpoints import files
from nlpkit.checkpoints.run_directory import METRICS, STATUS
from nlpkit.disk import file_sha256
from nlpkit.json_types import JsonMapping, JsonObject
from nlpkit.report import history
from nlpkit.report.history import History

# What is measured, of a record of `metrics.jsonl`.
_MEASURED = ("seconds", "tokens_per_second", "memory_bytes", "spent")
# Facts of `run.json` that may explain a difference, in words.
FACTS = {
    "nlpkit": "nlpkit",
    "code": "source files of nlpkit",
    "torch": "torch",
    "python": "python",
    "machine": "processor",
    "threads": "threads",
    "precision": "precision",
}
# Files of a checkpoint with the state of the run: of a budget of time, also its times.
_STATES = (files.TRAINING, files.EVALUATED)


@dataclass(frozen=True)
class Difference:
    """Where two runs differ: `there` is the first run, `here` the second."""

    step: int
    file: str
    figure: str
    there: object
    here: object

    def __str__(self) -> str:
        figure = f"{self.figure} " if self.figure else ""
        values = f"{_short(self.there)} there, {_short(self.here)} here"
        return f"step {self.step}: {self.file}: {figure}{values}"


@dataclass(frozen=True)
class Comparison:
    """What two runs have in common, in steps, and all differences, the first step first."""

    steps: int
    records: int
    evaluations: int
    checkpoints: list[int]
    differences: list[Difference]


def _short(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text[:12] if len(text) == 64 and text.isalnum() else text


def compare(there: Path, here: Path, steps: int | None = None) -> Comparison:
    """Compare the run `here` with the run `there`, or only their first steps.

    Raises:
        FileError: one of them is no run, or is damaged.
    """
    old, new = (history.read(path, str(path)) for path in (there, here))
    last = min(old.last_step, new.last_step) if steps is None else steps
    if new.status.get("finished"):  # also a run that ends before the other one
        last = max(last, old.last_step) if steps is None else last
    found = [*_compare_text(old, new), *_compare_records(old, new, last)]
    common = sorted(_checkpoints(there).keys() & _checkpoints(here).keys())
    common = [step for step in common if step <= last]
    for step in common:
        found += _compare_checkpoints(step, _checkpoints(there)[step], _checkpoints(here)[step])
    records = [each["step"] for each in new.steps if each["step"] <= last]
    evaluations = sum(step <= last for step in new.evaluations)
    reached = max(records, default=0)
    found.sort(key=lambda each: each.step)
    return Comparison(reached, len(records), evaluations, common, found)


def _checkpoints(run: Path) -> dict[int, Path]:
    return {each.step: each.path for each in files.list_checkpoints(run)}


def _compare_text(old: History, new: History) -> Iterator[Difference]:
    folders = [each.path / "tokenizer" for each in (old, new)]
    names = {
        path.relative_to(folder).as_posix()
        for folder in folders
        for path in folder.rglob("*")
        if path.is_file()
    }
    for name in sorted(names):
        hashes = [file_sha256(f / name) if (f / name).is_file() else None for f in folders]
        if hashes[0] != hashes[1]:
            yield Difference(0, f"tokenizer/{name}", "SHA-256", *hashes)
    texts = old.status.get("data"), new.status.get("data")
    if texts[0] != texts[1]:
        yield Difference(0, STATUS, "hash of the tokenised text", *texts)


def _compare_records(old: History, new: History, last: int) -> Iterator[Difference]:
    """Yield the first difference of the records of steps, and of the evaluations."""
    steps = [{r["step"]: _flatten(r) for r in run.steps} for run in (old, new)]
    held_out = [{n: _flatten(e) for n, e in run.evaluations.items()} for run in (old, new)]
    for (there, here), before in ((steps, ""), (held_out, "held_out.")):
        for step in sorted(there.keys() | here.keys()):
            if step > last:
                break
            if (one := there.get(step)) == (other := here.get(step)):
                continue
            if one is None or other is None:
                what = f"{before}record"
                yield Difference(step, METRICS, what, one and "there is one", other and "one")
            else:
                name = next(k for k in {**one, **other} if one.get(k) != other.get(k))
                yield Difference(step, METRICS, before + name, one.get(name), other.get(name))
            break


def _flatten(record: JsonMapping) -> JsonObject:
    """Return the figures of a record that are not measured, those of its parts by dotted names."""
    flat: JsonObject = {}
    for name, value in record.items():
        if isinstance(value, dict):
            flat |= {f"{name}.{key}": inside for key, inside in value.items()}
        elif name not in _MEASURED:
            flat[name] = value
    return flat


def _compare_checkpoints(step: int, there: Path, here: Path) -> Iterator[Difference]:
    manifests = [json.loads((path / files.MANIFEST).read_text("utf-8")) for path in (there, here)]
    old, new = (manifest["files"] for manifest in manifests)
    for name in sorted(old.keys() | new.keys()):
        if name in _STATES or (one := _sha(old, name)) == (other := _sha(new, name)):
            continue
        if one and other and name.endswith(".safetensors"):
            tensor, values = _find_tensor(there / name, here / name)
            if tensor:
                yield Difference(step, f"{here.name}/{name}", tensor, *values)
                continue
        if name == "nlpkit.json" and _is_same_note(there / name, here / name):
            continue
        yield Difference(step, f"{here.name}/{name}", "SHA-256", one, other)
    before, now = _state(there), _state(here)
    for name in {**before, **now}:
        if before.get(name) != now.get(name):
            place = f"{here.name}/{files.TRAINING}"
            yield Difference(step, place, name, before.get(name), now.get(name))


def _sha(manifest: Mapping[str, JsonMapping], name: str) -> str | None:
    return manifest[name]["sha256"] if name in manifest else None


def _is_same_note(*paths: Path) -> bool:
    """Return whether notes are equal but for the version of nlpkit."""
    one, other = (json.loads(path.read_text("utf-8")) | {"nlpkit": None} for path in paths)
    return bool(one == other)


def _state(checkpoint: Path) -> JsonObject:
    """Return the state of a run that `training.json` has, without times."""
    state: JsonObject = json.loads(files.training_file(checkpoint).read_text("utf-8"))["state"]
    return {name: value for name, value in state.items() if name != "times"}


def _find_tensor(there: Path, here: Path) -> tuple[str, tuple[object, object]]:
    """Return the first tensor that differs, and its first value that does, in both files."""
    try:
        with safe_open(there, "np") as old, safe_open(here, "np") as new:
            for name in sorted({*old.keys(), *new.keys()}):
                if name not in old.keys() or name not in new.keys():  # noqa: SIM118
                    return name, (name in old.keys(), name in new.keys())  # noqa: SIM118
                one, other = old.get_tensor(name), new.get_tensor(name)
                if one.shape != other.shape:
                    return name, (list(one.shape), list(other.shape))
                one, other = one.reshape(-1), other.reshape(-1)
                differ = np.flatnonzero(one.view(np.uint8) != other.view(np.uint8))
                if len(differ):
                    at = differ[0] // one.itemsize
                    return f"{name}[{at}]", (float(one[at]), float(other[at]))
    except (SafetensorError, TypeError, OSError):  # bfloat16, which numpy does not have
        pass
    return "", (None, None)


def explain(there: JsonMapping, here: JsonMapping) -> tuple[JsonObject, list[str]]:
    """Return the facts of `run.json` that differ, as [there, here], and those unknown there."""
    if "code" not in there:  # of such a run, it is the architecture alone
        there = {name: value for name, value in there.items() if name != "machine"}
    unknown = [name for name in FACTS if name not in there]
    differ = {
        name: [there[name], here.get(name)]
        for name in FACTS
        if name in there and there[name] != here.get(name)
    }
    return differ, unknown
