"""CPM-Ant's choice task: each row has an input, options, and the index of the right option.

OpenBMB/CPM-Live, branch cpm-ant, `examples/tune.py`. Each option is one sequence of two encoded
segments of the same type: soft prompt, `<s>`, input and option; and the cue. Its score is the logit
of the answer "是" at its last token; the loss is cross entropy over the options of a row. The
options are in a column of the row, or all rows have the same (`choices`).

S sequences, G rows of a batch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from pydantic import Field as Setting
from pydantic import model_validator

from nlpkit.config import FrozenConfig
from nlpkit.contracts.batch import LENGTHS, Batch, Field, Loss, Term
from nlpkit.contracts.objective import TrainedModel
from nlpkit.contracts.reader import Row, RowError
from nlpkit.contracts.task import Item, Question, Wording
from nlpkit.contracts.tokenizer import Tokenizer
from nlpkit.data.template import TextOf, as_template, columns
from nlpkit.json_types import JsonObject
from nlpkit.objectives.examples import soft_prompt
from nlpkit.objectives.tasks.choices import (
    Choices,
    OptionAs,
    any_choice,
    any_option,
    find_option,
    name_choices,
    read_choice,
    read_options,
)
from nlpkit.objectives.tasks.rows import (
    count_cut,
    fit,
    group_softmax_loss,
    last_tokens,
    numbers,
    predictions,
)
from nlpkit.objectives.tasks.segments import Frame, SegmentTask

if TYPE_CHECKING:
    import torch


class Config(FrozenConfig):
    """The columns of a row, and the words around an option."""

    max_length: int = Setting(
        512, gt=2, description="longest sequence: prompt, <s>, input, option and cue together"
    )
    task_id: int | None = Setting(
        None, ge=0, description="soft prompt of the task; default: the prompt of generation"
    )
    cue: str = Setting("[是否正确]", description="text after the option")
    answer: str = Setting(
        "是", min_length=1, description="the token whose logit is an option's score"
    )
    input: TextOf = Setting("input", description="column of the input, or a template")
    options: str = Setting("options", min_length=1, description="column of the list of options")
    choices: Choices | None = Setting(
        None,
        description="the options of all rows, instead of a column: [差评, 好评], or what the "
        "values of the target stand for: {entailment: 蕴含, neutral: 中立, -: null} (null leaves "
        "rows out)",
    )
    target: str = Setting("target", min_length=1, description="column of the right option")
    target_as: OptionAs = Setting(
        "number",
        description="what the target is: number (from 0), text (that of the option), or names of "
        "the options in their order: [A, B, C, D]",
    )

    @model_validator(mode="after")
    def _one_kind_of_options(self) -> Config:
        whose = {"options": "the column of each row's own", "target_as": "which reads it"}
        for name, what in whose.items():
            if self.choices is not None and not self.is_default(name):
                raise ValueError(f"choices: excludes {name}, {what}; remove one")
        return self


class Objective(SegmentTask):
    """Examples and loss of CPM-Ant's choice tasks."""

    parts = ("nlu",)
    fields: Mapping[str, Field] = {
        **soft_prompt.INPUTS,
        "option": Field(np.int64, per="sequence"),  # the index of the option in the row
        "label": Field(np.int64, per="sequence"),  # the index of the row's right option
    }
    metrics = ("accuracy",)

    @classmethod
    def question(cls, config: Config, row: Row) -> Question:
        """Return the options with their numbers; raise `RowError`."""
        options, right = _check_options(config, row)
        return Question(tuple(options), numbers(options), options[right], str(right))

    def __init__(
        self, config: Config, tokenizer: Tokenizer, model_config: soft_prompt.PromptSettings
    ):
        super().__init__(config, tokenizer, model_config)
        self.cue = np.asarray(tokenizer.encode(config.cue), np.int32)
        self.cue_unknown = int((self.cue == tokenizer.unk_id).sum())
        if self.cue_unknown:
            self.unknown_remark = (
                f", {self.cue_unknown} of each sequence in objective.cue {config.cue!r}"
            )
        answer = tokenizer.encode(config.answer)
        if len(answer) != 1 or answer[0] == tokenizer.unk_id:
            raise ValueError(
                f"objective.answer: {config.answer!r} is not one token of the tokenizer; "
                "choose a word that is"
            )
        self.answer_id = answer[0]
        self.max_text = self.room(len(self.cue), f"the cue of {len(self.cue)}")

    @classmethod
    def compose(cls, config: Config) -> tuple[Frame, Frame]:
        """Return the segments of a sequence: input and option, and the cue."""
        segment = soft_prompt.GENERATION_SEGMENT
        return (
            Frame(type=segment, prompt=config.task_id, end=False),
            Frame(type=segment, begin=False, end=False),
        )

    @classmethod
    def wording(cls, config: Config) -> Wording:
        """Return the input, which an answer follows, as in training."""
        return Wording(as_template(config.input), answer_prefix="", separator="\n")

    @classmethod
    def named_columns(cls, config: Config) -> tuple[str, ...]:
        return columns(config.input, *([] if config.choices else [config.options]), config.target)

    def texts(self, row: Row) -> tuple[str, ...]:
        """Return the input and the options; raise `RowError`."""
        options, _ = _check_options(self.config, row)
        return row.text(self.config.input), *options

    def stand_in(self, row: Row) -> JsonObject:
        """See `AnswersUnlabelled`."""
        config = self.config
        if config.choices is not None:
            return {config.target: any_choice(config.choices)}
        options = read_options(row, config.options)
        return {config.target: any_option(config.target_as, options)}

    def item(self, row: Row, ids: list[list[int]]) -> Item:
        """Return the item of a row; the start of the input is cut first, then the option's end."""
        source, *options = ids
        parts, cut = [], Counter[str]()
        for option in options:
            kept, (source_cut, option_cut) = fit([source, option], self.max_text)
            cut.update(count_cut(source_cut, "input") | count_cut(option_cut, "option"))
            parts.append(np.concatenate(kept))
        size = sum(len(part) + self.framing + len(self.cue) for part in parts)
        return Item(tuple(parts), _check_options(self.config, row)[1], size, cut)

    def unknown(self, item: Item) -> int:
        """Return the number of unknown tokens, including the cue of each option."""
        return super().unknown(item) + self.cue_unknown * len(item.parts)

    def example(self, item: Item, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """Return the concatenated sequences of a row, and the index of the right one."""
        made = [self.lay_out([part, self.cue]) for part in item.parts]
        return {
            **{name: np.concatenate([each[name] for each in made]) for name in self.inputs},
            "option": np.arange(len(made), dtype=np.int64),
            "label": np.full(len(made), item.label, np.int64),
            LENGTHS: np.array([len(each["input_ids"]) for each in made], np.int64),
        }

    def num_targets(self, batch: Mapping[str, np.ndarray]) -> dict[str, int]:
        return {"nlu": int((batch["option"] == 0).sum())}

    def tokens_read(self, batch: Batch) -> torch.Tensor | None:
        """Return (N,) bool: the last token of each sequence."""
        read = batch.fields["input_ids"].new_zeros(sum(batch.lengths)).bool()
        read[last_tokens(batch.lengths, read.device)] = True
        return read

    def loss(self, model: TrainedModel, hidden: torch.Tensor, batch: Batch) -> Loss:
        """Return cross entropy over the options of each row."""
        return self._compute(model, hidden, batch)[0]

    def predict(
        self, model: TrainedModel, hidden: torch.Tensor, batch: Batch
    ) -> tuple[Loss, list[tuple[str, str]]]:
        """Return the loss, and for each row the indices of the chosen and the right option."""
        loss, scores, groups = self._compute(model, hidden, batch)
        return loss, predictions(scores, groups, batch.fields["label"])

    def _compute(
        self, model: TrainedModel, hidden: torch.Tensor, batch: Batch
    ) -> tuple[Loss, torch.Tensor, torch.Tensor]:
        """Return the loss, the scores (S,) of sequences and the indices (S,) of their rows."""
        logits = model.logits(hidden[last_tokens(batch.lengths, hidden.device)])
        scores, option = logits[:, self.answer_id], batch.fields["option"]
        groups = (option == 0).cumsum(0) - 1
        right = (option == batch.fields["label"]).nonzero().squeeze(1)
        row_losses = group_softmax_loss(scores, groups, right)
        return Loss({"nlu": Term(row_losses.sum(), len(right))}), scores, groups


def _check_options(config: Config, row: Row) -> tuple[list[str], int]:
    """Return the options and the index of the right one; raise `RowError`."""
    if config.choices is not None:
        options = name_choices(config.choices)
        return options, options.index(read_choice(row, config.target, config.choices))
    options = read_options(row, config.options)
    # Cells of tsv and csv are text, but their rows have no list of options.
    if config.target_as == "number" and isinstance(target := row.value(config.target), str):
        raise RowError(
            f'"{config.target}" is the string {target[:40]!r}, not the number of an option, 0 to '
            f"{len(options) - 1}; objective.target_as: text or [A, B, C] reads strings"
        )
    return options, find_option(row, config.target, config.target_as, options, "target_as")
