"""YAML of a recipe as plain data, with the place of every value.

The part of YAML 1.2 (yaml.org/spec/1.2.2, core schema) that a recipe needs: `1e-4` is a number;
`yes`, `on`, `010`, `1_000`, `12:30` and dates are text; names of settings are always text. No tags,
one document. Anchors and aliases work; size, depth and number of values are bounded, so that a
small file cannot fill the memory.
"""

import re
from dataclasses import replace
from pathlib import Path as FilePath
from typing import Any

import yaml

from nlpkit.errors import FileError, RecipeError
from nlpkit.json_types import JsonObject
from nlpkit.recipe.places import Document, Path, Place, Problem

MAX_BYTES = 200_000
MAX_VALUES = 10_000
MAX_DEPTH = 32

# Of what is written without a tag.
_TAGS = [f"tag:yaml.org,2002:{name}" for name in ("str", "seq", "map")]
_PAIR = re.compile("[\ud800-\udbff][\udc00-\udfff]")
_INT = re.compile(r"[-+]?(0|[1-9][0-9]{0,300})")
_FLOAT = re.compile(
    r"[-+]?((0|[1-9][0-9]{0,300})?\.[0-9]+|(0|[1-9][0-9]{0,300})\.?)([eE][-+]?[0-9]{1,4})?"
)
_SPECIAL_FLOATS = {
    **{sign + name: float(sign + "inf") for sign in ("", "+", "-") for name in (".inf", ".Inf")},
    **{".INF": float("inf"), "-.INF": float("-inf")},
    **{name: float("nan") for name in (".nan", ".NaN", ".NAN")},
}
_WORDS = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}

# What PyYAML says, and what to do about it.
_SYNTAX = (
    (r"found character '\\t'", "a tab: indent with spaces"),
    (r"an(other|) document", "a second document: a recipe is one document"),
    (r"alias|anchor", "text that begins with * or & needs quotes"),
    (r"found character '(.)' that cannot start", r"text that begins with \1 needs quotes"),
    (
        r"mapping values are not allowed",
        "an unexpected `:` (too much indentation? text that holds `: ` needs quotes)",
    ),
    (r"expected <block end>", "does not line up with the lines above"),
    (r"could not find expected ':'", "expected `key: value`"),
    (r"expected ',' or '([]}])'", r"expected `,` or `\1`"),
    (r"unexpected end of stream", "a quote is opened and never closed"),
)


def _decode(raw: bytes, source: str) -> str:
    """Return the text of a recipe; raise `RecipeError` where it is not UTF-8 or too long."""
    if len(raw) > MAX_BYTES:
        raise RecipeError([f"{source}: longer than {MAX_BYTES:,} bytes: this is no recipe"])
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        what = f"not UTF-8 (byte 0x{raw[error.start]:02x}): save the file as UTF-8"
        raise RecipeError([f"{source}:{line}: {what}"]) from error


def read_file(path: FilePath, name: str) -> bytes:
    """Return the content of a recipe that messages call `name`; raise `FileError`."""
    try:
        with open(path, "rb") as file:
            return file.read(MAX_BYTES + 1)
    except OSError as error:
        raise FileError(f"{name}: {(error.strerror or str(error)).lower()}") from error


def read(text: str | bytes, source: str, order: int = 0) -> Document:
    """Return the one document in `text` (UTF-8); raise `RecipeError` where it cannot be read."""
    text = _decode(text, source) if isinstance(text, bytes) else text
    document = Document(None, {(): Place(source, order)})
    try:
        if (root := yaml.compose(text, Loader=yaml.BaseLoader)) is not None:
            document.data = _convert(root, (), _get_mark(root), document)
        return document
    except yaml.reader.ReaderError as error:
        mark = text.count("\n", 0, error.position) + 1, 1
        what = f"the character U+{error.character:04X} is not allowed in YAML"
    except yaml.MarkedYAMLError as error:
        mark, what = _explain_syntax(error)
    except RecursionError:
        mark, what = (1, 1), f"nested deeper than {MAX_DEPTH} levels"
    raise RecipeError([str(Problem.at(Place(source, order, mark, mark), (), what))])


class _Refused(yaml.MarkedYAMLError):
    """What YAML has and a recipe may not have."""

    def __init__(self, node: yaml.Node, what: str):
        super().__init__(problem=what, problem_mark=node.start_mark)


def _convert(node: yaml.Node, path: Path, key: tuple[int, int], document: Document) -> Any:
    """Return the value of `node` as plain data, aliases written out, and note all places in it."""
    mark = _get_mark(node)
    if len(document.places) > MAX_VALUES:
        raise _Refused(node, f"more than {MAX_VALUES:,} values (aliases written out)")
    if len(path) >= MAX_DEPTH:
        raise _Refused(node, f"nested deeper than {MAX_DEPTH} levels")
    if node.tag not in _TAGS:
        name = node.tag.replace("tag:yaml.org,2002:", "!!")
        raise _Refused(node, f"the tag {name} is not allowed: a recipe is plain data")
    whole = document.places[()]
    place = Place(whole.source, whole.order, key, mark)
    document.places[path] = place
    if isinstance(node, yaml.ScalarNode):
        node.value = _PAIR.sub(_join, node.value)
        document.places[path] = replace(place, text=node.value)
        if "\0" in node.value:
            what = "contains a NUL character, which no setting can have"
            document.problems.append(Problem.at(place, path, what))
        return parse_scalar(node.value) if node.style is None else node.value
    if isinstance(node, yaml.SequenceNode):
        items = enumerate(node.value)
        return [_convert(item, (*path, i), _get_mark(item), document) for i, item in items]
    data: JsonObject = {}
    for setting, value in node.value:
        name, mark = setting.value, _get_mark(setting)
        if not isinstance(setting, yaml.ScalarNode):
            raise _Refused(setting, "the name of a setting must be a word")
        if name in data:
            what = f"given twice, first in line {document.places[(*path, name)].key[0]}"
            twice = Place(whole.source, whole.order, mark, mark)
            document.problems.append(Problem.at(twice, (*path, name), what))
            continue
        data[name] = _convert(value, (*path, name), mark, document)
    return data


def _join(pair: re.Match[str]) -> str:
    """Return the character of two surrogates, as JSON escapes one beyond U+FFFF."""
    return pair[0].encode("utf-16-le", "surrogatepass").decode("utf-16-le")


def _get_mark(node: yaml.Node) -> tuple[int, int]:
    """Return line and column of a node, from 1."""
    return node.start_mark.line + 1, node.start_mark.column + 1


def _explain_syntax(error: yaml.MarkedYAMLError) -> tuple[tuple[int, int], str]:
    # A quote, alias or key that goes wrong: where it starts, not where that was noticed.
    scanning = (error.context or "").startswith("while scanning")
    mark = (error.context_mark if scanning else None) or error.problem_mark
    assert mark is not None
    if isinstance(error, _Refused):
        return (mark.line + 1, mark.column + 1), str(error.problem)
    said = ", ".join(part for part in (error.context, error.problem) if part)
    for pattern, advice in _SYNTAX:
        if found := re.search(pattern, said):
            said = found.expand(advice)
            break
    return (mark.line + 1, mark.column + 1), f"not YAML: {said}"


def parse_scalar(text: str) -> str | int | float | None:
    """Return the value of an unquoted scalar."""
    if text in _WORDS:
        return _WORDS[text]
    if _INT.fullmatch(text):
        return int(text)
    if _FLOAT.fullmatch(text):
        return float(text)
    return _SPECIAL_FLOATS.get(text, text)


class _Dumper(yaml.SafeDumper):
    """Quotes whatever YAML 1.1 or `read` would not take for text."""


def _represent_text(dumper: _Dumper, text: str) -> yaml.ScalarNode:
    # PyYAML writes U+0085 and U+2028 as they are and reads them as ends of lines.
    style = None if text.isprintable() else '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _represent_text)
_Dumper.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, list("-+.0123456789"))


def write(data: object) -> str:
    """Return YAML that `read` turns into equal data."""
    return yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)
