"""YAML of a recipe as plain data, with the place of every value.

The part of YAML 1.2 (yaml.org/spec/1.2.2, core schema) that a recipe needs: `1e-4` is a number;
`yes`, `on`, `010`, `1_000`, `12:30` and dates are text; names of settings are always text. No tags,
no `<<`, one document. Anchors and aliases work; size, depth and number of values are bounded, so
that a small file cannot fill the memory.
"""

import re
from pathlib import Path as FilePath
from typing import Any

import yaml

from nlpkit.errors import FileError, RecipeError
from nlpkit.recipe.places import Document, Path, Place, Problem

MAX_BYTES = 1_000_000
MAX_VALUES = 10_000
MAX_DEPTH = 32

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
    (r"an alias|an anchor", "text that begins with * or & needs quotes"),
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
        before = raw[: error.start].decode("utf-8-sig")
        line, column = _position(before, len(before))
        guess = ""
        if raw[:2] in (b"\xff\xfe", b"\xfe\xff"):
            guess = ", looks like UTF-16"
        elif _is_gb18030(raw):
            guess = ", looks like GB18030"
        what = f"not UTF-8 (byte 0x{raw[error.start]:02x}{guess}): save the file as UTF-8"
        raise RecipeError([f"{source}:{line}:{column}: {what}"]) from error


def _is_gb18030(raw: bytes) -> bool:
    try:
        raw.decode("gb18030")
    except UnicodeDecodeError:
        return False
    return True


def _position(text: str, index: int) -> tuple[int, int]:
    line = text.count("\n", 0, index) + 1
    return line, index - (text.rfind("\n", 0, index) + 1) + 1


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
        if root := _compose(text):
            document.data = _Reading(document, source, order).convert(root, (), _get_mark(root))
        return document
    except yaml.reader.ReaderError as error:
        mark = _position(text, error.position)
        what = f"the character U+{error.character:04X} is not allowed in YAML"
    except yaml.MarkedYAMLError as error:
        mark, what = _explain_syntax(error)
    raise RecipeError([str(Problem.at(Place(source, order, mark, mark), (), what))])


class _Refused(yaml.MarkedYAMLError):
    """What YAML has and a recipe may not have."""

    def __init__(self, where: Any, what: str):
        super().__init__(problem=what, problem_mark=where.start_mark)


class _Loader(yaml.BaseLoader):
    """Composes nodes of text, lists and mappings; refuses everything else where it is written."""

    level = values = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """Return the next node; the key of a mapping has no `index`."""
        event = self.peek_event()
        is_key = isinstance(parent, yaml.MappingNode) and index is None
        self.level += 1
        self.values += not is_key
        if what := self._refuse(event, is_key):
            raise _Refused(event, what)
        if not isinstance(event, yaml.AliasEvent):
            self.anchors.pop(event.anchor, None)  # YAML 1.2 lets a name be used again
        node = super().compose_node(parent, index)
        self.level -= 1
        return node

    def _refuse(self, event: Any, is_key: bool) -> str | None:
        if is_key and not isinstance(event, yaml.ScalarEvent):
            return "the name of a setting must be a word"
        if is_key and event.value == "<<" and event.style is None:
            return "`<<` is not in YAML 1.2: repeat the settings"
        if isinstance(event, yaml.AliasEvent):
            name = event.anchor
            if name not in self.anchors:
                return f"no anchor &{name} above; text that begins with * needs quotes"
            if self.anchors[name].end_mark is None:
                return f"*{name} stands inside the value that it repeats"
        elif event.tag is not None:
            name = event.tag.replace("tag:yaml.org,2002:", "!!")
            return f"the tag {name} is not allowed: a recipe is plain data"
        return _check_limits(self.values, self.level)


def _check_limits(values: int, level: int) -> str | None:
    if values > MAX_VALUES:
        return f"more than {MAX_VALUES:,} values (aliases written out)"
    return f"nested deeper than {MAX_DEPTH} levels" if level > MAX_DEPTH else None


def _compose(text: str) -> yaml.Node | None:
    """Return the root of the one document in `text`; None if there is nothing in it."""
    loader = _Loader(text)
    root = loader.get_node() if loader.check_node() else None
    if loader.check_node():
        raise _Refused(loader.peek_event(), "a second document: a recipe is one document")
    return root


class _Reading:
    """From nodes to plain data, with the place of each value; aliases are written out."""

    def __init__(self, document: Document, source: str, order: int):
        self.document, self.source, self.order = document, source, order
        self.values = 0

    def convert(self, node: yaml.Node, path: Path, key: tuple[int, int]) -> Any:
        """Return the value of `node`, and note the places of it and of all in it."""
        mark = _get_mark(node)
        self.values += 1
        if what := _check_limits(self.values, len(path) + 1):
            raise _Refused(node, what)
        text, quoted = None, False
        if isinstance(node, yaml.ScalarNode):
            text, quoted = node.value, node.style is not None
        self.document.places[path] = Place(self.source, self.order, key, mark, text, quoted)
        if text is not None:
            if "\0" in text:
                what = "contains a NUL character, which no setting can have"
                self.document.problems.append(Problem.at(self.document.places[path], path, what))
            return text if quoted else parse_scalar(text)
        if isinstance(node, yaml.SequenceNode):
            return [
                self.convert(item, (*path, i), _get_mark(item)) for i, item in enumerate(node.value)
            ]
        data: dict[str, Any] = {}
        first: dict[str, int] = {}
        for setting, value in node.value:
            name, mark = setting.value, _get_mark(setting)
            if name in data:
                what = f"given twice, first in line {first[name]}"
                place = Place(self.source, self.order, mark, mark)
                self.document.problems.append(Problem.at(place, (*path, name), what))
                continue
            first[name] = mark[0]
            data[name] = self.convert(value, (*path, name), mark)
        return data


def _get_mark(found: Any) -> tuple[int, int]:
    """Return line and column, from 1, of an event or a node."""
    return found.start_mark.line + 1, found.start_mark.column + 1


def _explain_syntax(error: yaml.MarkedYAMLError) -> tuple[tuple[int, int], str]:
    # A quote, alias or key that goes wrong: where it starts, not where that was noticed.
    scanning = (error.context or "").startswith("while scanning")
    mark = (error.context_mark if scanning else None) or error.problem_mark
    assert mark is not None
    if isinstance(error, _Refused):
        return (mark.line + 1, mark.column + 1), str(error.problem)
    said = ", ".join(part for part in (error.context, error.problem) if part)
    for pattern, advice in _SYNTAX:
        found = re.search(pattern, said)
        if found:
            said = found.expand(advice)
            break
    return (mark.line + 1, mark.column + 1), f"not YAML: {said}"


def parse_scalar(text: str) -> Any:
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


def write(data: Any) -> str:
    """Return YAML that `read` turns into equal data."""
    return yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)
