"""A training step of each family on fake tensors on `cuda`; run by `_flex_on_fake_cuda.py`.

A tensor that is made on another device than the model's is an error there, as it is on a GPU.
"""

from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from nlpkit.attention.backends import flex
from nlpkit.models import families

LENGTHS = [9, 30, 1, 17]
TOTAL = sum(LENGTHS)
VOCABULARY = 61
_FAKE = FakeTensorMode()
SIZES = {"hidden_size": 128, "num_layers": 2, "num_heads": 4}
# What `forward` gets beside the lengths, by names and types.
_IDS, _FLAGS = torch.int64, torch.bool
INPUTS: dict[str, dict[str, torch.dtype]] = {
    "gpt": {"input_ids": _IDS},
    "gpt2": {"input_ids": _IDS},
    "bert": {"input_ids": _IDS, "token_type_ids": _IDS},
    "cpm_ant": {"input_ids": _IDS, "segment": _IDS, "position": _IDS, "context": _FLAGS},
}


def _step(family: str, precision: torch.dtype) -> dict[str, Any]:
    """Return the backend and its reason, and the devices and types of the gradients."""
    part = families.load(family)
    plain = {"attention_dropout": 0.0} if "attention_dropout" in part.Config.model_fields else {}
    config = part.Config(**SIZES, **plain)
    # `torch.autocast` itself does nothing without a driver.
    torch.set_autocast_enabled("cuda", precision != torch.float32)
    torch.set_autocast_dtype("cuda", precision)
    with _FAKE:
        with torch.device("cuda"):  # a module of fake tensors cannot be moved
            model = families.load_model(family).Model(config, VOCABULARY)
        given = {n: torch.zeros(TOTAL, dtype=t, device="cuda") for n, t in INPUTS[family].items()}
        hidden = model(LENGTHS, **given)
        rows = torch.zeros(20, dtype=torch.int64, device="cuda")
        loss, _ = model.token_loss(hidden, rows, torch.zeros_like(rows))
        loss.backward()
        grads = [p.grad for p in model.parameters() if p.grad is not None]
    return {
        "reason": model.attention_choice,
        "hidden": [list(hidden.shape), hidden.device.type],
        "gradients": sorted({f"{g.dtype} {g.device.type}" for g in grads}),
        "without": sum(p.grad is None for p in model.parameters()),
    }


def steps(names: list[str]) -> dict[str, Any]:
    """Return a step of these families in each precision, uncompiled."""
    flex._compiled = lambda function: function
    types = {"fp32": torch.float32, "bf16": torch.bfloat16}
    found = {f"{f} {name}": _step(f, t) for f in names for name, t in types.items()}
    torch.set_autocast_enabled("cuda", False)
    return found
