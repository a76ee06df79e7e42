"""A batch of sequences that goes on: finished ones leave, new ones come in, order is kept.

Prompts of different lengths are computed as one pack, then every sequence grows by a token a step,
its keys and values kept. Nothing is padded, so an answer does not depend on what is beside it (but
for the rounding of products, which differs with the number of rows).
U inputs at work, each with W rows of the cache (beams; else one), R = U * W, C width, V vocabulary.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nlpkit.attention.cache import Cache
from nlpkit.data.pack import SOURCE_LENGTHS
from nlpkit.generate import logits as choosing
from nlpkit.generate.beams import Answer, Beam
from nlpkit.generate.rows import Line, Rows, Rules, compact
from nlpkit.generate.settings import Settings
from nlpkit.objectives.contract import Prompt

# Prompts computed together; more would need more memory and be no faster.
_TOKENS_AT_ONCE = 16384


def generate(
    model: Any,
    prompts: Iterable[Prompt | None],
    settings: Settings,
    rules: Rules,
    *,
    batch: int = 32,
    ready: Callable[[], bool] = lambda: True,
    scores: bool = True,
) -> Iterator[list[Answer]]:
    """Yield `settings.nbest` answers, best first, for each prompt, in order; none for a None.

    At most `batch` inputs are worked on at once. `ready` says whether the next prompt can be had
    without waiting; while there is other work, it is not waited for. Without `scores` an only
    answer, greedy or sampled, has the score 0, which is faster; else its log-probability.

    Raises:
        ValueError: `settings.beam` does not fit the vocabulary.
    """
    if rules.candidates(settings.beam) > model.vocab_size:
        raise ValueError(f"beam: {settings.beam} is too many for {model.vocab_size} tokens")
    engine = _Engine(model, settings, rules, scores or settings.nbest > 1)
    source = enumerate(prompts)
    # New prompts come a few at a time: computing them apart costs more.
    enough = max(batch // 4, 1)
    finished: dict[int, list[Answer]] = {}
    lines = settings.nbest if settings.samples else 1
    left: dict[int, int] = {}  # lines of an input that are still at work
    following, exhausted = 0, False
    while left or finished or not exhausted:
        if not exhausted and (not left or batch - len(left) >= enough):
            wait = not left
            taken = _take(source, batch - len(left), wait, ready)
            exhausted = wait and not taken
            finished.update((number, []) for number, prompt in taken if prompt is None)
            new = [(number, prompt) for number, prompt in taken if prompt is not None]
            left.update((number, lines) for number, _ in new)
            engine.admit(new)
        if engine.running.lines:
            engine.step()
        while engine.done:
            line = engine.done.popleft()
            finished.setdefault(line.number, []).extend(line.answers or [])
            left[line.number] -= 1
            if not left[line.number]:
                del left[line.number]
        while following in finished and following not in left:
            answers = sorted(finished.pop(following), key=lambda answer: -answer.score)
            yield answers[: settings.nbest]
            following += 1


def _take(
    source: Iterator[tuple[int, Prompt | None]], most: int, wait: bool, ready: Callable[[], bool]
) -> list[tuple[int, Prompt | None]]:
    """Return up to `most` of the next prompts, waiting only for the first, and only if told to."""
    taken: list[tuple[int, Prompt | None]] = []
    tokens = 0
    while len(taken) < most and tokens < _TOKENS_AT_ONCE and (ready() or (wait and not taken)):
        found = next(source, None)
        if found is None:
            break
        taken.append(found)
        tokens += len(found[1].given["input_ids"]) if found[1] else 0
    return taken


class _Engine:
    """The lines at work; `done` are those that finished, whatever their order."""

    def __init__(self, model: Any, settings: Settings, rules: Rules, scores: bool):
        self.model, self.settings, self.rules, self.scores = model, settings, rules, scores
        self.device = next(model.parameters()).device
        self.running = Rows()
        self.done: deque[Line] = deque()
        # Samples of one input are lines of their own; beams are rows of one line.
        self.copies = settings.nbest if settings.samples else 1

    # Here, not in `generate`, which would leave it on for its caller between two answers.
    @torch.inference_mode()
    def admit(self, prompts: Sequence[tuple[int, Prompt]]) -> None:
        """Compute the prompts and their first tokens; take what goes on among the running."""
        if not prompts:
            return
        new = Rows()
        hidden = self._compute_prompts([prompt for _, prompt in prompts], new.cache)
        states, start = [], 0
        for number, prompt in prompts:
            # Copied, so that the other states need not be kept with them.
            kept = {
                slot: hidden[start + int(place)].clone()
                for slot, place in enumerate(prompt.predicted_from)
                if place >= 0
            }
            start += len(prompt.given["input_ids"])
            for copy in range(self.copies):
                new.lines.append(self._line(number, copy, prompt, kept))
                states.append(kept[0])
        new.cache.select([i // self.copies for i in range(len(new.lines))])
        if self.settings.repetition_penalty != 1:
            seen = torch.zeros(len(new.lines), self.model.vocab_size, dtype=torch.bool)
            for row, line in enumerate(new.lines):
                seen[row, torch.from_numpy(line.prompt.text)] = True
            new.seen = seen.to(self.device)
        self._choose(new, torch.stack(states))
        running = self.running
        running.cache.append(new.cache)
        running.lines += new.lines
        if new.seen is not None:
            running.seen = new.seen if running.seen is None else torch.cat([running.seen, new.seen])

    @torch.inference_mode()
    def step(self) -> None:
        """Feed the last token of every row and choose the next."""
        rows = self.running
        lines = rows.lines
        width = self._width(rows)
        fields = {"input_ids": [token for line in lines for token in line.last()]}
        for name in lines[0].prompt.slots:
            values = [line.prompt.slots[name][line.count - 1].item() for line in lines]
            fields[name] = [value for value in values for _ in range(width)]
        inputs = {name: torch.tensor(v, device=self.device) for name, v in fields.items()}
        states = self.model((1,) * len(fields["input_ids"]), **inputs, cache=rows.cache)
        for i, line in enumerate(lines):
            if line.count in line.kept:
                states[i * width : (i + 1) * width] = line.kept[line.count]
        self._choose(rows, states)

    def _compute_prompts(self, prompts: list[Prompt], cache: Cache) -> Tensor:
        """Return the states (N, C) of the prompts, packed."""
        inputs: dict[str, Any] = {
            name: torch.from_numpy(np.concatenate([p.given[name] for p in prompts])).to(self.device)
            for name in prompts[0].given
        }
        for name in prompts[0].source:
            source = [prompt.source[name] for prompt in prompts]
            inputs[name] = torch.from_numpy(np.concatenate(source)).to(self.device)
            inputs[SOURCE_LENGTHS] = tuple(map(len, source))
        lengths = tuple(len(prompt.given["input_ids"]) for prompt in prompts)
        return self.model(lengths, **inputs, cache=cache)

    def _line(self, number: int, copy: int, prompt: Prompt, kept: dict[int, Tensor]) -> Line:
        settings, draws, beam = self.settings, None, None
        if settings.samples:
            # Of the input alone, so that its neighbours do not matter.
            draws = np.random.default_rng((settings.seed, number, copy))
        elif settings.beam > 1:
            beam = Beam(settings.beam, settings.length_penalty, len(prompt.predicted_from))
        return Line(number, prompt, draws, beam, kept=kept)

    def _width(self, rows: Rows) -> int:
        return len(rows.cache) // len(rows.lines)

    def _choose(self, rows: Rows, states: Tensor) -> None:
        """Choose the next token of every row by its state (R, C); finished lines leave `rows`."""
        logits = self.model.logits(states).float()
        parents = self._push_beams(rows, logits) if rows.lines[0].beam else self._push(rows, logits)
        width = self._width(rows)
        self.done.extend(line for line in rows.lines if line.answers is not None)
        order = compact([line.answers is None for line in rows.lines])
        indices = [i * width + parent for i in order for parent in parents[i]]
        rows.cache.select(indices)
        rows.lines = [rows.lines[i] for i in order]
        if rows.seen is not None:
            seen = rows.seen[indices]
            last = [token for line in rows.lines for token in line.last()]
            seen[torch.arange(len(last)), torch.tensor(last, dtype=torch.int64)] = True
            rows.seen = seen

    def _push(self, rows: Rows, logits: Tensor) -> list[list[int]]:
        """Add a token to every line, greedy or drawn; each goes on from its own row."""
        settings, lines = self.settings, rows.lines
        allowed = self._restrict(rows, logits)
        if settings.samples:
            drawn = [line.draws.random() for line in lines if line.draws]
            tokens = choosing.draw(
                allowed,
                torch.tensor(drawn, dtype=torch.float64, device=self.device),
                temperature=settings.temperature or 1.0,
                top_k=settings.top_k,
                top_p=settings.top_p,
            )
        else:
            tokens = allowed.argmax(-1)
        gained = [0.0] * len(lines)
        if self.scores:
            chosen = logits.gather(1, tokens[:, None]).squeeze(1)
            gained = (chosen - logits.logsumexp(-1)).tolist()
        for line, token, score in zip(lines, tokens.tolist(), gained, strict=True):
            line.score += score
            ended = token in self.rules.eos_token_ids
            line.ids += [token]
            stopped = ended or self._stops(line.ids)
            if stopped or len(line.ids) == len(line.prompt.predicted_from):
                kept = line.ids[:-1] if ended else line.ids
                line.answers = [Answer(tuple(kept), line.score, stopped)]
        return [[0]] * len(lines)

    def _push_beams(self, rows: Rows, logits: Tensor) -> list[list[int]]:
        """Add a token to the beams of every line; return which old one each beam goes on from."""
        lines, size = rows.lines, self.rules.candidates(self.settings.beam)
        allowed = self._restrict(rows, logits.log_softmax(-1))
        before = [score for line in lines for score, _ in line.beam.running]  # type: ignore[union-attr]
        total = allowed + torch.tensor(before, device=self.device)[:, None]
        best = total.view(len(lines), -1).topk(size)
        vocabulary = logits.shape[-1]
        parents = []
        found = zip(lines, best.values.tolist(), best.indices.tolist(), strict=True)
        for line, values, places in found:
            assert line.beam is not None
            candidates = [
                (value, *divmod(place, vocabulary))
                for value, place in zip(values, places, strict=True)
            ]
            parents.append(
                line.beam.push(
                    candidates, lambda token: token in self.rules.eos_token_ids, self._stops
                )
            )
            if line.beam.done:
                line.answers = line.beam.finished
        return parents

    def _restrict(self, rows: Rows, logits: Tensor) -> Tensor:
        """Return `logits` after the repetition penalty, -inf where a token may not be chosen."""
        rules, settings = self.rules, self.settings
        if rows.seen is not None:
            logits = choosing.penalize(logits, rows.seen, settings.repetition_penalty)
        early = [
            not line.prompt.open or line.count < settings.min_new_tokens for line in rows.lines
        ]
        if rules.suppress_tokens or (rules.eos_token_ids and any(early)):
            logits = logits.clone()
            logits[:, list(rules.suppress_tokens)] = -torch.inf
            if any(early) and rules.eos_token_ids:
                width = self._width(rows)
                bound = [
                    i * width + j for i, held in enumerate(early) if held for j in range(width)
                ]
                logits[torch.tensor(bound)[:, None], torch.tensor(rules.eos_token_ids)] = -torch.inf
        return logits

    def _stops(self, ids: Sequence[int]) -> bool:
        return self.rules.stops is not None and self.rules.stops(ids)
