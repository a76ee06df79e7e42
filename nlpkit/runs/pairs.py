"""Minimal pairs: how often the acceptable sentence has the higher score (Warstadt et al. 2020).

BLiMP, arXiv:1912.00582, sec. 4. The score of a sentence is the sum of the log-probabilities of its
tokens. Equal scores are a tie, which counts half: no score depends on the order of the sentences.
Imports no torch, since a `Likelihood` is given.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import NormalDist
from typing import TYPE_CHECKING

import numpy as np

from nlpkit.contracts.reader import Counts, RowError
from nlpkit.data.cache import cache_directory
from nlpkit.data.documents import read_documents
from nlpkit.data.files import Input, expand, find_inputs, roots
from nlpkit.data.formats import TEXT_FORMATS
from nlpkit.data.items import read_rows
from nlpkit.data.lines import name_first
from nlpkit.data.settings import Config as DataConfig
from nlpkit.errors import DataError, FileError, UsageError
from nlpkit.json_types import JsonMapping, JsonObject
from nlpkit.plural import number_of
from nlpkit.recipe import Resolved
from nlpkit.runs.text_keys import find_keyless
from nlpkit.text_table import aligned

if TYPE_CHECKING:
    from nlpkit.runs.likelihood import Encoded, Likelihood

ALL = "all"
GOOD, BAD, PARADIGM = "sentence_good", "sentence_bad", "UID"  # the columns of BLiMP's files
GROUPS = ("field", "linguistics_term", "phenomenon")  # more columns, the last one ZhoBLiMP's


@dataclass(frozen=True)
class Sentence:
    """A text; `place` is `FILE:LINE`, for a sentence of a pair with `:good` or `:bad`."""

    text: str
    place: str


@dataclass(frozen=True)
class Pair:
    """An acceptable and an unacceptable sentence that differ as little as possible."""

    good: Sentence
    bad: Sentence
    paradigm: str
    place: str
    groups: Mapping[str, str] = field(default_factory=dict)  # the columns of `GROUPS` that it has


def read_pairs(files: Sequence[str], base: Path | None = None) -> list[Pair]:
    """Return the pairs of BLiMP's jsonl files, or of csv and tsv files with the same columns.

    The paradigm is in `UID`; without this column it is the file's name. A directory stands for its
    jsonl files. Names are looked for in the working directory, then in `base`.

    Raises:
        DataError: `file:line: what` is wrong with a row, or there are no pairs.
        FileError: there is no such file.
    """
    config, inputs = find_files(files, base)
    for name in (f.name for entry in inputs for f in entry.files if f.format in TEXT_FORMATS):
        raise UsageError(f"{name}: pairs are rows of a jsonl, csv or tsv file, and this is text")
    pairs = []
    for row in read_rows(inputs, config, (GOOD, BAD), Counts()):
        place = f"{row.file}:{row.line}"
        try:
            good = Sentence(row.text(GOOD), f"{place}:good")
            bad = Sentence(row.text(BAD), f"{place}:bad")
            named = row.text(PARADIGM) if PARADIGM in row.values else ""
            groups = {name: row.text(name) for name in GROUPS if name in row.values}
        except RowError as error:
            raise DataError(f"{place}: {error.what}") from error
        paradigm = named or Path(row.file).name.split(".")[0]
        pairs.append(Pair(good, bad, paradigm, place, groups))
    if not pairs:
        raise DataError(f"{', '.join(files)}: no pairs")
    return pairs


def find_files(names: Sequence[str], base: Path | None) -> tuple[DataConfig, list[Input]]:
    """Return the files of `read_pairs`, a source for each name, and how they are read."""
    return _find({"train": [_expand(name, base) for name in names]}, base)


def read_named(resolved: Resolved) -> list[Pair]:
    """Return the pairs of `eval.pairs`; an error names the recipe's line."""
    found = []
    for number, name in enumerate(resolved.recipe.eval.pairs or ()):
        try:
            found += read_pairs([name], resolved.base)
        except (DataError, FileError, UsageError) as error:
            raise type(error)(resolved.document.locate(f"eval.pairs.{number}: {error}")) from error
    return found


def list_sentences(some: Iterable[Pair]) -> list[Sentence]:
    """Return the good and the bad sentence of each pair in turn."""
    return [sentence for pair in some for sentence in (pair.good, pair.bad)]


def read_texts(
    files: Sequence[str], text_key: str | None, warn: Callable[[str], None]
) -> list[Sentence]:
    """Return the documents of files, such as the lines of a txt file.

    Raises:
        DataError: `file:line: what` is wrong, or a file has no text.
        FileError: there is no such file.
    """
    settings = {} if text_key is None else {"text_key": text_key}
    config, inputs = _find({"train": list(files), **settings}, None)
    read = [file for entry in inputs for file in entry.files]
    if text_key is not None and (why := find_keyless(read)):
        warn(f"--text-key: has no effect {why}")
    documents = read_documents(inputs, config, Counts())
    return [Sentence(each.text, f"{each.file}:{each.line}") for each in documents]


def _find(settings: JsonMapping, base: Path | None) -> tuple[DataConfig, list[Input]]:
    config = DataConfig.model_validate(settings)
    return config, find_inputs(config, base, cache_directory(None, None, lambda _: None))[0]


def _expand(name: str, base: Path | None) -> dict[str, list[str]]:
    """Return the source for a file, a glob, or the jsonl files of a directory."""
    places = [root / expand(name) for root in roots(expand(name), base)]
    folder = next((place for place in places if place.is_dir()), None)
    if folder is None:
        return {"files": [name]}
    files = sorted(str(path) for path in folder.iterdir() if ".jsonl" in path.name)
    if not files:
        raise DataError(f"{name}: a directory without jsonl files")
    return {"files": files}


@dataclass(frozen=True)
class Scores:
    """The encoded sentences in order, and the log-probability of each of their tokens."""

    encoded: "list[Encoded]"
    log_probs: list[np.ndarray]

    def sums(self) -> np.ndarray:
        """Return the score of each sentence, (S,)."""
        return np.array([float(np.nansum(values)) for values in self.log_probs])

    def credit(self) -> np.ndarray:
        """Return 1, 0.5 (a tie) or 0 for each pair, (P,): sentences are good and bad in turn."""
        good, bad = self.sums().reshape(-1, 2).T
        return np.where(good == bad, 0.5, good > bad)


def encode(
    sentences: Sequence[Sentence], likelihood: "Likelihood", warn: Callable[[str], None]
) -> "list[Encoded]":
    """Return the tokens of the sentences.

    Warnings count sentences longer than those of the training, and unknown tokens.

    Raises:
        DataError: a sentence has no tokens, or too many for the model.
    """
    encoded = likelihood.encode([each.text for each in sentences])
    limit, trained = likelihood.max_text, likelihood.objective.max_text
    for sentence, text in zip(sentences, encoded, strict=True):
        if not len(text.ids):
            raise DataError(f"{sentence.place}: no tokens that the model knows")
        if len(text.ids) > limit:
            raise DataError(
                f"{sentence.place}: {number_of(len(text.ids), 'tokens')}; the model takes "
                f"{limit:,}; give one sentence a line"
            )
    if longer := sum(len(text.ids) > trained for text in encoded):
        warn(
            f"{number_of(longer, 'sentences are')} longer than {trained:,} tokens, the longest "
            "text that the model was trained on (objective.max_length)"
        )
    if unknown := sum(text.unknown for text in encoded):
        total = sum(bool(text.unknown) for text in encoded)
        what = "left out" if likelihood.objective.drop_unknown else "scored as such"
        warn(
            f"{number_of(unknown, 'unknown tokens')} in {total:,} of "
            f"{number_of(len(encoded), 'sentences')}, {what}"
        )
    return encoded


def compute_figures(
    pairs: Sequence[Pair], scores: Scores, warn: Callable[[str], None]
) -> tuple[JsonObject, list[JsonObject]]:
    """Return the accuracy by paradigm and in all, and the scores of each pair.

    `half_width` is of the 95 % interval over pairs; `ties` counts equal scores, and
    `identical` names pairs whose sentences are the same, or the same tokens.
    """
    sums, credit = scores.sums(), scores.credit()
    identical, without_context = [], 0
    for pair, one, other, first in zip(
        pairs, scores.encoded[::2], scores.encoded[1::2], scores.log_probs[::2], strict=True
    ):
        if np.array_equal(one.ids, other.ids):
            identical.append(pair.place)
        without_context += bool(np.isnan(first[0])) and one.ids[0] != other.ids[0]
    if identical:
        warn(
            f"{number_of(len(identical), 'pairs')} of identical sentences, or of the same tokens: "
            + name_first(identical)
        )
    if without_context:
        warn(
            number_of(without_context, "pairs differ in their first token")
            + ", which has no score: this model has no token before a text"
        )
    names = np.array([pair.paradigm for pair in pairs])
    result = {
        **_summarize(credit),
        "identical": identical,
        "paradigms": {n: _summarize(credit[names == n]) for n in dict.fromkeys(names.tolist())},
    }
    columns = zip(pairs, sums[::2].tolist(), sums[1::2].tolist(), credit.tolist(), strict=True)
    rows = [
        {"place": pair.place, "paradigm": pair.paradigm, "good": good, "bad": bad, "credit": own}
        for pair, good, bad, own in columns
    ]
    return result, rows


def _summarize(credit: np.ndarray) -> JsonObject:
    """Return the figures of the pairs whose credit (P,) is 1, 0.5 (a tie) or 0."""
    number, share = len(credit), float(credit.mean())
    # Wilson 1927: the 95 % interval of a share, not 0 wide where all pairs are right, or all wrong.
    z = NormalDist().inv_cdf(0.975)
    root = math.sqrt(share * (1 - share) / number + (z / (2 * number)) ** 2)
    return {
        "pairs": number,
        "accuracy": share,
        "half_width": z * root / (1 + z**2 / number),
        "ties": int((credit == 0.5).sum()),
    }


def format_table(result: JsonObject, column: Sequence[str] = ()) -> str:
    """Return a line for each paradigm and one for all pairs, below a line with the names.

    `column` has one more cell of each line, from the first one to the last.
    """
    lines = [["paradigm", "pairs", "accuracy", "± 95%", "ties"]]
    for name, row in [*result["paradigms"].items(), (ALL, result)]:
        rounded = [f"{row[key]:.4f}" for key in ("accuracy", "half_width")]
        lines.append([name, str(row["pairs"]), *rounded, str(row["ties"])])
    if column:
        lines = [[*line, cell] for line, cell in zip(lines, column, strict=True)]
    return "\n".join(aligned(lines))
