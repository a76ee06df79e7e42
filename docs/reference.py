"""Writes pages of docs/reference: recipe keys, commands and their options, exit codes, scores.

`python docs/reference.py` writes the pages; tests/docs/test_reference.py compares them.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from reference_examples import PARTS, Examples
from reference_scores import write_scores

from nlpkit import errors, registry
from nlpkit.recipe.schema import build_schema

ROOT = Path(__file__).resolve().parents[1]
_MADE = "<!-- made by `python docs/reference.py` -->\n"
# Other groups of keys, by their name in the schema.
_SECTIONS = {
    "nlpkit__data__settings__Config": "data",
    "Source": "data.train, one source",
    "Model": "model",
    "Rope": "model.rope",
    "Tokenizer": "tokenizer",
    "Side": "tokenizer.source, tokenizer.target",
    "Objective": "objective",
    "Member": "objective.of, one member of a mixture",
    "Segment": "objective.segments, one segment",
    "Attention": "attention",
    "AttentionLayer": "attention.layers, one layer",
    "nlpkit__train__settings__Config": "train",
    "AverageConfig": "train.average",
    "nlpkit__models__adapter_config__Config": "lora",
    "nlpkit__models__adapter_config__Prompt": "prompt",
    "nlpkit__score__settings__Config": "eval",
    "Prompts": "model.prompts of cpm_ant",
    "nlpkit__score__settings__Prompt": "eval.prompt",
}
_EXAMPLES = Examples(ROOT / "recipes")


def _name_type(setting: dict[str, Any]) -> str:
    """Return the type of a setting in words: `integer`, `"a"` or `"b"`, `list of string`."""
    if "enum" in setting or "const" in setting:
        values = setting.get("enum", [setting.get("const")])
        return " or ".join(f"`{json.dumps(value)}`" for value in values)
    if "anyOf" in setting:
        return " or ".join(dict.fromkeys(_name_type(one) for one in setting["anyOf"]))
    if "$ref" in setting:
        return "mapping"
    kind = setting.get("type", "any")
    if kind == "array" and isinstance(setting.get("items"), dict):
        return f"list of {_name_type(setting['items'])}"
    return str(kind)


def _bounds(setting: dict[str, Any]) -> str:
    """Return the limits of a number, or nothing."""
    signs = {
        "minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<",
    }  # fmt: skip
    alternatives = [setting, *setting.get("anyOf", [])]
    return " ".join(
        f"{sign} {one[key]}" for one in alternatives for key, sign in signs.items() if key in one
    )


def _rows(described: dict[str, Any], sections: tuple[str, ...]) -> Iterator[str]:
    required = described.get("required", [])
    examples = {key: _EXAMPLES.of(sections, key) for key in described["properties"]}
    shown = ("key", "type", "default", "meaning", "example")[: 5 if any(examples.values()) else 4]
    yield f"| {' | '.join(shown)} |\n{'|---' * len(shown)}|"
    for key, setting in described["properties"].items():
        kind = " ".join(filter(None, (_name_type(setting), _bounds(setting))))
        default = "required" if key in required else ""
        if "default" in setting:
            default = f"`{json.dumps(setting['default'], ensure_ascii=False)}`"
        cells = (f"`{key}`", kind, default, setting.get("description", ""), examples[key])
        cells = cells[: len(shown)]
        yield "| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |"


def _table(described: dict[str, Any], *sections: str) -> str:
    """Return the table of keys; examples are those of the first of `sections` that has one."""
    described = described.get("else", described)  # the first part: the name alone
    if not described.get("properties"):
        return "It has no settings of its own."
    return "\n".join(_rows(described, sections))


def write_keys() -> dict[str, str]:
    """Return the pages of recipe keys by file name: sections, then a page for each kind of part."""
    schema = build_schema()
    known = schema["$defs"]
    top = {"properties": schema["else"]["properties"], "required": schema["else"]["required"]}
    text = [f"{_MADE}# Recipe keys: sections\n\n## The recipe\n\n{_table(top, 'The recipe')}"]
    text += [f"## {title}\n\n{_table(known[name], title)}" for name, title in _SECTIONS.items()]
    pages = {"keys.md": "\n\n".join(text) + "\n"}
    for section, (folder, key) in PARTS.items():
        text = [f"{_MADE}# Recipe keys: {folder}\n\nNamed by `{section}`, key `{key}`."]
        for name in registry.names(folder):
            described = known.get(f"nlpkit__{folder.replace('/', '__')}__{name}__Config", {})
            text.append(f"## {name}\n\n{_table(described, f'{folder}/{name}')}")
        pages[f"keys_{folder.rpartition('/')[2]}.md"] = "\n\n".join(text) + "\n"
    return pages


def _help(*words: str) -> str:
    """Return what `--help` prints on a plain terminal of 100 columns."""
    plain = {"COLUMNS": "100", "NO_COLOR": "1", "TERM": "dumb", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-m", "nlpkit", *words, "--help"],
        env=os.environ | plain, capture_output=True, text=True, encoding="utf-8", check=True,
    )  # fmt: skip
    return "\n".join(line.rstrip() for line in done.stdout.strip("\n").splitlines())


def write_commands() -> str:
    """Return the page of the command line: the help of each verb."""
    text = [f"{_MADE}# Command line\n\n```text\n{_help()}\n```"]
    text += [
        f"## nlpkit {verb}\n\n```text\n{_help(verb)}\n```" for verb in registry.names("commands")
    ]
    return "\n\n".join(text) + "\n"


def write_codes() -> str:
    """Return the page of exit codes: each class of errors with its code and docstring."""
    rows = ["| code | error | when |\n|---|---|---|", "| 0 | | done |", "| 1 | | a bug of nlpkit |"]
    found = [errors.NlpkitError]
    for known in found:
        found += known.__subclasses__()
    for one in sorted(dict.fromkeys(found), key=lambda each: (each.exit_code, each.__name__)):
        # What exits with 1 is a base of others, or exits with the code of something else.
        if one.__module__ == errors.__name__ and one.exit_code > 1:
            about = " ".join((one.__doc__ or "").split())
            rows.append(f"| {one.exit_code} | `{one.__name__}` | {about} |")
    rows.append("| 129, 130, 143 | | stopped by a signal (HUP, INT, TERM), after saving |")
    rows.append("| 141 | | the reader of stdout has gone |")
    return f"{_MADE}# Exit codes\n\n" + "\n".join(rows) + "\n"


def write_pages() -> dict[str, str]:
    """Return every page of docs/reference by its file name."""
    return write_keys() | {
        "commands.md": write_commands(),
        "exit_codes.md": write_codes(),
        "scores.md": _MADE + write_scores(),
    }


if __name__ == "__main__":
    folder = ROOT / "docs" / "reference"
    folder.mkdir(exist_ok=True)
    for name, page in write_pages().items():
        (folder / name).write_text(page, encoding="utf-8")
