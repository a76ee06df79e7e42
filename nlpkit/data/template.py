"""Texts made of the values of a row: a column, a path into nested values, or a template.

A path has a dot between its steps: `target.span1_text`, `answers.0.text`. A step into a list that
is no number is taken by each entry: `choices.text` is a list of texts. A column whose whole name
is the path comes first.
A template is a text with `{COLUMN}`, where COLUMN is a path; `{{` and `}}` are braces.
`{COLUMN:SEPARATOR}` joins the texts of a list, such as the lines of a dialogue.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated

from pydantic import AfterValidator, Field, PlainValidator

from nlpkit.contracts.reader import RowError
from nlpkit.data.lines import check_characters, kind_of, no_such
from nlpkit.errors import UsageError
from nlpkit.json_types import JsonMapping
from nlpkit.plural import number_of

_FIELD = re.compile(r"\{\{|\}\}|\{([^{}]*)\}")
_INDEX = re.compile("-?[0-9]+")


def is_template(text: str) -> bool:
    """Return whether a setting is a template, not the name of a column."""
    return "{" in text or "}" in text


def is_number(column: str) -> bool:
    """Return whether a column is named by its number, in a file without a header."""
    return column.isascii() and column.isdigit()


def problem(text: str) -> str | None:
    """Return what is wrong with a template; None for the name of a column."""
    if not is_template(text):
        return None
    rest = _FIELD.sub("", text)
    for brace, name in (("{", "opened and not closed"), ("}", "closed and not opened")):
        if brace in rest:
            return f"has a single brace, {name} in {text!r}; {{{{ and }}}} are braces"
    names = [field.partition(":")[0] for field in fields(text)]
    if not names or not all(names):
        return f"{'{}' if names else 'it'} names no column; {{COLUMN}} is a value of the row"
    return None


def check_option(option: str, text: str | None) -> None:
    """Raise `UsageError` for an option of the command line that is no column and no template."""
    if text is not None and (what := problem(text) if text else "is empty"):
        raise UsageError(f"{option}: {what}")


def _check_template(text: str) -> str:
    if what := problem(text):
        raise ValueError(what)
    return text


# A setting that is the name of a column, a path or a template.
TextOf = Annotated[str, AfterValidator(_check_template), Field(min_length=1)]


DELIMITER = "[SEP]"  # in a template of a task that reads several texts, the family's delimiter


def _check_texts(value: object) -> str | list[str]:
    given = value if isinstance(value, list) else [value]
    texts = [_check_template(text) for text in given if isinstance(text, str) and text]
    if not texts or len(texts) < len(given):
        raise ValueError("needs a column, a template or a list of them")
    if isinstance(value, str) and len(p := apart(value)) > 1 and not all(map(is_template, p)):
        raise ValueError(f"a text beside {DELIMITER} names no {{COLUMN}}, a value of the row")
    return texts if isinstance(value, list) else texts[0]


# The same, or a list of them; texts that stand apart, as those of a template with [SEP] do.
TextsOf = Annotated[
    str | list[str], PlainValidator(_check_texts, json_schema_input_type=str | list[str])
]


def apart(text: str | list[str]) -> list[str]:
    """Return the columns and templates of the texts that stand apart."""
    if isinstance(text, list):
        return text
    return text.split(DELIMITER) if is_template(text) else [text]


def fields(text: str) -> list[str]:
    """Return what stands between braces, each once; of the name of a column, the name."""
    if not is_template(text):
        return [text]
    return list(dict.fromkeys(m[1] for m in _FIELD.finditer(text) if m[1] is not None))


def columns(*texts: str) -> tuple[str, ...]:
    """Return the columns, or paths, that settings name, each once."""
    names = [
        field.partition(":")[0] if is_template(text) else field
        for text in texts
        for field in fields(text)
    ]
    return tuple(dict.fromkeys(names))


def as_template(text: str | Sequence[str], separator: str = "\n") -> str:
    """Return a template for the name of a column, or for several, which are joined."""
    if isinstance(text, str):
        return text if is_template(text) else f"{{{text}}}"
    return separator.join(map(as_template, text))


def value_at(values: JsonMapping, path: str) -> object:
    """Return the value of a column or at a path; raise `RowError` if there is none."""
    if path in values or "." not in path:
        if path not in values:
            raise RowError(no_such(path, list(values)))
        return values[path]
    found: object = values
    done = ""
    for step in path.split("."):
        found = _step(found, step, done)
        done = f"{done}.{step}" if done else step
    return found


def _step(value: object, step: str, done: str) -> object:
    """Return what a step leads to; `done` is the path so far."""
    where = f'"{done}": ' if done else ""
    if isinstance(value, Mapping):
        if step not in value:
            raise RowError(where + no_such(step, list(value)))
        return value[step]
    if isinstance(value, list) and _INDEX.fullmatch(step):
        if not -len(value) <= int(step) < len(value):
            raise RowError(f"{where}no entry {step}; it has {number_of(len(value), 'entries')}")
        return value[int(step)]
    if isinstance(value, list):
        return [_step(entry, step, f"{done}.{number}") for number, entry in enumerate(value)]
    raise RowError(f'{where}{kind_of(value)}, which has no "{step}"')


def write_value(value: object, name: str) -> str:
    """Return a text or a number as text; raise `RowError` if it is neither, as NaN is.

    A whole number has no decimal point: 2.0 is `2`.
    """
    if isinstance(value, bool) or not isinstance(value, (str, int, float)) or value != value:
        how = f'; {{{name}:, }} joins its texts with ", "' if isinstance(value, list) else ""
        raise RowError(f'"{name}" is {kind_of(value)}, neither text nor a number{how}')
    return f"{value:.15g}" if isinstance(value, float) else str(value)


def fill(
    template: str, values: JsonMapping, write: Callable[[object, str], str] = write_value
) -> str:
    """Return the template with the values of a row; raise `RowError`.

    `write` makes the text of a value, given its name.
    """

    def replaced(match: re.Match[str]) -> str:
        if match[1] is None:  # a brace, written twice
            return match[0][0]
        name, colon, separator = match[1].partition(":")
        if match[1] in values:  # a column may have a colon
            name, colon = match[1], ""
        value = value_at(values, name)
        if isinstance(value, list) and colon:
            return separator.join(write(entry, f"{name}.{n}") for n, entry in enumerate(value))
        return write(value, name)

    text = _FIELD.sub(replaced, template)
    check_characters(text, repr(template))
    return text


def text_at(values: JsonMapping, key: str) -> str:
    """Return the text in a column, at a path or of a template; raise `RowError`."""
    if is_template(key):
        return fill(key, values)
    value = value_at(values, key)
    if not isinstance(value, str):
        raise RowError(f'"{key}" is {kind_of(value)}, not a string')
    return value
