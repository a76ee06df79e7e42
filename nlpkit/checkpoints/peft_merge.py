"""Merges LoRA adapters, with peft's tensor names, into the weights of their base."""

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from nlpkit.errors import FileError
from nlpkit.models import families, hf_format
from nlpkit.models.head import head_names
from nlpkit.models.hf_format import HfFormat
from nlpkit.models.lora import TABLE, TABLE_A, TABLE_B

PREFIX = "base_model.model."  # of the names of all tensors in peft's file
_A, _B = ".lora_A.weight", ".lora_B.weight"
_TABLE_A, _TABLE_B = f".{TABLE_A}", f".{TABLE_B}"
# Settings of peft that do not change the computation with A and B.
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


def heads_of(family: str) -> list[tuple[str, str]]:
    """Return the parameters of a task's layer, with transformers' names: pairs for each task."""
    return head_names(families.load_model(family))


def tables_of(family: str) -> dict[str, str]:
    return hf_format.table_names(families.load_model(family).FORMAT, families.vocabulary(family))


def name_in_base(name: str, base: Iterable[str], form: HfFormat) -> str:
    """Return a tensor's name in the base, with or without the prefix of the body.

    `name` may also be that in the memory of transformers.
    """
    body = form.body
    names = (name, body + name, name.removeprefix(body))
    on_disk = {hf_format.in_memory(form, key): key for key in base} if form.in_memory else {}
    on_disk |= {key: key for key in base}
    return next((on_disk[each] for each in names if each in on_disk), name)


def merged(
    base: Mapping[str, Tensor],
    settings: Mapping[str, Any],
    adapters: Mapping[str, Tensor],
    family: str,
    where: Path,
) -> dict[str, Tensor]:
    """Return the base's tensors; a layer with an adapter has W + alpha / r * B A in float32.

    Raises:
        FileError: the method is not LoRA, a tensor does not exist in the base, or a table that is
            input and output has not the same adapter as both.
    """
    _check(settings, where)
    form = families.load_model(family).FORMAT
    tensors = dict(base)
    rank = settings["r"]
    scale = settings["lora_alpha"] / (math.sqrt(rank) if settings.get("use_rslora") else rank)
    tables = {ours: name_in_base(theirs, base, form) for ours, theirs in tables_of(family).items()}
    heads = [theirs for _, theirs in heads_of(family)]
    output = _output_layer(base, form, tables)
    replacements, of_table, of_output = {}, {}, {}
    for name, tensor in adapters.items():
        layer = name.removeprefix(PREFIX).replace(".base_layer.", ".")
        if layer.endswith((_TABLE_A, _TABLE_B)):
            of_table[layer] = tensor
            continue
        if layer in (f"{output}{_A}", f"{output}{_B}"):
            of_output[layer.removeprefix(output)] = tensor
            continue
        if not layer.endswith((_A, _B)):
            replacements[name_in_base(layer, base, form)] = tensor
            continue
        suffix, other = (_A, _B) if layer.endswith(_A) else (_B, _A)
        if name.removesuffix(suffix) + other not in adapters:
            raise FileError(f"{where}: {name} has no matching {other[1:7]}")
        if suffix == _B:
            continue
        layer, b = layer.removesuffix(_A), adapters[name.removesuffix(_A) + _B]
        weight = name_in_base(f"{layer}.weight", base, form)
        if weight not in base or base[weight].ndim != 2:
            raise FileError(f"{where}: an adapter of {layer}, which the base does not have")
        transposed = hf_format.is_transposed(form, weight.removesuffix(".weight"))
        tensors[weight] = base[weight].float() + _delta(
            tensor, b, scale, base[weight], transposed, f"{where}: {layer}"
        )
    _replace(tensors, replacements, [*tables.values()], heads, where)
    if of_table or of_output:
        is_task = any(name in heads for name in replacements)
        _check_output(of_table, of_output, output if not is_task else "", where)
        _adapt_table(tensors, of_table, scale, tables.get(TABLE, ""), form, where)
    return tensors


def _output_layer(base: Mapping[str, Tensor], form: HfFormat, tables: Mapping[str, str]) -> str:
    """Return transformers' layer whose weight is the table of tokens, too; "" if there is none."""
    table = base.get(tables.get(TABLE, ""))
    for theirs, ours in form.copies.items():
        if ours == TABLE and table is not None and _is_start_of(base.get(theirs, table), table):
            return hf_format.in_memory(form, theirs.removesuffix(".weight"))
    return ""


def _check_output(
    of_table: Mapping[str, Tensor], of_output: Mapping[str, Tensor], output: str, where: Path
) -> None:
    """Raise `FileError` if the table as `output` has another adapter than as input."""
    if not output and not of_output:
        return
    a, b = (
        next((tensor for name, tensor in of_table.items() if name.endswith(part)), None)
        for part in (_TABLE_A, _TABLE_B)
    )
    other = of_output.get(_A), of_output.get(_B)
    if a is None or b is None or other[0] is None or other[1] is None:
        raise FileError(
            f"{where}: an adapter of the table of tokens as input alone, or as output alone; in "
            "this model they are one table"
        )
    if not (other[0].equal(b.T) and other[1].equal(a.T[: len(other[1])])):
        raise FileError(
            f"{where}: {output} has another adapter than the table of tokens; in this model they "
            "are one table"
        )


def _adapt_table(
    tensors: dict[str, Tensor],
    adapter: Mapping[str, Tensor],
    scale: float,
    table: str,
    form: HfFormat,
    where: Path,
) -> None:
    """Add the adapter of the table of tokens to it; tensors that repeat the table are left out."""
    layer = next(iter(adapter)).rpartition(".")[0]
    names = {name_in_base(name, tensors, form) for name in (layer, f"{layer}.weight")}
    if table not in names or table not in tensors:
        raise FileError(f"{where}: an adapter of {layer}, which is no table of the base")
    if adapter.keys() != {layer + _TABLE_A, layer + _TABLE_B}:
        raise FileError(f"{where}: {layer}: an adapter is {TABLE_A} and {TABLE_B}")
    old, a, b = tensors[table], adapter[layer + _TABLE_A], adapter[layer + _TABLE_B]
    tensors[table] = old.float() + _delta(a, b, scale, old, True, f"{where}: {layer}")
    for theirs, ours in form.copies.items():
        if ours == TABLE and theirs in tensors and _is_start_of(tensors[theirs], old):
            del tensors[theirs]


def _delta(
    a: Tensor, b: Tensor, scale: float, weight: Tensor, transposed: bool, where: str
) -> Tensor:
    """Return alpha / r * B A, transposed if the base stores transposed weights."""
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
    replacements: dict[str, Tensor],
    tables: Sequence[str],
    heads: Sequence[str],
    where: Path,
) -> None:
    """Replace tensors of the base; embedding tables may have more rows than in the base."""
    output = replacements.pop("lm_head.weight", None)
    for name, tensor in replacements.items():
        old = tensors.get(name)
        fits = old is not None and (
            tensor.shape == old.shape
            or (name in tables and tensor.shape[1:] == old.shape[1:] and len(tensor) > len(old))
        )
        is_head = name in heads and tensor.ndim == (2 if name.endswith("weight") else 1)
        if not fits and not is_head:
            in_base = "missing" if old is None else str(tuple(old.shape))
            raise FileError(
                f"{where}: holds {name} {tuple(tensor.shape)}, which is {in_base} in the base"
            )
        tensors[name] = tensor
    if output is not None and not any(_is_start_of(output, tensors.get(table)) for table in tables):
        raise FileError(
            f"{where}: lm_head differs from the token embedding; in this model they are tied"
        )
    tensors.pop("lm_head.weight", None)


def _is_start_of(output: Tensor, table: Tensor | None) -> bool:
    return table is not None and output.float().equal(table[: len(output)].float())


def _check(settings: Mapping[str, Any], where: Path) -> None:
    """Raise `FileError` for settings that change the computation with A and B."""
    unsupported = sorted(name for name, value in settings.items() if value and name not in _PLAIN)
    init = settings.get("init_lora_weights")
    if isinstance(init, (dict, list)) or init not in _PLAIN_INITS:
        unsupported.append(f"init_lora_weights {init}")
    if settings.get("peft_type") != "LORA":
        unsupported.insert(0, f"peft_type {settings.get('peft_type')}")
    if unsupported:
        raise FileError(f"{where}: {', '.join(unsupported)}: only plain LoRA adapters are read")
    for name in ("r", "lora_alpha"):
        value = settings.get(name)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0:
            raise FileError(f"{where}: {name} is {value!r}; needs a number greater than 0")
