"""Low-rank adapters on disk, as peft has them: `adapter_config.json`, `adapter_model.safetensors`.

Written beside the `config.json` of the model that they make of their base; read merged into it. A
directory that peft itself wrote may have no `config.json`, notes or tokenizer: the base's are used.
"""

import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
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
# What peft's configuration may say without changing what is computed from A and B.
_PLAIN = frozenset(
    (
        *("peft_type", "task_type", "auto_mapping", "peft_version", "base_model_name_or_path"),
        *("revision", "inference_mode", "r", "lora_alpha", "lora_dropout", "use_rslora", "bias"),
        *("target_modules", "exclude_modules", "modules_to_save", "layers_to_transform"),
        *("layers_pattern", "fan_in_fan_out", "init_lora_weights", "megatron_core"),
        *("qalora_group_size", "ensure_weight_tying", "runtime_config"),
    )
)
# Others, such as pissa, change the base's own weights.
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
        weights: the model's state dict; of it the adapters and the task's layer are kept.
        tables: transformers' tables of the vocabulary by their names there, where it has grown.
        base: the checkpoint that the adapters belong to.
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
    every = hf_format.linear_names(module, model_config)
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
    whole = {name: tensor.contiguous() for name, tensor in tensors.items()}
    save_file(whole, directory / WEIGHTS, metadata={"format": "pt"})


def _target_modules(every: Iterable[str], targets: Mapping[str, str]) -> list[str]:
    """Return names by whose ends peft finds the targets among `every` linear layer, no other."""
    short = {theirs.rpartition(".")[2] for theirs in targets.values()}
    meant = {name for name in every if name.rpartition(".")[2] in short}
    return sorted(short if meant == set(targets.values()) else targets.values())


def read_state(
    directory: Path, family: str, targets: Mapping[str, str], vocab_size: int
) -> dict[str, Tensor]:
    """Return the part of a state dict that a directory of our adapters holds.

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
            # Behind the words there may be other rows, such as soft prompts.
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
    """Return settings and tensors of adapters merged into the base's.

    Args:
        adapter: `adapter_config.json`.
        family: the base's.
        base: its `config.json` and tensors.

    Raises:
        FileError: something is missing or damaged, or the adapters do not fit the base.
    """
    settings, tensors = base
    found = merged(tensors, adapter, _read_tensors(directory), family, directory / SETTINGS)
    if (directory / "config.json").is_file():
        return hf_layout.read_settings(directory), found
    form = families.load_model(family).FORMAT
    tables = [_place(name, tensors, form) for name in _tables(family).values()]
    more = next((len(found[t]) - len(tensors[t]) for t in tables if t in tensors), 0)
    return settings | ({"vocab_size": settings["vocab_size"] + more} if more else {}), found


def _place(name: str, base: Mapping[str, Tensor], form: HfFormat) -> str:
    """Return what the base calls a tensor: the body alone is saved without the body's name."""
    body = form.body
    names = (name, body + name, name.removeprefix(body))
    return next((each for each in names if each in base), name)


def base_of(directory: Path, adapter: Mapping[str, Any]) -> Path:
    """Return the checkpoint that adapters belong to, its content compared where it is known.

    Raises:
        FileError: it is not there, is another, or holds adapters itself.
    """
    named = adapter.get("base_model_name_or_path")
    if not isinstance(named, str) or not named:
        raise FileError(f"{directory / SETTINGS}: names no base_model_name_or_path")
    places = [Path(named).expanduser(), directory / named]
    base = next((place for place in places if (place / "config.json").is_file()), None)
    if base is None:
        raise FileError(
            f"{directory}: its base {named} is not there; put it back, or change "
            f"base_model_name_or_path in {SETTINGS}"
        )
    if read_settings(base) is not None:
        raise FileError(
            f"{directory}: its base {base} holds adapters itself; merge them first: "
            f"nlpkit convert {base} DIR"
        )
    wanted = hf_layout.read_notes(directory).get("base")
    if wanted is not None and wanted != content_hash(base):
        raise FileError(f"{directory}: {base} is another model than these adapters were made for")
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
        FileError: another method than LoRA, or a tensor that has no place in the base.
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
            whole[_place(layer, base, form)] = tensor
            continue
        mine, other = (_A, _B) if layer.endswith(_A) else (_B, _A)
        if name.removesuffix(mine) + other not in adapters:
            raise FileError(f"{where}: {name} has no {other[1:7]} beside it")
        if mine == _B:
            continue
        layer, b = layer.removesuffix(_A), adapters[name.removesuffix(_A) + _B]
        weight = _place(f"{layer}.weight", base, form)
        if weight not in base or base[weight].ndim != 2 or layer == "lm_head":
            raise FileError(f"{where}: an adapter of {layer}, which the base has not")
        turned = hf_format.is_transposed(form, weight.removesuffix(".weight"))
        tensors[weight] = base[weight].float() + _delta(
            tensor, b, scale, base[weight], turned, f"{where}: {layer}"
        )
    tables = [_place(name, base, form) for name in _tables(family).values()]
    _replace(tensors, whole, tables, [*_heads(family).values()], where)
    return tensors


def _delta(
    a: Tensor, b: Tensor, scale: float, weight: Tensor, transposed: bool, where: str
) -> Tensor:
    """Return alpha / r * B A as the base keeps its weight."""
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
    """Put tensors that were trained or grown as they are in the place of the base's.

    Of all, only tables of the vocabulary may be longer than the base's.
    """
    output = whole.pop("lm_head.weight", None)
    for name, tensor in whole.items():
        old = tensors.get(name)
        fits = old is not None and (
            tensor.shape == old.shape
            or (name in tables and tensor.shape[1:] == old.shape[1:] and len(tensor) > len(old))
        )
        is_head = name in heads and tensor.ndim == (2 if name.endswith("weight") else 1)
        if not fits and not is_head:
            what = "which the base has not" if old is None else f"there {tuple(old.shape)}"
            raise FileError(f"{where}: holds {name} {tuple(tensor.shape)}, {what}")
        tensors[name] = tensor
    if output is not None and not any(_is_start_of(output, tensors.get(table)) for table in tables):
        raise FileError(
            f"{where}: lm_head is trained apart from the token table; here they are one"
        )
    tensors.pop("lm_head.weight", None)


def _is_start_of(output: Tensor, table: Tensor | None) -> bool:
    return table is not None and output.float().equal(table[: len(output)].float())


def _check(settings: Mapping[str, Any], where: Path) -> None:
    """Raise `FileError` for settings under which A and B mean something else."""
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
