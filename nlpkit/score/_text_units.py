"""Text to the units that are compared: words, characters, n-grams.

The names of the tokenizers are the values of `--tokenize`. Nothing is segmented by a dictionary:
Chinese is taken by characters, as LCSTS (Hu et al. 2015) and CMRC 2018 do.
"""

import re
from collections.abc import Callable, Iterable, Sequence

from nlpkit.errors import UsageError
from nlpkit.registry import suggest

# Chinese characters (with extensions) and kana: scripts that are written without spaces.
HAN = (
    "\u3005\u3007\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U000323af"
    "\u3041-\u3096\u309d-\u309f\u30a1-\u30fa\u30fc-\u30ff"
)
_HAN = re.compile(f"[{HAN}]")
_ASCII_WORD = re.compile(r"[a-z0-9]+")
_WORD = re.compile(r"[^\W_]+")
_ZH = re.compile(rf"[{HAN}]|[^\W_{HAN}]+")

Tokenizer = Callable[[str], Sequence[str]]


def _characters(text: str) -> str:
    return "".join(text.split())


TOKENIZERS: dict[str, Tokenizer] = {
    # rouge_score's default: what is not a-z or 0-9 separates words and is dropped.
    "word": lambda text: _ASCII_WORD.findall(text.lower()),
    "unicode": lambda text: _WORD.findall(text.lower()),
    "zh": lambda text: _ZH.findall(text.lower()),
    "char": _characters,
    "whitespace": str.split,
}


def tokenizer(name: str, known: Sequence[str]) -> Tokenizer:
    """Return the tokenizer called `name`; raise `UsageError` with those that there are."""
    if name not in known:
        raise UsageError(f"no tokenizer {name!r}{suggest(name, known)}; known: {', '.join(known)}")
    return TOKENIZERS[name]


def ngrams(tokens: Sequence[str], n: int) -> list[tuple[str, ...]]:
    """Return the n-grams in order; none where there are fewer than n tokens."""
    return list(zip(*(tokens[i:] for i in range(n)), strict=False))


def dropped_letters(lines: Iterable[str]) -> tuple[int, int]:
    """Return how many letters and digits the tokenizer `word` drops, and how many there are."""
    dropped = total = 0
    for line in lines:
        if line.isascii():
            total += sum(map(len, _ASCII_WORD.findall(line.lower())))
            continue
        letters = [c for c in line.lower() if c.isalnum()]
        total += len(letters)
        dropped += sum(not c.isascii() for c in letters)
    return dropped, total


def is_unspaced(lines: Iterable[str]) -> bool:
    """Return whether most characters stand in scripts without spaces, and few spaces among them."""
    han = spaces = others = 0
    for line in lines:
        found = len(_HAN.findall(line))
        blank = sum(map(str.isspace, line))
        han, spaces, others = han + found, spaces + blank, others + len(line) - found - blank
    return han > others and spaces * 5 < han
