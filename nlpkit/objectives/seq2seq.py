"""A target from a source: translation, summaries, answers (Sutskever et al. 2014, arXiv:1409.3215).

Rows have a source and a target: two parallel files as they are (`data.format: parallel`), or
columns of jsonl, tsv and csv files. Both have one tokenizer, or each its own. Any task is one of
text to text, as in T5 (Raffel et al. 2020, arXiv:1910.10683, sec. 2.4): `template` writes the
columns of a row as its source, `prefix` names the task, and a label is its own text.
"""

from typing import Self

import numpy as np
from pydantic import Field as Setting
from pydantic import model_validator

from nlpkit.config import FrozenConfig
from nlpkit.contracts.objective import ModelSettings
from nlpkit.contracts.reader import Row
from nlpkit.contracts.task import Item, Task
from nlpkit.contracts.tokenizer import Extendable, Tokenizer
from nlpkit.data.template import TextOf, columns, is_template, problem, write_value
from nlpkit.objectives.examples.source_target import SourceTarget
from nlpkit.objectives.examples.text import check_length
from nlpkit.objectives.tasks.choices import MEANING, Choices, read_choice
from nlpkit.objectives.tasks.rows import count_cut, shorten
from nlpkit.plural import number_of


class Config(FrozenConfig):
    """The columns of a row, how long the two texts may be, and the loss."""

    max_length: int = Setting(
        128, gt=1, description="longest source and longest target, in tokens, with the end token"
    )
    max_target_length: int | None = Setting(
        None, gt=1, description="longest target; default: max_length"
    )
    source: TextOf = Setting("source", description="column of the source, or a template")
    target: TextOf = Setting("target", description="column of the target, or a template")
    choices: Choices | None = Setting(None, description=MEANING)
    template: str | None = Setting(
        None,
        min_length=1,
        description="the source, as a template in its place: {COLUMN} is a value of the row, {{ "
        "and }} are braces",
    )
    prefix: str = Setting(
        "", description="text in front of each source, such as 'translate German to English: '"
    )
    label_smoothing: float | None = Setting(
        None,
        ge=0,
        lt=1,
        description="share of the probability that is spread evenly over the vocabulary, in "
        "training alone; default: that of the family's paper, such as 0.1 for transformer",
    )

    @model_validator(mode="after")
    def _named(self) -> Self:
        if self.template is None:
            return self
        if not is_template(self.template):
            raise ValueError("template: it names no column; {COLUMN} is a value of the row")
        if what := problem(self.template):
            raise ValueError(f"template: {what}")
        return self

    @property
    def given(self) -> str:
        """Column or template of the source."""
        return self.template or self.source


class Objective(SourceTarget, Task):
    """Examples and loss of a target from a source."""

    term = "seq2seq"
    parts = ("seq2seq",)
    metrics: tuple[str, ...] = ("bleu",)
    two_tokenizers = True

    def __init__(self, config: Config, tokenizer: Extendable, model_config: ModelSettings):
        super().__init__(config, tokenizer, model_config)
        self.label_smoothing = config.label_smoothing
        self.bind(tokenizer, model_config)
        longest = config.max_target_length or config.max_length
        check_length(max(self.max_length, longest), model_config)
        self.max_new_tokens = longest - len(self.front)
        prefix = len(self.source_tokenizer.encode(config.prefix))
        if prefix + 2 + len(self.source_front) > self.max_length:
            raise ValueError(
                f"objective.max_length: {self.max_length} leaves no tokens for a source after "
                f"{number_of(prefix, 'tokens')} of objective.prefix and the end token"
            )

    @classmethod
    def named_columns(cls, config: Config) -> tuple[str, ...]:
        return (*columns(config.given), *columns(config.target))

    def encode_input(self, text: str) -> list[int]:
        """Return the ids of a source, with the prefix in front of it."""
        return self.source_tokenizer.encode(self.config.prefix + text) if text else []

    def encode(self, texts: list[str]) -> list[list[int]]:
        """Return the ids of each text: of the sources and targets of rows, in turn."""
        if self.source_tokenizer is self.tokenizer or not texts:
            return super().encode(texts)
        sources = self.source_tokenizer.encode_batch(texts[::2])
        targets = self.tokenizer.encode_batch(texts[1::2])
        return [ids for pair in zip(sources, targets, strict=True) for ids in pair]

    def tokenizer_of(self, part: int) -> Tokenizer:
        """Return the tokenizer of the source (0) or of the target (1)."""
        return self.tokenizer if part else self.source_tokenizer

    def texts(self, row: Row) -> tuple[str, ...]:
        """Return source and target; raise `RowError`."""
        return self.sides(self.config, row)

    @classmethod
    def sides(cls, config: Config, row: Row) -> tuple[str, str]:
        """Return source and target, also what trains their tokenizers; raise `RowError`."""
        return config.prefix + row.text(config.given), read_target(config, row)

    def item(self, row: Row, ids: list[list[int]]) -> Item:
        """Return the item of a row; a source or target that is too long loses its end."""
        room = self.max_length - 1 - len(self.source_front)
        source, source_cut = shorten(ids[0], room, "start")
        target, target_cut = shorten(ids[1], self.max_new_tokens - 1, "start")
        cut = count_cut(source_cut, "source") | count_cut(target_cut, "target")
        size = len(source) + len(target) + self.around
        label, text = read_target(self.config, row), row.text(self.config.given)
        return Item((source, target), label, size, cut, text)

    def unlearned(self, item: Item) -> int:
        """Return the number of unknown tokens in the target."""
        return int((item.parts[1] == self.tokenizer.unk_id).sum())

    def example(self, item: Item, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """Return inputs and targets, (T,) each, and the source (S,); nothing is random."""
        return self.made(*item.parts)


def read_target(config: Config, row: Row) -> str:
    """Return the target of a row, also a number; raise `RowError`, `LeftOut`."""
    if config.choices is not None:
        return read_choice(row, config.target, config.choices)
    if is_template(config.target):
        return row.text(config.target)
    return write_value(row.value(config.target), config.target)
