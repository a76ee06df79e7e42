"""Answers made comparable: the rules of SQuAD v1.1 and of CMRC 2018, as named normalisations."""

import re
import string
from collections.abc import Callable, Iterator, Sequence

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_ASCII_PUNCTUATION = str.maketrans("", "", string.punctuation)
# What CMRC 2018's script drops: neither the opening single quote nor the ellipsis is in its list.
_CMRC_PUNCTUATION = str.maketrans("", "", "-:_*^/\\~`+=，。：？！“”；’《》·、「」（）－～『』")
# CMRC takes 4e00-9fa5 as Chinese and leaves the rest to a tokenizer of English words.
_CMRC_UNITS = re.compile(r"[\u4e00-\u9fa5]|(?:(?![\u4e00-\u9fa5])\w)+(?:[.,]\d+)*|[^\w\s]")


def _squad(text: str) -> str:
    """Lower case, no ASCII punctuation, no English articles, single spaces (Rajpurkar 2016)."""
    text = text.lower().translate(_ASCII_PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", text).split())


def _cmrc(text: str) -> str:
    """Lower case, without CMRC's punctuation; white space inside stays."""
    return text.lower().strip().translate(_CMRC_PUNCTUATION)


NORMALIZERS: dict[str, Callable[[str], str]] = {"none": str.strip, "squad": _squad, "cmrc": _cmrc}


def cmrc_units(text: str) -> list[str]:
    """Return Chinese characters one by one, other words and signs whole, punctuation dropped."""
    return _CMRC_UNITS.findall(_cmrc(text))


def with_answers(
    hypotheses: Sequence[str], references: Sequence[Sequence[str]]
) -> Iterator[tuple[str, list[str]]]:
    """Yield each hypothesis with its answers; an empty one counts only if there is no other."""
    for hypothesis, *answers in zip(hypotheses, *references, strict=True):
        yield hypothesis, [a for a in answers if a.strip()] or answers[:1]
