"""LoRA adapters in peft's layout: `adapter_config.json` and `adapter_model.safetensors`.

nlpkit writes them with the `config.json` of the merged model (`runs/adapters.py`), and merges them
into their base when it reads them. Adapters that another program wrote are merged by
`checkpoints/foreign_adapters.py`.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path

from torch import Tensor
from torch.nn import functional as F

from nlpkit.checkpoints import hf_layout
from nlpkit.contracts.format import HfFormat
from nlpkit.errors import FileError
from nlpkit.json_types import JsonMapping
from nlpkit.models import families, lora
from nlpkit.models.formats import hf_format
from nlpkit.models.formats.hf_reading import current_name
from nlpkit.models.layers.head import head_names

SETTINGS, WEIGHTS = hf_layout.ADAPTERS, "adapter_model.safetensors"
PREFIX = "base_model.model."  # of the names of all tensors in peft's file


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
    tensors, form = read_tensors(directory), families.load_model(family).FORMAT
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
    return lora.rename_adapted(state | read_saved(tensors, family, vocab_size), targets)


def read_saved(
    tensors: Mapping[str, Tensor], family: str, vocab_size: int | None = None
) -> dict[str, Tensor]:
    """Return the task's output layer and the tables that are among the tensors, by our names."""
    module = families.load_model(family)
    state = {ours: tensors[theirs] for ours, theirs in head_names(module) if theirs in tensors}
    tables = lora.table_names(module.FORMAT, families.load(family).VOCABULARY)
    # Rows after the vocabulary are not tokens; they are soft prompts, for example.
    saved = {ours: tensors[theirs] for ours, theirs in tables.items() if theirs in tensors}
    return state | {ours: table[:vocab_size].clone() for ours, table in saved.items()}


def is_own(directory: Path, adapter: JsonMapping) -> bool:
    """Return whether nlpkit wrote `adapter_config.json`, and not peft, as of before 0.4."""
    return "auto_mapping" not in adapter and (directory / "config.json").is_file()


def merge(
    directory: Path, adapter: JsonMapping, family: str, base: hf_layout.Content
) -> hf_layout.Content:
    """Return the content of a base with nlpkit's own adapters merged: W + alpha / r * B A.

    The sums are in float32.

    Raises:
        FileError: something is missing or damaged, or the adapters do not fit the base.
    """
    form, tensors, names = open_base(family, base)
    adapters = read_tensors(directory)
    whole = {name: tensor for name, tensor in adapters.items() if ".lora_" not in name}
    tensors |= {names.get(name, name): tensor for name, tensor in whole.items()}
    _drop_copies(form, tensors, names)
    layers = dict.fromkeys(name.rpartition(".lora_")[0] for name in adapters.keys() - whole)
    tables = {name.theirs for name in hf_format.names_of(form, lora.TABLE)}
    try:
        for layer in layers.keys() - find_tied_outputs(form, ()):
            # The table of a recurrent family is a parameter, not a layer with a weight.
            name = layer if layer in names else f"{layer}.weight"
            key, is_table = names[name], name in tables
            matrices = lora.name_matrices(lora.TABLE if is_table else layer)
            a, b = (adapters[f"{layer}.{matrix}"].float() for matrix in matrices)
            if is_table:  # a released one may have more rows than there are tokens
                a = F.pad(a, (0, max(0, len(tensors[key]) - a.shape[1])))
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


def open_base(
    family: str, base: hf_layout.Content
) -> tuple[HfFormat, dict[str, Tensor], dict[str, str]]:
    """Return the format of a base, its tensors, and their names in memory with those on disk.

    Copies of a table, which may change, are left out: what is missing is read from the table.
    """
    form, tensors = families.load_model(family).FORMAT, dict(base[1])
    # A base without a head may lack the prefix of the body.
    names = {lora.in_memory(form, form.body + name): name for name in tensors}
    names |= {lora.in_memory(form, current_name(form, name)): name for name in tensors}
    _drop_copies(form, tensors, names)
    return form, tensors, names


def _drop_copies(form: HfFormat, tensors: dict[str, Tensor], names: Mapping[str, str]) -> None:
    for copy, ours in form.copies.items():
        table = tensors.get(names.get(hf_format.names_of(form, ours)[0].theirs, ""))
        output = tensors.get(copy)
        if output is not None and table is not None and output.equal(table[: len(output)]):
            del tensors[copy]


def read_tensors(directory: Path, prefix: str = PREFIX) -> dict[str, Tensor]:
    """Return the tensors of adapters, by the names of transformers and LoRA without peft's own."""
    path, pickled = directory / WEIGHTS, directory / "adapter_model.bin"
    path = pickled if pickled.is_file() and not path.is_file() else path
    tensors = hf_layout.load_tensors(path)
    hf_layout.check_dtypes(path, tensors)
    return {
        name.removeprefix(prefix).replace(".base_layer.", "."): tensor
        for name, tensor in tensors.items()
    }
