"""CPM-Ant's text generation task: each row has an input and the target to be generated.

OpenBMB/CPM-Live, branch cpm-ant, `dataset/nlg`. The soft prompt of the task, `<s>` and the input
are context; the target and `</s>` are predicted. T tokens of one example.

Differs from the original: an input that is too long loses its start, but never `<s>`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from pydantic import Field as Setting

from nlpkit.config import FrozenConfig
from nlpkit.contracts.abilities import Prompt
from nlpkit.contracts.batch import IGNORE, Batch, Field
from nlpkit.contracts.reader import Row
from nlpkit.contracts.task import Item
from nlpkit.contracts.tokenizer import Tokenizer
from nlpkit.data.template import TextOf, columns
from nlpkit.json_types import JsonMapping
from nlpkit.objectives.examples import soft_prompt
from nlpkit.objectives.examples.soft_prompt import PromptSettings
from nlpkit.objectives.tasks.choices import MEANING, Choices, read_target
from nlpkit.objectives.tasks.prompted import PromptTask
from nlpkit.objectives.tasks.rows import WrittenTarget, count_cut, shorten

if TYPE_CHECKING:
    import torch


class Config(FrozenConfig):
    """The columns of a row, and the maximum length of an example."""

    max_length: int = Setting(
        512, gt=2, description="longest example: prompt, <s>, input, target, </s> together"
    )
    task_id: int | None = Setting(
        None, ge=0, description="soft prompt of the task; default: the prompt of generation"
    )
    input: TextOf = Setting("input", description="column of the input, or a template")
    target: TextOf = Setting(
        "target", description="column of the text to be generated, or a template"
    )
    choices: Choices | None = Setting(None, description=MEANING)
    learn_unknown: bool = Setting(
        False, description="whether <unk> in a target is learned, although it is never generated"
    )

    EARLIER: ClassVar[JsonMapping] = {"learn_unknown": True}


class Objective(WrittenTarget, PromptTask):
    """Examples and loss of CPM-Ant's generation tasks."""

    term = "nlg"
    parts = ("nlg",)
    fields: Mapping[str, Field] = {**soft_prompt.INPUTS, "labels": Field(np.int64)}
    # Scores of the generated text; each Chinese character is a token.
    metrics = ("exact_match", "rouge:tokenize=zh", "bleu:tokenize=zh")

    def __init__(self, config: Config, tokenizer: Tokenizer, model_config: PromptSettings):
        super().__init__(config, tokenizer, model_config)
        self.max_text = self.room(2, "</s>")
        self.max_length, self.eos_token_ids = self.max_text + 1, (self.eos_id,)

    @classmethod
    def named_columns(cls, config: Config) -> tuple[str, ...]:
        return columns(config.input, config.target)

    def continue_text(self, ids: Sequence[int], new_tokens: int) -> Prompt:
        """Return soft prompt, `<s>` and the end of the input, followed by slots for the target."""
        return soft_prompt.continue_text(self.prompt, self.bos_id, ids, new_tokens, self.max_length)

    def texts(self, row: Row) -> tuple[str, ...]:
        """Return input and target; raise `RowError`."""
        config = self.config
        return row.text(config.input), read_target(row, config.target, config.choices)

    def item(self, row: Row, ids: list[list[int]]) -> Item:
        """Return the item of a row; the start of the input is cut first, then the target's end."""
        source, target = ids
        source_ids, source_cut = shorten(source, self.max_text - len(target), "end")
        target_ids, target_cut = shorten(target, self.max_text, "start")
        cut = count_cut(source_cut, "input") | count_cut(target_cut, "target")
        size = len(self.prompt) + len(source_ids) + len(target_ids) + 2
        text, label = self.texts(row)
        return Item((source_ids, target_ids), label, size, cut, text)

    def example(self, item: Item, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """Return the arrays of `fields`, each (T,); nothing is random."""
        source, target = item.parts
        text = [self.bos_id], source, target, [self.eos_id]
        context = np.arange(len(source) + len(target) + 2) <= len(source)
        segment = soft_prompt.GENERATION_SEGMENT
        example = soft_prompt.make_example(self.prompt, text, context, segment)
        if not self.config.learn_unknown:
            labels = example["labels"]
            labels[labels == self.tokenizer.unk_id] = IGNORE
        return example

    def loss_parts(
        self, batch: Batch, index: torch.Tensor, each: torch.Tensor
    ) -> dict[str, tuple[torch.Tensor, int]]:
        """Return the loss, as the sum of those of the tokens."""
        return {"nlg": (each.sum(), len(index))}
