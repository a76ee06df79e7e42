"""Low-rank adapters on the layers of any family (`checkpoints/peft_layout.py`: on disk).

Linear layers: h = W x + alpha / r * B A x (Hu et al. 2021, eq. 3). The initial A is Kaiming
uniform, as in peft; the initial B is 0, so that training starts from the unchanged model.
The table of tokens: W + alpha / r * (B A)^T, wherever the model uses it, also as the output table;
A (r, V) is 0 at first and B (C, r) normal, as in peft. All parameters of the model except the task
head are frozen.
"""

import math
from collections.abc import Callable, Mapping, Sequence

import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrize

from nlpkit.config import FrozenConfig
from nlpkit.contracts.family_model import FamilyModel
from nlpkit.contracts.format import HfFormat, Transposed
from nlpkit.errors import UsageError
from nlpkit.models.adapter_config import Config
from nlpkit.models.formats.hf_format import matching_name, names_of
from nlpkit.models.layers.head import PREFIX
from nlpkit.models.meta import meta_model

ALL = "all-linear"  # as in peft
TABLE = "token_embedding"
TABLE_A, TABLE_B = "lora_embedding_A", "lora_embedding_B"  # as in peft
_OF_TABLE = f"parametrizations.{TABLE}."  # torch's names of an adapted table and its adapter
_FROZEN = f"{_OF_TABLE}original"


class LoraLinear(nn.Linear):
    """A linear layer with a frozen weight and the two trained matrices A and B."""

    def __init__(self, base: nn.Linear, config: Config):
        super().__init__(base.in_features, base.out_features, base.bias is not None, device="meta")
        self.weight, self.bias = base.weight, base.bias
        self.scale, self.dropout = config.alpha / config.rank, config.dropout
        self.lora_A = nn.Parameter(base.weight.new_empty(config.rank, base.in_features))
        self.lora_B = nn.Parameter(base.weight.new_zeros(base.out_features, config.rank))
        nn.init.kaiming_uniform_(self.lora_A, a=math.sqrt(5))

    def forward(self, x: Tensor) -> Tensor:
        low = F.linear(F.dropout(x, self.dropout, self.training), self.lora_A)
        return super().forward(x) + F.linear(low, self.lora_B) * self.scale


class LoraTable(nn.Module):
    """The sum of a frozen table (V, C) and its adapter, a parametrization of torch's."""

    def __init__(self, table: Tensor, config: Config):
        super().__init__()
        self.scale = config.alpha / config.rank
        self.lora_embedding_A = nn.Parameter(table.new_zeros(config.rank, len(table)))
        self.lora_embedding_B = nn.Parameter(table.new_empty(table.shape[1], config.rank))
        nn.init.normal_(self.lora_embedding_B)

    def forward(self, table: Tensor) -> Tensor:
        # The sum is in float32, whatever autocast makes of the product.
        return table + F.linear(self.lora_embedding_A.T * self.scale, self.lora_embedding_B)


def find_targets(config: Config, module: FamilyModel, model_config: FrozenConfig) -> dict[str, str]:
    """Return the layers that get adapters: our names with transformers' names.

    Raises:
        UsageError: a target is not a layer of the family, or there is no target.
    """
    linear = linear_names(module.FORMAT, module.Model, model_config)
    # A discriminator's table may be made of its generator's.
    has_table = hasattr(meta_model(module.Model, model_config, 1), TABLE)
    names = linear | (table_layer(module.FORMAT, TABLE, model_config) if has_table else {})
    if not names:
        raise UsageError("lora: this model has no layers to adapt; tune it without lora")
    targets = module.LORA_TARGETS if config.targets is None else config.targets
    if not targets:
        raise UsageError(
            "lora.targets: the family has no layers that are adapted by default; name some of "
            f"{_list_names(names)}, or tune it without lora"
        )
    layers: dict[str, str] = {}
    for target in [targets] if isinstance(targets, str) else targets:
        hits = linear if target == ALL else _match_names(names, target)
        if not hits:
            what = "linear layer" if target == ALL else f"layer {target!r}"
            every = f"; {ALL}: every linear layer" if linear else ""
            raise UsageError(
                f"lora.targets: no {what} in this model; it has {_list_names(names)}{every}"
            )
        layers |= hits
    return layers


def _match_names(names: Mapping[str, str], target: str) -> dict[str, str]:
    return {
        ours: theirs
        for ours, theirs in names.items()
        if any(name == target or name.endswith(f".{target}") for name in (ours, theirs))
    }


def _list_names(names: Mapping[str, str]) -> str:
    return ", ".join(sorted({ours.rpartition(".")[2] for ours in names}))


def table_names(form: HfFormat, tables: Sequence[str]) -> dict[str, str]:
    """Return our names of the vocabulary tables with transformers' names, without folders."""
    all_names = {ours: names_of(form, ours) for ours in tables}
    first = {ours: names[0] for ours, names in all_names.items() if names}
    return {ours: name.theirs for ours, name in first.items() if not name.folder}


def table_layer(form: HfFormat, ours: str, config: FrozenConfig) -> dict[str, str]:
    """Return our name of an input table with that of transformers' layer, if it is one layer there.

    It is not where several layers share a table, such as those of an encoder and a decoder.
    """
    parts = {"": form, **form.folders}
    names = [name for name in names_of(form, ours) if parts[name.folder].present(config)]
    copies = [theirs for theirs, table in form.copies.items() if table == ours]
    if len(names) != 1 or names[0].folder or len(copies) > 1:
        return {}
    return {ours: names[0].theirs.removesuffix(".weight")}


def is_transposed(form: HfFormat, theirs: str) -> bool:
    """Return whether the weight of transformers' layer `theirs` is (in, out)."""
    for row in form.names.values():
        if isinstance(row, Transposed):
            rows = {row: row, row.removeprefix(form.body): row}
            if matching_name(rows, f"{theirs}.weight") is not None:
                return True
    return False


def in_memory(form: HfFormat, theirs: str) -> str:
    """Return the name in memory of a layer or tensor that is called `theirs` on disk."""
    for on_disk, name in form.in_memory.items():
        theirs = theirs.replace(on_disk, name)
    return theirs


def linear_names(
    form: HfFormat, model: Callable[..., nn.Module], config: FrozenConfig
) -> dict[str, str]:
    """Return our names of the linear layers with transformers' names, in the order of the model.

    Layers of other folders, and layers that transformers merges into one tensor, are left out.
    """
    layers = {}
    module = meta_model(model, config, 1)
    separate = form.join(config, module.state_dict()).keys()
    for ours, layer in module.named_modules():
        if isinstance(layer, nn.Linear) and f"{ours}.weight" in separate:
            theirs = matching_name(form.names, f"{ours}.weight")
            if theirs is not None:
                layers[ours] = str(theirs.removesuffix(".weight"))
    return layers


def adapt(model: nn.Module, config: Config, targets: Mapping[str, str]) -> None:
    """Freeze `model` except its task head, and add adapters to the target layers."""
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name.startswith(PREFIX))
    for name in targets:
        parent, _, leaf = name.rpartition(".")
        owner = model.get_submodule(parent)
        base = getattr(owner, leaf)
        if name == TABLE:
            parametrize.register_parametrization(model, TABLE, LoraTable(base, config))
        else:
            setattr(owner, leaf, LoraLinear(base, config))


def name_matrices(target: str) -> dict[str, str]:
    """Return peft's names of the two matrices of a layer's adapter, with ours in a state dict."""
    if target == TABLE:
        return {name: f"{_OF_TABLE}0.{name}" for name in (TABLE_A, TABLE_B)}
    return {f"{name}.weight": f"{target}.{name}" for name in ("lora_A", "lora_B")}


def remove_adapters(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the state dict without adapters, with the names of a model without adapters."""
    return {
        TABLE if name == _FROZEN else name: tensor
        for name, tensor in state.items()
        if ".lora_" not in name
    }


def rename_adapted(state: Mapping[str, Tensor], targets: Mapping[str, str]) -> dict[str, Tensor]:
    """Return a state dict of base and adapters with the names of the adapted model."""
    names = {TABLE: _FROZEN} if TABLE in targets else {}
    return {names.get(name, name): tensor for name, tensor in state.items()}
