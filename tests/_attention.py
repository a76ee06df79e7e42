"""Packs, fields and a short way to `attention.prepare` for the tests of attention."""

import torch

from nlpkit import attention, registry
from nlpkit.attention.choice import AttentionChoice
from nlpkit.attention.kinds import cpm_ant
from nlpkit.contracts.request import Heads, Layout

HEADS, WIDTH = 3, 8
SETTINGS = {"num_buckets": 16, "max_distance": 40, "segment_types": 4}
# Of the kinds that have settings; a window far narrower than the documents.
KIND_SETTINGS = {
    "cpm_ant": SETTINGS, "local_window": {"window": 5}, "strided": {"stride": 4},
    "fixed": {"stride": 5, "summary": 2}, "block_local": {"block": 5}, "group": {"groups": 3},
    "longformer": {"window": 6, "dilation": 2, "causal": False},
    "relative_bias": {"num_buckets": 16, "max_distance": 30},
    "relative_bias_causal": {"num_buckets": 12, "max_distance": 30},
}  # fmt: skip
# Those that backends compute; a kind with its own computation is tested with its family.
KINDS = [
    name for name in registry.names("attention/kinds") if not AttentionChoice.of(name).is_custom
]
TILED = "tests.parts.tiled"  # the listing of docs/flash_attention.md
ON_CPU = ["sdpa", "cpu_flash", TILED]
# Against the reference, which is float32 inside: rounding of inputs to bfloat16 is the same for
# both, so what is left is bfloat16 products and outputs (2^-8 relative, sums of a few).
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 3e-2}
PACKS = {
    "ragged": [5, 1, 17, 2, 33, 9],
    "one document": [37],
    "one token": [1],
    "equal": [12, 12, 12],
    "many": [1 + 7 * i % 11 for i in range(40)],
    "long": [300, 30, 150, 1, 290],
}


def attend_of(
    choice, layout, *, heads, head_dim, device=None, fields=None, key_fields=None, keys=None,
    tensors=None, cache=None, role=attention.SELF, **options,
):  # fmt: skip
    """Return `attention.prepare` of all that it depends on, by name; the layout has the device."""
    layout = layout.with_fields(fields or {})
    return attention.prepare(
        choice,
        Heads(heads, head_dim, **options),
        layout,
        tensors=tensors,
        keys=keys and keys.with_fields(key_fields or {}),
        cache=cache,
        role=role,
    )


def fields_of(lengths, contexts="mixed", seed=0):
    """Prompt of 2 in segment 0, text in segment 1 or 2; targets drawn by `contexts`."""
    rng = torch.Generator().manual_seed(seed)
    total = sum(lengths)
    position = torch.cat([torch.arange(n) for n in lengths])
    text = torch.cat([torch.full((n,), 1 + i % 2) for i, n in enumerate(lengths)])
    sizes = torch.cat([torch.full((n,), n) for n in lengths])
    context = {
        "mixed": torch.rand(total, generator=rng) < 0.5,
        "all": torch.ones(total, dtype=torch.bool),
        "none": torch.zeros(total, dtype=torch.bool),
        "tail": position < torch.cat([torch.full((n,), n // 2) for n in lengths]),
    }[contexts]
    return {
        "context": context,
        "segment": torch.where(position < 2, 0, text),
        "position": position,
        "span": None,
        # Each token sees itself and up to three tokens to its left, and all to its right or none.
        "first": (position - 3).clamp(min=0),
        "last": torch.where(context, sizes - 1, position),
    }


def inputs(total, dtype=torch.float32, device="cpu", seed=0):
    rng = torch.Generator().manual_seed(seed)
    shape = (4, total, HEADS, WIDTH)
    q, k, v, grad = torch.randn(shape, generator=rng).to(device=device, dtype=dtype)
    # The largest table; a kind takes the rows that it has.
    shape = cpm_ant.tensors(cpm_ant.Config(**SETTINGS), HEADS, WIDTH)["table"].shape
    table = torch.randn(shape, generator=rng)
    qkv = [x.clone().requires_grad_() for x in (q, k, v)]
    return qkv, table.to(device).requires_grad_(), grad


def rows_of(kind):
    """Return the rows of a kind's learned bias, 0 without one."""
    choice = AttentionChoice.of(kind, **KIND_SETTINGS.get(kind, {}))
    tensors = choice.module.tensors(choice.config, HEADS, WIDTH)
    return tensors["table"].shape[0] if tensors else 0


def prepare(kind, backend, lengths, fields, table, dtype, device="cpu", **options):
    options = {"training": True} | options
    return attend_of(
        AttentionChoice.of(kind, **KIND_SETTINGS.get(kind, {})),
        Layout(lengths, device),
        fields={k: None if v is None else v.to(device) for k, v in fields.items()},
        tensors={"table": table[: rows_of(kind) or None]} if rows_of(kind) else {},
        heads=HEADS,
        head_dim=WIDTH,
        dtype=dtype,
        device=device,
        backend=backend,
        **options,
    )
