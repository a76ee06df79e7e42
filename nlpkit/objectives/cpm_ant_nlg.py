"""CPM-Ant's text generation task: each row has an input and the target to be generated.

OpenBMB/CPM-Live, branch cpm-ant, `dataset/nlg`. The soft prompt of the task, `<s>` and the input
are context; the target and `</s>` are predicted. T tokens of one example.

Differs from the original: an input that is too long loses its start, but never `<s>`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np
from pydantic import Field as Setting

from nlpkit.config import FrozenConfig
from nlpkit.contracts.abilities import Prompt
from nlpkit.contracts.batch import IGNORE, Field
from nlpkit.contracts.objective import ModelSettings
from nlpkit.contracts.reader import Row
from nlpkit.contracts.task import Item, Question, Task, Wording
from nlpkit.data.template import TextOf, as_template, columns
from nlpkit.objectives.examples import soft_prompt
from nlpkit.objectives.examples.text import LabelTargets
from nlpkit.objectives.tasks.choices import Choices, target_of
from nlpkit.objectives.tasks.rows import count_cut, shorten

if TYPE_CHECKING:
    import torch

    from nlpkit.contracts.batch import Batch
    from nlpkit.contracts.tokenizer import Tokenizer


class TaskSettings(ModelSettings, soft_prompt.PromptSettings, Protocol):
    """The settings of the model's `Config` that CPM-Ant's tasks read."""


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
    choices: Choices | None = Setting(
        None,
        description="what the values of the target stand for: {0: 差评, 1: 好评, -: null} (null "
        "leaves rows out), or a list of what the numbers from 0 stand for",
    )
    learn_unknown: bool = Setting(
        False, description="whether <unk> in a target is learned, although it is never generated"
    )

    EARLIER: ClassVar[Mapping[str, Any]] = {"learn_unknown": True}


class Objective(LabelTargets, Task):
    """Examples and loss of CPM-Ant's generation tasks."""

    term = "nlg"
    parts = ("nlg",)
    inputs = ("input_ids", "segment", "position", "context")
    fields: Mapping[str, Field] = {
        "input_ids": Field(np.int64),
        "segment": Field(np.int64),
        "position": Field(np.int64),
        "context": Field(np.bool_),
        "labels": Field(np.int64),
    }
    needs = ("prompt_length", "prompts", "prompt_types")
    # Scores of the generated text; each Chinese character is a token.
    metrics = ("exact_match", "rouge:tokenize=zh", "bleu:tokenize=zh")

    @classmethod
    def wording(cls, config: Config) -> Wording:
        """Return the input, which the target follows, as in training."""
        return Wording(as_template(config.input), answer_prefix="", separator="\n")

    @classmethod
    def question(cls, config: Config, row: Row) -> Question:
        """Return the target, which is to be written; raise `RowError`."""
        target = target_of(row, config.target, config.choices)
        return Question((), (), target, target)

    def __init__(self, config: Config, tokenizer: Tokenizer, model_config: TaskSettings):
        super().__init__(config, tokenizer, model_config)
        self.prompt = prompt_ids(config.task_id, tokenizer.vocab_size, model_config)
        self.max_text = config.max_length - len(self.prompt) - 2
        if self.max_text < 1:
            raise ValueError(
                f"objective.max_length: {config.max_length} leaves no tokens for text after "
                f"{len(self.prompt)} prompt tokens, <s> and </s>"
            )
        self.bos_id, self.eos_id = soft_prompt.text_frame(tokenizer)
        self.columns = self.named_columns(config)
        self.max_length, self.eos_token_ids = self.max_text + 1, (self.eos_id,)

    @classmethod
    def named_columns(cls, config: Config) -> tuple[str, ...]:
        """Return the columns of input and target."""
        return columns(config.input, config.target)

    @property
    def suppress_tokens(self) -> tuple[int, ...]:
        """Tokens that are never generated, even if targets contain `<unk>`."""
        ids = (self.tokenizer.bos_id, self.tokenizer.pad_id, self.tokenizer.unk_id)
        return tuple(token_id for token_id in ids if token_id is not None)

    def continue_text(self, ids: Sequence[int], new_tokens: int) -> Prompt:
        """Return soft prompt, `<s>` and the end of the input, followed by slots for the target."""
        return soft_prompt.continue_text(self.prompt, self.bos_id, ids, new_tokens, self.max_length)

    def texts(self, row: Row) -> tuple[str, ...]:
        """Return input and target; raise `RowError`."""
        config = self.config
        return row.text(config.input), target_of(row, config.target, config.choices)

    def item(self, row: Row, ids: list[list[int]]) -> Item:
        """Return the item of a row; the start of the input is cut first, then the target's end."""
        source, target = ids
        source_ids, source_cut = shorten(source, self.max_text - len(target), "end")
        target_ids, target_cut = shorten(target, self.max_text, "start")
        cut = count_cut(source_cut, "input") | count_cut(target_cut, "target")
        size = len(self.prompt) + len(source_ids) + len(target_ids) + 2
        text, label = self.texts(row)
        return Item((source_ids, target_ids), label, size, cut, text)

    def unlearned(self, item: Item) -> int:
        """Return the number of unknown tokens in the target, unless they are learned."""
        unknown = int((item.parts[1] == self.tokenizer.unk_id).sum())
        return 0 if self.config.learn_unknown else unknown

    def example(self, item: Item, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """Return the arrays of `fields`, each (T,); nothing is random."""
        source, target = item.parts
        prompt = len(self.prompt)
        input_ids = np.concatenate(
            [self.prompt, [self.bos_id], source, target, [self.eos_id]]
        ).astype(np.int64)
        context = np.ones(len(input_ids), np.bool_)
        context[prompt + 1 + len(source) :] = False
        labels = np.full(len(input_ids), IGNORE, np.int64)
        labels[:-1] = np.where(context[1:], IGNORE, input_ids[1:])
        if not self.config.learn_unknown:
            labels[labels == self.tokenizer.unk_id] = IGNORE
        segment = np.full(len(input_ids), soft_prompt.GENERATION_SEGMENT, np.int64)
        segment[:prompt] = soft_prompt.PROMPT_SEGMENT
        return {
            "input_ids": input_ids,
            "segment": segment,
            "position": np.arange(len(input_ids), dtype=np.int64),
            "context": context,
            "labels": labels,
        }

    def loss_parts(
        self, batch: Batch, index: torch.Tensor, each: torch.Tensor
    ) -> dict[str, tuple[torch.Tensor, int]]:
        """Return the loss, as the sum of those of the tokens."""
        return {"nlg": (each.sum(), len(index))}


def prompt_ids(
    task_id: int | None, vocab_size: int, model_config: soft_prompt.PromptSettings
) -> np.ndarray:
    """Return the ids (P,) of the soft prompt `task_id`; the default is the prompt of generation.

    Raises:
        ValueError: the model has no such prompt.
    """
    number = model_config.prompts.generation if task_id is None else task_id
    if number >= model_config.prompt_types:
        raise ValueError(
            f"objective.task_id: {number}, but the model has {model_config.prompt_types} prompts"
        )
    return soft_prompt.prompt_ids(number, vocab_size, model_config)
