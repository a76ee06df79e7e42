"""LoRA adapters in peft's layout: `adapter_config.json` and `adapter_model.safetensors`.

nlpkit writes them with the `config.json` of the merged model, and reads them merged into their
base. A directory that peft wrote may have no `config.json`, notes or tokenizer: then those of the
base are used.
"""

import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from nlpkit.checkpoints import hf_layout
from nlpkit.config import FrozenConfig
from nlpkit.errors import FileError
from nlpkit.models import families, hf_format
from nlpkit.models.head import HEAD, classifier_names
from nlpkit.models.hf_format import HfFormat
from nlpkit.models.lora_config import Config

SETTINGS, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_PREFIX = "base_model.model."
_A, _B = ".lora_A.weight", ".lora_B.weight"
# Settings of peft that do not change what is computed from A and B.
_PLAIN = frozenset(
    (
        *("peft_type", "task_type", "auto_mapping", "peft_version", "base_model_name_or_path"),
        *("revision", "inference_mode", "r", "lora_alpha", "lora_dropout", "use_rslora", "bias"),
        *("target_modules", "exclude_modules", "modules_to_save", "layers_to_transform"),
        *("layers_pattern", "fan_in_fan_out", "init_lora_weights", "megatron_core"),
        *("qalora_group_size", "ensure_weight_tying", "runtime_config"),
    )
)
# Other initializations, such as pissa, change the weights of the base.
_PLAIN_INITS = (None, True, False, "gaussian")


def write(
    directory: Path,
    family: str,
    model_config: FrozenConfig,
    config: Config,
    targets: Mapping[str, str],
    weights: Mapping[str, Tensor],
    tables: Mapping[str, Tensor],
    base: Path,
) -> None:
    """Write `adapter_config.json` and `adapter_model.safetensors` as peft does.

    Args:
        model_config: the family's `Config` of this model.
        weights: the model's state dict; the adapters and the task's output layer are saved.
        tables: the embedding tables by transformers' names, if the vocabulary has grown.
        base: the base checkpoint of the adapters.
    """
    tensors = {}
    for ours, theirs in targets.items():
        for matrix in ("lora_A", "lora_B"):
            tensors[f"{_PREFIX}{theirs}.{matrix}.weight"] = weights[f"{ours}.{matrix}"]
    has_head = HEAD in weights
    heads = _heads(family)
    if has_head:
        tensors |= {f"{_PREFIX}{theirs}": weights[ours] for ours, theirs in heads.items()}
    tensors |= {f"{_PREFIX}{name}": table for name, table in tables.items()}
    module = families.load_model(family)
    every = hf_format.linear_names(module.FORMAT, module.Model, model_config)
    transposed = [hf_format.is_transposed(module.FORMAT, name) for name in targets.values()]
    settings = {
        "peft_type": "LORA",
        "task_type": "SEQ_CLS" if has_head else "CAUSAL_LM",
        "base_model_name_or_path": str(base),
        "r": config.rank,
        "lora_alpha": config.alpha,
        "lora_dropout": config.dropout,
        "target_modules": _target_modules(every.values(), targets),
        "fan_in_fan_out": all(transposed),
        "bias": "none",
        "modules_to_save": [heads[HEAD].rpartition(".")[0]] if has_head else None,
        "inference_mode": True,
    }
    (directory / SETTINGS).write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
    hf_layout.save_tensors(directory / WEIGHTS, tensors, {"format": "pt"})


def _target_modules(every: Iterable[str], targets: Mapping[str, str]) -> list[str]:
    """Return name suffixes that match the targets, and no other of the linear layers `every`."""
    short = {theirs.rpartition(".")[2] for theirs in targets.values()}
    meant = {name for name in every if name.rpartition(".")[2] in short}
    return sorted(short if meant == set(targets.values()) else targets.values())


def read_state(
    directory: Path, family: str, targets: Mapping[str, str], vocab_size: int
) -> dict[str, Tensor]:
    """Return the part of the state dict that is saved in a directory of our adapters.

    Raises:
        KeyError: an adapter is missing.
    """
    tensors = _read_tensors(directory)
    state = {
        f"{ours}.{matrix}": tensors[f"{_PREFIX}{theirs}.{matrix}.weight"]
        for ours, theirs in targets.items()
        for matrix in ("lora_A", "lora_B")
    }
    for ours, theirs in _heads(family).items():
        if _PREFIX + theirs in tensors:
            state[ours] = tensors[_PREFIX + theirs]
    for ours, theirs in _tables(family).items():
        if _PREFIX + theirs in tensors:
            # Rows after the vocabulary are something else, such as soft prompts.
            state[ours] = tensors[_PREFIX + theirs][:vocab_size].clone()
    return state


def _heads(family: str) -> Mapping[str, str]:
    """Return the parameters of a task's layer, with transformers' names."""
    return classifier_names(families.load_model(family))


def _tables(family: str) -> dict[str, str]:
    return hf_format.table_names(families.load_model(family).FORMAT, families.vocabulary(family))


def read(
    directory: Path, adapter: Mapping[str, Any], family: str, base: tuple[dict[str, Any], Any]
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return settings and tensors of the base with the adapters merged.

    Args:
        adapter: the content of `adapter_config.json`.
        family: the family of the base.
        base: the `config.json` and tensors of the base.

    Raises:
        FileError: something is missing or damaged, or the adapters do not fit the base.
    """
    settings, tensors = base
    found = merged(tensors, adapter, _read_tensors(directory), family, directory / SETTINGS)
    if (directory / "config.json").is_file():
        return hf_layout.read_settings(directory), found
    form = families.load_model(family).FORMAT
    tables = [_name_in_base(name, tensors, form) for name in _tables(family).values()]
    more = next((len(found[t]) - len(tensors[t]) for t in tables if t in tensors), 0)
    return settings | ({"vocab_size": settings["vocab_size"] + more} if more else {}), found


def _name_in_base(name: str, base: Mapping[str, Tensor], form: HfFormat) -> str:
    """Return a tensor's name in the base, which may be with or without the prefix of the body."""
    body = form.body
    names = (name, body + name, name.removeprefix(body))
    return next((each for each in names if each in base), name)


def base_of(directory: Path, adapter: Mapping[str, Any]) -> Path:
    """Return the base checkpoint of adapters, after a comparison of hashes if there is one.

    Raises:
        FileError: it is missing, is a different checkpoint, or has adapters itself.
    """
    named = adapter.get("base_model_name_or_path")
    if not isinstance(named, str) or not named:
        raise FileError(f"{directory / SETTINGS}: base_model_name_or_path is missing")
    candidates = [Path(named).expanduser(), directory / named]
    base = next((path for path in candidates if (path / "config.json").is_file()), None)
    if base is None:
        raise FileError(
            f"{directory}: its base {named} does not exist; put it back, or change "
            f"base_model_name_or_path in {SETTINGS}"
        )
    if read_settings(base) is not None:
        raise FileError(
            f"{directory}: its base {base} has adapters itself; merge them first: "
            f"nlpkit convert {base} DIR"
        )
    wanted = hf_layout.read_notes(directory).get("base")
    if wanted is not None and wanted != content_hash(base):
        raise FileError(f"{directory}: {base} is not the model that these adapters were trained on")
    return base


def _read_tensors(directory: Path) -> dict[str, Tensor]:
    path = directory / WEIGHTS
    if not path.is_file():
        pickled = (directory / "adapter_model.bin").is_file()
        hint = "; adapter_model.bin is a pickle, which is not opened" if pickled else ""
        raise FileError(f"{path}: no such file{hint}")
    try:
        return load_file(path)
    except (SafetensorError, OSError) as error:
        raise FileError(f"{path}: not a readable safetensors file: {error}") from error


def merged(
    base: Mapping[str, Tensor],
    settings: Mapping[str, Any],
    adapters: Mapping[str, Tensor],
    family: str,
    where: Path,
) -> dict[str, Tensor]:
    """Return the base's tensors, W + alpha / r * B A (float32) where there is an adapter.

    Raises:
        FileError: the method is not LoRA, or a tensor does not exist in the base.
    """
    _check(settings, where)
    form = families.load_model(family).FORMAT
    tensors = dict(base)
    rank = settings["r"]
    scale = settings["lora_alpha"] / (math.sqrt(rank) if settings.get("use_rslora") else rank)
    whole = {}
    for name, tensor in adapters.items():
        layer = name.removeprefix(_PREFIX).replace(".base_layer.", ".")
        if not layer.endswith((_A, _B)):
            whole[_name_in_base(layer, base, form)] = tensor
            continue
        mine, other = (_A, _B) if layer.endswith(_A) else (_B, _A)
        if name.removesuffix(mine) + other not in adapters:
            raise FileError(f"{where}: {name} has no matching {other[1:7]}")
        if mine == _B:
            continue
        layer, b = layer.removesuffix(_A), adapters[name.removesuffix(_A) + _B]
        weight = _name_in_base(f"{layer}.weight", base, form)
        if weight not in base or base[weight].ndim != 2 or layer == "lm_head":
            raise FileError(f"{where}: an adapter of {layer}, which the base does not have")
        turned = hf_format.is_transposed(form, weight.removesuffix(".weight"))
        tensors[weight] = base[weight].float() + _delta(
            tensor, b, scale, base[weight], turned, f"{where}: {layer}"
        )
    tables = [_name_in_base(name, base, form) for name in _tables(family).values()]
    _replace(tensors, whole, tables, [*_heads(family).values()], where)
    return tensors


def _delta(
    a: Tensor, b: Tensor, scale: float, weight: Tensor, transposed: bool, where: str
) -> Tensor:
    """Return alpha / r * B A, transposed if the base stores its weight that way."""
    out_size, in_size = reversed(weight.shape) if transposed else weight.shape
    if a.ndim != 2 or b.ndim != 2 or (len(b), *a.shape) != (out_size, b.shape[1], in_size):
        raise FileError(
            f"{where}: its adapter, {tuple(b.shape)} times {tuple(a.shape)}, does not fit the "
            f"base's layer of {in_size} inputs and {out_size} outputs"
        )
    delta = scale * (b.float() @ a.float())
    return delta.T if transposed else delta


def _replace(
    tensors: dict[str, Tensor],
    whole: dict[str, Tensor],
    tables: Sequence[str],
    heads: Sequence[str],
    where: Path,
) -> None:
    """Replace tensors of the base by those saved in full; embedding tables may have more rows."""
    output = whole.pop("lm_head.weight", None)
    for name, tensor in whole.items():
        old = tensors.get(name)
        fits = old is not None and (
            tensor.shape == old.shape
            or (name in tables and tensor.shape[1:] == old.shape[1:] and len(tensor) > len(old))
        )
        is_head = name in heads and tensor.ndim == (2 if name.endswith("weight") else 1)
        if not fits and not is_head:
            what = (
                "which the base does not have" if old is None else f"in the base {tuple(old.shape)}"
            )
            raise FileError(f"{where}: holds {name} {tuple(tensor.shape)}, {what}")
        tensors[name] = tensor
    if output is not None and not any(_is_start_of(output, tensors.get(table)) for table in tables):
        raise FileError(
            f"{where}: lm_head differs from the token embedding; in this model they are tied"
        )
    tensors.pop("lm_head.weight", None)


def _is_start_of(output: Tensor, table: Tensor | None) -> bool:
    return table is not None and output.float().equal(table[: len(output)].float())


def _check(settings: Mapping[str, Any], where: Path) -> None:
    """Raise `FileError` for settings that change how A and B are used."""
    odd = sorted(name for name, value in settings.items() if value and name not in _PLAIN)
    init = settings.get("init_lora_weights")
    if isinstance(init, (dict, list)) or init not in _PLAIN_INITS:
        odd.append(f"init_lora_weights {init}")
    if settings.get("peft_type") != "LORA":
        odd.insert(0, f"peft_type {settings.get('peft_type')}")
    if odd:
        raise FileError(f"{where}: {', '.join(odd)}: only plain LoRA adapters are read")
    for name in ("r", "lora_alpha"):
        value = settings.get(name)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0:
            raise FileError(f"{where}: {name} is {value!r}; needs a number greater than 0")


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
    """Return `adapter_config.json` of a directory, or None if it holds no adapters."""
    path = directory / SETTINGS
    if not path.is_file():
        return None
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise FileError(f"{path}: cannot be read: {error}") from error
    if not isinstance(content, dict):
        raise FileError(f"{path}: not a JSON object")
    return content
