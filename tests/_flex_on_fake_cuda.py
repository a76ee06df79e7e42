"""What FlexAttention gives on fake tensors on `cuda`; run by `tests/_fake_cuda.py`.

    # steps of these families and calls of these kinds; as JSON
    python -m tests._flex_on_fake_cuda uncompiled bert,gpt causal,cpm_ant
    python -m tests._flex_on_fake_cuda graphs      # how many are compiled for ever new packs

torch traces and compiles as for a GPU, down to the graph of forward and backward; its last step,
the kernels in Triton, is left out (`aot_eager`).
"""

import json
import random
import sys
import warnings
from functools import cache, partial
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from nlpkit import attention
from nlpkit.attention.backends import flex
from nlpkit.attention.choice import AttentionChoice
from tests import _steps_on_fake_cuda
from tests._attention import KIND_SETTINGS, attend_of

HEADS, WIDTH = 4, 16
LENGTHS = [5, 1, 17, 2, 133, 9]
TYPES = {
    "context": torch.bool, "segment": torch.int64, "position": torch.int64,
    "first": torch.int64, "last": torch.int64,
}  # fmt: skip
BIASED = ["cpm_ant", "relative_bias", "relative_bias_causal"]
_FAKE = FakeTensorMode()
_graphs = 0


def _about(x: torch.Tensor) -> list[Any]:
    return [list(x.shape), str(x.dtype).removeprefix("torch."), x.device.type]


def _call(
    kind: str, lengths: list[int], dtype: torch.dtype, training: bool = True, layers: int = 2
) -> dict[str, Any]:
    """Call the backend that `auto` takes; return it with shape, type and device of what it gave."""
    choice = AttentionChoice.of(kind, **KIND_SETTINGS.get(kind, {}))
    total = sum(lengths)
    with _FAKE, torch.set_grad_enabled(training), warnings.catch_warnings(record=True) as caught:
        learned = choice.module.tensors(choice.config, HEADS, WIDTH)
        tensors = {
            name: torch.empty(about.shape, device="cuda", requires_grad=True)
            for name, about in learned.items()
        }
        fields = {n: torch.empty(total, dtype=t, device="cuda") for n, t in TYPES.items()}
        attend = attend_of(
            choice, attention.layout_of(lengths, "cuda"), heads=HEADS, head_dim=WIDTH, dtype=dtype,
            device="cuda", training=training, fields=fields, tensors=tensors,
        )  # fmt: skip
        shape = total, HEADS, WIDTH
        q, k, v = (
            torch.empty(shape, dtype=dtype, device="cuda", requires_grad=training) for _ in "qkv"
        )
        warned = ["random order" in str(w.message) for w in caught]
        out = q
        for _ in range(layers):
            out = attend(out, k, v)
        found = {"backend": attend.backend, "reason": attend.reason, "out": _about(out)}
        found["warned"] = any(warned)
        if training:
            grads = torch.autograd.grad(out, [q, k, v, *tensors.values()], torch.empty_like(out))
            found["gradients"] = [_about(x) for x in grads]
            found["tensors"] = [list(about.shape) for about in learned.values()]
    return found


def _calls(kinds: list[str]) -> dict[str, Any]:
    """Return the calls of kinds in float32, which no other fused kernel takes, uncompiled."""
    flex._compiled = lambda function: function
    torch.use_deterministic_algorithms(True, warn_only=True)
    found = {f"{kind} float32": _call(kind, LENGTHS, torch.float32, layers=1) for kind in kinds}
    for kind in set(BIASED) & set(kinds):
        found[f"{kind} bfloat16"] = _call(kind, LENGTHS, torch.bfloat16, layers=1)
    return found


def _count(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Any:
    from torch._dynamo.backends.debugging import aot_eager  # half a second, of every worker

    global _graphs
    _graphs += 1
    return aot_eager(graph, inputs)


def _compiled_graphs() -> dict[str, Any]:
    """Return how many graphs there are after each pack, trained on and then evaluated."""
    compile_for_gpu, real = flex._compiled, torch.compile
    # All of a function in one graph, or an error; more graphs than allowed is one, too.
    torch.compile = partial(real, backend=_count, fullgraph=True)  # keeps the names of arguments
    torch._dynamo.config.fail_on_recompile_limit_hit = True
    flex._compiled = cache(compile_for_gpu.__wrapped__)
    rng, counts = random.Random(0), []
    for _ in range(10):
        for training in (True, False):
            lengths = [rng.randint(1, 60) for _ in range(rng.randint(2, 9))]
            _call("cpm_ant", lengths, torch.bfloat16, training)
            _call("causal", lengths, torch.float32, training)
        counts.append(_graphs)
    return {"graphs": counts}


if __name__ == "__main__":
    warnings.filterwarnings("ignore", "flex_attention called without torch.compile")
    flex._has_triton = lambda: True
    torch.cuda.get_device_capability = lambda device=None: (8, 0)
    if sys.argv[1] == "graphs":
        found = _compiled_graphs()
    else:
        sys.modules["flash_attn"] = None  # not installed
        families, kinds = (words.split(",") for words in sys.argv[2:])
        found = {
            "steps": _steps_on_fake_cuda.steps(families),
            "calls": _calls(kinds),
        }
    print(json.dumps(found))
