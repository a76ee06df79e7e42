"""`preprocessor_config.json`: how transformers makes a model's inputs, such as of images."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nlpkit.disk import read_json

FILE = "preprocessor_config.json"


def read(directory: Path) -> dict[str, Any]:
    """Return the content of the file in a checkpoint, or {} without one; raise `FileError`."""
    path = directory / FILE
    return read_json(path) if path.is_file() else {}


def write(directory: Path, settings: Mapping[str, Any]) -> None:
    """Write the file into a checkpoint."""
    text = json.dumps(settings, indent=2, ensure_ascii=False)
    (directory / FILE).write_text(text + "\n", encoding="utf-8")
