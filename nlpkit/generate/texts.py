"""Turns texts into prompts, and generated tokens into texts, also those that fill blanks."""

import re
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from nlpkit.errors import UsageError
from nlpkit.generate.beams import Answer
from nlpkit.generate.engine import generate
from nlpkit.generate.rows import Rules
from nlpkit.generate.settings import Settings
from nlpkit.objectives.contract import Filling, Generative, Prompt

_DEFAULT_NEW_TOKENS = 128
# Tokens of the input that are decoded with the output: a word's first piece may hold its space.
_BEFORE = 8


@dataclass(frozen=True)
class Output:
    """A generated text: what follows the input or, if `whole`, the input with its blanks filled."""

    text: str
    score: float
    tokens: int
    ended: bool  # by an end token or a stop text; else at the limit of tokens
    whole: bool = False


@dataclass(frozen=True)
class Written:
    """An input and its outputs, best first; `problem` says why there are none."""

    text: str
    outputs: list[Output]
    problem: str | None = None


@dataclass(frozen=True)
class _Job:
    """An input that is being answered: the texts around its blanks, and the prompt."""

    text: str
    parts: list[str]
    blanks: list[int]
    prompt: Prompt | None
    problem: str | None = None


class Writer:
    """Generates text with a model; `counts` has the numbers of what was done and left out."""

    def __init__(self, model: Any, tokenizer: Any, objective: Any, settings: Settings):
        """Bind the parts of an opened checkpoint.

        Raises:
            UsageError: its objective does not generate text, or the settings ask for too much.
        """
        if not isinstance(objective, Generative):
            named = getattr(objective, "objectives", (objective,))
            names = ", ".join(type(each).__module__.rpartition(".")[2] for each in named)
            raise UsageError(f"this model was trained for {names} and does not generate text")
        self.model, self.tokenizer, self.objective = model, tokenizer, objective
        self.settings = settings
        new, limit = settings.max_new_tokens, objective.max_length
        self.max_new_tokens = new = new or min(_DEFAULT_NEW_TOKENS, limit // 2)
        if not settings.min_new_tokens <= new < limit:
            which = "max" if new >= limit else "min"
            raise UsageError(
                f"{which}_new_tokens: {max(new, settings.min_new_tokens)} is too many; the "
                f"model takes {limit} tokens, input and output together"
                + (f", and {new} are to be added" if which == "min" else "")
            )
        stops = self._stops if settings.stop else None
        self._rules = Rules(tuple(objective.eos_token_ids), tuple(objective.suppress_tokens), stops)
        if self._rules.candidates(settings.beam) > tokenizer.vocab_size:
            raise UsageError(f"beam: {settings.beam} is too many for {tokenizer.vocab_size} tokens")
        self.counts: Counter[str] = Counter()
        self._blank = _blank_pattern(settings.blank) if isinstance(objective, Filling) else None

    def write(
        self,
        texts: Iterable[str],
        *,
        batch: int = 32,
        ready: Callable[[], bool] = lambda: True,
        scores: bool = True,
    ) -> Iterator[Written]:
        """Yield what is generated for each text, in order; see `engine.generate`."""
        jobs: deque[_Job] = deque()

        def prompts() -> Iterator[Prompt | None]:
            for text in texts:
                jobs.append(self._job(text))
                yield jobs[-1].prompt

        answered = generate(
            self.model,
            prompts(),
            self.settings,
            self._rules,
            batch=batch,
            ready=ready,
            scores=scores,
        )
        for answers in answered:
            job = jobs.popleft()
            self.counts["inputs"] += 1
            outputs = [self._output(job, answer) for answer in answers]
            self.counts["tokens"] += sum(output.tokens for output in outputs)
            yield Written(job.text, outputs, job.problem)

    def _job(self, text: str) -> _Job:
        """Return a text's prompt, or why there is none."""
        parts, blanks = [text], []
        if self._blank is not None:
            pieces = self._blank.split(text)
            parts, blanks = pieces[::2], [int(number or 1) for number in pieces[1::2]]
        ids = [self._known(self.tokenizer.encode(part)) for part in parts]
        try:
            if blanks:
                assert isinstance(self.objective, Filling)
                prompt = self.objective.fill_blanks(ids, blanks)
            else:
                prompt = self.objective.continue_text(ids[0], self.max_new_tokens)
        except ValueError as error:
            self.counts["unanswered"] += 1
            return _Job(text, parts, blanks, None, str(error))
        self.counts["cut inputs"] += bool(prompt.cut)
        self.counts["cut tokens"] += prompt.cut
        return _Job(text, parts, blanks, prompt)

    def _known(self, ids: list[int]) -> list[int]:
        """Return `ids`, without unknown tokens if the model was trained without them."""
        if not self.objective.drop_unknown:
            return ids
        known = [token_id for token_id in ids if token_id != self.tokenizer.unk_id]
        self.counts["unknown tokens"] += len(ids) - len(known)
        return known

    def _output(self, job: _Job, answer: Answer) -> Output:
        assert job.prompt is not None
        if job.blanks:
            fills = iter(answer.ids)
            text = job.parts[0]
            for blank, part in zip(job.blanks, job.parts[1:], strict=True):
                text += self.tokenizer.decode([next(fills) for _ in range(blank)]) + part
        else:
            text = self._continuation(job.prompt.text[-_BEFORE:].tolist(), list(answer.ids))
            found = [text.find(stop) for stop in self.settings.stop if stop in text]
            text = text[: min(found, default=None)]
        return Output(text, answer.score, len(answer.ids), answer.ended, bool(job.blanks))

    def _continuation(self, before: list[int], ids: list[int]) -> str:
        """Return the text of `ids` after the tokens `before`, with a space between if needed."""
        start, whole = self.tokenizer.decode(before), self.tokenizer.decode(before + ids)
        return whole[len(start) :] if whole.startswith(start) else self.tokenizer.decode(ids)

    def _stops(self, ids: Sequence[int]) -> bool:
        text = self.tokenizer.decode(ids)
        return any(stop in text for stop in self.settings.stop)


def _blank_pattern(marker: str) -> re.Pattern[str]:
    """Return a pattern of `marker`; if it ends in a bracket, also with a number: `<blank:5>`."""
    number = r"(?::([1-9]\d{0,3}))?"
    if marker[-1] in ">])}":
        return re.compile(re.escape(marker[:-1]) + number + re.escape(marker[-1]))
    return re.compile(re.escape(marker) + "()")
