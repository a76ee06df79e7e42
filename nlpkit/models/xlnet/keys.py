"""The keys that both streams of XLNet see: of the content, of its memory, and those of a cache.

N new tokens of a pack, K keys, C hidden_size, H heads, D width of a head.
"""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from nlpkit.attention.cache import Cache
from nlpkit.contracts.request import Layout

Project = Callable[[Tensor], tuple[Tensor, Tensor]]  # states (N, C) to keys and values (N, H, D)


class Keys:
    """The keys of a sequence: its tokens, those of a cache first; then, with a memory, all again.

    The keys of the memory have no gradient. `layout` is that of the keys, `fields` are theirs, each
    (K,).
    """

    def __init__(
        self, layout: Layout, fields: Mapping[str, Tensor], has_memory: bool, cache: Cache | None
    ):
        self.cache, self.new = cache, layout.lengths
        self.layout = layout
        self.rows: Tensor | None = None
        self.fields = {name: self._all(f"field {name}", field) for name, field in fields.items()}
        if cache is not None:
            self.layout = Layout(cache.lengths, layout.device)
        if has_memory:
            self._repeat()

    def of(self, project: Project, depth: int, content: Tensor) -> tuple[Tensor, Tensor]:
        """Return the keys and values (K, H, D) of the layer `depth` for its content (N, C)."""
        k, v = project(content)
        k, v = self._all(f"keys {depth}", k), self._all(f"values {depth}", v)
        if self.rows is None:
            return k, v
        again = (k, v) if self.cache is not None else project(content.detach())
        k, v = (torch.cat(pair)[self.rows] for pair in zip((k, v), again, strict=True))
        return k, v

    def _repeat(self) -> None:
        """Repeat the keys of each sequence behind its own; the field `memory` tells the two."""
        layout = self.layout
        sizes = layout.lengths
        row = torch.arange(2 * layout.total, device=layout.device)
        own, again = row[: layout.total].split(sizes), row[layout.total :].split(sizes)
        rows = torch.cat([part for pair in zip(own, again, strict=True) for part in pair])
        self.rows = rows
        self.layout = Layout([2 * size for size in sizes], layout.device)
        self.fields = {name: torch.cat([field, field])[rows] for name, field in self.fields.items()}
        self.fields["memory"] = (rows >= layout.total).long()

    def _all(self, name: str, new: Tensor) -> Tensor:
        """Return what the cache has of each sequence, each with its `new` (N, …) at the end."""
        if self.cache is None:
            return new
        kept, parts = self.cache.ragged(name), new.split(self.new)
        kept[:] = [torch.cat(pair) for pair in zip(kept, parts, strict=True)] if kept else parts
        return torch.cat(kept)
