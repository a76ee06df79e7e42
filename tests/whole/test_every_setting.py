"""Every setting of a model and of an objective on running text changes what is computed.

Each gets other values, alone: the weights at the start, the batch, the loss or its gradient must
differ, or the recipe is refused or warned of. The text is made up (`plan --no-data`), so no file is
read. A setting that needs more than that is in `ELSEWHERE`, with the reason.
"""

import hashlib
import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import pytest
import torch

from nlpkit import recipe, registry
from nlpkit.config import part_config
from nlpkit.contracts.task import Task
from nlpkit.errors import NlpkitError
from nlpkit.plan import without_data
from nlpkit.recipe.alternatives import families_for
from nlpkit.runs import build
from nlpkit.runs.run import Training
from nlpkit.train.machine import to_device

SIZES = {"hidden_size": 32, "num_layers": 4, "num_heads": 2, "intermediate_size": 24,
         "max_positions": 128}  # fmt: skip
MASKING = ("mlm", "rtd", "span", "tlm", "wwm")
ELSEWHERE = {
    **{f"{name}.masks": "the masks of the first epoch are the same" for name in MASKING},
    "clm.learn_unknown": "made-up text has no <unk>",
    "modernbert.pooling": "read by tasks that begin with the checkpoint",
    "rtd.whole_words": "made-up words have one token",
}


def _write(family: str, objective: str) -> dict[str, Any]:
    """Return a recipe of the smallest sizes."""
    fields = part_config("models", family).model_fields
    kind = "cpm_ant" if family == "cpm_ant" else "bpe" if family != "bert" else "wordpiece"
    sizes = {name: size for name, size in SIZES.items() if name in fields}
    return {
        "name": "x",
        "model": {"family": family} | sizes,
        "tokenizer": {"kind": kind, "vocab_size": 400},
        "data": {"train": "a.jsonl"},
        "objective": {"name": objective, "max_length": 96},
        "train": {"steps": 1, "tokens_per_step": 384, "schedule": "constant"},
    }


def _compute(data: dict[str, Any], name: str = "") -> str:
    """Return a hash of what a setting can change; "" if it is refused or said to have no effect."""
    try:
        resolved = recipe.parse(json.dumps(data).encode(), "r.yaml", Path())
        if any(f".{name}: has no effect" in line for line in resolved.warnings):
            return ""
        part = build.model_part(resolved)
        tokenizer = without_data._make_tokenizer(resolved, part)
        batch, _ = without_data._batch_of_text(resolved, part, tokenizer, 384)
        objective = build.bind_objective(resolved, tokenizer, part)
    except NlpkitError:
        if not name:
            raise
        return ""
    torch.manual_seed(1)
    model = build.build_model(part, tokenizer.vocab_size if tokenizer else 0, "auto")
    start = [each.detach().clone() for each in model.state_dict().values()]
    loss = Training(model, objective).train()(to_device(batch, torch.device("cpu")))
    total = sum(term.weight * term.loss_sum for term in loss.terms.values())
    total.backward()
    slopes = [each.grad for each in model.parameters() if each.grad is not None]
    fields = [torch.as_tensor(each) for _, each in sorted(batch.fields.items())]
    seen = hashlib.sha256()
    for tensor in (*start, *fields, total.detach(), *slopes):
        seen.update(f"{tuple(tensor.shape)}".encode() + tensor.numpy().tobytes())
    return seen.hexdigest()


def _others(kind: Any, value: Any) -> Iterator[Any]:
    """Yield other values of a setting; values that are not allowed are refused."""
    if kind is bool:
        yield not value
    elif kind is int:
        yield from (2 * value, value // 2, value + 1, 40) if value else (1, 4, 8)
    elif kind is float:
        yield from (value / 2, 1.5 * value, 0.01) if value else (1.0, 0.1)
    elif get_origin(kind) is Literal:
        yield from get_args(kind)
    elif not isinstance(value, list):
        for each in get_args(kind):
            yield from _others(each, value)


def _find_unused(folder: str, family: str, objective: str) -> list[str]:
    data = _write(family, objective)
    section, part = ("model", family) if folder == "models" else ("objective", objective)
    config = part_config(folder, part)
    first, unused = _compute(data), []
    for name, field in config.model_fields.items():
        value = data[section].get(name, field.default)
        others = [
            each for each in _others(field.annotation, value) if each not in (value, field.default)
        ]
        made = (_compute(data | {section: data[section] | {name: each}}, name) for each in others)
        if f"{part}.{name}" not in ELSEWHERE and others and all(each == first for each in made):
            unused.append(f"{part}.{name}")
    return unused


def _objective(name: str) -> Any:
    return registry.load("objectives", name).Objective


@cache
def _pairs() -> list[tuple[str, str, str]]:
    """Return families with an objective that trains each, and objectives with a family."""
    named = [
        name for name in registry.names("objectives") if not issubclass(_objective(name), Task)
    ]
    trained = {name: families_for(_objective(name)) for name in named}
    found = [("objectives", of[-1], name) for name, of in trained.items() if of]
    for family in registry.names("models"):
        able = [name for name, of in trained.items() if family in of and name != "reorder"]
        found += [("models", family, able[-1])] if able else []
    return found


@pytest.mark.fast_cases(4)
@pytest.mark.parametrize(("folder", "family", "objective"), _pairs())
def test_every_setting_changes_what_is_computed(folder: str, family: str, objective: str) -> None:
    assert _find_unused(folder, family, objective) == []
