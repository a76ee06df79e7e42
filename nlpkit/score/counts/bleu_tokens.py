"""The tokenizers of BLEU: 13a, zh, char and none are here, the others are imported from sacrebleu.

The results are equal to those of sacrebleu 2.6.0. The 13a rules (mteval-v13a.pl) depend only on the
neighbours of a character, and no rule crosses white space. Therefore each word can be tokenized
alone, and each distinct word once.
"""

import re
from collections.abc import Callable
from functools import lru_cache
from itertools import chain
from types import ModuleType
from typing import NamedTuple

from nlpkit.errors import UsageError, not_installed

VERSION = "2.6.0"  # of sacrebleu
OWN = ("13a", "zh", "char", "none")
BORROWED = ("intl", "ja-mecab", "ko-mecab", "spm", "flores101", "flores200")

_MAX_CACHED_WORDS = 200_000
_RULES = (
    (re.compile(r"([\{-\~\[-\` -\&\(-\+\:-\@\/])"), r" \1 "),  # all but ' . , -
    (re.compile(r"([^0-9])([\.,])"), r"\1 \2 "),
    (re.compile(r"([\.,])([^0-9])"), r" \1 \2"),
    (re.compile(r"([0-9])(-)"), r"\1 \2 "),
)
# The ranges of sacrebleu, as Python reads them: "\u20000" is two characters. Therefore its
# extension B and compatibility supplement are U+2001 … U+2A6D and U+2F81 … U+2FA1
# (mjpost/sacrebleu#298).
_CHINESE = (
    "\u3400-\u4db5\u4e00-\u9fa5\u9fa6-\u9fbb\uf900-\ufa2d\ufa30-\ufa6a\ufa70-\ufad9"
    "\u2001-\u2a6d\u2f81-\u2fa1\uff00-\uffef\u2e80-\u2eff\u3000-\u303f\u31c0-\u31ef"
    "\u2f00-\u2fdf\u2ff0-\u2fff\u3100-\u312f\u31a0-\u31bf\ufe10-\ufe1f\ufe30-\ufe4f"
    "\u2600-\u26ff\u2700-\u27bf\u3200-\u32ff\u3300-\u33ff"
)
_PIECES = re.compile(rf"(?!\s)[{_CHINESE}]|[^\s{_CHINESE}]+")


class Tokenizer(NamedTuple):
    """A function that splits a line, and its name and version for the signature."""

    tokens: Callable[[str], list[str]]
    name: str
    version: str  # of sacrebleu


def get_tokenizer(name: str) -> Tokenizer:
    """Return the tokenizer; raise `UsageError` if sacrebleu cannot provide it."""
    if name in BORROWED:
        return _borrow_tokenizer(name)
    return Tokenizer(_OWN[name], name, VERSION)


def import_sacrebleu(needed_by: str) -> ModuleType:
    """Return the module sacrebleu; raise `UsageError` if it is not installed."""
    try:
        import sacrebleu
    except ImportError as error:
        raise UsageError(f"{needed_by}: {not_installed('sacrebleu')}") from error
    return sacrebleu


@lru_cache  # `from_sums` asks for it at every resample
def _borrow_tokenizer(name: str) -> Tokenizer:
    library = import_sacrebleu(f"the tokenizer {name}")
    try:
        # flores101 is the new name of the same model; sacrebleu warns about the name spm.
        tokenize = library.BLEU(tokenize="flores101" if name == "spm" else name).tokenizer
    except (ImportError, RuntimeError, AssertionError, OSError, SystemExit) as error:
        # The messages of sacrebleu have several lines and say which package to install.
        reason = " ".join(str(error).split()) or type(error).__name__
        if isinstance(error, OSError):
            reason = f"sacrebleu downloads its model from the network: {reason}"
        raise UsageError(f"the tokenizer {name} cannot be used: {reason}") from error
    return Tokenizer(
        lambda line: tokenize(line.rstrip()).split(), tokenize.signature(), library.__version__
    )


def tokenize_by_rules(text: str) -> list[str]:
    """Return the tokens of `text` by the rules that 13a and zh have in common."""
    for pattern, replacement in _RULES:
        text = pattern.sub(replacement, text)
    return text.split()


@lru_cache(_MAX_CACHED_WORDS)
def _tokens_of(word: str) -> tuple[str, ...]:
    """Return the tokens of a word between white space."""
    if word.isalnum():
        return (word,)
    if word[-1] in ".," and word[:-1].isalnum():
        return word[:-1], word[-1]
    return tuple(tokenize_by_rules(f" {word} "))


def _tokenize_13a(line: str) -> list[str]:
    if "\n" in line or "<skipped>" in line:
        line = line.rstrip().replace("<skipped>", "").replace("-\n", "").replace("\n", " ")
    if "&" in line:
        for entity, character in (("quot", '"'), ("amp", "&"), ("lt", "<"), ("gt", ">")):
            line = line.replace(f"&{entity};", character)
    return list(chain.from_iterable(map(_tokens_of, line.split())))


def _tokenize_zh(line: str) -> list[str]:
    pieces = _PIECES.findall(line)
    if not pieces:
        return pieces
    # Unlike 13a, zh adds no space before and after the line.
    first, last = pieces[0], pieces[-1]
    if first[0] not in ".," and last[-1] not in ".,":
        return list(chain.from_iterable(map(_tokens_of, pieces)))
    if len(pieces) == 1:
        return tokenize_by_rules(first)
    inner = chain.from_iterable(map(_tokens_of, pieces[1:-1]))
    return [*tokenize_by_rules(f"{first} "), *inner, *tokenize_by_rules(f" {last}")]


_OWN: dict[str, Callable[[str], list[str]]] = {
    "13a": _tokenize_13a,
    "zh": _tokenize_zh,
    "char": lambda line: list("".join(line.split())),
    "none": str.split,
}
