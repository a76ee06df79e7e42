"""Splits texts into words for search; there is no list of stop words.

- `word`: runs of letters, digits and `_` (Unicode `\\w+`), also one-character words;
- `whitespace`: words between white space;
- `char`: every character except white space;
- `bigram`: all pairs of neighbours in runs of Chinese, Japanese or Korean characters (or a single
  character), else as `word`; as CJKBigramFilter of Lucene;
- `zh`: the words of jieba (`rjieba`, with its model of unknown words), without punctuation.
"""

import re
from collections.abc import Callable, Iterable
from itertools import pairwise

Words = Callable[[str], list[str]]

_WORD = re.compile(r"\w+")
# Kana, Bopomofo, Hangul and Han, with 々, 〇 and half-width kana.
_CJK = (
    "\u1100-\u11ff\u3005-\u3007\u3040-\u31bf\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\ua960-\ua97f"
    "\uac00-\ud7ff\uf900-\ufaff\uff66-\uffdc\U00016fe0-\U000187ff\U0001b000-\U0001b16f"
    "\U00020000-\U0003fffd"
)
_CJK_RUN = re.compile(f"[{_CJK}]+")
_RUNS = re.compile(f"[{_CJK}]+|[^\\W{_CJK}]+")


def _make_word(lowercase: bool) -> Words:
    # For `bytes.translate`: ASCII `\w` is kept, all other bytes become spaces.
    kept = "".join(c if c.isalnum() or c == "_" else " " for c in map(chr, range(128)))
    table = (kept.lower() if lowercase else kept).encode("ascii") + bytes(128)

    def words(text: str) -> list[str]:
        # A fast path: the same words for ASCII in two thirds of the time.
        if text.isascii():
            return text.encode("ascii").translate(table).decode("ascii").split()
        return _WORD.findall(text.lower() if lowercase else text)

    return words


def _split_bigrams(text: str) -> list[str]:
    words: list[str] = []
    for run in _RUNS.findall(text):
        if len(run) < 2 or not _CJK_RUN.match(run):
            words.append(run)
        else:
            words += map("".join, pairwise(run))
    return words


def _split_chinese(text: str) -> list[str]:
    # Imported here, since loading its dictionary takes a third of a second.
    import rjieba

    return [word for word in rjieba.cut(text) if _WORD.search(word)]


def seem_unsplit(words: Iterable[str]) -> bool:
    """Return whether most words are clauses of a language that is written without spaces."""
    listed = list(words)
    clauses = [word for word in listed if _CJK_RUN.fullmatch(word)]
    # Korean words are in the range of characters, but short.
    return 2 * len(clauses) > len(listed) and sum(map(len, clauses)) > 4 * len(clauses)


_SPLIT: dict[str, Words] = {
    "whitespace": str.split,
    "char": lambda text: list("".join(text.split())),
    "bigram": _split_bigrams,
    "zh": _split_chinese,
}
TOKENIZERS = ("word", *_SPLIT)


def get_tokenizer(name: str, lowercase: bool) -> Words:
    """Return the function that splits a text; `name` is one of `TOKENIZERS`."""
    if name == "word":
        return _make_word(lowercase)
    words = _SPLIT[name]
    return (lambda text: words(text.lower())) if lowercase else words
