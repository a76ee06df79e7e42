"""The additional members of an objective whose inputs transformers makes with a processor."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable


@runtime_checkable
class Preprocessed(Protocol):
    """An objective with settings in `preprocessor_config.json`, such as the scale of pixels."""

    @classmethod
    def with_preprocessor(cls, config: Any, settings: Mapping[str, Any]) -> Any:
        """Return `config` with what it does not set from the content of that file, or defaults."""

    def preprocessor(self) -> dict[str, Any]:
        """Return the content of that file."""
