"""Direct preference optimization of conversations: `dpo` on rows of messages, written as `chat` is.

A row has two conversations that begin alike and end with other turns of the assistant: these are
the answers. The tokenizer's own template makes texts of them, with the ids of transformers'
`apply_chat_template`; the targets are the tokens of the assistant's turns in which they differ.
Rows are those of TRL: `chosen` and `rejected` as whole conversations, or with the column of the
messages before both (`prompt`).
"""

from typing import Any, ClassVar

import numpy as np
from pydantic import Field as Setting

from nlpkit.contracts.batch import LENGTHS
from nlpkit.contracts.objective import ModelSettings
from nlpkit.contracts.reader import LeftOut, Row, RowError
from nlpkit.contracts.task import Item
from nlpkit.objectives import chat
from nlpkit.objectives.chat import CHATML_TOKENS, TUNE_FIRST, TemplateName
from nlpkit.objectives.dpo import ALIKE, LossConfig, Preferences
from nlpkit.objectives.tasks.conversations import Messages, read_list
from nlpkit.objectives.tasks.rows import count_cut, shorten


class Config(LossConfig):
    """The columns of a row, the template, the reference model, and how far the model may go."""

    max_length: int = Setting(
        512, gt=3, description="longest conversation; the start of a longer one is cut, alike"
    )
    prompt: str | None = Setting(
        None,
        min_length=1,
        description="column of the messages before both answers; default: what both begin with",
    )
    chosen: str = Setting(
        "chosen", min_length=1, description="column of the preferred conversation, or its end"
    )
    rejected: str = Setting(
        "rejected", min_length=1, description="column of the other conversation, or its end"
    )
    template: TemplateName = None

    # What `chat` asks for.
    layout: ClassVar[str] = "messages"

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that every row has."""
        return (*([self.prompt] if self.prompt else []), self.chosen, self.rejected)

    def messages(self, row: Row) -> Messages:
        """Return all messages of a row, for the vocabulary; raise `RowError`."""
        return [each for column in self.columns for each in read_list(row.value(column), column)]


class Objective(Preferences, chat.Objective):
    """Examples and loss of preferences; an item has both conversations."""

    without_template = TUNE_FIRST

    def __init__(self, config: Any, tokenizer: Any, model_config: ModelSettings):
        super().__init__(config, tokenizer, model_config)
        for each in CHATML_TOKENS if config.template == "chatml" else ():
            if tokenizer.special_id(each) is None:
                raise ValueError(f"objective.template: the tokenizer has no {each}; {TUNE_FIRST}")

    @classmethod
    def special_tokens(cls, config: Any, model_config: ModelSettings) -> tuple[str, ...]:
        """Return none: the reference has the vocabulary of the run."""
        return ()

    def conversations(self, row: Row) -> tuple[int, tuple[Messages, Messages]]:
        """Return how many messages both begin with, and both conversations; raise `RowError`."""
        named, config = self.config.prompt, self.config
        before = read_list(row.value(named), named) if named else []
        columns = config.chosen, config.rejected
        chosen, rejected = (before + read_list(row.value(name), name) for name in columns)
        if chosen == rejected:
            raise RowError("both conversations are the same")
        pairs = enumerate(zip(chosen, rejected, strict=False))
        shared = next((n for n, (a, b) in pairs if a != b), min(len(chosen), len(rejected)))
        for column, each in zip(columns, (chosen, rejected), strict=True):
            if len(each) == shared or each[shared]["role"] != "assistant":
                raise RowError(f'"{column}" has no turn of the assistant where the two part')
        if shared == 0:
            raise RowError(
                "no message stands before the answers: name the column of those in objective.prompt"
            )
        return shared, (chosen, rejected)

    def texts(self, row: Row) -> tuple[str, ...]:
        """Return both conversations as texts; raise `RowError`."""
        return tuple(self.render(each) for each in self.conversations(row)[1])

    def item(self, row: Row, ids: list[list[int]]) -> Item:
        """Return the item of a row; the start is cut first, alike for both, then the end.

        Raises:
            LeftOut: the cut leaves no difference of the two.
        """
        shared, both = self.conversations(row)
        targets = []
        for messages in both:
            answers = sum(each["role"] == "assistant" for each in messages[shared:])
            targets.append(self.find_targets(messages, self.render(messages), answers))
        room = self.config.max_length + 1
        first = min(int(each.argmax()) for each in targets)
        start = min(max(0, *(len(each) - room for each in ids)), max(first - 1, 0))
        kept = [shorten(each[start:], room, "start") for each in ids]
        cut = count_cut(start, "prompt") | count_cut(sum(n for _, n in kept), "answer")
        labels = tuple(
            each[start : start + len(part)] for each, (part, _) in zip(targets, kept, strict=True)
        )
        parts = tuple(part for part, _ in kept)
        if np.array_equal(parts[0], parts[1]):
            raise LeftOut(ALIKE)
        return Item(parts, labels, sum(map(len, parts)) - 2, cut, self.render(both[0][:shared]))

    def example(self, item: Item, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """Return both sequences, the chosen one first; nothing is random."""
        both = [
            super(Objective, self).example(Item((ids,), label, 0), rng)
            for ids, label in zip(item.parts, item.label, strict=True)
        ]
        joined = {name: np.concatenate([each[name] for each in both]) for name in both[0]}
        return joined | {LENGTHS: np.array([len(each["labels"]) for each in both])}
