"""Answers questions with a piece of a text: scores of each token as its first and its last.

Devlin et al. 2018 (arXiv:1810.04805), sec. 4.2, 4.3: the sequence is start, question, delimiter,
context, extract; a long context is read in windows, each with the question. The loss is the mean of
the cross entropies of first and last token. A window without the answer has the null answer as its
target: the first token, or, in a causal family, the last one, which alone sees the question. The
answer is the span with the highest sum of scores over all windows.

N tokens, S windows, L tokens of a context.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
from pydantic import Field as Setting
from pydantic import model_validator

from nlpkit.contracts.batch import Batch, Field, Loss, Term
from nlpkit.contracts.objective import ModelSettings, TrainedModel
from nlpkit.contracts.reader import Row, RowError
from nlpkit.contracts.task import Answer, Item
from nlpkit.contracts.tokenizer import Aligned, Extendable
from nlpkit.data.template import TextOf, columns
from nlpkit.json_types import JsonObject
from nlpkit.objectives.tasks.answers import Answer as AnswerSpan
from nlpkit.objectives.tasks.answers import Found, best_span, find_tokens, read_answers, trim_spans
from nlpkit.objectives.tasks.framed import FramedConfig, FramedTask
from nlpkit.objectives.tasks.rows import count_cut, group_softmax_loss, last_tokens, shorten
from nlpkit.objectives.tasks.windows import Located, token_windows

if TYPE_CHECKING:
    import torch


_FRAME = 4  # start, at most two delimiters, extract


class Config(FramedConfig):
    """The columns of a row, the windows, and what is an answer."""

    max_length: int = Setting(
        384, gt=3, description="longest sequence, with question and special tokens"
    )
    context: str = Setting("context", min_length=1, description="column of the text")
    question: TextOf = Setting("question", description="column of the question, or a template")
    answers: str = Setting(
        "answers", min_length=1, description="column of the answers: text and answer_start"
    )
    stride: int = Setting(
        128, gt=0, description="tokens from the start of one window to that of the next"
    )
    max_question_length: int = Setting(
        64, gt=0, description="longest question in tokens; what is longer is cut"
    )
    max_answer_length: int = Setting(30, gt=0, description="longest predicted answer in tokens")
    no_answer: bool = Setting(
        False, description="questions may have no answer (SQuAD 2.0): is_impossible, or no answers"
    )
    null_threshold: float = Setting(
        0.0, description="τ: an answer must score so much higher than none; only with no_answer"
    )
    nearest_answer: bool = Setting(
        False, description="where answer_start is wrong, take the nearest place of the text"
    )
    normalize: Literal["squad", "cmrc"] = Setting(
        "squad", description="rules of the scores; cmrc: Chinese, by characters (CMRC 2018)"
    )

    def without_effect(self) -> dict[str, str]:
        return {} if self.no_answer else {"null_threshold": "without no_answer: true"}

    @model_validator(mode="after")
    def _consistent(self) -> Config:
        if self.max_length <= self.max_question_length + _FRAME:
            raise ValueError(
                f"max_length: {self.max_length} leaves no room for a context after a question of "
                f"max_question_length {self.max_question_length} and {_FRAME} special tokens; "
                "raise the one or lower the other"
            )
        return self


class _Target(NamedTuple):
    """The label of an item."""

    answers: tuple[str, ...]  # the right ones; ("",) if there is none
    spans: np.ndarray  # (L, 2): the characters of each token of the context
    places: tuple[tuple[int, int], ...]  # of each window: first and last token of the answer
    starts: tuple[int, ...]  # of each window: its first token in the context
    offset: int  # of the context in each window


class Objective(FramedTask):
    """Examples and loss of extractive question answering."""

    head_kind = "question_answering"
    outputs = 2
    fields: Mapping[str, Field] = {
        **FramedTask.fields,
        "place": Field(np.int64),  # of the token in the context, -1 for other tokens
        "start_positions": Field(np.int64, per="sequence"),
        "end_positions": Field(np.int64, per="sequence"),
    }
    metrics: tuple[str, ...] = ("squad_f1", "exact_match:normalize=squad")

    def __init__(self, config: Config, tokenizer: Extendable, model_config: ModelSettings):
        super().__init__(config, tokenizer, model_config)
        if not isinstance(tokenizer, Aligned):
            raise ValueError(
                "objective.name: question_answering needs a tokenizer that tells the characters of "
                "each token (encode_with_offsets)"
            )
        self.aligned: Aligned = tokenizer
        # The token that stands for "no answer": the last one where it sees the texts, else [CLS].
        self.null_is_last = model_config.can("causal") or bool(self.frame.summary)
        how = [] if config.normalize == "squad" else [f"normalize={config.normalize}"]
        how += ["no_answer=true"] if config.no_answer else []
        f1 = f"squad_f1:{','.join(how)}" if how else "squad_f1"
        self.metrics = (f1, f"exact_match:normalize={config.normalize}")

    @classmethod
    def named_columns(cls, config: Config) -> tuple[str, ...]:
        return columns(config.context, config.question, config.answers)

    @classmethod
    def check_columns(cls, config: Config, row: Row) -> None:
        """Raise `RowError` if a row lacks a column; one without answers may have none."""
        if config.context not in row.values and "data" in row.values:
            raise RowError("a file in the form of SQuAD; to read it so, set data.format: squad")
        named = [config.context, config.question]
        named += [] if row.values.get("is_impossible") is True else [config.answers]
        for column in columns(*named):
            row.find(column)

    def texts(self, row: Row) -> tuple[str, ...]:
        """Return question and context; raise `RowError`."""
        config = self.config
        if config.context not in row.values and "data" in row.values:
            self.check_columns(config, row)
        context = row.text(config.context)
        if not self._answers(row, context) and not config.no_answer:
            hint = "set objective.no_answer: true to allow this (SQuAD 2.0)"
            raise RowError(f"the question has no answer; {hint}")
        return row.text(config.question), context

    def stand_in(self, row: Row) -> JsonObject:
        """See `AnswersUnlabelled`: the first character is the answer."""
        context = row.text(self.config.context)
        start = len(context) - len(context.lstrip())
        return {self.config.answers: [{"text": context[start : start + 1], "answer_start": start}]}

    def _answers(self, row: Row, context: str) -> list[AnswerSpan]:
        nearest = self.config.nearest_answer
        return read_answers(row, self.config.answers, context, nearest=nearest)

    def encode(self, texts: list[str]) -> list[list[int]]:
        """Return the ids of each text, with the characters of each token."""
        # A context has several questions.
        different = list(dict.fromkeys(texts))
        found = {
            text: Located(ids, trim_spans(text, spans))
            for text, (ids, spans) in zip(
                different, self.aligned.encode_with_offsets(different), strict=True
            )
        }
        return [found[text] for text in texts]

    def item(self, row: Row, ids: list[list[int]]) -> Item:
        """Return the windows of a context, each with the question."""
        config = self.config
        question, lost = shorten(ids[0], config.max_question_length, "start")
        context = ids[1]
        assert isinstance(context, Located)
        text = row.text(config.context)
        answers = self._answers(row, text)
        spans = np.array(context.spans, np.int32).reshape(-1, 2)
        inside = find_tokens(spans, answers[0]) if answers else None
        cut = count_cut(lost, "question")
        if answers and inside is None:
            cut["answers without a token"] = 1
        frame = self.frame
        offset = len(frame.start) + len(question) + len(frame.between)
        room = config.max_length - frame.size(2) - len(question)
        windows = token_windows(len(context), room, config.stride)
        if len(windows) > 1:
            cut |= {"contexts read in windows": 1, "windows of them": len(windows)}
        parts, places, is_read = [], [], False
        for start, stop in windows:
            part = frame.ids([question, np.array(context[start:stop], np.int32)])
            null = len(part) - 1 if self.null_is_last else 0
            place = null, null
            if inside is not None and start <= inside[0] and inside[1] < stop:
                place = offset + inside[0] - start, offset + inside[1] - start
                is_read = True
            parts.append(part)
            places.append(place)
        if inside is not None and not is_read:
            cut["answers whole in no window"] = 1
        label = _Target(
            tuple(answer.text for answer in answers) or ("",),
            spans,
            tuple(places),
            tuple(start for start, _ in windows),
            offset,
        )
        return Item(tuple(parts), label, sum(map(len, parts)), cut, text)

    def example(self, item: Item, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """Return the concatenated windows of a context; nothing is random."""
        label: _Target = item.label
        numbers = []
        for part, start in zip(item.parts, label.starts, strict=True):
            number = np.arange(len(part)) - label.offset + start
            number[: label.offset] = number[len(part) - len(self.frame.end) :] = -1
            numbers.append(number)
        return self.join(item.parts) | {
            "place": np.concatenate(numbers).astype(np.int64),
            "start_positions": np.array([start for start, _ in label.places], np.int64),
            "end_positions": np.array([stop for _, stop in label.places], np.int64),
        }

    def num_targets(self, batch: Mapping[str, np.ndarray]) -> dict[str, int]:
        return {"task": len(batch["order"])} | self.auxiliary_targets(batch)

    def loss(self, model: TrainedModel, hidden: torch.Tensor, batch: Batch) -> Loss:
        """Return the mean of the losses of first and last token, a mean over windows."""
        return self._compute(model, hidden, batch)[0]

    def predict(
        self, model: TrainedModel, hidden: torch.Tensor, batch: Batch
    ) -> tuple[Loss, list[Found | None]]:
        """Return the loss, and the best span of each row."""
        loss, outputs = self._compute(model, hidden, batch)
        scores = outputs.cpu().numpy()
        places, order = batch.fields["place"].tolist(), batch.fields["order"].tolist()
        best: list[Found | None] = []  # until all windows are read, the margin is the score
        nulls: list[float] = []
        stop = 0
        for number, length in zip(order, batch.lengths, strict=True):
            start, stop = stop, stop + length
            if number == 0:
                best.append(None)
                nulls.append(float("inf"))
            null = stop - 1 if self.null_is_last else start
            # Devlin et al. 2018, sec. 4.3; over windows the lowest, as in the authors' code.
            nulls[-1] = min(nulls[-1], float(scores[null].sum()))
            here = [k for k in range(start, stop) if places[k] >= 0]
            if here:
                context, offset = scores[here[0] : here[-1] + 1], places[here[0]]
                score, first, last = best_span(context, self.config.max_answer_length)
                if best[-1] is None or score > best[-1].margin:
                    best[-1] = Found(offset + first, offset + last, score)
        return loss, [
            each and each._replace(margin=each.margin - null)
            for each, null in zip(best, nulls, strict=True)
        ]

    def answers(self, predictions: list[Found | None], items: Sequence[Item]) -> list[Answer]:
        """Return the predicted answer of each row, as it stands in the text, and the right ones."""
        found: list[Answer] = []
        for prediction, item in zip(predictions, items, strict=True):
            label: _Target = item.label
            text = ""
            if prediction is not None and not self._is_null(prediction):
                start, stop = label.spans[prediction.start][0], label.spans[prediction.stop][1]
                text = item.text[start:stop]
            right = label.answers
            found.append((text, right[0] if len(right) == 1 else right))
        return found

    def _is_null(self, found: Found) -> bool:
        return bool(self.config.no_answer) and found.margin <= self.config.null_threshold

    def _compute(
        self, model: TrainedModel, hidden: torch.Tensor, batch: Batch
    ) -> tuple[Loss, torch.Tensor]:
        """Return the loss, and the scores (N, 2) of each token as first and as last."""
        import torch

        outputs = model.head(hidden).float()
        lengths = torch.tensor(batch.lengths, device=hidden.device)
        begins = last_tokens(batch.lengths, hidden.device) + 1 - lengths
        window = torch.arange(len(lengths), device=hidden.device).repeat_interleave(
            lengths, output_size=len(hidden)
        )
        total = hidden.new_zeros((), dtype=torch.float32)
        for column, name in enumerate(("start_positions", "end_positions")):
            right = begins + batch.fields[name]
            total = total + group_softmax_loss(outputs[:, column], window, right).sum() / 2
        terms = {"task": Term(total, len(lengths))}
        return Loss(terms | self.auxiliary_term(model, hidden, batch)), outputs
