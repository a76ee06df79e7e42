"""Attention whose heads are of several kinds: each kind is prepared alone, for its group of heads.

So backends and caches need not know of it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from nlpkit.attention import Attend, reasons
from nlpkit.errors import Unsupported

if TYPE_CHECKING:
    from torch import Tensor

    from nlpkit.attention.choice import AttentionChoice
    from nlpkit.contracts.kind import Learned
    from nlpkit.contracts.request import Heads


def prepare(
    choice: AttentionChoice, heads: Heads, role: str, prepare_group: Callable[..., Attend]
) -> Attend:
    """Return the attention that runs that of each group, and joins their heads.

    `prepare_group` is `attention.prepare` with all but kind, heads and role: each group has a role
    of its own in the cache.

    Raises:
        Unsupported: the number of heads is no multiple of the number of groups.
    """
    if reason := choice.refuses_heads(heads.count, heads.key_heads):
        raise Unsupported(f"attention kind {choice.kind}: {reason}")
    groups, key_heads = len(choice.head_groups), heads.key_heads or heads.count
    size, key_size = heads.count // groups, max(key_heads // groups, 1)
    of_group = replace(heads, count=size, key_heads=None if size == key_size else key_size)
    attends = [
        prepare_group(kind, of_group, role=f"{role}, heads from {number * size}")
        for number, kind in enumerate(choice.head_groups)
    ]

    def run(
        q: Tensor, k: Tensor | None, v: Tensor | None, tensors: Learned | None = None
    ) -> Tensor:
        import torch

        outs = []
        for number, attend in enumerate(attends):
            first = number * key_heads // groups
            keys, values = (None if x is None else x[:, first : first + key_size] for x in (k, v))
            outs.append(attend(q[:, number * size : (number + 1) * size], keys, values, tensors))
        return torch.cat(outs, dim=1)

    return Attend("+".join({a.backend: None for a in attends}), reasons(attends), run)
