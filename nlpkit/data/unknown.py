"""What is said of tokens that are unknown to the tokenizer."""

from collections.abc import Iterable

from nlpkit.data.corpus import Input
from nlpkit.data.lines import shown
from nlpkit.plural import number_of

_WARN_SHARE = 0.01


def warning(inputs: Iterable[Input], unknown: int, tokens: int, remark: str = "") -> str | None:
    """Return a warning if one in a hundred tokens or more is unknown; `remark` says more of them.

    `tokens` are all, also those that were left out.
    """
    if unknown == 0 or unknown < _WARN_SHARE * tokens:
        return None
    names = shown([file.name for entry in inputs for file in entry.files])
    return (
        f"{names}: {unknown:,} of {number_of(tokens, 'tokens')} ({100 * unknown / tokens:.1f} %) "
        f"{'is' if unknown == 1 else 'are'} unknown"
        f"{remark}; a larger vocabulary knows their characters: set tokenizer.kind and "
        "tokenizer.vocab_size (with init_from, kind cpm_ant grows that of the checkpoint)"
    )
