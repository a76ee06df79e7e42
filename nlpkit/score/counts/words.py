"""Splits text into the units that are compared: words, characters, n-grams.

The names of the tokenizers are the values of `--tokenize`. No dictionary is used: Chinese is split
into characters, as in LCSTS (Hu et al. 2015) and CMRC 2018.
"""

import re
from collections.abc import Callable, Iterable, Sequence

# Chinese characters (with extensions) and kana: scripts that are written without spaces.
HAN = (
    "\u3005\u3007\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U000323af"
    "\u3041-\u3096\u309d-\u309f\u30a1-\u30fa\u30fc-\u30ff"
)
_HAN = re.compile(f"[{HAN}]")
_ASCII_WORD = re.compile(r"[a-z0-9]+")
_WORD = re.compile(r"[^\W_]+")
_ZH = re.compile(rf"[{HAN}]|[^\W_{HAN}]+")
_SAMPLE = 1000  # lines that `is_unspaced` reads


TOKENIZERS: dict[str, Callable[[str], Sequence[str]]] = {
    # The default of rouge_score: all other characters than a-z and 0-9 separate words.
    "word": lambda text: _ASCII_WORD.findall(text.lower()),
    "unicode": lambda text: _WORD.findall(text.lower()),
    "zh": lambda text: _ZH.findall(text.lower()),
    "char": lambda text: "".join(text.split()),
    "whitespace": str.split,
}


def list_ngrams(tokens: Sequence[str], n: int) -> list[tuple[str, ...]]:
    """Return the n-grams in order; the list is empty if there are fewer than n tokens."""
    return list(zip(*(tokens[i:] for i in range(n)), strict=False))


def count_dropped_letters(lines: Iterable[str]) -> tuple[int, int]:
    """Return how many letters and digits the tokenizer `word` removes, and how many there are."""
    kept = total = 0
    for line in map(str.lower, lines):
        letters = len("".join(_ASCII_WORD.findall(line)))
        kept += letters
        total += letters if line.isascii() else len("".join(_WORD.findall(line)))
    return total - kept, total


def is_unspaced(lines: Sequence[str]) -> bool:
    """Return whether the first lines are in a script without spaces, and have few spaces."""
    sample = lines[:_SAMPLE]
    words = " ".join(sample).split()
    han = sum(len(_HAN.findall(word)) for word in words)
    spaces = len(words) - len(sample)
    return 2 * han > sum(map(len, words)) and 5 * spaces < han
