"""What the labels of rows stand for: the names of classes, or the texts of answers.

`choices` is a mapping, `{entailment: 蕴含, neutral: 中立, "-": null}`, from what a column has to
what it means; rows whose value means null are left out, and counted. A list is what the numbers
from 0 mean, `[差评, 好评]`; its texts are read, too, so a number in it that is the place of another
entry is refused. `as` settings say what names an option of a row: its number from 0, its text, or a
list of names, `[A, B, C, D]`.
"""

import re
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Annotated, Literal

from pydantic import PlainValidator

from nlpkit.contracts.reader import LeftOut, Row, RowError
from nlpkit.data.lines import kind_of
from nlpkit.data.template import write_value
from nlpkit.registry import suggest

# The setting `choices` of tasks, for people.
MEANING = (
    "what the values of the column stand for: {0: negative, 1: positive, -: null} (null leaves "
    "rows out), or a list of what the numbers from 0 stand for"
)
_SHOWN = 10
_DIGITS = 10  # of a number that is no option in any case
_LONGEST = 40  # characters of a value in a message
_NUMBER = re.compile("0|[1-9][0-9]{0,8}")


def _key(value: object) -> str:
    """Return what a row has as text; in YAML, classes such as 0 and true are no texts."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return write_value(value, "choices")


def _texts(values: Sequence[object], what: str) -> list[str]:
    for number, value in enumerate(values, 1):
        if isinstance(value, bool) or not isinstance(value, (str, int)):
            raise ValueError(f"{what} {number} is {kind_of(value)}, not a text")
        if value == "":
            raise ValueError(f"{what} {number} is empty")
    return [str(value) for value in values]


def _validate(value: object) -> dict[str, str | None] | list[str]:
    if isinstance(value, dict):
        try:
            keys = [_key(key) for key in value]
        except RowError as error:
            raise ValueError(f"a key {error.what.partition(' is ')[2]}") from error
        given = [text for text in value.values() if text is not None]
        if len({*_texts(given, "entry")}) < 2:
            raise ValueError("names fewer than 2 choices")
        meant = [None if text is None else str(text) for text in value.values()]
        return dict(zip(keys, meant, strict=True))
    if not isinstance(value, list):
        raise ValueError("needs a list of texts, or a mapping {VALUE: TEXT}")
    if len(value) < 2:
        raise ValueError("must have at least 2 entries")
    texts = _texts(value, "entry")
    if twice := [text for text in texts if texts.count(text) > 1]:
        raise ValueError(f"{twice[0]!r} is given twice")
    for place, text in enumerate(texts):
        if _NUMBER.fullmatch(text) and int(text) < len(texts) and int(text) != place:
            same = ", ".join(f"{each}: {each}" for each in texts)
            raise ValueError(
                f"{text} is an entry, and the number of entry {int(text) + 1}, {texts[int(text)]}; "
                f"say what rows have: {{{same}}}"
            )
    return texts


_Given = dict[str, str | int | None] | list[str | int]
Choices = Annotated[
    dict[str, str | None] | list[str], PlainValidator(_validate, json_schema_input_type=_Given)
]


def _as(value: object) -> str | list[str]:
    if value in ("number", "text"):
        return str(value)
    if isinstance(value, list) and len(value) > 1:
        return _texts(value, "entry")
    raise ValueError("needs number, text, or a list of the options' names: [A, B, C, D]")


OptionAs = Annotated[
    str | list[str],
    PlainValidator(_as, json_schema_input_type=Literal["number", "text"] | list[str | int]),
]


def quote(text: str) -> str:
    """Return a value for a message, in quotes, shortened."""
    return repr(text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…")


def name_few(names: Iterable[str]) -> str:
    """Return the first names for a message; quotes are around what is long, or hard to read."""
    plain = (n if n.isprintable() and len(n) <= _LONGEST else quote(n) for n in names)
    return ", ".join(islice(plain, _SHOWN))


def name_choices(choices: dict[str, str | None] | list[str]) -> list[str]:
    """Return what there is to choose from, in the recipe's order, each once."""
    texts = choices if isinstance(choices, list) else choices.values()
    return list(dict.fromkeys(text for text in texts if text is not None))


def read_choice(row: Row, column: str, choices: dict[str, str | None] | list[str]) -> str:
    """Return what the value in a column stands for.

    Raises:
        LeftOut: it stands for null.
        RowError: `choices` does not have it.
    """
    key = _read_key(row, column)
    if isinstance(choices, dict):
        if key not in choices:
            raise RowError(
                f'"{column}" is {quote(key)}, which objective.choices does not have'
                f"{suggest(key, choices)}; it has: {name_few(choices)} (a value of null leaves "
                "rows out)"
            )
        if (text := choices[key]) is None:
            raise LeftOut(f'"{column}" is {key!r}')
        return text
    if _NUMBER.fullmatch(key) and int(key) < len(choices):
        return choices[int(key)]
    if key in choices:
        return key
    raise RowError(
        f'"{column}" is {quote(key)}, not an integer from 0 to {len(choices) - 1} nor a text of '
        f"objective.choices: {name_few(choices)}{suggest(key, choices)}"
    )


def any_choice(choices: dict[str, str | None] | list[str]) -> str:
    """Return a value that `read_choice` reads."""
    return choices[0] if isinstance(choices, list) else next(k for k, v in choices.items() if v)


def any_option(by: str | list[str], options: Sequence[str]) -> str | int:
    """Return a value by which `find_option` finds an option, if it can."""
    if by == "number":
        return 0
    names = options if isinstance(by, str) else by
    return min(names, key=names.count)


def _read_key(row: Row, column: str) -> str:
    value = row.value(column)
    if isinstance(value, (list, dict)) or value is None:
        raise RowError(f'"{column}" is {kind_of(value)}, not a string or a number')
    return _key(value)


def read_options(row: Row, column: str) -> list[str]:
    """Return the options in a column, texts; raise `RowError`."""
    options = row.value(column)
    if not isinstance(options, list):
        raise RowError(f'"{column}" is {kind_of(options)}, not a list of strings')
    if not options:
        raise RowError(f'"{column}" is an empty list')
    for number, option in enumerate(options):
        if not isinstance(option, str):
            raise RowError(f'"{column}"[{number}] is {kind_of(option)}, not a string')
    return options


def find_option(
    row: Row, column: str, by: str | list[str], options: Sequence[str], setting: str
) -> int:
    """Return the index of the option that a column names: by number, by text, or by a name.

    Raises:
        RowError: no option, or several, have that name.
    """
    if by != "number":
        key, known = _read_key(row, column), list(options) if isinstance(by, str) else by
        known = known[: len(options)]
        if known.count(key) == 1:
            return known.index(key)
        what = "none of the options" if key not in known else "the text of several options:"
        shown = f"{name_few(known)}{suggest(key, known)}"
        raise RowError(f'"{column}" is {quote(key)}, {what} {shown}')
    value = row.value(column)
    # Cells of tsv and csv are text.
    digits = value.strip() if isinstance(value, str) else ""
    index = int(digits) if digits.isdecimal() and len(digits) < _DIGITS else value
    if isinstance(index, int) and not isinstance(index, bool) and 0 <= index < len(options):
        return index
    how = f"; objective.{setting}: [A, B, C] reads names" if isinstance(value, str) else ""
    if value in options:
        how = f"; objective.{setting}: text reads the text of an option"
    is_number = isinstance(value, int) and not isinstance(value, bool)
    what = quote(value) if isinstance(value, str) else str(value) if is_number else kind_of(value)
    raise RowError(
        f'"{column}" is {what}, not the number of an option, 0 to {len(options) - 1}{how}'
    )


def read_target(row: Row, column: str, choices: dict[str, str | None] | list[str] | None) -> str:
    """Return the text of a target that is to be written; raise `RowError`, `LeftOut`."""
    return row.text(column) if choices is None else read_choice(row, column, choices)
