"""The tokens that a family has before, between and after the texts of a sequence.

T tokens of a sequence.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from nlpkit.contracts.batch import Field
from nlpkit.contracts.objective import ModelSettings
from nlpkit.contracts.tokenizer import Extendable, Template
from nlpkit.objectives.examples.text import TextObjective


class Frame:
    """The frame of sequences: start, delimiters between the texts, end."""

    def __init__(self, tokenizer: Extendable, model_config: ModelSettings):
        start, delimiter, end = model_config.task_tokens
        self.start = _ids(tokenizer, start)
        (self.delimiter,) = _ids(tokenizer, delimiter)
        # BERT's vocabulary has BERT's frame, also in a RoBERTa.
        aliases = getattr(tokenizer, "aliases", {})
        count = 1 if aliases else model_config.delimiters
        self.between = (self.delimiter,) * count
        self.summary = _ids(tokenizer, model_config.summary_token)
        self.end = (*_ids(tokenizer, end), *self.summary)
        self.template = _template(aliases, model_config, count)

    def size(self, texts: int = 1) -> int:
        """Return the number of tokens around this number of texts."""
        return len(self.start) + len(self.between) * (texts - 1) + len(self.end)

    def ids(self, texts: Sequence[np.ndarray], dtype: type = np.int32) -> np.ndarray:
        """Return the ids (T,) of a sequence with these texts."""
        framed: np.ndarray = np.empty(self.size(len(texts)) + sum(map(len, texts)), dtype)
        framed[: len(self.start)] = self.start
        framed[len(framed) - len(self.end) :] = self.end
        places = self.places([*map(len, texts)])
        for number, (text, place) in enumerate(zip(texts, places, strict=True)):
            framed[place] = text
            if number:
                framed[place.start - len(self.between) : place.start] = self.between
        return framed

    def places(self, sizes: Sequence[int]) -> list[slice]:
        """Return where texts of these sizes are in their sequence."""
        found, start = [], len(self.start)
        for size in sizes:
            found.append(slice(start, start + size))
            start += size + len(self.between)
        return found

    def texts(self, ids: np.ndarray, count: int) -> list[np.ndarray]:
        """Return the texts of a sequence (T,) of `count` texts, which have no special token."""
        delimiters = np.flatnonzero(ids == self.delimiter)[:: len(self.between)][: count - 1]
        starts = [len(self.start), *(delimiters + len(self.between))]
        stops = [*delimiters, len(ids) - len(self.end)]
        return [ids[start:stop] for start, stop in zip(starts, stops, strict=True)]

    def types_of_one(self, size: int) -> np.ndarray:
        """Return the token types (T,) of a sequence of `size` tokens with one text."""
        types = np.zeros(size, np.int64)
        if self.summary:
            types[-1] = 2
        return types

    def types(self, ids: np.ndarray) -> np.ndarray:
        """Return the token types (T,): 0 up to the first delimiter, then 1 (Devlin et al. 2018).

        A summary token behind the texts has type 2 (Yang et al. 2019).
        """
        ends = ids == self.delimiter
        types = (np.cumsum(ends) - ends).clip(max=1).astype(np.int64)
        if self.summary:
            types[-1] = 2
        return types


def _template(aliases: Mapping[str, str], model_config: ModelSettings, delimiters: int) -> Template:
    """Return the sequences of one and of two texts; token types as in `Frame.types`."""
    start, delimiter, end = (aliases.get(token, token) for token in model_config.task_tokens)
    between = [f"{delimiter}:{min(number, 1)}" for number in range(delimiters)]
    first, summary = f"{start}:0" if start else "", model_config.summary_token
    last = f"{summary}:2" if summary else ""
    single = [first, "$A:0", f"{end}:0", last]
    pair = [first, "$A:0", *between, "$B:1", f"{end}:1", last]
    one, two = (" ".join(filter(None, parts)) for parts in (single, pair))
    mask = model_config.mask_token
    found = Template(one, two, (aliases.get(mask, mask),))
    # A model with one type, as the released Longformers, takes no types in transformers.
    has_types = model_config.can("pairs") and model_config.setting("type_vocab_size", 2) > 1
    return found if has_types else found.without_types()


def frame_tokens(model_config: ModelSettings) -> tuple[str, ...]:
    """Return the frame's tokens, which the vocabulary must have."""
    named = (*model_config.task_tokens, model_config.summary_token)
    return tuple(dict.fromkeys(filter(None, named)))


class FramedText(TextObjective):
    """A base of objectives whose examples are texts in the family's frame."""

    num_texts = 1  # of an example
    # Only families with text pairs (`pairs`) have token types.
    inputs: tuple[str, ...] = ("input_ids", "token_type_ids")
    fields: Mapping[str, Field] = {"input_ids": Field(np.int64), "token_type_ids": Field(np.int64)}

    def __init__(self, config: Any, tokenizer: Extendable, model_config: ModelSettings):
        super().__init__(config, tokenizer, model_config)
        self.frame = Frame(tokenizer, model_config)
        self.template = self.frame.template
        self.extra = self.frame.size(self.num_texts)
        if not model_config.can("pairs"):
            self.leave_out("token_type_ids")

    @classmethod
    def special_tokens(cls, config: Any, model_config: ModelSettings) -> tuple[str, ...]:
        return frame_tokens(model_config)

    def enclose(self, text: np.ndarray) -> dict[str, np.ndarray]:
        """Return the ids and the token types (T,) of one text in its frame."""
        ids = self.frame.ids([text], np.int64)
        if "token_type_ids" not in self.fields:
            return {"input_ids": ids}
        return {"input_ids": ids, "token_type_ids": self.frame.types_of_one(len(ids))}


def _ids(tokenizer: Extendable, token: str) -> tuple[int, ...]:
    """Return the id of a token, or () if there is none."""
    return (find_id(tokenizer, token),) if token else ()


def find_id(tokenizer: Extendable, token: str) -> int:
    """Return the id of a token that the vocabulary has because `special_tokens` asked for it."""
    found = tokenizer.special_id(token)
    assert found is not None
    return found
