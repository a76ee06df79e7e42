"""What is said of text that gives no documents, or many unknown tokens."""

from collections.abc import Iterable

from nlpkit.contracts.reader import Counts
from nlpkit.data.files import Input
from nlpkit.data.lines import name_first
from nlpkit.data.settings import Config, Part
from nlpkit.plural import all_of, number_of


def explain_empty(config: Config, part: Part, counts: Counts) -> str:
    """Return why nothing that was read became a document with tokens."""
    if counts.tokenless:
        return f"no tokens: {all_of(counts.tokenless, 'documents consist')} of unknown characters"
    if counts.held_out:
        what = "holds out none" if part == "valid" else "leaves none to train on"
        return (
            f"valid_fraction {config.valid_fraction} of "
            f"{number_of(counts.held_out, 'documents')} {what}"
        )
    return f"no documents; {counts.bad} malformed: {counts.first_bad[0]}"


def warn_of_unknown(inputs: Iterable[Input], unknown: int, tokens: int, remark: str = "") -> str:
    """Return a warning of unknown tokens among `tokens`; `remark` says more of them."""
    names = name_first([file.name for entry in inputs for file in entry.files])
    return (
        f"{names}: {unknown:,} of {number_of(tokens, 'tokens')} ({100 * unknown / tokens:.1f} %) "
        f"{'is' if unknown == 1 else 'are'} unknown"
        f"{remark}; a larger vocabulary knows their characters: set tokenizer.kind and "
        "tokenizer.vocab_size (with init_from, kind cpm_ant grows that of the checkpoint)"
    )
