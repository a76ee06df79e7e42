"""LoRA adapters in peft's layout: `adapter_config.json` and `adapter_model.safetensors`.

nlpkit writes them with the `config.json` of the merged model, and merges them into their base when
it reads them. A directory that peft wrote may have no `config.json`, notes or tokenizer: then the
files of the base are used.
"""

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from torch import Tensor
from torch.nn import functional as F

from nlpkit.checkpoints import hf_layout
from nlpkit.checkpoints.peft_merge import PREFIX, heads_of, merged, name_in_base, tables_of
from nlpkit.config import FrozenConfig
from nlpkit.disk import read_json
from nlpkit.errors import FileError
from nlpkit.models import families, hf_format, lora
from nlpkit.models.head import CHOICE, HEAD, SEQUENCE, task_head
from nlpkit.models.hf_format import HfFormat
from nlpkit.models.lora_config import Config

# peft's `task_type` by the kind of task; other layers have none.
_TASK_TYPES = {
    SEQUENCE: "SEQ_CLS",
    CHOICE: "SEQ_CLS",
    "token_classification": "TOKEN_CLS",
    "question_answering": "QUESTION_ANS",
}
SETTINGS, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"


def write(
    directory: Path,
    family: str,
    model_config: FrozenConfig,
    config: Config,
    targets: Mapping[str, str],
    weights: Mapping[str, Tensor],
    tables: Mapping[str, Tensor],
    base: Path,
    head_kind: str = SEQUENCE,
    *,
    grown: bool = False,
) -> None:
    """Write `adapter_config.json` and `adapter_model.safetensors` in the format of peft.

    Args:
        model_config: an object of the family's `Config`.
        targets: the layers with adapters: our name -> the name in transformers.
        weights: the model's state dict; the adapters and the task's output layer are saved.
        tables: the embedding tables of the base by transformers' names.
        base: the base checkpoint of the adapters.
        head_kind: the kind of task of the output layer.
        grown: the vocabulary is larger than that of the base: the tables are saved, too.
    """
    tensors = {}
    module = families.load_model(family)
    form = module.FORMAT
    has_head = HEAD in weights
    for ours, theirs in targets.items():
        for matrix, name in lora.matrices_of(ours).items():
            tensors[f"{PREFIX}{hf_format.in_memory(form, theirs)}.{matrix}"] = weights[name]
    linear = {
        ours: hf_format.in_memory(form, theirs)
        for ours, theirs in hf_format.linear_names(form, module.Model, model_config).items()
    }
    target_modules = _target_modules(linear.values(), [linear[n] for n in targets if n in linear])
    if lora.TABLE in targets:
        layer = hf_format.in_memory(form, targets[lora.TABLE])
        names = _output_layers(form, weights) if not has_head else []
        tensors |= _of_table(tensors, layer, names, _table(tables, targets[lora.TABLE]))
        target_modules += [layer, *names]
    heads = task_head(module, head_kind).names
    if has_head:
        tensors |= {f"{PREFIX}{theirs}": weights[ours] for ours, theirs in heads.items()}
    if grown:
        adapted = f"{targets.get(lora.TABLE)}.weight"
        base_layer = adapted.replace(".weight", ".base_layer.weight")
        for name, table in tables.items():
            tensors[f"{PREFIX}{base_layer if name == adapted else name}"] = table
    transposed = [hf_format.is_transposed(form, targets[n]) for n in targets if n in linear]
    settings = {
        "peft_type": "LORA",
        "task_type": _TASK_TYPES.get(head_kind) if has_head else _type_of_lm(form.architecture),
        "base_model_name_or_path": str(base),
        "r": config.rank,
        "lora_alpha": config.alpha,
        "lora_dropout": config.dropout,
        "target_modules": target_modules,
        "fan_in_fan_out": bool(transposed) and all(transposed),
        "bias": "none",
        "modules_to_save": _modules_of(heads.values()) if has_head else None,
        "inference_mode": True,
    }
    (directory / SETTINGS).write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
    hf_layout.save_tensors(directory / WEIGHTS, tensors, {"format": "pt"})


def _type_of_lm(architecture: str) -> str | None:
    """Return peft's `task_type` of a model without a task's layer; none of an encoder."""
    if architecture.endswith(("ForConditionalGeneration", "MTModel")):
        return "SEQ_2_SEQ_LM"
    return "CAUSAL_LM" if architecture.endswith(("ForCausalLM", "LMHeadModel")) else None


def _table(tables: Mapping[str, Tensor], layer: str) -> Tensor:
    return tables[f"{layer}.weight" if f"{layer}.weight" in tables else layer]


def _of_table(
    tensors: Mapping[str, Tensor], layer: str, outputs: Iterable[str], table: Tensor
) -> dict[str, Tensor]:
    """Return the adapter of the table of tokens as peft wants it.

    A has a column for each row of transformers' `table`, which may have rows of soft prompts. An
    output layer whose weight is the table has the same adapter, with A and B in turned places.
    """
    a, b = (tensors[f"{PREFIX}{layer}.{name}"] for name in (lora.TABLE_A, lora.TABLE_B))
    found = {f"{PREFIX}{layer}.{lora.TABLE_A}": F.pad(a, (0, len(table) - a.shape[1]))}
    for output in outputs:
        found[f"{PREFIX}{output}.lora_A.weight"] = b.T.contiguous()
        found[f"{PREFIX}{output}.lora_B.weight"] = a.T.contiguous()
    return found


def _output_layers(form: HfFormat, weights: Iterable[str]) -> list[str]:
    """Return transformers' layers whose weight is the table of tokens, too."""
    copies = [theirs for theirs, ours in form.copies.items() if ours == lora.TABLE]
    names = copies if "output_embedding" not in weights else []
    return [hf_format.in_memory(form, name.removesuffix(".weight")) for name in names]


def _modules_of(names: Iterable[str]) -> list[str]:
    """Return the smallest module that has all these parameters, or the module of each."""
    modules = sorted({name.rpartition(".")[0] for name in names})
    common = os.path.commonpath([PurePosixPath(*module.split(".")) for module in modules])
    return [common.replace("/", ".")] if common else modules


def _target_modules(linear: Iterable[str], targets: Iterable[str]) -> list[str]:
    """Return name suffixes that match, of the `linear` layers, all targets and nothing else."""
    short = {theirs.rpartition(".")[2] for theirs in targets}
    matched = {name for name in linear if name.rpartition(".")[2] in short}
    return sorted(short if matched == set(targets) else targets)


def read_state(
    directory: Path, family: str, targets: Mapping[str, str], vocab_size: int
) -> dict[str, Tensor]:
    """Return the part of the state dict that nlpkit saved in a directory of adapters.

    Raises:
        KeyError: an adapter is missing.
    """
    tensors = {
        name.replace(".base_layer.", "."): tensor
        for name, tensor in _read_tensors(directory).items()
    }
    form = families.load_model(family).FORMAT
    state = {
        name: tensors[f"{PREFIX}{hf_format.in_memory(form, theirs)}.{matrix}"]
        for ours, theirs in targets.items()
        for matrix, name in lora.matrices_of(ours).items()
    }
    table_a = lora.matrices_of(lora.TABLE)[lora.TABLE_A]
    if table_a in state:
        state[table_a] = state[table_a][:, :vocab_size].clone()
    for ours, theirs in heads_of(family):
        if PREFIX + theirs in tensors:
            state[ours] = tensors[PREFIX + theirs]
    for ours, theirs in tables_of(family).items():
        if PREFIX + theirs in tensors:
            # Rows after the vocabulary are not tokens; they are soft prompts, for example.
            state[ours] = tensors[PREFIX + theirs][:vocab_size].clone()
    return lora.adapted_state(state, targets)


def read(
    directory: Path,
    adapter: Mapping[str, Any],
    family: str,
    base: hf_layout.Content,
) -> hf_layout.Content:
    """Return settings and tensors of the base with the adapters merged.

    Args:
        adapter: the content of `adapter_config.json`.
        family: the family of the base.
        base: the `config.json` and tensors of the base.

    Raises:
        FileError: something is missing or damaged, or the adapters do not fit the base.
    """
    settings, tensors = base
    result = merged(tensors, adapter, _read_tensors(directory), family, directory / SETTINGS)
    if (directory / "config.json").is_file():
        return hf_layout.with_folders_of((settings, result), directory)
    form = families.load_model(family).FORMAT
    tables = [name_in_base(name, tensors, form) for name in tables_of(family).values()]
    more = next((len(result[t]) - len(tensors[t]) for t in tables if t in tensors), 0)
    return settings | ({"vocab_size": settings["vocab_size"] + more} if more else {}), result


def base_of(directory: Path, adapter: Mapping[str, Any]) -> Path:
    """Return the base checkpoint of adapters; its hash is checked if the adapters store one.

    Raises:
        FileError: the base is missing, is another checkpoint, or has adapters itself.
    """
    named = adapter.get("base_model_name_or_path")
    if not isinstance(named, str) or not named:
        raise FileError(f"{directory / SETTINGS}: base_model_name_or_path is missing")
    candidates = [Path(named).expanduser(), directory / named]
    base = next((path for path in candidates if (path / "config.json").is_file()), None)
    if base is None:
        raise FileError(
            f"{directory}: its base {named} does not exist; restore it, or change "
            f"base_model_name_or_path in {SETTINGS}"
        )
    if read_settings(base) is not None:
        raise FileError(
            f"{directory}: its base {base} has adapters itself; merge them first: "
            f"nlpkit convert {base} DIR"
        )
    base_hash = hf_layout.read_notes(directory).get("base")
    if base_hash is not None and base_hash != content_hash(base):
        raise FileError(f"{directory}: {base} is not the model that these adapters were trained on")
    return base


def _read_tensors(directory: Path) -> dict[str, Tensor]:
    path = directory / WEIGHTS
    if not path.is_file():
        pickled = (directory / "adapter_model.bin").is_file()
        hint = "; adapter_model.bin is a pickle, which is not opened" if pickled else ""
        raise FileError(f"{path}: no such file{hint}")
    tensors = hf_layout.load_tensors(path)
    hf_layout.check_dtypes(path, tensors)
    return tensors


def content_hash(directory: Path) -> str:
    """Return a SHA-256 over the weights of a checkpoint directory."""
    digest = hashlib.sha256()
    for path in sorted(directory.glob("*.safetensors")):
        if path.name == "optimizer.safetensors":
            continue
        with open(path, "rb") as file:
            while chunk := file.read(1 << 20):
                digest.update(chunk)
    return digest.hexdigest()


def read_settings(directory: Path) -> dict[str, Any] | None:
    """Return `adapter_config.json` of a directory, or None if there is none."""
    path = directory / SETTINGS
    return read_json(path) if path.is_file() else None
