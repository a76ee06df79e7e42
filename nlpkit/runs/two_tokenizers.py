"""A tokenizer for the sources and one for the targets: `tokenizer: {source: …, target: …}`."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from nlpkit.contracts.reader import Counts, RowError
from nlpkit.contracts.tokenizer import Tokenizer
from nlpkit.errors import UsageError
from nlpkit.recipe import Resolved, sections
from nlpkit.recipe.alternatives import check_tokenizers
from nlpkit.runs import vocabulary
from nlpkit.runs.row_texts import list_rows
from nlpkit.runs.run import ModelPart
from nlpkit.tokenizers.library.source_and_target import SourceAndTarget, join_sides, of_sources


def build(text: vocabulary.TrainingText, sides: Sequence[sections.Side]) -> Tokenizer:
    """Return the two tokenizers as one; each is loaded, or trained on its side of the rows."""
    found, first = [], text.objective
    for number, side in enumerate(sides):
        if side.path is not None:
            found.append(vocabulary.load_or_train(text, side))
            continue
        key = {"side": [number, first.name, first.config.model_dump(mode="json")]}
        what = f"tokenizer of the {('sources', 'targets')[number]}"
        texts = partial(_texts, text, number)
        found.append(vocabulary.train(text, side, texts, more_key=key, what=what))
    return join_sides(*found)


def _texts(text: vocabulary.TrainingText, side: int, counts: Counts) -> Iterator[str]:
    """Yield the sources (0) or the targets (1) of the rows; malformed rows are left out."""
    first = text.objective
    objective: Any = first.objective
    for row in list_rows(text, counts):
        with suppress(RowError):  # counted or refused where the rows become examples
            yield objective.sides(first.config, row)[side]


def set_source_vocabulary(resolved: Resolved, part: ModelPart, tokenizer: Tokenizer) -> None:
    """Set the size of the sources' vocabulary in the model's settings, if they have their own.

    Raises:
        UsageError: the model, or an objective, has one vocabulary for both; or the model of
            `init_from` another one.
    """
    two = isinstance(tokenizer, SourceAndTarget)
    size = of_sources(tokenizer).vocab_size if two else None
    old = part.config.source_vocab_size
    if part.source is not None and old != size:
        raise UsageError(
            f"init_from: the model in {part.source} has {_own(old)} of sources alone, and the "
            f"tokenizer {_own(size)}; use the tokenizer that belongs to the model"
        )
    if size is None and old is None:
        return
    for _, what in check_tokenizers(resolved.recipe.objective, part.family, part.config):
        raise UsageError(f"tokenizer: {what}")
    part.config = part.config.model_copy(update={"source_vocab_size": size})


def _own(size: int | None) -> str:
    return "no vocabulary" if size is None else f"a vocabulary of {size:,} tokens"
