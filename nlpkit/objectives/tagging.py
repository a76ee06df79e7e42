"""Tags the words of a sentence: a linear layer on the state of each word's first token.

Devlin et al. 2018 (arXiv:1810.04805), sec. 5.3: the other tokens of a word are not predicted. The
sequence is start, sentence, extract. A sentence that is longer than a sequence is read in windows,
so that every word is predicted once (`_windows.py`). Differs from the paper: no document context.

N tokens, S sequences, O tags, M words.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
from pydantic import Field as Setting

from nlpkit.contracts.batch import IGNORE, Batch, Field, Loss, Term
from nlpkit.contracts.objective import ModelSettings, TrainedModel
from nlpkit.contracts.reader import Row, RowError
from nlpkit.contracts.task import Answer, Item
from nlpkit.contracts.tokenizer import Extendable
from nlpkit.data.lines import kind_of
from nlpkit.errors import DataError
from nlpkit.json_types import JsonObject
from nlpkit.objectives.tasks.choices import name_few, quote
from nlpkit.objectives.tasks.framed import FramedConfig, FramedTask
from nlpkit.objectives.tasks.windows import BETWEEN, Located, read_words, space_words, word_windows
from nlpkit.plural import number_of
from nlpkit.score.counts.tags import WrongTag, is_allowed, parse

if TYPE_CHECKING:
    import torch


class Config(FramedConfig):
    """The columns of a row, and the scheme of the tags."""

    words: str = Setting(
        "words",
        min_length=1,
        description="column of the list of words; a text is read as its characters",
    )
    tags: str = Setting(
        "tags",
        min_length=1,
        description="column of the list of tags, one for each word; a text is split at spaces",
    )
    labels: list[str] | None = Setting(
        None,
        min_length=2,
        description="the tags; default: those of the training rows, O first. Numbers in rows are "
        "places in this list, from 0",
    )
    scheme: Literal["conll", "iob1", "iob2", "bioes", "bmes", "bilou"] | None = Setting(
        "conll",
        description="how tags make entities; conll: by the rules of conlleval, which read every "
        "scheme; the others are strict: tags in rows are checked, and broken predictions are no "
        "entities; null: tags are no entities (parts of speech)",
    )
    overlap: int = Setting(
        64,
        ge=0,
        description="tokens that the windows of a long sentence share, at most half a window",
    )


class _Sentence(NamedTuple):
    """The label of an item."""

    tags: list[str]  # of all words
    targets: tuple[np.ndarray, ...]  # of the tokens of each window: (T,), IGNORE but for words


class Objective(FramedTask):
    """Examples and loss of tagging."""

    head_kind = "token_classification"
    fields: Mapping[str, Field] = {
        **FramedTask.fields,
        "tags": Field(np.int64),  # of the first token of each word, IGNORE elsewhere
    }
    metrics: tuple[str, ...] = ("entity_f1", "tag_accuracy")

    def __init__(self, config: Config, tokenizer: Extendable, model_config: ModelSettings):
        super().__init__(config, tokenizer, model_config)
        if config.scheme is None:
            self.metrics = ("tag_accuracy",)
        elif config.scheme != "conll":
            self.metrics = (f"entity_f1:scheme={config.scheme}", "tag_accuracy")
        self.numbers = {tag: number for number, tag in enumerate(config.labels or ())}

    @property
    def outputs(self) -> int:  # type: ignore[override]
        return len(self.config.labels)

    @classmethod
    def named_columns(cls, config: Config) -> tuple[str, ...]:
        return config.words, config.tags

    @classmethod
    def complete(cls, config: Config, rows: Iterable[Row]) -> Config:
        """Return `config` with the tags of the training rows, unless it lists tags.

        As in `states.ClassTask`, wrong rows are left to the reading of texts.
        """
        if config.labels is not None:
            return config
        found, wrong = set[str](), ""
        for row in rows:
            try:
                found.update(_tags(row, config))
            except RowError as error:
                wrong = wrong or f"{row.file}:{row.line}: {error.what}"
        if len(found) < 2:
            only = f"all words have the same tag, {quote(min(found))}" if found else "no rows"
            raise DataError(wrong or f"data.train: {only}")
        labels = sorted(found, key=lambda tag: (tag != "O", tag))
        return config.model_copy(update={"labels": labels})

    @classmethod
    def vocabulary_texts(cls, config: Config, row: Row) -> list[str]:
        """Return the words; a text is read as its characters, but trains a tokenizer whole."""
        words = row.find(config.words)
        return [words if isinstance(words, str) else " ".join(read_words(row, config.words))]

    def texts(self, row: Row) -> tuple[str, ...]:
        """Return the words with line breaks between them; raise `RowError`."""
        words, tags = read_words(row, self.config.words), _tags(row, self.config)
        if len(words) != len(tags):
            raise RowError(
                f'"{self.config.words}" has {number_of(len(words), "words")} and '
                f'"{self.config.tags}" {number_of(len(tags), "tags")}'
            )
        for number, (word, tag) in enumerate(zip(words, tags, strict=True), 1):
            if tag not in self.numbers:
                known = name_few(self.config.labels)
                raise RowError(
                    f"word {number}, {quote(word)}, has the tag {quote(tag)}, none of the tags "
                    f"{known}; objective.labels may list more"
                )
        return (BETWEEN.join(space_words(words)),)

    def stand_in(self, row: Row) -> JsonObject:
        """See `AnswersUnlabelled`."""
        tag = "O" if "O" in self.numbers else self.config.labels[0]
        return {self.config.tags: [tag] * len(read_words(row, self.config.words))}

    def encode(self, texts: list[str]) -> list[list[int]]:
        """Return the ids of each text, with the tokens of each word; no word is without a token."""
        words = [text.split(BETWEEN) for text in texts]
        encoded = iter(super().encode([word for sentence in words for word in sentence]))
        unknown = self.frame.delimiter if self.tokenizer.unk_id is None else self.tokenizer.unk_id
        found: list[list[int]] = []
        for sentence in words:
            pieces = [next(encoded) or [unknown] for _ in sentence]
            stops = np.cumsum([len(piece) for piece in pieces]).tolist()
            spans = [*zip([0, *stops[:-1]], stops, strict=True)]
            found.append(Located([i for piece in pieces for i in piece], spans))
        return found

    def item(self, row: Row, ids: list[list[int]]) -> Item:
        """Return the windows of a sentence; of a word longer than a window, its beginning."""
        (text,) = ids
        assert isinstance(text, Located)
        room = self.config.max_length - self.frame.size()
        cut = {}
        if long := sum(stop - start > room for start, stop in text.spans):
            cut["words longer than a window"] = long
        words = [np.array(text[start : min(stop, start + room)]) for start, stop in text.spans]
        windows = word_windows(np.array([*map(len, words)]), room, self.config.overlap)
        if len(windows) > 1:
            cut |= {"sentences read in windows": 1, "windows of them": len(windows)}
        tags = _tags(row, self.config)
        frame = self.frame
        before, after = (np.full(len(tokens), IGNORE) for tokens in (frame.start, frame.end))
        parts, targets = [], []
        for start, stop, first, last in windows:
            target = [np.full(len(word), IGNORE) for word in words[start:stop]]
            for number in range(first, last):
                target[number - start][0] = self.numbers[tags[number]]
            parts.append(frame.ids([np.concatenate(words[start:stop])]))
            targets.append(np.concatenate([before, *target, after]))
        return Item(tuple(parts), _Sentence(tags, tuple(targets)), sum(map(len, parts)), cut)

    def example(self, item: Item, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """Return the concatenated windows of a sentence; nothing is random."""
        tags = np.concatenate(item.label.targets).astype(np.int64)
        return self.join(item.parts) | {"tags": tags}

    def num_targets(self, batch: Mapping[str, np.ndarray]) -> dict[str, int]:
        count = {"task": int((batch["tags"] != IGNORE).sum())}
        return count | self.auxiliary_targets(batch)

    def loss(self, model: TrainedModel, hidden: torch.Tensor, batch: Batch) -> Loss:
        """Return cross entropy of the tags, a mean over words."""
        return self._compute(model, hidden, batch)[0]

    def predict(
        self, model: TrainedModel, hidden: torch.Tensor, batch: Batch
    ) -> tuple[Loss, list[list[int]]]:
        """Return the loss, and the numbers of the predicted tags of each row."""
        loss, outputs, index = self._compute(model, hidden, batch)
        order = batch.fields["order"]
        lengths = order.new_tensor(batch.lengths)
        row = ((order == 0).cumsum(0) - 1).repeat_interleave(lengths)[index].tolist()
        found: list[list[int]] = [[] for _ in range(row[-1] + 1)]
        for number, tag in zip(row, outputs.argmax(1).tolist(), strict=True):
            found[number].append(tag)
        return loss, found

    def answers(self, predictions: list[list[int]], items: Sequence[Item]) -> list[Answer]:
        """Return the predicted and the right tags of each row, as lines."""
        labels = self.config.labels
        return [
            (" ".join(labels[tag] for tag in tags), " ".join(item.label.tags))
            for tags, item in zip(predictions, items, strict=True)
        ]

    def _compute(
        self, model: TrainedModel, hidden: torch.Tensor, batch: Batch
    ) -> tuple[Loss, torch.Tensor, torch.Tensor]:
        """Return the loss, the outputs (M, O) of words, and the indices (M,) of their tokens."""
        import torch.nn.functional as F

        tags = batch.fields["tags"]
        index = (tags != IGNORE).nonzero().squeeze(1)
        outputs = model.head(hidden[index]).float()
        total = F.cross_entropy(outputs, tags[index], reduction="sum")
        terms = {"task": Term(total, len(index))}
        return Loss(terms | self.auxiliary_term(model, hidden, batch)), outputs, index


def _name_tag(tag: object, number: int, config: Config) -> object:
    """Return a tag, by its name if it is a number; raise `RowError`."""
    if isinstance(tag, bool) or not isinstance(tag, int):
        return tag
    if config.labels is None:
        how = "objective.labels: [O, B-PER, ...] says what the numbers from 0 stand for"
        raise RowError(f'"{config.tags}": tag {number} is a number ({tag}), not a string; {how}')
    if not 0 <= tag < len(config.labels):
        what = f"objective.labels has {len(config.labels)} tags, 0 to {len(config.labels) - 1}"
        raise RowError(f'"{config.tags}": tag {number} is {tag}; {what}')
    return config.labels[tag]


def _tags(row: Row, config: Config) -> list[str]:
    """Return the tags of a row, in their scheme; raise `RowError`."""
    value = row.value(config.tags)
    entries = value.split() if isinstance(value, str) else value
    if not isinstance(entries, list):
        raise RowError(f'"{config.tags}" is {kind_of(value)}, not a list of strings')
    tags: list[str] = []
    for number, entry in enumerate(entries, 1):
        tag = _name_tag(entry, number, config)
        if not isinstance(tag, str) or len(tag.split()) != 1 or tag != tag.strip():
            what = repr(tag) if isinstance(tag, str) else kind_of(tag)
            raise RowError(f'"{config.tags}": tag {number} is {what}, not a string without spaces')
        tags.append(tag)
    if config.scheme is not None:
        try:
            parse(tags, config.scheme)
            if config.scheme != "conll" and not is_allowed(tags, config.scheme):
                raise RowError(
                    f'"{config.tags}" is not in scheme {config.scheme}: {" ".join(tags)}; '
                    "objective.scheme: conll reads every sequence of tags"
                )
        except WrongTag as error:
            hint = "; objective.scheme: null is for tags that are no entities"
            raise RowError(f'"{config.tags}": {error}{hint}') from error
    return tags
