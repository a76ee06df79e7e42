"""TER: edits and shifts of word runs per reference word, in per cent, by sacrebleu.

Translation edit rate (Snover et al. 2006): the fewest edits of each line to one of its references,
divided by the mean length of the references. 0 is best; the score can be above 100.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from nlpkit.contracts.metric import Option, Score, Sums
from nlpkit.score.counts.bleu_tokens import import_sacrebleu
from nlpkit.score.counts.summed import Row, SummedScore

OPTIONS = (
    Option("case_sensitive", False, "compare with case", ("--ter-case-sensitive",), bool),
    Option("asian_support", False,
           "split Chinese and Japanese characters; only with the two options below",
           ("--ter-asian-support",), bool),
    Option("no_punct", False, "remove punctuation", ("--ter-no-punct",), bool),
    Option("normalized", False, "separate punctuation from words", ("--ter-normalized",), bool),
)  # fmt: skip
REFERENCES = (1, None)
LOWER_IS_BETTER = True


class Settings(NamedTuple):
    """sacrebleu's functions, and the signature without the number of references."""

    tokenize: Callable[[str], str]
    edits: Callable[[list[str], list[str]], tuple[int, int]]  # edits, length of the reference
    signature: str


def _settings(
    *,
    case_sensitive: bool = False,
    asian_support: bool = False,
    no_punct: bool = False,
    normalized: bool = False,
) -> Settings:
    version = import_sacrebleu("TER").__version__
    from sacrebleu.metrics.lib_ter import translation_edit_rate
    from sacrebleu.tokenizers.tokenizer_ter import TercomTokenizer

    tokenizer = TercomTokenizer(normalized, no_punct, asian_support, case_sensitive)
    values = (("norm", normalized), ("punct", not no_punct), ("asian", asian_support))
    switches = "|".join(f"{name}:{'yes' if value else 'no'}" for name, value in values)
    case = "mixed" if case_sensitive else "lc"
    signature = f"case:{case}|tok:{tokenizer.signature()}|{switches}|version:{version}"
    return Settings(tokenizer, translation_edit_rate, signature)


def _row(line: str, references: Sequence[str], settings: Settings) -> Row:
    """Return the fewest edits of a line, and the mean length of its references."""
    tokenize = settings.tokenize
    words = tokenize(line).split()
    # sacrebleu prepares references twice; with `normalized` the second time may split words.
    both = [settings.edits(words, tokenize(tokenize(each)).split()) for each in references]
    return min(edits for edits, _ in both), sum(length for _, length in both) / len(both)


def _rate(sums: Sums, _settings: Settings) -> float:
    edits, length = sums
    return 100 * (edits / length if length > 0 else float(edits > 0))


def _result(sums: Sums, references: int, settings: Settings, is_line: bool) -> Score:
    signature = f"nrefs:{references}|{settings.signature}"
    return Score("TER", _rate(sums, settings), signature, details={"sums": sums})


_TER = SummedScore(_settings, _row, _rate, _result)
score, sentences = _TER.score, _TER.sentences
statistics, from_sums = _TER.statistics, _TER.from_sums
