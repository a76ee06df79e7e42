"""Continuous batching: finished sequences are removed, new ones are added, the order is kept.

Prompts of different lengths are computed as one pack. After that, each step adds one token to each
sequence; keys and values are cached. Nothing is padded. Therefore an answer does not depend on the
other sequences, except for rounding in matrix products, which depends on the number of rows.
U requests with W rows of the cache each (W beams, or 1), R = U * W, C width, V vocabulary.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nlpkit.attention.cache import Cache
from nlpkit.contracts.abilities import Prompt
from nlpkit.contracts.batch import SOURCE_LENGTHS
from nlpkit.generate import logits as choosing
from nlpkit.generate.rows import ActiveBatch, Answer, Beam, Request, Rules, compact
from nlpkit.generate.settings import Settings

# Limit for prompts that are computed together; more tokens need more memory and are not faster.
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
    """Yield `settings.nbest` answers for each prompt, best first; an empty list for None.

    At most `batch` inputs are active at once. `ready` returns whether the next prompt is available
    without waiting; the engine waits for a prompt only if no request is active. The score of an
    answer is its log-probability. Without `scores`, a single greedy or sampled answer has the score
    0; this is faster.

    Raises:
        UsageError: `settings.beam` does not fit the vocabulary.
    """
    rules.check_beams(settings.beam, model.vocab_size)
    engine = _Engine(model, settings, rules, scores or settings.nbest > 1)
    source = enumerate(prompts)
    min_free = max(batch // 4, 1)  # single prompts cost more than several at a time
    finished: dict[int, list[Answer]] = {}
    left: dict[int, int] = {}  # requests of an input that are not finished yet
    next_number, exhausted = 0, False
    while left or finished or not exhausted:
        if not exhausted and (not left or batch - len(left) >= min_free):
            wait = not left
            taken = _take(source, batch - len(left), wait, ready)
            exhausted = wait and not taken
            finished.update((number, []) for number, prompt in taken if prompt is None)
            new = [(number, prompt) for number, prompt in taken if prompt is not None]
            left.update((number, engine.copies) for number, _ in new)
            engine.admit(new)
        if engine.running.requests:
            engine.step()
        while engine.done:
            request = engine.done.popleft()
            finished.setdefault(request.number, []).extend(request.answers or [])
            left[request.number] -= 1
            if not left[request.number]:
                del left[request.number]
        while next_number in finished and next_number not in left:
            answers = sorted(finished.pop(next_number), key=lambda answer: -answer.score)
            yield answers[: settings.nbest]
            next_number += 1


def _take(
    source: Iterator[tuple[int, Prompt | None]], limit: int, wait: bool, ready: Callable[[], bool]
) -> list[tuple[int, Prompt | None]]:
    """Return up to `limit` of the next prompts; `wait`: wait for the first one if necessary."""
    taken: list[tuple[int, Prompt | None]] = []
    tokens = 0
    while len(taken) < limit and tokens < _TOKENS_AT_ONCE and (ready() or (wait and not taken)):
        item = next(source, None)
        if item is None:
            break
        taken.append(item)
        tokens += len(item[1].given["input_ids"]) if item[1] else 0
    return taken


class _Engine:
    """The active requests (`running`) and the finished ones (`done`, in any order)."""

    def __init__(self, model: Any, settings: Settings, rules: Rules, scores: bool):
        self.model, self.settings, self.rules, self.scores = model, settings, rules, scores
        self.device = next(model.parameters()).device
        self.running = ActiveBatch()
        self.done: deque[Request] = deque()
        # Each sample of an input is a separate request; beams are rows of one request.
        self.copies = settings.nbest if settings.samples else 1

    # Not on `generate`, because a generator would also set the mode for its caller.
    @torch.inference_mode()
    def admit(self, prompts: Sequence[tuple[int, Prompt]]) -> None:
        """Compute the prompts and their first tokens; add unfinished requests to `running`."""
        if not prompts:
            return
        new = ActiveBatch()
        hidden = self._compute_prompts([prompt for _, prompt in prompts], new.cache)
        states, start = [], 0
        for number, prompt in prompts:
            # With a copy, the memory of the other states can be freed.
            kept = {
                slot: hidden[start + int(index)].clone()
                for slot, index in enumerate(prompt.predicted_from)
                if index >= 0
            }
            start += len(prompt.given["input_ids"])
            for copy in range(self.copies):
                new.requests.append(self._request(number, copy, prompt, kept))
                states.append(kept[0])
        new.cache.select([i // self.copies for i in range(len(new.requests))])
        self._choose(new, torch.stack(states))
        running = self.running
        running.cache.append(new.cache)
        running.requests += new.requests

    @torch.inference_mode()
    def step(self) -> None:
        active = self.running
        requests = active.requests
        width = self._width(active)
        fields = {"input_ids": [ids[-1] for request in requests for ids in request.rows]}
        for name in requests[0].prompt.slots:
            values = [request.prompt.slots[name][request.count - 1].item() for request in requests]
            fields[name] = [value for value in values for _ in range(width)]
        inputs = {name: torch.tensor(v, device=self.device) for name, v in fields.items()}
        states = self.model((1,) * len(fields["input_ids"]), **inputs, cache=active.cache)
        for i, request in enumerate(requests):
            if request.count in request.kept:
                states[i * width : (i + 1) * width] = request.kept[request.count]
        self._choose(active, states)

    def _compute_prompts(self, prompts: list[Prompt], cache: Cache) -> Tensor:
        inputs: dict[str, Tensor | tuple[int, ...]] = {
            name: torch.from_numpy(np.concatenate([p.given[name] for p in prompts])).to(self.device)
            for name in prompts[0].given
        }
        for name in prompts[0].source:
            source = [prompt.source[name] for prompt in prompts]
            inputs[name] = torch.from_numpy(np.concatenate(source)).to(self.device)
            inputs[SOURCE_LENGTHS] = tuple(map(len, source))
        lengths = tuple(len(prompt.given["input_ids"]) for prompt in prompts)
        return self.model(lengths, **inputs, cache=cache)

    def _request(self, number: int, copy: int, prompt: Prompt, kept: dict[int, Tensor]) -> Request:
        settings, draws, beam = self.settings, None, None
        if settings.samples:
            # The seed does not depend on the other inputs of the batch.
            draws = np.random.default_rng((settings.seed, number, copy))
        elif settings.beam > 1:
            # transformers counts what stands before each target, as BART's `<s>`, as written.
            first = len(prompt.given["input_ids"]) - 1 if prompt.source else 0
            most = len(prompt.predicted_from)
            beam = Beam(settings.beam, lambda length: settings.divisor(first + length), most)
        return Request(number, prompt, draws, beam, kept=kept)

    def _width(self, active: ActiveBatch) -> int:
        return len(active.cache) // len(active.requests)

    def _choose(self, active: ActiveBatch, states: Tensor) -> None:
        """Choose the next token of each row from its state (R, C), and remove finished requests."""
        logits = self.model.logits(states).float()
        extend = self._extend_beams if active.requests[0].beam else self._extend
        parents = extend(active, logits)
        width = self._width(active)
        self.done.extend(request for request in active.requests if request.answers is not None)
        order = compact([request.answers is None for request in active.requests])
        indices = [i * width + parent for i in order for parent in parents[i]]
        active.cache.select(indices)
        active.requests = [active.requests[i] for i in order]

    def _extend(self, active: ActiveBatch, logits: Tensor) -> list[list[int]]:
        settings, requests = self.settings, active.requests
        allowed = self._restrict(active, logits)
        if settings.samples:
            drawn = [request.draws.random() for request in requests if request.draws]
            tokens = choosing.draw(
                allowed,
                torch.tensor(drawn, dtype=torch.float64, device=self.device),
                temperature=settings.temperature or 1.0,
                top_k=settings.top_k,
                top_p=settings.top_p,
            )
        else:
            tokens = allowed.argmax(-1)
        scores = [0.0] * len(requests)
        if self.scores:
            chosen = logits.gather(1, tokens[:, None]).squeeze(1)
            scores = (chosen - logits.logsumexp(-1)).tolist()
        for request, token, score in zip(requests, tokens.tolist(), scores, strict=True):
            request.score += score
            ended = token in self.rules.eos_token_ids
            request.ids += [token]
            stopped = ended or self._stops(request.prompt, request.ids)
            if stopped or len(request.ids) == len(request.prompt.predicted_from):
                kept = request.ids[:-1] if ended else request.ids
                request.answers = [Answer(tuple(kept), request.score, stopped)]
        return [[0]] * len(requests)

    def _extend_beams(self, active: ActiveBatch, logits: Tensor) -> list[list[int]]:
        requests, size = active.requests, self.rules.candidates(self.settings.beam)
        allowed = self._restrict(active, logits.log_softmax(-1))
        beams = [request.beam for request in requests if request.beam]
        before = [score for beam in beams for score, _ in beam.running]
        total = allowed + torch.tensor(before, device=self.device)[:, None]
        best = total.view(len(requests), -1).topk(size)
        vocabulary = logits.shape[-1]
        parents = []
        chosen = zip(requests, best.values.tolist(), best.indices.tolist(), strict=True)
        for request, values, indices in chosen:
            assert request.beam is not None
            candidates = [
                (value, *divmod(index, vocabulary))
                for value, index in zip(values, indices, strict=True)
            ]
            parents.append(
                request.beam.step(
                    candidates,
                    lambda token: token in self.rules.eos_token_ids,
                    partial(self._stops, request.prompt),
                )
            )
            if request.beam.done:
                request.answers = request.beam.finished
        return parents

    def _restrict(self, active: ActiveBatch, logits: Tensor) -> Tensor:
        """Return penalized `logits` (R, V), with -inf for tokens that are not allowed."""
        rules, settings = self.rules, self.settings
        if settings.repetition_penalty != 1:
            window = settings.repetition_window
            counted = [ids for request in active.requests for ids in request.repeated(window)]
            logits = choosing.penalize(logits, counted, settings.repetition_penalty)
        early = [
            not request.prompt.open or request.count < settings.min_new_tokens
            for request in active.requests
        ]
        if rules.suppress_tokens or (rules.eos_token_ids and any(early)):
            logits = logits.clone()
            logits[:, list(rules.suppress_tokens)] = -torch.inf
            if any(early) and rules.eos_token_ids:
                rows = torch.tensor(early).repeat_interleave(self._width(active)).nonzero()
                logits[rows, torch.tensor(rules.eos_token_ids)] = -torch.inf
        return logits

    def _stops(self, prompt: Prompt, ids: Sequence[int]) -> bool:
        # Blanks with a number of tokens are all filled.
        return prompt.open and self.rules.stops is not None and self.rules.stops(prompt, ids)
