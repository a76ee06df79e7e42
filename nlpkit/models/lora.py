"""Low-rank adapters on the linear layers of any family (`checkpoints/peft_layout.py`: on disk).

h = W x + alpha / r * B A x (Hu et al. 2021, eq. 3). The initial A is Kaiming uniform, as in peft;
the initial B is 0, so that training starts from the unchanged model. All parameters of the model
except the task head are frozen.
"""

import math
from collections.abc import Mapping

import torch.nn.functional as F
from torch import Tensor, nn

from nlpkit.config import FrozenConfig
from nlpkit.errors import UsageError
from nlpkit.models import hf_format
from nlpkit.models.contract import FamilyModel
from nlpkit.models.head import PREFIX
from nlpkit.models.lora_config import Config

ALL = "all-linear"  # as in peft


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


def targeted(config: Config, module: FamilyModel, model_config: FrozenConfig) -> dict[str, str]:
    """Return the layers that get adapters: our names with transformers' names.

    Raises:
        UsageError: a target is not a linear layer of the family, or there is no target.
    """
    names = hf_format.linear_names(module.FORMAT, module.Model, model_config)
    if not names:
        raise UsageError("lora: this model has no linear layers to adapt; tune it without lora")
    if config.targets == ALL:
        return dict(names)
    targets = module.LORA_TARGETS if config.targets is None else config.targets
    if not targets:
        raise UsageError(
            "lora.targets: the family has no layers that are adapted by default; name some of "
            f"{_known(names)}, or tune it without lora"
        )
    layers: dict[str, str] = {}
    for target in [targets] if isinstance(targets, str) else targets:
        hits = {
            ours: theirs
            for ours, theirs in names.items()
            if any(name == target or name.endswith(f".{target}") for name in (ours, theirs))
        }
        if not hits:
            raise UsageError(
                f"lora.targets: no linear layer {target!r} in this model; it has {_known(names)}; "
                f"{ALL}: every one"
            )
        layers |= hits
    return layers


def _known(names: Mapping[str, str]) -> str:
    return ", ".join(sorted({ours.rpartition(".")[2] for ours in names}))


def adapt(model: nn.Module, config: Config, targets: Mapping[str, str]) -> None:
    """Freeze `model` except its task head, and add adapters to the target layers."""
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name.startswith(PREFIX))
    for name in targets:
        parent, _, leaf = name.rpartition(".")
        owner = model.get_submodule(parent)
        setattr(owner, leaf, LoraLinear(getattr(owner, leaf), config))
