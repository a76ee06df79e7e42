"""The base of every part's `Config`: frozen, strict, unknown keys refused.

Strict types because YAML's surprises (`yes`, `1_0`, quoted numbers) should be named, not guessed:
an int may stand for a float, nothing else is converted. Paths are `str`.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict


class FrozenConfig(BaseModel):
    """Settings of one part of a recipe; must be importable without torch."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False, protected_namespaces=()
    )

    # Settings that exclude each other: with `--set`, one takes the place of the others.
    ALTERNATIVES: ClassVar[tuple[tuple[str, ...], ...]] = ()
    # Values of settings in runs and checkpoints that are older than the setting.
    EARLIER: ClassVar[Mapping[str, Any]] = {}

    def without_effect(self) -> Mapping[str, str]:
        """Return the settings that change nothing beside the others, each with the reason.

        A reason goes on `has no effect …`. Whoever sets one to more than its default is warned.
        """
        return {}

    def is_default(self, name: str) -> bool:
        """Return whether a setting has its default, given or not."""
        return getattr(self, name) == type(self).model_fields[name].default
