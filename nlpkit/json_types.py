"""The types of JSON objects: settings, figures, lines of a file."""

from collections.abc import Mapping
from typing import Any, TypeAlias

JsonObject: TypeAlias = dict[str, Any]
JsonMapping: TypeAlias = Mapping[str, Any]  # one that is only read
