"""Answers to prompts, without tuning (Radford et al. 2019; Brown et al. 2020, sec. 2.4).

Of several answers the likeliest is chosen: by the sum of its tokens' log-probabilities, by their
mean, or by the sum less that behind a neutral prompt, log p(answer | prompt) - log p(answer |
neutral). Where there is nothing to choose from, the answer is generated, up to the separator.

A prompt that is too long loses its first examples, then its start; both are counted, and so are
unknown tokens that are left out. Prompt and answer are tokenised each on its own, as texts of a
task are.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np

from nlpkit.contracts.abilities import ReadsSource
from nlpkit.errors import DataError, UsageError
from nlpkit.evaluate.prompts import PromptRow, Rows
from nlpkit.generate.settings import Settings
from nlpkit.generate.texts import Writer
from nlpkit.json_types import JsonObject
from nlpkit.plural import number_of
from nlpkit.runs.likelihood import Encoded, Likelihood
from nlpkit.runs.open_checkpoint import Opened

_UNKNOWN = "unknown tokens left out"
Progress = Callable[[int, int], None]
Text = TypeVar("Text", Encoded, list[int])


class Shots:
    """Answers the rows of a task with an opened checkpoint; `cut` counts what was not read."""

    def __init__(
        self,
        opened: Opened,
        rows: Rows,
        method: str | None,
        tokens_per_batch: int,
        generation: Settings,
    ):
        """Take both; raise `UsageError` if the model neither scores nor generates text."""
        self.opened, self.rows = opened, rows
        self.cut: Counter[str] = Counter()
        self.likelihood: Likelihood | None = None
        self.writer: Writer | None = None
        if not rows.rows[0].answers:
            separator = str(rows.settings.separator)
            stop = ["\n"] if "\n" in separator else [separator]
            settings = generation.model_copy(update={"stop": stop})
            self.writer = Writer(opened.model, opened.tokenizer, opened.objective, settings)
        else:
            self.likelihood = Likelihood(
                opened, method, of_answers=True, tokens_per_batch=tokens_per_batch
            )

    def answer(self, shots: int, seed: int, progress: Progress) -> list[JsonObject]:
        """Return, for each row, `prediction`, `target`, and the scores of its answers.

        `progress` is called with the number of rows that are done and of all rows.

        Raises:
            DataError: an answer has no tokens, or nothing stands before it; or a prompt cannot be
                continued.
        """
        if self.writer is not None:
            return self._write(self.writer, shots, seed, progress)
        assert self.likelihood is not None
        return self._choose(self.likelihood, shots, seed, progress)

    def describe(self) -> dict[str, str]:
        """Return by which method the rows are answered."""
        if self.likelihood is None:
            return {"method": "generate"}
        return {"method": self.likelihood.method, "option_score": self.rows.settings.option_score}

    def _make_prompts(
        self,
        shots: int,
        seed: int,
        limits: Sequence[int],
        encode: Callable[[list[str]], list[Text]],
    ) -> list[tuple[str, Text]]:
        rows = self.rows
        drawn = [rows.draw_examples(shots, seed, number) for number in range(len(rows.rows))]
        texts = [rows.write_prompt(each, row) for each, row in zip(drawn, rows.rows, strict=True)]
        encoded = encode(texts)
        for number, row in enumerate(rows.rows):
            while drawn[number] and len(encoded[number]) > limits[number]:
                del drawn[number][0]
                self.cut["examples that did not fit"] += 1
                texts[number] = rows.write_prompt(drawn[number], row)
                (encoded[number],) = encode([texts[number]])
            if (over := len(encoded[number]) - limits[number]) > 0:
                self.cut["prompts cut"] += 1
                self.cut["tokens cut from prompts"] += over
        return list(zip(texts, encoded, strict=True))

    def _choose(
        self, likelihood: Likelihood, shots: int, seed: int, progress: Progress
    ) -> list[JsonObject]:
        rows = self.rows.rows
        texts = sorted({answer for row in rows for answer in row.answers})
        answers = dict(zip(texts, likelihood.encode(texts), strict=True))
        limits = [
            likelihood.objective.max_text - max(len(answers[each]) for each in row.answers)
            for row in rows
        ]
        prompts = self._make_prompts(shots, seed, limits, likelihood.encode)
        if likelihood.objective.drop_unknown:
            read = [*answers.values(), *(prompt for _, prompt in prompts)]
            self.cut += Counter({_UNKNOWN: sum(text.unknown for text in read)})
        framed = [
            [_join(prompt, answers[answer], room, row) for answer in row.answers]
            for (_, prompt), row, room in zip(prompts, rows, limits, strict=True)
        ]
        flat = [text for texts in framed for text in texts]
        total = len(rows)
        values = iter(
            likelihood.compute_log_probs(
                flat, lambda done: progress(done * total // len(flat), total)
            )
        )
        neutral = self._score_neutral(likelihood, answers)
        kind = self.rows.settings.option_score
        found = []
        for row, each in zip(rows, framed, strict=True):
            scores = [
                _score(next(values)[text.given :], neutral.get(answer, 0.0), kind, row)
                for answer, text in zip(row.answers, each, strict=True)
            ]
            name = row.names[scores.index(max(scores))]
            found.append(
                {"prediction": name, "target": row.label, "scores": scores, "place": row.place}
            )
        return found

    def _score_neutral(
        self, likelihood: Likelihood, answers: dict[str, Encoded]
    ) -> dict[str, float]:
        """Return the log-probability of each answer behind the neutral prompt, if it is needed."""
        if self.rows.settings.option_score != "neutral":
            return {}
        (prompt,) = likelihood.encode([str(self.rows.settings.neutral)])
        framed = [_frame(prompt, answer) for answer in answers.values()]
        sums = {}
        scored = likelihood.compute_log_probs(framed)
        for text, log_probs, answer in zip(framed, scored, answers, strict=True):
            own = log_probs[text.given :]
            if np.isnan(own).any():
                what = "eval.prompt.neutral: is empty, and this model has no token before a text; "
                raise UsageError(self.rows.locate(what + "give a text, such as 'Answer:'"))
            sums[answer] = float(own.sum())
        return sums

    def _write(self, writer: Writer, shots: int, seed: int, progress: Progress) -> list[JsonObject]:
        rows = self.rows.rows
        # A source has the end token behind it, and its answer is a sequence of its own.
        objective, kept = writer.objective, writer.max_new_tokens
        if isinstance(objective, ReadsSource):
            kept = len(objective.source_front)
        room = writer.objective.max_length - 1 - kept

        def encode(texts: list[str]) -> list[list[int]]:
            return [writer.encode(text) for text in texts]

        prompts = self._make_prompts(shots, seed, [room] * len(rows), encode)
        found = []
        for row, written in zip(
            rows, writer.write([text for text, _ in prompts], scores=False), strict=True
        ):
            if written.problem is not None:
                raise DataError(f"{row.place}: {written.problem}")
            answer = written.outputs[0].text.strip()
            found.append({"prediction": answer, "target": row.label, "place": row.place})
            progress(len(found), len(rows))
        self.cut += Counter({_UNKNOWN: writer.counts.pop("unknown tokens", 0)})
        return found


def _join(prompt: Encoded, answer: Encoded, room: int, row: PromptRow) -> Encoded:
    """Return the last `room` tokens of a prompt, and an answer."""
    if not len(answer.ids):
        raise DataError(f"{row.place}: an answer has no tokens that the model knows")
    if room < 0:
        raise DataError(
            f"{row.place}: the answer is {number_of(-room, 'tokens')} too long for the model"
        )
    first = max(len(prompt.ids) - room, 0)
    return _frame(Encoded(prompt.ids[first:], prompt.words[first:], []), answer)


def _frame(prompt: Encoded, answer: Encoded) -> Encoded:
    """Return prompt and answer as one text, of which the answer is scored."""
    behind = int(prompt.words.max(initial=0)) + 1  # an answer begins a word
    ids = np.concatenate([prompt.ids, answer.ids])
    words = np.concatenate([prompt.words, answer.words + behind])
    return Encoded(ids, words, [], given=len(prompt.ids))


def _score(log_probs: np.ndarray, neutral: float, kind: str, row: PromptRow) -> float:
    total = float(log_probs.sum())
    if np.isnan(total):
        raise DataError(
            f"{row.place}: the prompt is empty, and this model has no token that could stand "
            "before a text"
        )
    return total / len(log_probs) if kind == "token" else total - neutral
