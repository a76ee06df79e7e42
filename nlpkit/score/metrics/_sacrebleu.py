"""The parts of sacrebleu that are used: tokenizers, chrF and TER; imported only if needed."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from nlpkit.errors import UsageError, not_installed
from nlpkit.score.contract import Score
from nlpkit.score.metrics._references import (
    References,
    check_lines,
    references_a_line,
    with_references,
)

Row = tuple[float, ...]  # integers, except TER's mean reference length


def imported(needed_by: str) -> Any:
    """Return the module sacrebleu; raise `UsageError` if it is not installed."""
    try:
        import sacrebleu
    except ImportError as error:
        raise UsageError(f"{needed_by}: {not_installed('sacrebleu')}") from error
    return sacrebleu


def borrowed_tokenizer(name: str) -> tuple[Callable[[str], list[str]], str, str]:
    """Return a tokenizer of sacrebleu, its name in the signature, and sacrebleu's version."""
    library = imported(f"the tokenizer {name}")
    try:
        # flores101 is the new name of the same model; sacrebleu warns about the name spm.
        tokenize = library.BLEU(tokenize="flores101" if name == "spm" else name).tokenizer
    except (ImportError, RuntimeError, AssertionError, OSError, SystemExit) as error:
        # The messages of sacrebleu have several lines and say which package to install.
        reason = " ".join(str(error).split()) or type(error).__name__
        if isinstance(error, OSError):
            reason = f"sacrebleu downloads its model from the network: {reason}"
        raise UsageError(f"the tokenizer {name} cannot be used: {reason}") from error
    return (
        lambda line: tokenize(line.rstrip()).split(),
        tokenize.signature(),
        library.__version__,
    )


def rows(metric: Any, hypotheses: Sequence[str], references: References) -> Iterator[Row]:
    """Yield the counts of `metric` for each line, one line at a time.

    `corpus_score` of sacrebleu stores the n-grams of all references: 12 kB per line or more.
    """
    check_lines(hypotheses, references)
    for hypothesis, lines in with_references(hypotheses, references):
        yield _row(metric, hypothesis, lines)


def corpus_score(metric: Any, hypotheses: Sequence[str], references: References) -> Score:
    """Return the score of all lines."""
    sums: list[float] = []
    for row in rows(metric, hypotheses, references):
        sums = [a + b for a, b in zip(sums, row, strict=True)] if sums else list(row)
    number = references_a_line(references)
    return _scored(metric, sums, -1 if number == "var" else number)


def sentence_scores(
    metric: Any, hypotheses: Sequence[str], references: References
) -> Iterator[Score]:
    """Yield the score of each line."""
    check_lines(hypotheses, references)
    for hypothesis, lines in with_references(hypotheses, references):
        yield _scored(metric, list(_row(metric, hypothesis, lines)), len(lines))


def score_of_sums(metric: Any, sums: Sequence[float]) -> float:
    """Return the score computed from the sums of the rows."""
    return float(metric._compute_score_from_stats(list(sums)).score)


def _row(metric: Any, hypothesis: str, references: list[str]) -> Row:
    # As sacrebleu's command line, remove white space at line ends, which chrF can count.
    stripped = [[line.rstrip()] for line in references]
    (row,) = metric._extract_corpus_statistics([hypothesis.rstrip()], stripped)
    return tuple(row)


def _scored(metric: Any, sums: list[float], references: int | str) -> Score:
    result = metric._compute_score_from_stats(list(sums))
    metric.num_refs = references
    signature = metric.get_signature().format()
    return Score(result.name, result.score, signature, details={"sums": sums})
