"""Conversations: the turns of an assistant, learned behind all that stands before them.

A row is a conversation. The tokenizer's own template, in Jinja, makes one text of it, as
`tokenizer.apply_chat_template` of transformers does, with the same ids; the tokens of the
assistant's turns and the token that ends each are the targets. Where the template marks them
({% generation %}), these are the targets; else a turn is what a longer conversation adds behind the
prompt of that turn (`add_generation_prompt`). Models whose tokenizer has no template take ChatML
(OpenAI 2023; Qwen, SmolLM).

T tokens of a conversation, the inputs.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, Protocol, Self

import numpy as np
from pydantic import AfterValidator, model_validator
from pydantic import Field as Setting

from nlpkit.config import FrozenConfig
from nlpkit.contracts.abilities import Prompt
from nlpkit.contracts.batch import IGNORE, Field
from nlpkit.contracts.objective import ModelSettings
from nlpkit.contracts.reader import LeftOut, Row, RowError
from nlpkit.contracts.task import Item, Task
from nlpkit.objectives.examples.text import LabelTargets, check_length
from nlpkit.objectives.tasks.conversations import (
    CHATML,
    Messages,
    message,
    parse,
    read_alpaca,
    read_list,
    render,
)
from nlpkit.objectives.tasks.rows import WrittenTarget, count_cut, shorten

CHATML_TOKENS = ("<|im_start|>", "<|im_end|>")
_COLUMNS = {
    "messages": ("messages",),
    "sharegpt": ("conversations",),
    "alpaca": ("instruction", "output"),
}
TUNE_FIRST = "begin with a model that objective chat has tuned (template: chatml)"
_NO_TEMPLATE = (
    "objective.template: the tokenizer has no chat_template (chat_template.jinja, or in "
    "tokenizer_config.json); "
)


def _check_template(template: str) -> str:
    if template != "chatml" and "{" not in template:
        raise ValueError("needs chatml, or a template in Jinja: {% for message in …")
    return template


TemplateName = Annotated[
    Annotated[str, Setting(min_length=1), AfterValidator(_check_template)] | None,
    Setting(description="chatml, or a template in Jinja; default: the tokenizer's own"),
]


class Config(FrozenConfig):
    """How a row is a conversation, and how it becomes a text."""

    max_length: int = Setting(
        512, ge=2, description="longest conversation, in tokens; the end of a longer one is cut"
    )
    layout: Literal["messages", "sharegpt", "alpaca"] = Setting(
        "messages",
        description="messages: a list of {role, content}; sharegpt: conversations, a list of "
        "{from, value}; alpaca: instruction, input, output",
    )
    column: str | None = Setting(
        None, min_length=1, description="column of the list; default: that of the layout"
    )
    template: TemplateName = None
    tokens: list[str] = Setting(
        [], description="special tokens of a template in Jinja that the vocabulary may lack"
    )

    @model_validator(mode="after")
    def _check_column(self) -> Self:
        if self.column and self.layout == "alpaca":
            raise ValueError("column: alpaca has three columns; remove the setting")
        return self

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that every row has."""
        return (self.column,) if self.column else _COLUMNS[self.layout]

    def messages(self, row: Row) -> Messages:
        """Return the messages of a row; raise `RowError`."""
        if self.layout == "alpaca":
            return read_alpaca(row)
        (column,) = self.columns
        return read_list(row.value(column), column)


class _Chatting(Protocol):
    """A tokenizer that knows the special tokens in a text, and perhaps a template."""

    chat_template: str | None

    @property
    def role_tokens(self) -> Mapping[str, str]: ...
    @property
    def special_ids(self) -> tuple[int, ...]: ...
    def encode_marked(self, text: str) -> tuple[list[int], list[tuple[int, int]]]: ...
    def special_tokens_in(self, text: str) -> list[str]: ...


class Objective(LabelTargets, Task):
    """Examples and loss of an assistant's turns; an item's label says which tokens are theirs."""

    term = "chat"
    parts: tuple[str, ...] = ("chat",)
    inputs = ("input_ids",)
    fields: Mapping[str, Field] = {"input_ids": Field(np.int64), "labels": Field(np.int64)}
    needs = ("causal", "has_vocabulary")
    has_answers = False  # a conversation has several turns
    suppress_tokens = WrittenTarget.suppress_tokens
    without_template = "set objective.template: chatml"  # what to do
    reads_json = False  # whether an input of generation is a conversation, not a message

    def __init__(self, config: Config, tokenizer: Any, model_config: ModelSettings):
        super().__init__(config, tokenizer, model_config)
        check_length(config.max_length, model_config)
        if not hasattr(tokenizer, "encode_marked"):
            raise ValueError("objective: chat needs a tokenizer of kind bpe, unigram or wordpiece")
        self.chatting: _Chatting = tokenizer
        own = config.template if config.template is not None else tokenizer.chat_template
        if own is None:
            raise ValueError(_NO_TEMPLATE + self.without_template)
        self.jinja = CHATML if own == "chatml" else own
        self.max_length = config.max_length
        ends = (self._find_end(), tokenizer.eos_id)
        self.eos_token_ids = tuple(dict.fromkeys(each for each in ends if each is not None))

    @classmethod
    def special_tokens(cls, config: Config, model_config: ModelSettings) -> tuple[str, ...]:
        return (*(CHATML_TOKENS if config.template == "chatml" else ()), *config.tokens)

    @classmethod
    def named_columns(cls, config: Config) -> tuple[str, ...]:
        return config.columns

    @classmethod
    def vocabulary_texts(cls, config: Config, row: Row) -> list[str]:
        return [each["content"] for each in config.messages(row)]

    def checkpoint_files(self) -> Mapping[str, str]:
        return {} if self.config.template is None else {"chat_template.jinja": self.jinja}

    def texts(self, row: Row) -> tuple[str, ...]:
        """Return the conversation as a text; raise `RowError`."""
        messages = self.config.messages(row)
        if not any(each["role"] == "assistant" for each in messages):
            raise RowError("no message is the assistant's")
        return (self.render(messages),)

    def encode(self, texts: list[str]) -> list[list[int]]:
        return [self.chatting.encode_marked(text)[0] for text in texts]

    def item(self, row: Row, ids: list[list[int]]) -> Item:
        """Return the item of a row; the end of a long conversation is cut.

        Raises:
            LeftOut: all turns of the assistant are behind the cut.
        """
        messages = self.config.messages(row)
        (text,) = self.texts(row)
        is_target = self.find_targets(messages, text)
        kept, cut = shorten(ids[0], self.config.max_length + 1, "start")
        if cut and not is_target[1 : len(kept)].any():
            raise LeftOut("conversations left out, cut before the assistant's first turn")
        counts = count_cut(cut, "conversation")
        return Item((kept,), is_target[: len(kept)], len(kept) - 1, counts, text)

    def find_targets(self, messages: Messages, text: str, last: int = 0) -> np.ndarray:
        """Return which tokens of a conversation are of its `last` turns of the assistant; 0: all.

        Raises:
            RowError: the template does not tell.
        """
        _, offsets = self.chatting.encode_marked(text)
        is_target = np.zeros(len(offsets), np.bool_)
        starts, stops = np.array(offsets, np.int64).reshape(-1, 2).T
        for start, stop in self.turns(messages)[-last:]:
            is_target |= (starts < stop) & (stops > start)
        return is_target

    def example(self, item: Item, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """Return inputs and targets, (T,) each; nothing is random."""
        (ids,) = item.parts
        labels = np.where(item.label, ids, IGNORE)[1:].astype(np.int64)
        return {"input_ids": ids[:-1].astype(np.int64), "labels": labels}

    def render(self, messages: Messages, prompt: bool = False) -> str:
        """Return the text of a conversation, with `prompt` up to the assistant's next turn.

        Raises:
            RowError: the template refuses it, or a message has a special token in a value.
        """
        for number, each in enumerate(messages, 1):
            for name, value in each.items():
                if found := self.chatting.special_tokens_in(value):
                    where = "text" if name == "content" else name
                    what = f"message {number} has the special token {found[0]} in its {where}"
                    raise RowError(what)
        return render(self.jinja, messages, prompt, False, self.chatting.role_tokens)[0]

    def turns(self, messages: Messages) -> list[tuple[int, int]]:
        """Return the characters [start, stop) of the assistant's turns in the text; `RowError`."""
        if "generation %}" in self.jinja or "generation -%}" in self.jinja:
            return render(self.jinja, messages, False, True, self.chatting.role_tokens)[1]
        whole, found = self.render(messages), []
        for number, each in enumerate(messages):
            if each["role"] != "assistant":
                continue
            before = self.render(messages[:number], prompt=True)
            after = self.render(messages[: number + 1])
            if not (whole.startswith(after.rstrip()) and after.startswith(before)):
                raise RowError(
                    f"the template writes message {number + 1} otherwise where more follow, and "
                    "does not mark the assistant's turns with {% generation %}"
                )
            found.append((len(before), len(after.rstrip())))
        return found

    def _find_end(self) -> int | None:
        """Return the special token behind a turn of the assistant; None: there is none."""
        try:
            text = self.render([message("user", "x"), message("assistant", "yyy")])
        except RowError:
            return None
        ids, offsets = self.chatting.encode_marked(text)
        behind = text.rindex("yyy") + 3
        special = {*self.chatting.special_ids}
        found = (i for i, (at, _) in zip(ids, offsets, strict=True) if at >= behind)
        return next((each for each in found if each in special), None)

    def encode_input(self, text: str) -> list[int]:
        """Return the ids of a user's message, or of a conversation, up to the answer.

        Raises:
            ValueError: it is no conversation, or the template refuses it.
        """
        try:
            messages = parse(text) if self.reads_json else [message("user", text)]
            return self.chatting.encode_marked(self.render(messages, prompt=True))[0]
        except RowError as error:
            raise ValueError(error.what) from error

    def continue_text(self, ids: Sequence[int], new_tokens: int) -> Prompt:
        """Return the conversation, and `new_tokens` slots; a long one loses its start."""
        free = self.max_length - new_tokens
        if not ids or free < 1:
            raise ValueError("the conversation is empty" if not ids else "no room for the input")
        kept, cut = shorten(ids, free, "end")
        source = np.full(new_tokens, -1)
        source[0] = len(kept) - 1
        return Prompt({"input_ids": kept.astype(np.int64)}, {}, source, kept, cut=cut)


class _Untuned(Objective):
    """Answers conversations with a model that was trained for something else."""

    without_template = TUNE_FIRST


def of_conversations(objective: Any, model_config: ModelSettings) -> Objective:
    """Return the objective that answers conversations with the model of another one.

    Raises:
        ValueError: the model is no decoder, or its tokenizer has no template.
    """
    if isinstance(objective, Objective):
        made = objective
    elif not all(map(model_config.can, Objective.needs)):
        raise ValueError("it needs a decoder (causal attention), which this model is not")
    else:
        length = min(getattr(objective, "max_length", 512), 1 << 20)
        made = _Untuned(Config(max_length=length), objective.tokenizer, model_config)
    made.reads_json = True
    return made
