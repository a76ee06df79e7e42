"""Checks that a named backend can train a kind of attention, before there are data."""

from functools import partial

import torch

from nlpkit.attention import computes_itself, named_backend
from nlpkit.attention.contract import Choice, ComputedKind, Request
from nlpkit.attention.layout import Layout
from nlpkit.errors import Unsupported


def check_backend(
    choice: Choice,
    backend: str,
    *,
    heads: int,
    head_dim: int,
    dtype: torch.dtype,
    device: torch.device,
    dropout: float,
) -> None:
    """Raise `Unsupported` if the named backend cannot train this kind, as `prepare` would."""
    if backend == "auto":
        return
    if choice.shares:
        check = partial(check_backend, head_dim=head_dim, dtype=dtype, device=device)
        for share in choice.shares:
            check(share, backend, heads=heads // len(choice.shares), dropout=dropout)
        return
    kind, config = choice.module, choice.config
    if isinstance(kind, ComputedKind):
        raise Unsupported(computes_itself(choice))
    learned = kind.tensors(config, heads, head_dim)
    layout = Layout.of([1], device)
    request = Request(
        kind=kind, config=config, layout=layout, keys=layout, fields={}, key_fields={},
        tensors={n: torch.empty(t.shape, device="meta") for n, t in learned.items() if t.shared},
        buffers={}, heads=heads, head_dim=head_dim, dtype=dtype, device=device, training=True,
        dropout=dropout, scale=1.0,
    )  # fmt: skip
    named_backend(choice.kind, request, backend)
