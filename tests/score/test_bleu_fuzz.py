"""Our BLEU against sacrebleu's on lines made to be difficult: tokens, sums and scores, bit by bit.

It is what keeps own code honest: a rule that splits the apostrophe, or knows a range of Chinese
characters too few, fails here. Every line's seed is fixed; lines with line ends occur too, since
callers of the functions may have them.
"""

import random
from collections.abc import Iterator
from functools import lru_cache
from itertools import islice

import pytest
from sacrebleu import BLEU
from sacrebleu.tokenizers.tokenizer_zh import _UCODE_RANGES

from nlpkit.contracts.metric import Score
from nlpkit.score.counts import bleu_tokens
from nlpkit.score.counts.bleu_tokens import get_tokenizer
from nlpkit.score.metrics import bleu

PLAIN = ["a", "b", "Ab", "the", "é", "ß", "İ", "Σ", "don", "t", "x" * 30, "中", "文", "か", "한"]
DIGITS = ["0", "5", "12", "3.5", "1,000", "5-6", "1.", ".5", "٣", "①", "½", "²", "𝟘", "9."]
MARKS = [*"!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~", "..", "...", ",.", ".,", "--", "’", "“", "—", "。"]
ENTITIES = [
    *("&amp;", "&quot;", "&lt;", "&gt;", "&amp;lt;", "&amp;quot;", "&apos;", "&", "&am", "p;"),
    *("<skipped>", "<SKIPPED>", "<skip<skipped>ped>", "-\n", "\n", "-<skipped>\n"),
]
SPACES = [
    *(" ", " ", " ", "  ", "\t", "\x0b", "\x0c", "\r", "\x1c", "\x1d", "\x1e", "\x1f", "\x85"),
    *("\xa0", "\u1680", "\u2000", "\u2001", "\u2002", "\u2009", "\u200a", "\u2028", "\u2029"),
    *("\u202f", "\u205f", "\u3000"),
]
CONTROLS = ["\x00", "\x01", "\x08", "\x1b", "\x7f", "\x80", "\xad", "\u200b", "\u2060", "\ufeff"]
# "\u20000" is "\u2000" and "0" to Python, which makes U+2001 … U+2A6D Chinese.
QUIRKS = [chr(code) for code in (0x2000, 0x2001, 0x2A6C, 0x2A6D, 0x2A6E, 0x2F80, 0x2F81, 0x2FA2)]
ASTRAL = ["\U00010000", "\U00020000", "\U0002a6d6", "\U0002f800", "😀", "\U0010ffff", "e\u0301"]
BORDERS = sorted(
    {chr(ord(text[0]) + offset) for pair in _UCODE_RANGES for text in pair for offset in (-1, 0, 1)}
)
KINDS = (PLAIN, DIGITS, MARKS, ENTITIES, SPACES, CONTROLS, QUIRKS, ASTRAL, BORDERS)


def tricky_lines(seed: int) -> Iterator[str]:
    """Yield lines without end: parts of every kind, each line with a taste of its own."""
    rng = random.Random(seed)
    while True:
        weights = [rng.choice((0, 1, 1, 4)) for _ in KINDS]
        weights[0] += 1
        for _ in range(50):
            kinds = rng.choices(KINDS, weights, k=rng.randint(0, 12))
            yield "".join([rng.choice(kind) for kind in kinds])


def tricky_texts(seed: int, lines: int) -> tuple[list[str], list[list[str]]]:
    """Return hypotheses and 1 … 4 references that share many n-grams, some of them repeated."""
    rng = random.Random(seed)
    source = tricky_lines(seed)
    number = 1 + seed % 4
    hypotheses, references = [], []
    for _ in range(lines):
        words = [next(source) for _ in range(rng.randint(1, 4))] + ["the", ",", "5", "中", "a b"]
        parts = rng.choices(words, k=rng.randint(0, 25))
        glue = rng.choice((" ", " ", ""))
        hypotheses.append(glue.join(parts) if rng.random() < 0.97 else "")
        found: list[str] = []
        for _ in range(number):
            changed = [part if rng.random() < 0.8 else rng.choice(words) for part in parts]
            found.append(glue.join(changed[: rng.randint(0, 30)]))
        references.append(found)
    return hypotheses, [list(column) for column in zip(*references, strict=True)]


def assert_same_score(ours: Score, theirs: object) -> None:
    assert ours.score.hex() == float(theirs.score).hex()  # type: ignore[attr-defined]
    assert f"{ours.name} = {ours.score:.2f} {ours.verbose}" == str(theirs)


def check_tokens(name: str, seed: int, lines: int) -> None:
    ours, theirs = get_tokenizer(name).tokens, BLEU(tokenize=name)
    for line in islice(tricky_lines(seed), lines):
        assert ours(line) == theirs._preprocess_segment(line).split(), repr(line)


def check_scores(name: str, seed: int, lines: int, **options: object) -> None:
    hypotheses, references = tricky_texts(seed, lines)
    peer = BLEU(tokenize=name, **options)
    rows = peer._extract_corpus_statistics(hypotheses, references)
    ours = list(bleu.statistics(hypotheses, references, tokenize=name, **options))
    for index, (row, expected) in enumerate(zip(ours, rows, strict=True)):
        assert list(row) == expected, (hypotheses[index], [r[index] for r in references])
    found = bleu.score(hypotheses, references, tokenize=name, **options)
    assert_same_score(found, peer.corpus_score(hypotheses, references))
    assert found.signature == str(peer.get_signature())
    assert bleu.from_sums([sum(column) for column in zip(*ours, strict=True)], **options) == (
        found.score
    )
    alone = BLEU(tokenize=name, effective_order=True, **options)
    each = bleu.sentences(hypotheses, references, tokenize=name, **options)
    for line, *lines_of, one in zip(hypotheses, *references, each, strict=True):
        assert_same_score(one, alone.sentence_score(line, lines_of))
        assert one.signature == str(alone.get_signature())


# The number of references depends on it.
SEEDS = [1, pytest.param(0, marks=pytest.mark.slow)]


@pytest.mark.fast_cases(2)
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("name", "lines"), [("13a", 12_000), ("zh", 12_000), ("char", 2_000), ("none", 2_000)]
)
def test_bleu_tokens_of_tricky_lines_are_those_of_sacrebleu(
    name: str, lines: int, seed: int
) -> None:
    check_tokens(name, seed, lines)


@pytest.mark.parametrize("name", ["13a", "zh"])
def test_bleu_tokens_with_a_full_memory_of_words_stay_the_same(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = lru_cache(7)(bleu_tokens._tokens_of.__wrapped__)
    monkeypatch.setattr(bleu_tokens, "_tokens_of", few)
    check_tokens(name, 4, 3_000)


@pytest.mark.fast_cases(2)
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", ["13a", "zh", "char", "none"])
def test_bleu_of_tricky_texts_is_that_of_sacrebleu(name: str, seed: int) -> None:
    check_scores(name, seed, 250)


@pytest.mark.parametrize(
    "options",
    [
        {"lowercase": True, "smooth_method": "floor", "smooth_value": 0.013},
        *(
            pytest.param(options, marks=pytest.mark.slow)
            for options in (
                {"lowercase": True},
                {"smooth_method": "add-k", "smooth_value": 0.7},
                {"smooth_method": "none"},
                {"smooth_method": "floor"},
                {"smooth_method": "add-k"},
                {"smooth_method": "add-k", "smooth_value": 0.0},
            )
        ),
    ],
)
def test_bleu_of_tricky_texts_with_options_is_that_of_sacrebleu(options: dict) -> None:
    check_scores("13a", 5, 200, **options)
    check_scores("zh", 6, 200, **options)


def test_bleu_of_tricky_texts_by_a_borrowed_tokenizer_is_that_of_sacrebleu() -> None:
    check_scores("intl", 7, 300)


@pytest.mark.parametrize("method", ["exp", "floor", "add-k", "none"])
def test_bleu_of_random_sums_is_that_of_sacrebleu(method: str) -> None:
    rng = random.Random(method)
    peer = BLEU(smooth_method=method)
    for _ in range(4_000):
        length = rng.randint(0, 10 ** rng.randint(0, 9))
        totals = [max(0, length - rng.randint(0, 3) * n) for n in range(4)]
        counts = [rng.choice((0, rng.randint(0, total))) for total in totals]
        sums = [length, rng.randint(0, 2 * length + 1), *counts, *totals]
        expected = peer._compute_score_from_stats(list(sums)).score
        assert bleu.from_sums(sums, smooth_method=method).hex() == float(expected).hex(), sums


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 110))
@pytest.mark.parametrize("name", ["13a", "zh", "char", "none"])
def test_bleu_of_many_more_tricky_lines_is_that_of_sacrebleu(name: str, seed: int) -> None:
    check_tokens(name, seed, 100_000)
    check_scores(name, seed, 5_000)
