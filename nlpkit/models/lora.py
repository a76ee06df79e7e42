"""Low-rank adapters on any family's linear layers; `_peft` has them on disk.

h = W x + alpha / r * B A x (Hu et al. 2021, eq. 3); A is drawn as peft draws it (Kaiming uniform),
B is 0, so that training starts from the model as it is. W and all else are frozen, but for the
task's layer. What the linear layers are called in transformers: `hf_format.linear_names`.
"""

import math
from collections.abc import Mapping

import torch.nn.functional as F
from torch import Tensor, nn

from nlpkit.config import FrozenConfig
from nlpkit.errors import UsageError
from nlpkit.models import hf_format
from nlpkit.models.contract import FamilyModel
from nlpkit.models.head import BIAS, HEAD
from nlpkit.models.lora_config import Config

ALL = "all-linear"  # peft's word for it


class LoraLinear(nn.Linear):
    """A linear layer whose weight is frozen, and the two matrices that are trained beside it."""

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
    """Return the layers that get adapters: our names and transformers'.

    Raises:
        UsageError: a target is no linear layer of the family.
    """
    names = hf_format.linear_names(module, model_config)
    if config.targets == ALL:
        return dict(names)
    wanted = module.LORA_TARGETS if config.targets is None else config.targets
    wanted = [wanted] if isinstance(wanted, str) else wanted
    found: dict[str, str] = {}
    for target in wanted:
        hits = {
            ours: theirs
            for ours, theirs in names.items()
            if any(name == target or name.endswith(f".{target}") for name in (ours, theirs))
        }
        if not hits:
            known = ", ".join(sorted({ours.rpartition(".")[2] for ours in names}))
            raise UsageError(
                f"lora.targets: no linear layer {target!r} in this model; it has {known}; "
                f"{ALL}: every one"
            )
        found |= hits
    return found


def adapt(model: nn.Module, config: Config, targets: Mapping[str, str]) -> None:
    """Freeze `model`, but for the task's layer, and give the targets their adapters."""
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name in (HEAD, BIAS))
    for name in targets:
        parent, _, leaf = name.rpartition(".")
        owner = model.get_submodule(parent)
        setattr(owner, leaf, LoraLinear(getattr(owner, leaf), config))
