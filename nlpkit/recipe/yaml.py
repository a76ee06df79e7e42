"""YAML of a recipe as plain data, with the place of every value.

The part of YAML 1.2 (yaml.org/spec/1.2.2, core schema) that a recipe needs: `1e-4` is a number;
`yes`, `on`, `010`, `1_000`, `12:30` and dates are text; names of settings are always text. No tags,
no `<<`, one document. Anchors and aliases work, but size, depth and number of values are bounded
before anything is built, so that a small file cannot fill the memory.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import yaml

from nlpkit.errors import RecipeError
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


@dataclass
class _Node:
    """One of text, items and pairs; `size` and `depth` with what is inside, aliases written out."""

    mark: tuple[int, int]
    text: str | None = None
    quoted: bool = False
    items: "list[_Node] | None" = None
    pairs: "list[tuple[str, tuple[int, int], _Node]] | None" = None
    size: int = 1
    depth: int = 1

    def grown(self, children: "list[_Node]") -> "_Node":
        """Return the node, `children` counted in."""
        self.size += sum(child.size for child in children)
        self.depth += max((child.depth for child in children), default=0)
        return self


def decode(raw: bytes, source: str) -> str:
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


def read(text: str, source: str, order: int = 0) -> Document:
    """Return the one document in `text`; raise `RecipeError` where it cannot be read."""
    builder = _Builder(source, order)
    root = builder.document(text)
    document = Document(None, {}, builder.problems)
    document.data = builder.plain(root, (), root.mark, document)
    return document


class _Builder:
    """From PyYAML's events to nodes to plain data; nothing of PyYAML's constructors is used."""

    def __init__(self, source: str, order: int):
        self.source = source
        self.order = order
        self.problems: list[Problem] = []
        self.anchors: dict[str, _Node | None] = {}
        self.values = 0

    def fail(self, mark: tuple[int, int], what: str) -> RecipeError:
        place = Place(self.source, self.order, mark, mark)
        return RecipeError([str(Problem.at(place, (), what))])

    def document(self, text: str) -> _Node:
        bad = yaml.reader.Reader.NON_PRINTABLE.search(text)
        if bad:
            what = f"the character U+{ord(bad.group()):04X} is not allowed in YAML"
            raise self.fail(_position(text, bad.start()), what)
        root = None
        try:
            events = yaml.parse(text, Loader=yaml.SafeLoader)
            for event in events:
                if isinstance(event, yaml.DocumentStartEvent) and root is not None:
                    raise self.fail(_mark(event), "a second document: a recipe is one document")
                if isinstance(event, yaml.NodeEvent):
                    root = self.node(event, events, 1)
        except yaml.MarkedYAMLError as error:
            raise self.fail(*_syntax_error(error)) from error
        except yaml.YAMLError as error:
            raise self.fail((1, 1), f"not YAML: {error}") from error
        return root or _Node((1, 1), text="")

    def node(self, event: yaml.Event, events: Iterator[yaml.Event], level: int) -> _Node:
        mark = _mark(event)
        if isinstance(event, yaml.AliasEvent):
            node = self._alias(event)
        else:
            assert isinstance(event, yaml.ScalarEvent | yaml.CollectionStartEvent)
            if event.tag is not None:
                name = event.tag.replace("tag:yaml.org,2002:", "!!")
                raise self.fail(mark, f"the tag {name} is not allowed: a recipe is plain data")
            if event.anchor:
                self.anchors[event.anchor] = None
            node = self._fresh(event, events, level)
            if event.anchor:
                self.anchors[event.anchor] = node
        self.values += node.size if isinstance(event, yaml.AliasEvent) else 1
        if self.values > MAX_VALUES:
            raise self.fail(mark, f"more than {MAX_VALUES:,} values (aliases written out)")
        if level + node.depth - 1 > MAX_DEPTH:
            raise self.fail(mark, f"nested deeper than {MAX_DEPTH} levels")
        return node

    def _alias(self, event: yaml.AliasEvent) -> _Node:
        name = event.anchor
        if name not in self.anchors:
            what = f"no anchor &{name} above; text that begins with * needs quotes"
            raise self.fail(_mark(event), what)
        node = self.anchors[name]
        if node is None:
            raise self.fail(_mark(event), f"*{name} stands inside the value that it repeats")
        return node

    def _fresh(self, event: yaml.Event, events: Iterator[yaml.Event], level: int) -> _Node:
        mark = _mark(event)
        if isinstance(event, yaml.ScalarEvent):
            return _Node(mark, text=event.value, quoted=event.style is not None)
        if level > MAX_DEPTH:
            raise self.fail(mark, f"nested deeper than {MAX_DEPTH} levels")
        if isinstance(event, yaml.SequenceStartEvent):
            items = []
            for item in events:
                if isinstance(item, yaml.SequenceEndEvent):
                    break
                items.append(self.node(item, events, level + 1))
            return _Node(mark, items=items).grown(items)
        pairs = []
        for key in events:
            if isinstance(key, yaml.MappingEndEvent):
                break
            name = self._key(key)
            pairs.append((name, _mark(key), self.node(next(events), events, level + 1)))
        return _Node(mark, pairs=pairs).grown([node for _, _, node in pairs])

    def _key(self, event: yaml.Event) -> str:
        if not isinstance(event, yaml.ScalarEvent):
            raise self.fail(_mark(event), "the name of a setting must be a word")
        if event.value == "<<" and event.style is None:
            raise self.fail(_mark(event), "`<<` is not in YAML 1.2: repeat the settings")
        return event.value

    def plain(self, node: _Node, path: Path, key: tuple[int, int], document: Document) -> Any:
        """Return the value of `node`, and note the places of it and of all in it."""
        place = Place(self.source, self.order, key, node.mark, node.text, node.quoted)
        document.places[path] = place
        if node.text is not None:
            return node.text if node.quoted else scalar(node.text)
        if node.items is not None:
            return [
                self.plain(item, (*path, i), item.mark, document)
                for i, item in enumerate(node.items)
            ]
        data: dict[str, Any] = {}
        first: dict[str, int] = {}
        for name, mark, value in node.pairs or ():
            if name in data:
                what = f"given twice, first in line {first[name]}"
                place = Place(self.source, self.order, mark, mark)
                document.problems.append(Problem.at(place, (*path, name), what))
                continue
            first[name] = mark[0]
            data[name] = self.plain(value, (*path, name), mark, document)
        return data


def _mark(event: yaml.Event) -> tuple[int, int]:
    assert event.start_mark is not None
    return event.start_mark.line + 1, event.start_mark.column + 1


def _syntax_error(error: yaml.MarkedYAMLError) -> tuple[tuple[int, int], str]:
    # A quote, alias or key that goes wrong: where it starts, not where that was noticed.
    scanning = (error.context or "").startswith("while scanning")
    mark = (error.context_mark if scanning else None) or error.problem_mark
    assert mark is not None
    said = ", ".join(part for part in (error.context, error.problem) if part)
    for pattern, advice in _SYNTAX:
        found = re.search(pattern, said)
        if found:
            said = found.expand(advice)
            break
    return (mark.line + 1, mark.column + 1), f"not YAML: {said}"


def scalar(text: str) -> Any:
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


def _text(dumper: _Dumper, text: str) -> yaml.ScalarNode:
    # PyYAML writes U+0085 and U+2028 as they are and reads them as ends of lines.
    style = None if text.isprintable() else '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _text)
_Dumper.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, list("-+.0123456789"))


def write(data: Any) -> str:
    """Return YAML that `read` turns into equal data."""
    return yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)
