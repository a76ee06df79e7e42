"""Attention over packed sequences: softmax(Q K^T * scale + bias, mask) V, never padded.

A *kind* (`kinds/NAME.py`) defines which key each query may see, a *backend* (`backends/NAME.py`)
computes the attention, and the *layout* gives the boundaries of the sequences. None of the three
depends on the others by name; `contracts/kind`, `contracts/backend` and `contracts/request` define
their interfaces. A kind that is not a softmax over a mask has its own computation.

N packed tokens, K keys, H heads of queries, G of keys and values, D width of a head.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, cast

from nlpkit import registry
from nlpkit.attention.choice import AttentionChoice, make_request
from nlpkit.contracts.backend import Backend
from nlpkit.contracts.request import Heads, Layout, Request
from nlpkit.errors import Unsupported

if TYPE_CHECKING:  # the kinds, which live below, are free of torch
    import torch
    from torch import Tensor

    from nlpkit.attention.cache import Cache
    from nlpkit.contracts.kind import Learned

SELF = "self"  # the role of attention of a sequence to itself
_BACKENDS = "attention/backends"
# The backends that `auto` asks, by the type of device: first those that suit a request, in this
# order, then the others.
AUTO = {
    "cpu": ("cpu_flash", "sparse", "sdpa", "reference"),
    "cuda": ("flash", "varlen", "flex", "sdpa", "reference"),
    "other": ("sdpa", "reference"),
}


@dataclass(frozen=True)
class Attend:
    """`attend(q, k, v) -> out`; created once per step, called once per layer.

    q and out are (N, H, D). k and v are (N, G, D), or (K, G, D) in cross attention, or None in
    cross attention whose keys are in the cache. `tensors` are the learned tensors of this layer.
    """

    backend: str
    reason: str
    run: Callable[..., Tensor]

    def __call__(
        self, q: Tensor, k: Tensor | None, v: Tensor | None, tensors: Learned | None = None
    ) -> Tensor:
        return self.run(q, k, v, tensors) if tensors else self.run(q, k, v)


def prepare(
    choice: AttentionChoice,
    heads: Heads,
    layout: Layout,
    *,
    tensors: Learned | None = None,
    keys: Layout | None = None,
    cache: Cache | None = None,
    role: str = SELF,
) -> Attend:
    """Return the function `attend(q, k, v)` that the layers of this step call.

    What they share is computed here once: masks, and bias and gradient of the shared `tensors`.
    In cross attention sequence i of the queries sees sequence i of `keys`. The first call with a
    `cache` records keys and values, of each `role` in the model; in later calls new tokens, the
    same number in each sequence of `layout_of(…, cache)`, attend to them, too.

    Raises:
        Unsupported: the named backend does not support this request, or no backend does.
        ValueError: fields are missing, or tensors are missing or have a wrong shape.
    """
    if choice.head_groups:
        from nlpkit.attention import composed

        prepare_one = partial(prepare, layout=layout, tensors=tensors, keys=keys, cache=cache)
        return composed.prepare_groups(choice, heads, role, prepare_one)
    request = make_request(choice, heads, layout, keys, tensors or {})
    key = (choice.kind, choice.config.model_dump_json(), role)
    if choice.is_custom:
        from nlpkit.attention import composed

        return composed.prepare_own(choice, request, heads.backend, cache, key)
    if cache is not None and layout.past is not None:
        return Attend("cache", "cached keys and values", cache.extend(request, key))
    attend = _prepare_backend(choice, request, heads.backend)
    if cache is None:
        return attend
    return Attend(attend.backend, attend.reason, cache.record(request, attend.run, key))


def reasons(attends: Sequence[Attend]) -> str:
    """Return the distinct backends with their reasons, for the log."""
    return ", ".join(dict.fromkeys(attend.reason for attend in attends))


def layout_of(
    lengths: Sequence[int], device: torch.device | str, cache: Cache | None = None
) -> Layout:
    """Return the layout of sequences of these lengths, which continue the cached sequences.

    Call it once per forward pass: it starts the next step of the cache.
    """
    return Layout(lengths, device, cache.begin(lengths) if cache is not None else ())


def check_backend(choice: AttentionChoice, heads: Heads, device: torch.device) -> None:
    """Raise `Unsupported` if the named backend cannot train this kind, before there are data."""
    import torch

    if heads.backend == "auto":
        return
    if groups := choice.head_groups:
        for group in groups:
            check_backend(group, replace(heads, count=heads.count // len(groups)), device)
        return
    if choice.is_custom:
        from nlpkit.attention import composed

        raise Unsupported(composed.takes_no_backend(choice))
    learned = choice.tensors(heads.count, heads.width)
    shared = {n: torch.empty(t.shape, device="meta") for n, t in learned.items() if t.shared}
    layout = Layout([1], device)
    fields = {n: torch.zeros(1, device=device) for n in choice.module.FIELDS}
    request = make_request(choice, heads, layout.with_fields(fields), tensors=shared)
    _load_backend(heads.backend, choice, request)


def _prepare_backend(choice: AttentionChoice, request: Request, name: str) -> Attend:
    if name != "auto":
        backend, reason = _load_backend(name, choice, request), f"{name} (asked for)"
    else:
        name, backend, reason = _choose_backend(choice, request)
    if backend.GROUPED or request.key_heads == request.heads:
        return Attend(name, reason, backend.prepare(request))
    run = backend.prepare(replace(request, key_heads=request.heads))
    return Attend(name, reason, lambda q, k, v: run(q, *(repeat_heads(x, request) for x in (k, v))))


def _choose_backend(choice: AttentionChoice, request: Request) -> tuple[str, Backend, str]:
    """Return the backend that `auto` is: its name, the backend, and why it is no other one."""
    refused = []
    for suits in (True, False):
        for name in AUTO.get(request.device.type, AUTO["other"]):
            backend = cast(Backend, registry.load(_BACKENDS, name))
            if backend.suits(request) != suits:
                continue
            if reason := backend.refuses(request):
                refused.append(f"{name} refused: {reason}")
                continue
            return name, backend, f"{name} ({'; '.join(refused)})" if refused else name
    raise Unsupported(f"no attention backend can do kind {choice.kind}: {'; '.join(refused)}")


def _load_backend(name: str, choice: AttentionChoice, request: Request) -> Backend:
    backend = cast(Backend, registry.load(_BACKENDS, name))
    if reason := backend.refuses(request):
        raise Unsupported(f"attention backend {name} cannot do kind {choice.kind}: {reason}")
    return backend


def repeat_heads(x: Tensor, request: Request) -> Tensor:
    """Return (K, H, D) from keys or values (K, G, D)."""
    times = request.heads // request.key_heads
    return x if times == 1 else x.repeat_interleave(times, dim=1)
