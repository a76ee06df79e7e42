"""What the `Config` of every family has: its attention, and what the family can do.

An objective names what it needs of a model (`needs`): settings of the family's `Config`, or the
words of `CAPABILITIES`, which are properties of it.
"""

import sys
from typing import ClassVar

from pydantic import Field
from pydantic.json_schema import SkipJsonSchema

from nlpkit.attention.contract import LAYOUT_FIELDS, Choice, Visibility
from nlpkit.config import FrozenConfig

CAPABILITIES = {
    "causal": "a state depends on its own token and those to its left, no other",
    "prefix": "as causal, but for a context that sees itself",
    "bidirectional": "a state depends on all tokens of its sequence",
    "pairs": "a sequence may be two texts, told apart by token types",
    "encodes_source": "a source sequence is read beside the one that is predicted",
    "has_vocabulary": "tokens are read and predicted",
}

# What a family has that does not say it: all did before there were such lines.
_USUAL_VOCABULARY = ("token_embedding",)


def vocabulary(family: object) -> tuple[str, ...]:
    """Return the parameters of a family (its module) whose first dimension is the vocabulary."""
    found: tuple[str, ...] = vars(family).get("VOCABULARY", _USUAL_VOCABULARY)
    return found


class ModelConfig(FrozenConfig):
    """The base of every family's `Config`; a family overrides what differs."""

    # Fields of the batch that `forward` hands on to attention.
    ATTENTION_FIELDS: ClassVar[frozenset[str]] = frozenset()
    inputs: ClassVar[tuple[str, ...]] = ("input_ids",)  # what `forward` cannot do without
    pairs: ClassVar[bool] = False
    encodes_source: ClassVar[bool] = False
    # What a state depends on in a family without attention, such as a recurrent one.
    visibility: ClassVar[Visibility | None] = None
    # What stands before, between and after the texts of a task (Radford et al. 2018, sec. 3.3).
    task_tokens: ClassVar[tuple[str, str, str]] = ("_start_", "_delimiter_", "_classify_")

    attention: SkipJsonSchema[tuple[Choice, ...]] = Field(
        (), exclude=True, description="kinds, repeated over the layers; the recipe's section"
    )

    @property
    def has_vocabulary(self) -> bool:
        """Whether tokens are read and predicted: the family names its tables of the vocabulary."""
        return bool(vocabulary(sys.modules[type(self).__module__]))

    @property
    def default_attention(self) -> tuple[Choice, ...]:
        """The kinds that the family has where the recipe names none; none: no attention."""
        return ()

    @property
    def kinds(self) -> tuple[Choice, ...]:
        """The kinds of attention, repeated over the layers."""
        return self.attention or self.default_attention

    def refuses_attention(self, choice: Choice) -> str | None:
        """Return why the family cannot have this kind of attention, or None."""
        if not self.default_attention:
            return "the family has no attention whose kind could be chosen"
        kind = choice.module
        wanted = {*kind.FIELDS} - {*kind.OPTIONAL} - {*LAYOUT_FIELDS} - self.ATTENTION_FIELDS
        if wanted:
            return f"it reads {', '.join(sorted(wanted))}, which the family does not give"
        return None

    def _sees(self, visibility: str) -> bool:
        seen = {choice.module.VISIBILITY for choice in self.kinds}
        return seen == {visibility} if seen else self.visibility == visibility

    @property
    def causal(self) -> bool:
        """Whether a state depends on its own token and those to its left, no other."""
        return self._sees("causal")

    @property
    def prefix(self) -> bool:
        """Whether it is causal but for a context that sees itself."""
        return self._sees("prefix")

    @property
    def bidirectional(self) -> bool:
        """Whether a state depends on all tokens of its sequence."""
        return self._sees("bidirectional")
