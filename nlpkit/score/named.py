"""Scores by name with options, such as `rouge:tokenize=zh,variant=rouge1`, for tasks and `eval`."""

from collections.abc import Callable, Sequence
from typing import cast

from nlpkit import registry
from nlpkit.contracts.metric import BadLine, Metric, Option, Repeated, Score, Tool, is_metric
from nlpkit.errors import DataError, UsageError
from nlpkit.json_types import JsonObject

_SWITCH = {"true": True, "false": False}
_OF_LABELS = ("accuracy", "f1", "mcc")


class WrongScore(UsageError):
    """A score is unknown or has wrong options; `what` is the reason."""

    def __init__(self, name: str, what: str):
        self.name, self.what = name, what
        self.message = f"{name}: {what}" if name else what
        super().__init__(f"--metrics {self.message}" if name else f"--metrics: {what}")


def split(texts: Sequence[str]) -> list[str]:
    """Return the scores named in `texts`, each `NAME` or `NAME:OPTION=VALUE,…`, commas between.

    Raises:
        WrongScore: an unknown score or option, a wrong value, a score named twice.
    """
    found: list[str] = []
    for piece in (piece.strip() for text in texts for piece in text.split(",")):
        if is_option(piece) and found:
            found[-1] += ("," if ":" in found[-1] else ":") + piece
        else:
            found.append(piece)
    for name in found:
        resolve(name)
        if found.count(name) > 1:
            raise WrongScore(name, "given twice")
    return found


def is_option(piece: str) -> bool:
    """Return whether a piece between commas is an option of the score named before it."""
    return "=" in piece and ":" not in piece.partition("=")[0]


def resolve(name: str) -> tuple[Metric, JsonObject]:
    """Return the score's module and the options of one `NAME:OPTION=VALUE,…`; see `split`."""
    if not name:
        raise WrongScore("", "a name is empty; expected for example accuracy,f1:average=micro")
    module_name, _, rest = name.partition(":")
    try:
        module = cast("Metric | Tool", registry.load("score/metrics", module_name))
    except UsageError as error:
        raise WrongScore(name, str(error)) from error
    if not is_metric(module) or module.REFERENCES[0] < 1:
        what = f"does not compare answers with references; see nlpkit score {module_name} --help"
        raise WrongScore(name, what)
    known = {option.name: option for option in module.OPTIONS}
    options = {}
    for piece in rest.split(",") if rest else ():
        key, equals, value = piece.partition("=")
        key = key.strip().replace("-", "_")
        if key not in known:
            has = f"it has {', '.join(known)}" if known else "it has none"
            near = registry.suggest(key, known)
            raise WrongScore(name, f"{module_name} has no option {key!r}{near}; {has}")
        if not equals:
            raise WrongScore(name, f"{key} needs a value: {key}=VALUE")
        options[key] = _value(name, known[key], value.strip())
    return module, options


def _value(name: str, option: Option, text: str) -> object:
    if option.choices and text not in option.choices:
        near = registry.suggest(text, option.choices)
        must = f"must be {', '.join(option.choices)}"
        raise WrongScore(name, f"{option.name} is {text!r}{near}; {must}")
    if option.type is bool:
        if text not in _SWITCH:
            raise WrongScore(name, f"{option.name} is {text!r}; must be true or false")
        return _SWITCH[text]
    try:
        return option.type(text)
    except ValueError as error:
        kind = "an integer" if option.type is int else "a number"
        raise WrongScore(name, f"{option.name} is {text!r}, not {kind}") from error


def lower_is_better(name: str) -> bool:
    """Return whether a score is an error rate; raise `WrongScore`."""
    return resolve(name)[0].LOWER_IS_BETTER


def explain_unreadable(name: str, answers: Sequence[str]) -> str | None:
    """Return why a score cannot read such answers, or None."""
    try:
        score(name, answers, answers)
    except WrongScore as error:
        return f"{name} cannot score answers such as {', '.join(answers[:3])}: {error.what}"
    except DataError:  # undefined for so few rows
        pass
    return None


def score(
    name: str,
    answers: Sequence[str],
    right: Sequence[str | Sequence[str]],
    warn: Callable[[str], None] = lambda _: None,
) -> Score:
    """Return the score of `answers` against `right`; `warn` gets its warnings.

    A row may have several right answers; a score that reads one reference gets the first.

    Raises:
        WrongScore: see `split`; or the score cannot read a line, such as a class for a correlation.
        DataError: the score is undefined.
    """
    module, options = resolve(name)
    try:
        found = module.score(answers, _references(right, module.REFERENCES[1]), **options)
    except BadLine as error:
        is_empty = not error.file and not answers[error.index].strip()
        if is_empty and name.partition(":")[0] in _OF_LABELS:  # nothing was written: a wrong label
            written = [each if each.strip() else "(none)" for each in answers]
            return score(name, written, right, warn)
        which = "the right answer" if error.file else "the prediction"
        raise WrongScore(name, f"{which} of row {error.index + 1}: {error}") from error
    except UsageError as error:
        raise WrongScore(name, str(error)) from error
    for warning in found.details.get("warnings", ()):
        warn(f"{name}: {warning}")
    return found


def _references(right: Sequence[str | Sequence[str]], most: int | None) -> list[list[str]]:
    """Return the right answers as reference files; a row with fewer answers repeats its first."""
    rows = [[row] if isinstance(row, str) else list(row) for row in right]
    count = max(map(len, rows), default=1)
    count = count if most is None else min(count, most)
    return [[row[k] if k < len(row) else Repeated(row[0]) for row in rows] for k in range(count)]
