"""Converts texts to prompts, and generated tokens to texts; fills blanks in texts."""

import re
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Any

from nlpkit.contracts.abilities import (
    DecodesOutput,
    EncodesInput,
    Filling,
    Generative,
    Prompt,
    ReadsSource,
)
from nlpkit.contracts.objective import Objective
from nlpkit.contracts.task import Task
from nlpkit.contracts.tokenizer import Tokenizer
from nlpkit.errors import UsageError
from nlpkit.generate.engine import generate
from nlpkit.generate.rows import Answer, Rules
from nlpkit.generate.settings import Settings
from nlpkit.objectives.examples.text import default_new_tokens
from nlpkit.plural import number_of

# Tokens of the input that are decoded with the output, because a token may contain the space
# before its word.
_BEFORE = 8


@dataclass(frozen=True)
class Output:
    """A generated text: the continuation or, if `whole`, the input with its blanks filled."""

    text: str
    score: float
    tokens: int
    ended: bool  # True: by an end token or a stop text; False: at the limit of tokens
    whole: bool = False


@dataclass(frozen=True)
class Written:
    """An input and its outputs, best first; `problem` is the reason if there are none."""

    text: str
    outputs: list[Output]
    problem: str | None = None


@dataclass(frozen=True)
class _Job:
    """An input in work: the texts around its blanks, and the prompt."""

    text: str
    parts: list[str]
    blanks: list[int]
    prompt: Prompt | None
    problem: str | None = None


class Writer:
    """Generates text with a model; `counts` counts inputs and tokens, also those left out."""

    def __init__(self, model: Any, tokenizer: Tokenizer, objective: Objective, settings: Settings):
        """Take the parts of an opened checkpoint.

        Raises:
            UsageError: the objective does not generate text, or a setting is too large.
        """
        if not isinstance(objective, Generative):
            named = objective.objectives or (objective,)
            names = ", ".join(type(each).__module__.rpartition(".")[2] for each in named)
            instead = "its loss on text: nlpkit eval CKPT --data FILE"
            if isinstance(objective, Task):
                instead = "its answers: nlpkit eval CKPT --data FILE --predictions OUT.jsonl"
            raise UsageError(
                f"this model was trained for {names} and does not generate text; {instead}"
            )
        self.model, self.tokenizer, self.objective = model, tokenizer, objective
        self.settings = settings
        self.reads_source = isinstance(objective, ReadsSource)
        self.max_new_tokens = _choose_new_tokens(settings, objective)
        self._rules = Rules(tuple(objective.eos_token_ids), tuple(objective.suppress_tokens))
        self._rules.check_beams(settings.beam, tokenizer.vocab_size)
        self.counts: Counter[str] = Counter()
        self._blank = _compile_blank(settings.blank) if isinstance(objective, Filling) else None

    def write(
        self,
        texts: Iterable[str],
        *,
        batch: int = 32,
        ready: Callable[[], bool] = lambda: True,
        scores: bool = True,
        warn: Callable[[str], None] = lambda line: None,
    ) -> Iterator[Written]:
        """Yield the outputs for each text, in order; `warn` is told in the end what was cut.

        See `engine.generate` for the other arguments.
        """
        jobs: deque[_Job] = deque()

        def prompts() -> Iterator[Prompt | None]:
            for text in texts:
                jobs.append(self._make_job(text))
                yield jobs[-1].prompt

        def stops(prompt: Prompt, ids: Sequence[int]) -> bool:
            job = next(each for each in jobs if each.prompt is prompt)
            return self._find_stop(ids, self._choose_decoder(job))[1] is not None

        answered = generate(
            self.model,
            prompts(),
            self.settings,
            replace(self._rules, stops=stops if self.settings.stop else None),
            batch=batch,
            ready=ready,
            scores=scores,
        )
        for answers in answered:
            job = jobs.popleft()
            self.counts["inputs"] += 1
            outputs = [self._make_output(job, answer) for answer in answers]
            self.counts["tokens"] += sum(output.tokens for output in outputs)
            yield Written(job.text, outputs, job.problem)
        if cut := self.counts["cut inputs"]:
            included = "end token included" if self.reads_source else "output included"
            warn(
                f"{number_of(cut, 'inputs were')} too long and cut by "
                f"{number_of(self.counts['cut tokens'], 'tokens')}; the model takes "
                f"{self.objective.max_length:,}, {included}"
            )
        if unknown := self.counts["unknown tokens"]:
            warn(number_of(unknown, "unknown tokens of the inputs were left out"))

    def encode(self, text: str) -> list[int]:
        """Return the ids of an input, with what the objective puts in front of or inside it."""
        reads = self.objective
        encode = reads.encode_input if isinstance(reads, EncodesInput) else self.tokenizer.encode
        return list(encode(text))

    def _make_job(self, text: str) -> _Job:
        parts, blanks = [text], []
        if self._blank is not None:
            pieces = self._blank.split(text)
            parts, blanks = pieces[::2], [int(number or 1) for number in pieces[1::2]]
        try:
            ids = [self._drop_unknown(self.encode(part)) for part in parts]
            if blanks:
                assert isinstance(self.objective, Filling)
                prompt = self.objective.fill_blanks(ids, blanks)
            else:
                prompt = self.objective.continue_text(ids[0], self.max_new_tokens)
        except ValueError as error:
            return _Job(text, parts, blanks, None, str(error))
        self.counts["cut inputs"] += bool(prompt.cut)
        self.counts["cut tokens"] += prompt.cut
        return _Job(text, parts, blanks, prompt)

    def _drop_unknown(self, ids: list[int]) -> list[int]:
        if not self.objective.drop_unknown:
            return ids
        known = [token_id for token_id in ids if token_id != self.tokenizer.unk_id]
        self.counts["unknown tokens"] += len(ids) - len(known)
        return known

    def _make_output(self, job: _Job, answer: Answer) -> Output:
        assert job.prompt is not None
        decode = self._choose_decoder(job)
        if job.blanks:
            fills = iter(answer.ids)
            text = job.parts[0]
            for blank, part in zip(job.blanks, job.parts[1:], strict=True):
                fill = list(islice(fills, blank))
                text += (self._cut(fill, decode) if job.prompt.open else decode(fill)) + part
        else:
            text = self._cut(answer.ids, decode)
        return Output(text, answer.score, len(answer.ids), answer.ended, bool(job.blanks))

    def _choose_decoder(self, job: _Job) -> Callable[[Sequence[int]], str]:
        """Return what makes text of a job's output, in which stop texts are looked for, too."""
        assert job.prompt is not None
        if job.blanks:
            return self.tokenizer.decode
        if isinstance(self.objective, DecodesOutput):
            return self.objective.decode_output
        return partial(self._decode_after, job.prompt.text[-_BEFORE:].tolist())

    def _cut(self, ids: Sequence[int], decode: Callable[[Sequence[int]], str]) -> str:
        """Return the text before the first stop text."""
        text, end = self._find_stop(ids, decode)
        return text[:end]

    def _find_stop(
        self, ids: Sequence[int], decode: Callable[[Sequence[int]], str]
    ) -> tuple[str, int | None]:
        """Return the text, and where the first stop text behind the least number of tokens is."""
        text, least = decode(ids), len(decode(ids[: self.settings.min_new_tokens]))
        found = [text.find(stop, least) for stop in self.settings.stop]
        return text, min((place for place in found if place >= 0), default=None)

    def _decode_after(self, before: list[int], ids: Sequence[int]) -> str:
        """Return the text of `ids` after the tokens `before`, also its leading space."""
        start, text = self.tokenizer.decode(before), self.tokenizer.decode([*before, *ids])
        return text[len(start) :] if text.startswith(start) else self.tokenizer.decode(ids)


def _choose_new_tokens(settings: Settings, objective: Generative) -> int:
    if isinstance(objective, ReadsSource):
        limit = objective.max_new_tokens
        rule = f"an output has at most {limit} tokens"
    else:
        limit = objective.max_length - 1
        rule = f"the model takes {objective.max_length} tokens, input and output together"
    new = settings.max_new_tokens or default_new_tokens(objective)
    if not settings.min_new_tokens <= new <= limit:
        which = "max" if new > limit else "min"
        raise UsageError(
            f"--{which}-new-tokens: {max(new, settings.min_new_tokens)} is too many; {rule}"
            + (f", and {new} are to be added" if which == "min" else "")
        )
    return new


def _compile_blank(marker: str) -> re.Pattern[str]:
    """Return a pattern for `marker`; if it ends in a bracket, a number may follow: `<blank:5>`."""
    number = r"(?::([1-9]\d{0,3}))?"
    if marker[-1] in ">])}":
        return re.compile(re.escape(marker[:-1]) + number + re.escape(marker[-1]))
    return re.compile(re.escape(marker) + "()")
