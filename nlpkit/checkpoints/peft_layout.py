"""LoRA adapters in peft's layout: `adapter_config.json` and `adapter_model.safetensors`.

nlpkit writes them with the `config.json` of the merged model, and merges them into their base when
it reads them. Adapters that another program wrote are merged by `checkpoints/foreign_adapters.py`.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor
from torch.nn import functional as F

from nlpkit.checkpoints import hf_layout, hf_writing
from nlpkit.contracts.format import HfFormat
from nlpkit.errors import FileError
from nlpkit.json_types import JsonMapping
from nlpkit.models import families, lora
from nlpkit.models.adapter_config import Config
from nlpkit.models.formats import hf_format
from nlpkit.models.formats.hf_reading import current_name
from nlpkit.models.layers.head import CHOICE, HEAD, SEQUENCE, head_names, task_head

# peft's `task_type` by the kind of task; other layers have none.
_TASK_TYPES = {
    SEQUENCE: "SEQ_CLS",
    CHOICE: "SEQ_CLS",
    "token_classification": "TOKEN_CLS",
    "question_answering": "QUESTION_ANS",
}
SETTINGS, WEIGHTS = hf_layout.ADAPTERS, "adapter_model.safetensors"
_PREFIX = "base_model.model."  # of the names of all tensors in peft's file


@dataclass(frozen=True)
class Adapters:
    """The adapters of a run: which layers have them, and the checkpoint that they change."""

    family: str
    config: Config
    targets: Mapping[str, str]  # our names of the layers with transformers'
    base: Path
    head_kind: str = SEQUENCE  # the kind of task of the output layer


def write(
    directory: Path,
    adapters: Adapters,
    weights: Mapping[str, Tensor],
    merged: Mapping[str, Tensor],
    *,
    grown: bool = False,
) -> None:
    """Write `adapter_config.json` and `adapter_model.safetensors` in the format of peft.

    Args:
        weights: the model's state dict; the adapters and the task's output layer are saved.
        merged: all tensors of the model without adapters by transformers' names.
        grown: the vocabulary is larger than that of the base: the tables are saved, too.
    """
    targets, config = adapters.targets, adapters.config
    module = families.load_model(adapters.family)
    form = module.FORMAT
    merged = {current_name(form, name): tensor for name, tensor in merged.items()}
    layers = {ours: lora.in_memory(form, theirs) for ours, theirs in targets.items()}
    tensors = {
        f"{layer}.{matrix}": weights[name]
        for ours, layer in layers.items()
        for matrix, name in lora.name_matrices(ours).items()
    }
    heads = task_head(module, adapters.head_kind).names if HEAD in weights else {}
    tensors |= {theirs: weights[ours] for ours, theirs in heads.items()}
    outputs: list[str] = []
    if lora.TABLE in targets:
        outputs = [] if heads else find_tied_outputs(form, weights)
        rows = len(merged[hf_format.names_of(form, lora.TABLE)[0].theirs])
        tensors |= _pad_table(tensors, layers[lora.TABLE], outputs, rows)
    if grown:
        layer = targets.get(lora.TABLE)
        names = {f"{layer}.weight": f"{layer}.base_layer.weight"}
        tables = lora.table_names(form, families.load(adapters.family).VOCABULARY).values()
        tensors |= {names.get(name, name): merged[name] for name in tables if name in merged}
    settings = {
        "peft_type": "LORA",
        "task_type": task_type(form, adapters.head_kind if heads else None),
        "base_model_name_or_path": str(adapters.base),
        **{"r": config.rank, "lora_alpha": config.alpha, "lora_dropout": config.dropout},
        "target_modules": [*layers.values(), *outputs],
        "fan_in_fan_out": any(lora.is_transposed(form, theirs) for theirs in targets.values()),
        "bias": "none",
        "modules_to_save": sorted({n.partition(".")[0] for n in heads.values()}) or None,
        "inference_mode": True,
    }
    (directory / SETTINGS).write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
    tensors = {f"{_PREFIX}{name}": tensor for name, tensor in tensors.items()}
    hf_writing.save_tensors(directory / WEIGHTS, tensors, {"format": "pt"})


def task_type(form: HfFormat, head_kind: str | None) -> str | None:
    """Return peft's name of the task of a layer, or of a language model; an encoder has none."""
    if head_kind is not None:
        return _TASK_TYPES.get(head_kind)
    if form.architecture.endswith(("ForConditionalGeneration", "MTModel")):
        return "SEQ_2_SEQ_LM"
    return "CAUSAL_LM" if form.architecture.endswith(("ForCausalLM", "LMHeadModel")) else None


def _pad_table(
    tensors: Mapping[str, Tensor], layer: str, outputs: Iterable[str], rows: int
) -> dict[str, Tensor]:
    """Return the adapter of the table of tokens as peft wants it.

    A has a column for each of the `rows` of transformers' table, which may have soft prompts. An
    output layer whose weight is the table has the same adapter, with A and B in turned places.
    """
    a, b = (tensors[f"{layer}.{name}"] for name in (lora.TABLE_A, lora.TABLE_B))
    found = {f"{layer}.{lora.TABLE_A}": F.pad(a, (0, rows - a.shape[1]))}
    for output in outputs:
        found[f"{output}.lora_A.weight"] = b.T.contiguous()
        found[f"{output}.lora_B.weight"] = a.T.contiguous()
    return found


def find_tied_outputs(form: HfFormat, weights: Iterable[str]) -> list[str]:
    """Return transformers' layers whose weight is the table of tokens, too."""
    copies = [theirs for theirs, ours in form.copies.items() if ours == lora.TABLE]
    names = copies if "output_embedding" not in weights else []
    return [lora.in_memory(form, name.removesuffix(".weight")) for name in names]


def read_state(
    directory: Path, family: str, targets: Mapping[str, str], vocab_size: int
) -> dict[str, Tensor]:
    """Return the part of the state dict that nlpkit saved in a directory of adapters.

    Raises:
        FileError: an adapter is missing.
    """
    tensors, module = read_tensors(directory), families.load_model(family)
    form = module.FORMAT
    try:
        state = {
            name: tensors[f"{lora.in_memory(form, theirs)}.{matrix}"]
            for ours, theirs in targets.items()
            for matrix, name in lora.name_matrices(ours).items()
        }
    except KeyError as error:
        raise FileError(f"{directory}: {error} is missing from {WEIGHTS}") from error
    table_a = lora.name_matrices(lora.TABLE)[lora.TABLE_A]
    if table_a in state:
        state[table_a] = state[table_a][:, :vocab_size].clone()
    state |= {ours: tensors[theirs] for ours, theirs in head_names(module) if theirs in tensors}
    for ours, theirs in lora.table_names(form, families.load(family).VOCABULARY).items():
        if theirs in tensors:
            # Rows after the vocabulary are not tokens; they are soft prompts, for example.
            state[ours] = tensors[theirs][:vocab_size].clone()
    return lora.rename_adapted(state, targets)


def is_own(adapter: JsonMapping) -> bool:
    """Return whether nlpkit wrote this `adapter_config.json`."""
    return "auto_mapping" not in adapter  # peft writes it always


def merge(
    directory: Path, adapter: JsonMapping, family: str, base: hf_layout.Content
) -> hf_layout.Content:
    """Return the content of a base with nlpkit's own adapters merged: W + alpha / r * B A.

    The sums are in float32.

    Raises:
        FileError: something is missing or damaged, or the adapters do not fit the base.
    """
    form, tensors = families.load_model(family).FORMAT, dict(base[1])
    names = find_names(form, tensors)
    drop_copies(form, tensors, names)
    adapters = read_tensors(directory)
    whole = {name: tensor for name, tensor in adapters.items() if ".lora_" not in name}
    tensors |= {names.get(name, name): tensor for name, tensor in whole.items()}
    layers = dict.fromkeys(name.rpartition(".lora_")[0] for name in adapters.keys() - whole)
    tables = {name.theirs for name in hf_format.names_of(form, lora.TABLE)}
    try:
        for layer in layers.keys() - find_tied_outputs(form, ()):
            # The table of a recurrent family is a parameter, not a layer with a weight.
            name = layer if layer in names else f"{layer}.weight"
            key, is_table = names[name], name in tables
            matrices = lora.name_matrices(lora.TABLE if is_table else layer)
            a, b = (adapters[f"{layer}.{matrix}"].float() for matrix in matrices)
            delta = adapter["lora_alpha"] / adapter["r"] * (b @ a)
            transposed = is_table or lora.is_transposed(form, key.removesuffix(".weight"))
            tensors[key] = tensors[key].float() + (delta.T if transposed else delta)
    except KeyError as error:
        raise FileError(
            f"{directory / WEIGHTS}: {error} is missing there or in the base"
        ) from error
    except (RuntimeError, TypeError, ZeroDivisionError) as error:
        raise FileError(f"{directory / WEIGHTS}: does not fit the base: {error}") from error
    return hf_layout.replace_settings((base[0], tensors), directory)


def find_names(form: HfFormat, tensors: Iterable[str]) -> dict[str, str]:
    """Return the names of a base's tensors in memory with those on disk.

    A base without a head may lack the prefix of the body.
    """
    names = {lora.in_memory(form, form.body + name): name for name in tensors}
    return names | {lora.in_memory(form, current_name(form, name)): name for name in tensors}


def drop_copies(form: HfFormat, tensors: dict[str, Tensor], names: Mapping[str, str]) -> None:
    """Remove the copies of a table that may change: what is missing is read from the table."""
    for copy, ours in form.copies.items():
        table = tensors.get(names.get(hf_format.names_of(form, ours)[0].theirs, ""))
        output = tensors.get(copy)
        if output is not None and table is not None and output.equal(table[: len(output)]):
            del tensors[copy]


def read_tensors(directory: Path) -> dict[str, Tensor]:
    """Return the tensors of adapters, by the names of transformers and LoRA without peft's own."""
    path, pickled = directory / WEIGHTS, directory / "adapter_model.bin"
    path = pickled if pickled.is_file() and not path.is_file() else path
    tensors = hf_layout.load_tensors(path)
    hf_layout.check_dtypes(path, tensors)
    return {
        name.removeprefix(_PREFIX).replace(".base_layer.", "."): tensor
        for name, tensor in tensors.items()
    }
