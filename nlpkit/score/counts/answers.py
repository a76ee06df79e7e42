"""Normalisations of answers by name: the rules of SQuAD v1.1 and of CMRC 2018."""

import re
import string
from collections.abc import Callable, Iterator

from nlpkit.contracts.metric import Lines, References

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_ASCII_PUNCTUATION = str.maketrans("", "", string.punctuation)
# The punctuation that the script of CMRC 2018 removes; it keeps the opening single quote and the
# ellipsis.
_CMRC_PUNCTUATION = str.maketrans("", "", "-:_*^/\\~`+=，。：？！“”；’《》·、「」（）－～『』")
# CMRC treats U+4E00-9FA5 as Chinese; a tokenizer of English words splits all other text.
_CMRC_UNITS = re.compile(r"[\u4e00-\u9fa5]|(?:(?![\u4e00-\u9fa5])\w)+(?:[.,]\d+)*|[^\w\s]")


def _normalize_squad(text: str) -> str:
    """Return lower case without ASCII punctuation, articles, double spaces (Rajpurkar 2016)."""
    text = text.lower().translate(_ASCII_PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", text).split())


def _normalize_cmrc(text: str) -> str:
    """Return lower case without CMRC's punctuation; white space inside the text is kept."""
    return text.lower().strip().translate(_CMRC_PUNCTUATION)


NORMALIZERS: dict[str, Callable[[str], str]] = {
    "none": str.strip,
    "squad": _normalize_squad,
    "cmrc": _normalize_cmrc,
}


# The units that F1 counts. Of cmrc: Chinese characters, and the other words and signs.
SPLITTERS: dict[str, Callable[[str], list[str]]] = {
    "squad": lambda text: _normalize_squad(text).split(),
    "cmrc": lambda text: _CMRC_UNITS.findall(_normalize_cmrc(text)),
}


def pair_answers(hypotheses: Lines, references: References) -> Iterator[tuple[str, list[str]]]:
    """Yield each hypothesis with its answers; empty answers are left out if there are others."""
    for hypothesis, *answers in zip(hypotheses, *references, strict=True):
        yield hypothesis, [a for a in answers if a.strip()] or answers[:1]
