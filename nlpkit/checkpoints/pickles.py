"""Weights that are pickles: they are not opened, since opening one may run any program."""

import json
import shlex
from pathlib import Path

from nlpkit.disk import read_json


def remedy(directory: Path) -> str:
    """Return the end of a message about missing weights: which pickle there is, and the way out."""
    found = [path.name for end in ("bin", "pt") for path in directory.glob(f"*.{end}")]
    if not found:
        return ""
    hint = f"; {found[0]} is a pickle, which is not opened"
    if not found[0].startswith("pytorch_model"):
        return hint
    name = str(next(iter(read_json(directory / "config.json").get("architectures") or ()), ""))
    made = name if name.isidentifier() else "AutoModel"  # config.json must not write a command
    read = f"import {made} as M; M.from_pretrained(D).save_pretrained(D)"
    command = f"D = {json.dumps(str(directory))}; from transformers {read}"
    return f"{hint}; transformers makes the other file: python -c {shlex.quote(command)}"
