"""Attention over packed sequences: softmax(Q K^T * scale + bias, mask) V, never padded.

A *kind* (`kinds/NAME.py`) says who sees whom, as index arithmetic; a *backend* (`backends/NAME.py`)
computes it; the *layout* says where sequences begin and end. None knows the others' names.

N packed tokens, H heads, D width of a head.

A kind has `Config`; `FIELDS`, the batch fields it reads (those in `OPTIONAL` may be absent);
`CAUSAL` or `FULL` where its mask is exactly that; `mask(fields, q, k)`, bool over index tensors
that broadcast; `LEADING`, a bool field whose tokens are best computed first, or None; and with
`BIAS`, `rows(config)`, `constants(config)` (tensors added to the fields) and
`bias_index(config, fields, q, k)`, rows of a learned table `(rows, H)` added to the scores.
A backend has `refuses(request) -> str | None` and `prepare(request) -> (q, k, v) -> out`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import ModuleType
from typing import TYPE_CHECKING

from nlpkit import registry
from nlpkit.config import FrozenConfig
from nlpkit.errors import Unsupported

if TYPE_CHECKING:  # the kinds, which live below, are free of torch
    import torch
    from torch import Tensor

    from nlpkit.attention.cache import Cache
    from nlpkit.attention.layout import Layout


@dataclass(frozen=True)
class Request:
    """What a backend is asked for: the kind with its fields, and the tensors to come."""

    kind: ModuleType
    config: FrozenConfig
    layout: Layout
    fields: Mapping[str, Tensor]
    table: Tensor | None
    heads: int
    head_dim: int
    dtype: torch.dtype
    device: torch.device
    training: bool
    dropout: float
    scale: float

    def visible(self, q: Tensor, k: Tensor) -> Tensor:
        """Return who sees whom among the indices `q`, `k`, other documents ruled out."""
        ids = self.layout.document_ids
        return self.kind.mask(self.fields, q, k) & (ids[q] == ids[k])

    def bias_index(self, q: Tensor, k: Tensor) -> Tensor:
        """Return the row of the table for each pair of indices."""
        return self.kind.bias_index(self.config, self.fields, q, k)


@dataclass(frozen=True)
class Attend:
    """`attend(q, k, v) -> out`, each (N, H, D); made once a step, called once a layer."""

    backend: str
    reason: str
    run: Callable[[Tensor, Tensor, Tensor], Tensor]

    def __call__(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return self.run(q, k, v)


def prepare(
    kind: str,
    layout: Layout,
    *,
    fields: Mapping[str, Tensor | None],
    heads: int,
    head_dim: int,
    dtype: torch.dtype,
    device: torch.device | str,
    training: bool,
    table: Tensor | None = None,
    settings: Mapping[str, object] | None = None,
    dropout: float = 0.0,
    backend: str = "auto",
    scale: float | None = None,
    cache: Cache | None = None,
) -> Attend:
    """Return what every layer of this step calls: `attend(q, k, v)`.

    What layers share (bias, mask, block mask) is made here, once, and the gradient of `table`
    (rows, H) is collected once. `scale` is 1 / sqrt(head_dim) if None; `dropout` acts on the
    probabilities, in training. Raises `Unsupported` if `backend` is named and cannot do it.

    An empty `cache` keeps the keys and values of this step; one that holds sequences lets the
    tokens of this step, the same number for each of them, attend to all of their own.
    """
    import torch

    module = registry.load("attention/kinds", kind)
    config = module.Config(**(settings or {}))
    request = Request(
        kind=module,
        config=config,
        layout=layout,
        fields=_read(kind, module, fields, layout) | _constants(module, config, layout),
        table=_checked_table(kind, module, config, table, heads),
        heads=heads,
        head_dim=head_dim,
        dtype=dtype,
        device=torch.device(device),
        training=training,
        dropout=dropout if training else 0.0,
        scale=head_dim**-0.5 if scale is None else scale,
    )
    if cache is not None and len(cache):
        return Attend("cache", "kept keys and values", cache.extend(request))
    attend = _chosen(kind, request, backend)
    if cache is not None:
        return replace(attend, run=cache.record(request, attend.run))
    return attend


def _chosen(kind: str, request: Request, backend: str) -> Attend:
    """Return the attention of the named backend, or of the first that does not refuse."""
    if backend != "auto":
        chosen = registry.load("attention/backends", backend)
        if reason := chosen.refuses(request):
            raise Unsupported(f"attention backend {backend} cannot do kind {kind}: {reason}")
        return Attend(backend, f"{backend} (asked for)", chosen.prepare(request))
    refused = []
    for name in _order(request):
        chosen = registry.load("attention/backends", name)
        if reason := chosen.refuses(request):
            refused.append(f"{name} refused: {reason}")
            continue
        reason = f"{name} ({'; '.join(refused)})" if refused else name
        return Attend(name, reason, chosen.prepare(request))
    raise Unsupported(f"no attention backend can do kind {kind}: {'; '.join(refused)}")


def dense_mask(kind: str, layout: Layout, fields: Mapping[str, Tensor | None]) -> Tensor:
    """Return who sees whom over the whole pack, (N, N) bool; rows are queries."""
    import torch

    module = registry.load("attention/kinds", kind)
    given = _read(kind, module, fields, layout)
    index = torch.arange(layout.total, device=layout.device)
    ids = layout.document_ids
    q, k = index[:, None], index[None, :]
    return module.mask(given, q, k) & (ids[q] == ids[k])


def _order(request: Request) -> tuple[str, ...]:
    """Return the backends in the order of trial; on CPU as measured by `bench/attention.py`."""
    if request.device.type == "cuda":
        return "flash", "varlen", "flex", "sdpa", "reference"
    if request.device.type != "cpu":
        return "sdpa", "reference"
    # In float32 torch's own kernel is as good where it needs no mask of ours.
    plain = request.table is None and (request.kind.FULL or request.kind.CAUSAL)
    if plain and request.dtype.itemsize > 2:
        return "sdpa", "recompute", "reference"
    return "recompute", "sdpa", "reference"


def _read(
    name: str,
    kind: ModuleType,
    fields: Mapping[str, Tensor | None],
    layout: Layout,
) -> dict[str, Tensor]:
    """Return the fields that the kind reads, checked."""
    read = {}
    for field in kind.FIELDS:
        value = fields.get(field)
        if value is not None:
            if value.shape != (layout.total,):
                shape = tuple(value.shape)
                raise ValueError(
                    f"field {field!r} must be ({layout.total},), one value a token; got {shape}"
                )
            read[field] = value
        elif field not in kind.OPTIONAL:
            given = ", ".join(sorted(fields)) or "nothing"
            raise ValueError(f"attention kind {name!r} needs the field {field!r}; given: {given}")
    return read


def _constants(kind: ModuleType, config: FrozenConfig, layout: Layout) -> dict[str, Tensor]:
    if not kind.BIAS:
        return {}
    return {name: value.to(layout.device) for name, value in kind.constants(config).items()}


def _checked_table(
    name: str, kind: ModuleType, config: FrozenConfig, table: Tensor | None, heads: int
) -> Tensor | None:
    if not kind.BIAS:
        if table is not None:
            raise ValueError(f"attention kind {name!r} has no learned bias but was given a table")
        return None
    wanted = (kind.rows(config), heads)
    given = None if table is None else tuple(table.shape)
    if given != wanted:
        raise ValueError(f"attention kind {name!r} needs a bias table {wanted}; got {given}")
    return table
