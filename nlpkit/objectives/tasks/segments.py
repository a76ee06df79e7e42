"""CPM-Ant's tasks: texts of a row as segments behind soft prompts, each encoded or decoded.

OpenBMB/CPM-Live, branch cpm-ant-plus, `training_tasks/ant_plus/pretrain.py`, tasks 3 to 6. Encoded
tokens see all encoded tokens. Decoded tokens see these, themselves and the decoded tokens before
them. All is decoded behind the `<s>` of the first decoded segment. (The same file of branch cpm-ant
decodes the earlier segments, too, `context_inp[1:] = False`: segments decoded without a loss.)

T tokens of an example.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import Field as Setting
from pydantic import model_validator

from nlpkit.config import FrozenConfig
from nlpkit.contracts.abilities import Prompt
from nlpkit.contracts.batch import IGNORE, Batch, Field
from nlpkit.contracts.reader import Row, RowError
from nlpkit.contracts.task import Item, Task, Wording
from nlpkit.contracts.tokenizer import Tokenizer
from nlpkit.data.template import DELIMITER, TextOf, as_template, columns
from nlpkit.objectives.examples import soft_prompt
from nlpkit.objectives.examples.prompt_slots import add_slots
from nlpkit.objectives.examples.soft_prompt import PROMPT_SEGMENT, PromptSettings
from nlpkit.objectives.tasks.choices import read_target
from nlpkit.objectives.tasks.rows import WrittenTarget, count_cut, fit
from nlpkit.plural import number_of

if TYPE_CHECKING:
    import torch


class Frame(FrozenConfig):
    """How the model reads a segment."""

    type: int = Setting(
        ge=1, description="segment id, below model.segment_types; 0 is that of soft prompts"
    )
    prompt: int | None = Setting(
        None,
        ge=0,
        description="soft prompt in front of it; default: none, of the first segment that of "
        "generation",
    )
    decode: bool = Setting(
        False,
        description="true: each token sees the encoded segments and the decoded tokens before "
        "it; false: it is encoded, and sees all encoded segments",
    )
    loss: bool | None = Setting(
        None, description="whether a decoded segment is learned; default: it is"
    )
    begin: bool = Setting(True, description="whether <s> stands in front of it")
    end: bool = Setting(True, description="whether </s> stands behind it")

    @model_validator(mode="after")
    def _learned_is_decoded(self) -> Frame:
        if self.loss and not self.decode:
            raise ValueError(
                "loss: a token of an encoded segment is seen by the one before it, so there is "
                "nothing to learn; add decode: true"
            )
        return self

    @property
    def learned(self) -> bool:
        """Whether its tokens and `</s>` are targets."""
        return self.decode if self.loss is None else self.loss


class Segment(Frame):
    """A text of a row, and how the model reads it."""

    text: TextOf = Setting(description="column of its text, or a template")


class SegmentTask(Task):
    """A base of CPM-Ant's tasks: each sequence consists of the same segments."""

    inputs = tuple(soft_prompt.INPUTS)
    needs: tuple[str, ...] = ("prompt_length", "prompts", "prompt_types")
    prompt_setting = "task_id"  # the setting of the soft prompt of segment {}

    def __init__(self, config: Any, tokenizer: Tokenizer, model_config: PromptSettings):
        super().__init__(config, tokenizer, model_config)
        self.segments = type(self).compose(config)
        self.softs = [self._soft(*each, model_config) for each in enumerate(self.segments)]
        self.prompt = np.concatenate(self.softs)
        self.bos_id, self.eos_id = soft_prompt.text_frame(tokenizer)

    def _soft(self, number: int, frame: Frame, model_config: PromptSettings) -> np.ndarray:
        """Return the ids of the soft prompt in front of a segment."""
        block, count = frame.prompt, model_config.prompt_types
        if block is None and number:
            return np.array([], np.int64)
        if block is None:
            block = model_config.prompts.generation
        if block >= count:
            name = self.prompt_setting.format(number)
            raise ValueError(f"objective.{name}: {block}, but the model has {count} prompts")
        return soft_prompt.prompt_ids(block, self.tokenizer.vocab_size, model_config)

    @classmethod
    @abstractmethod
    def compose(cls, config: Any) -> Sequence[Frame]:
        """Return the segments of a sequence, in order."""

    @property
    def framing(self) -> int:
        """The number of soft prompts' tokens, `<s>` and `</s>` of a sequence."""
        return len(self.prompt) + sum(each.begin + each.end for each in self.segments)

    def room(self, others: int, what: str) -> int:
        """Return the most tokens of text beside the framing and `others`, which end in `what`.

        Raises:
            ValueError: there is no place for text.
        """
        room: int = self.config.max_length - self.framing - others
        if room < 1:
            raise ValueError(
                f"objective.max_length: {self.config.max_length} leaves no tokens for text after "
                f"{len(self.prompt)} prompt tokens, <s> and {what}"
            )
        return room

    def lay_out(self, parts: Sequence[np.ndarray]) -> dict[str, np.ndarray]:
        """Return inputs and labels, (T,) each, of the ids of the segments' texts."""
        pieces: list[tuple[np.ndarray | list[int], int, bool, bool]] = []
        decoding = False
        for segment, soft, part in zip(self.segments, self.softs, parts, strict=True):
            pieces += [
                (soft, PROMPT_SEGMENT, decoding, False),
                ([self.bos_id] * segment.begin, segment.type, decoding, False),
                (part, segment.type, segment.decode, segment.learned),
                ([self.eos_id] * segment.end, segment.type, segment.decode, segment.learned),
            ]
            decoding = segment.decode
        tokens, *rest = zip(*pieces, strict=True)
        sizes = [len(each) for each in tokens]
        ids = np.concatenate(tokens).astype(np.int64)
        types, decoded, learned = (np.repeat(values, sizes) for values in rest)
        labels = np.full(len(ids), IGNORE)
        labels[:-1] = np.where(learned[1:], ids[1:], IGNORE)
        inputs = {"input_ids": ids, "segment": types, "position": np.arange(len(ids))}
        return {**inputs, "context": ~decoded, "labels": labels}


class WrittenSegments(WrittenTarget, SegmentTask):
    """A task whose last segment is written behind the others."""

    segments: Sequence[Segment]

    fields: Mapping[str, Field] = {**soft_prompt.INPUTS, "labels": Field(np.int64)}
    # Scores of the generated text; each Chinese character is a token.
    metrics = ("exact_match", "rouge:tokenize=zh", "bleu:tokenize=zh")

    def __init__(self, config: Any, tokenizer: Tokenizer, model_config: PromptSettings):
        super().__init__(config, tokenizer, model_config)
        self.max_text = self.room(0, "</s>")
        self.max_length, self.eos_token_ids = self.max_text + 1, (self.eos_id,)

    @classmethod
    @abstractmethod
    def compose(cls, config: Any) -> Sequence[Segment]:
        """Return the segments of a sequence, in order."""

    @classmethod
    def named_columns(cls, config: Any) -> tuple[str, ...]:
        return columns(*[each.text for each in cls.compose(config)])

    @classmethod
    def wording(cls, config: Any) -> Wording:
        """Return the given texts, which an answer follows, as in training."""
        given = [each.text for each in cls.compose(config)[:-1]]
        return Wording(as_template(given), answer_prefix="", separator="\n")

    @classmethod
    def names(cls, config: Any) -> Sequence[str]:
        """Return what messages call the texts."""
        return ("input", "target")

    def encode_input(self, text: str) -> list[int]:
        """Return the ids of the given texts, which `DELIMITER` separates, with `<s>` between."""
        texts = text.split(DELIMITER) if len(self.segments) > 2 else [text]
        first, *others = map(self.tokenizer.encode, texts)
        return [*first, *(token for ids in others for token in (self.bos_id, *ids))]

    def continue_text(self, ids: Sequence[int], new_tokens: int) -> Prompt:
        """Return the segments before the last one, followed by slots for the last one.

        The starts of the first texts are cut if all are too long.
        """
        stops = np.flatnonzero(np.asarray(ids) == self.bos_id)
        given = [part[part != self.bos_id] for part in np.split(np.asarray(ids, np.int64), stops)]
        if len(given) != len(self.segments) - 1:
            template = DELIMITER.join(as_template(each.text) for each in self.segments[:-1])
            raise ValueError(
                f"has {number_of(len(given), 'texts')}, but the segments before the last one are "
                f"{len(self.segments) - 1}: {template}"
            )
        parts, cuts = fit([*given, range(new_tokens)], self.max_length)
        inputs = self.lay_out([*parts[:-1], parts[-1][:0]])
        known = {name: inputs[name][:-1] for name in self.inputs}
        text = np.concatenate(parts[:-1]).astype(np.int64)
        return add_slots(known, self.segments[-1].type, new_tokens, text, sum(cuts))

    def texts(self, row: Row) -> tuple[str, ...]:
        """Return the texts of the segments; raise `RowError`."""
        *given, last = self.compose(self.config)
        texts = [row.text(each.text) for each in given]
        if len(given) > 1 and any(DELIMITER in text for text in texts):
            raise RowError(f"a text has {DELIMITER}, which separates the segments of an input")
        return *texts, read_target(row, last.text, self.config.choices)

    def item(self, row: Row, ids: list[list[int]]) -> Item:
        """Return the item of a row; starts of the first texts are cut, then the last one's end."""
        parts, cuts = fit(ids, self.max_text)
        cut = Counter[str]()
        for name, removed in zip(self.names(self.config), cuts, strict=True):
            cut.update(count_cut(removed, name))
        *given, label = self.texts(row)
        size = self.framing + sum(map(len, parts))
        return Item(tuple(parts), label, size, dict(cut), DELIMITER.join(given))

    def unlearned(self, item: Item) -> int:
        """Return the number of unknown tokens in learned segments, unless they are learned."""
        if self.config.learn_unknown:
            return 0
        pairs, unknown = zip(item.parts, self.segments, strict=True), self.tokenizer.unk_id
        return sum(int((part == unknown).sum()) for part, each in pairs if each.learned)

    def example(self, item: Item, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """Return the arrays of `fields`, each (T,); nothing is random."""
        example = self.lay_out(item.parts)
        if not self.config.learn_unknown:
            labels = example["labels"]
            labels[labels == self.tokenizer.unk_id] = IGNORE
        return example

    def loss_parts(
        self, batch: Batch, index: torch.Tensor, each: torch.Tensor
    ) -> dict[str, tuple[torch.Tensor, int]]:
        """Return the loss, as the sum of those of the tokens."""
        return {self.term: (each.sum(), len(index))}
