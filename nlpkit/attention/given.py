"""Checks of what a step gives to a kind of attention: fields, learned tensors, constants."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, cast

from nlpkit.attention.contract import LAYOUT_FIELDS, BiasKind, Choice, Kind

if TYPE_CHECKING:  # free of torch, as the kinds
    from torch import Tensor

    from nlpkit.attention.layout import Layout


def checked_fields(
    choice: Choice, fields: Mapping[str, Tensor | None], layout: Layout
) -> dict[str, Tensor]:
    """Return the fields that the kind reads; the layout provides missing positions and lengths."""
    kind, checked = choice.module, {}
    for field in kind.FIELDS:
        value = fields.get(field)
        if value is None and field in LAYOUT_FIELDS:
            value = layout.positions if field == "position" else layout.token_lengths
        if value is not None:
            if value.shape != (layout.total,):
                shape = tuple(value.shape)
                raise ValueError(
                    f"field {field!r} must be ({layout.total},), one value a token; got {shape}"
                )
            checked[field] = value
        elif field not in kind.OPTIONAL:
            given = ", ".join(sorted(fields)) or "nothing"
            raise ValueError(
                f"attention kind {choice.kind!r} needs the field {field!r}; given: {given}"
            )
    return checked


def buffers(kind: Kind, config: object, layout: Layout) -> dict[str, Tensor]:
    """Return the constants that the learned bias of a kind reads, on the device of the layout."""
    if not hasattr(kind, "bias_index"):
        return {}
    constants = cast(BiasKind, kind).buffers(config)
    return {name: value.to(layout.device) for name, value in constants.items()}


def check_tensors(choice: Choice, given: dict[str, Tensor], heads: int, head_dim: int) -> None:
    """Raise `ValueError` unless exactly the kind's shared tensors are given."""
    learned = choice.module.tensors(choice.config, heads, head_dim)
    expected = {name: tensor.shape for name, tensor in learned.items() if tensor.shared}
    shapes = {name: tuple(tensor.shape) for name, tensor in given.items()}
    if expected != shapes:
        raise ValueError(
            f"attention kind {choice.kind!r} needs the tensors {expected}; given: {shapes}"
        )
