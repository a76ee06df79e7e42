"""Attention over packed sequences: softmax(Q K^T * scale + bias, mask) V, never padded.

A *kind* (`kinds/NAME.py`) defines which key each query may see, a *backend* (`backends/NAME.py`)
computes the attention, and the *layout* gives the boundaries of the sequences. None of the three
depends on the others by name; `contract` defines their interfaces. A kind that is not a softmax
over a mask has its own computation.

N packed tokens, H heads, D width of a head.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, cast

from nlpkit import registry
from nlpkit.attention import given, shares
from nlpkit.attention.contract import (
    Backend,
    Choice,
    ComputedKind,
    Request,
    is_bounded,
)
from nlpkit.attention.pieces import PiecewiseKind
from nlpkit.errors import Unsupported

if TYPE_CHECKING:  # the kinds, which live below, are free of torch
    import torch
    from torch import Tensor

    from nlpkit.attention.cache import Cache
    from nlpkit.attention.layout import Layout

SELF = "self"  # the role of attention of a sequence to itself


@dataclass(frozen=True)
class Attend:
    """`attend(q, k, v) -> out`; created once per step, called once per layer.

    q and out are (N, H, D). k and v are (N, H, D), or (K, H, D) in cross attention, or None in
    cross attention whose keys are in the cache. `tensors` are the learned tensors of this layer.
    """

    backend: str
    reason: str
    run: Callable[..., Tensor]

    def __call__(
        self,
        q: Tensor,
        k: Tensor | None,
        v: Tensor | None,
        tensors: Mapping[str, Tensor] | None = None,
    ) -> Tensor:
        return self.run(q, k, v, tensors) if tensors else self.run(q, k, v)


def prepare(
    choice: Choice,
    layout: Layout,
    *,
    heads: int,
    head_dim: int,
    dtype: torch.dtype,
    device: torch.device | str,
    training: bool,
    fields: Mapping[str, Tensor | None] | None = None,
    tensors: Mapping[str, Tensor] | None = None,
    dropout: float = 0.0,
    backend: str = "auto",
    scale: float | None = None,
    cache: Cache | None = None,
    role: str = SELF,
    keys: Layout | None = None,
    key_fields: Mapping[str, Tensor | None] | None = None,
) -> Attend:
    """Return the function `attend(q, k, v)` that the layers of this step call.

    The bias and the masks that the layers share are computed here once, and the gradient of the
    shared `tensors` is computed once. `scale` is 1 / sqrt(head_dim) by default. `dropout` is
    applied to the probabilities in training. `keys` is the layout of the keys in cross attention:
    sequence i of the queries sees sequence i of the keys. `backend` is a name or `auto`.

    A `cache` has separate keys and values for each kind, its settings and its `role` in the model.
    The first call with a cache records them. In later calls every sequence has the same number of
    new tokens, and these also attend to the cached keys. `layout` must be `layout_of(…, cache)`.

    Raises:
        Unsupported: the named `backend` does not support this request, or no backend does.
        ValueError: fields or tensors are missing or have a wrong shape.
    """
    import torch

    if choice.shares:
        prepare_share = partial(
            prepare, layout=layout, head_dim=head_dim, dtype=dtype, device=device, keys=keys,
            training=training, fields=fields, tensors=tensors, dropout=dropout, backend=backend,
            scale=scale, cache=cache, key_fields=key_fields,
        )  # fmt: skip
        attends, run = shares.prepared(choice, heads, role, prepare_share)
        return Attend("+".join({a.backend: None for a in attends}), reasons(attends), run)
    kind, config = choice.module, choice.config
    shared = dict(tensors or {})
    given.check_tensors(choice, shared, heads, head_dim)
    checked = given.checked_fields(choice, fields or {}, layout)
    request = Request(
        kind=kind,
        config=config,
        layout=layout,
        keys=keys or layout,
        fields=checked,
        key_fields=given.checked_fields(choice, key_fields or {}, keys) if keys else checked,
        tensors=shared,
        buffers=given.buffers(kind, config, layout),
        heads=heads,
        head_dim=head_dim,
        dtype=dtype,
        device=torch.device(device),
        training=training,
        dropout=dropout if training else 0.0,
        scale=head_dim**-0.5 if scale is None else scale,
    )
    stream = (choice.kind, config.model_dump_json(), role)
    if isinstance(kind, ComputedKind):
        return _computed(choice, kind, request, backend, cache, stream)
    if cache is not None and layout.past is not None:
        return Attend("cache", "cached keys and values", cache.extend(request, stream))
    attend = _chosen(choice.kind, request, backend)
    if cache is None:
        return attend
    return Attend(attend.backend, attend.reason, cache.record(request, attend.run, stream))


def prepare_layers(
    choices: Sequence[Choice], layers: int, prepare_one: Callable[[Choice], Attend]
) -> list[Attend]:
    """Return one `Attend` per layer; the `choices` are repeated over the layers.

    Each distinct choice is prepared once.
    """
    prepared = {choice: prepare_one(choice) for choice in dict.fromkeys(choices[:layers])}
    return [prepared[choices[layer % len(choices)]] for layer in range(layers)]


def reasons(attends: Sequence[Attend]) -> str:
    """Return the distinct backends with their reasons, for the log."""
    return ", ".join(dict.fromkeys(attend.reason for attend in attends))


def layout_of(
    lengths: Sequence[int], device: torch.device | str, cache: Cache | None = None
) -> Layout:
    """Return the layout of sequences of these lengths, which continue the cached sequences.

    Call it once per forward pass: it starts the next step of the cache.
    """
    from nlpkit.attention.layout import Layout

    return Layout.of(lengths, device, cache.begin(lengths) if cache is not None else ())


def dense_mask(choice: Choice, layout: Layout, fields: Mapping[str, Tensor | None]) -> Tensor:
    """Return the mask of a complete pack, (N, N) bool: True where query (row) i may see key j.

    Raises:
        Unsupported: the kind has no mask.
    """
    import torch

    if not hasattr(choice.module, "mask"):
        raise Unsupported(f"attention kind {choice.kind} has no mask: it computes itself")
    index = torch.arange(layout.total, device=layout.device)
    checked = given.checked_fields(choice, fields, layout)
    request = Request(
        kind=choice.module, config=choice.config, layout=layout, keys=layout, fields=checked,
        key_fields=checked, tensors={}, buffers={}, heads=1, head_dim=1, dtype=torch.float32,
        device=layout.device, training=False, dropout=0.0, scale=1.0,
    )  # fmt: skip
    return request.visible(index[:, None], index[None, :])


def _computed(
    choice: Choice,
    kind: ComputedKind,
    request: Request,
    backend: str,
    cache: Cache | None,
    stream: tuple[str, str, str],
) -> Attend:
    """Return the attention of a kind that has its own computation."""
    if backend != "auto":
        raise Unsupported(computes_itself(choice))
    if request.dropout and not getattr(kind, "DROPOUT", False):
        raise Unsupported(f"attention kind {choice.kind} has no probabilities for dropout")
    if request.is_cross and not getattr(kind, "CROSS", True):
        raise Unsupported(
            f"attention kind {choice.kind} is for attention of a sequence to itself, no cross "
            "attention"
        )
    if is_bounded(choice) and request.layout.longest > (request.config.max_length or 0):
        raise Unsupported(
            f"a sequence of {request.layout.longest} tokens; attention kind {choice.kind} is made "
            f"for max_length {request.config.max_length}"
        )
    layers = cache.states(request, stream) if cache is not None else None
    prepared = getattr(kind, "prepared", None)
    if prepared is not None:
        request = replace(request, prepared=prepared(request))

    def run(q: Tensor, k: Tensor, v: Tensor, tensors: Mapping[str, Tensor] | None = None) -> Tensor:
        state = next(layers) if layers is not None else None
        return kind.attend(request, q, k, v, tensors or {}, state)

    return Attend("own", f"{choice.kind} computes itself", run)


def computes_itself(choice: Choice) -> str:
    """Return why a kind that has its own computation takes no backend."""
    return f"attention kind {choice.kind} computes itself and takes no backend; set backend to auto"


def _chosen(kind: str, request: Request, backend: str) -> Attend:
    """Return the attention of the named backend, or of the first that supports the request."""
    if backend != "auto":
        chosen = named_backend(kind, request, backend)
        return Attend(backend, f"{backend} (asked for)", chosen.prepare(request))
    refused = []
    for name in _order(request):
        chosen = _backend(name)
        if reason := chosen.refuses(request):
            refused.append(f"{name} refused: {reason}")
            continue
        reason = f"{name} ({'; '.join(refused)})" if refused else name
        return Attend(name, reason, chosen.prepare(request))
    raise Unsupported(f"no attention backend can do kind {kind}: {'; '.join(refused)}")


def named_backend(kind: str, request: Request, backend: str) -> Backend:
    """Return the named backend; raise `Unsupported` if it cannot do the request."""
    chosen = _backend(backend)
    if reason := chosen.refuses(request):
        raise Unsupported(f"attention backend {backend} cannot do kind {kind}: {reason}")
    return chosen


def _backend(name: str) -> Backend:
    return cast(Backend, registry.load("attention/backends", name))


def _order(request: Request) -> tuple[str, ...]:
    """Return the backends in order of preference."""
    if request.device.type == "cuda":
        return "flash", "varlen", "flex", "sdpa", "reference"
    if request.device.type != "cpu":
        return "sdpa", "reference"
    if isinstance(request.kind, PiecewiseKind):
        return "sparse", "cpu_flash", "sdpa", "reference"
    if _suits_torch(request):
        return "sdpa", "cpu_flash", "reference"
    return "cpu_flash", "sdpa", "reference"


def _suits_torch(request: Request) -> bool:
    """Return whether torch's own kernel is as fast as `cpu_flash` on a CPU, or faster.

    A rule, measured once (docs/attention.md), so that a run repeats. The kernel has no dropout.
    """
    if request.kernel is None or request.dropout:
        return False
    longest = request.layout.max_length
    if request.dtype.itemsize == 2:
        return longest > 1024
    is_even = set(request.layout.lengths) == {longest}
    return not (request.kernel == "causal" and is_even and 384 <= longest <= 1024)
