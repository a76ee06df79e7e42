"""The text that follows a prompt, by a causal model: an answer, a title, a text from a label.

Rows have a source and a target. A sequence is `_start_ source _delimiter_ target </s>`, with the
family's own tokens (Radford et al. 2018, sec. 3.3, where a task's texts stand so); the target and
`</s>` are predicted. With the column of a label as the source it is text from a label, the form
"one to many" of recurrent networks. Models that read a source with an encoder have `seq2seq`.

T tokens of a sequence without `</s>`, the inputs.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from pydantic import Field as Setting

from nlpkit.config import FrozenConfig
from nlpkit.contracts.abilities import Prompt
from nlpkit.contracts.batch import IGNORE, Field
from nlpkit.contracts.objective import ModelSettings
from nlpkit.contracts.reader import Row, RowError
from nlpkit.contracts.task import Item, Wording
from nlpkit.contracts.tokenizer import Extendable, Template
from nlpkit.data.lines import kind_of
from nlpkit.data.template import TextOf, as_template, columns, is_template
from nlpkit.objectives.examples.frame import find_id
from nlpkit.objectives.examples.text import check_length
from nlpkit.objectives.tasks.choices import MEANING, Choices, read_target
from nlpkit.objectives.tasks.rows import WrittenTarget, count_cut, shorten


class Config(FrozenConfig):
    """The columns of a row, and the longest sequence."""

    max_length: int = Setting(
        256, gt=3, description="longest sequence: start, source, delimiter and target together"
    )
    source: TextOf = Setting(
        "source", description="column of the prompt, or of a label, or a template"
    )
    target: TextOf = Setting(
        "target", description="column of the text to be generated, or a template"
    )
    choices: Choices | None = Setting(None, description=MEANING)
    learn_unknown: bool = Setting(
        False, description="whether <unk> in a target is learned; it can then be generated"
    )


class Objective(WrittenTarget):
    """Examples and loss of the text after a prompt."""

    term = "generation"
    parts: tuple[str, ...] = ("generation",)
    inputs = ("input_ids",)
    fields: Mapping[str, Field] = {"input_ids": Field(np.int64), "labels": Field(np.int64)}
    needs = ("causal", "has_vocabulary")
    metrics: tuple[str, ...] = ("rouge",)

    def __init__(self, config: Config, tokenizer: Extendable, model_config: ModelSettings):
        super().__init__(config, tokenizer, model_config)
        check_length(config.max_length, model_config)
        names = type(self).special_tokens(config, model_config)  # the vocabulary has them
        self.start, self.delimiter, self.end = (find_id(tokenizer, name) for name in names)
        start, delimiter, end = (f"{name}:0" for name in names)
        before = f"{start} $A:0 {delimiter}"
        self.template = Template(before, f"{before} $B:0 {end}")
        self.max_length, self.eos_token_ids = config.max_length, (self.end,)

    @classmethod
    def special_tokens(cls, config: Config, model_config: ModelSettings) -> tuple[str, ...]:
        return (*model_config.task_tokens[:2], model_config.target_tokens[1])

    @classmethod
    def named_columns(cls, config: Config) -> tuple[str, ...]:
        return columns(config.source, config.target)

    @classmethod
    def wording(cls, config: Config) -> Wording:
        """Return the source, which the target follows, as in training."""
        return Wording(as_template(config.source), answer_prefix="\n", separator="\n\n")

    @property
    def suppress_tokens(self) -> tuple[int, ...]:
        """Tokens that are no target."""
        unknown = None if self.config.learn_unknown else self.tokenizer.unk_id
        ids = (self.start, self.delimiter, self.tokenizer.pad_id, self.tokenizer.bos_id, unknown)
        return tuple(dict.fromkeys(i for i in ids if i is not None and i != self.end))

    def continue_text(self, ids: Sequence[int], new_tokens: int) -> Prompt:
        """Return the source in its frame, and `new_tokens` slots; a long source loses its start."""
        free = self.max_length - new_tokens - 2
        if not ids:
            raise ValueError("the source is empty")
        if free < 1:
            raise ValueError(
                f"{new_tokens} new tokens leave no token for the source; lower --max-new-tokens to "
                f"{self.max_length - 3}"
            )
        source, cut = shorten(ids, free, "end")
        given = np.concatenate([[self.start], source, [self.delimiter]]).astype(np.int64)
        predicted_from = np.full(new_tokens, -1)
        predicted_from[0] = len(given) - 1
        return Prompt({"input_ids": given}, {}, predicted_from, source, cut=cut)

    def texts(self, row: Row) -> tuple[str, ...]:
        """Return source and target; raise `RowError`. A source may be a number, such as a class."""
        source, config = self.config.source, self.config
        value = row.text(source) if is_template(source) else row.value(source)
        if isinstance(value, bool) or not isinstance(value, (str, int)) or value == "":
            what = "empty" if value == "" else kind_of(value)
            raise RowError(f'"{source}" is {what}, not a string or an integer')
        return str(value), read_target(row, config.target, config.choices)

    def item(self, row: Row, ids: list[list[int]]) -> Item:
        """Return the item of a row; the start of the source is cut first, then the target's end."""
        room = self.max_length - 2
        source, source_cut = shorten(ids[0], max(room - len(ids[1]), 1), "end")
        target, target_cut = shorten(ids[1], room - len(source), "start")
        cut = count_cut(source_cut, "source") | count_cut(target_cut, "target")
        text, label, *_ = self.texts(row)
        return Item((source, target), label, len(source) + len(target) + 2, cut, text)

    def example(self, item: Item, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """Return inputs and targets, (T,) each; nothing is random."""
        source, target = item.parts
        ids = np.concatenate([[self.start], source, [self.delimiter], target, [self.end]])
        labels = ids[1:].astype(np.int64)
        labels[: len(source) + 1] = IGNORE
        if not self.config.learn_unknown:
            labels[labels == self.tokenizer.unk_id] = IGNORE
        return {"input_ids": ids[:-1].astype(np.int64), "labels": labels}
