"""Log-probabilities of the tokens of many texts: many short sequences, packed and never padded.

The objective says how a text is scored (`contracts/abilities.Scoring`): a causal model needs one
sequence, a masked one a sequence for each token. Sequences that several texts have in common are
computed once. The others are sorted by length and packed into batches; only the states that predict
a target are computed in the last layer and multiplied by the vocabulary.

T tokens of a text, N tokens of a pack, M targets.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
import torch

from nlpkit.contracts.abilities import Scoring, ScoringInput
from nlpkit.contracts.batch import Batch, bit
from nlpkit.contracts.objective import Objective
from nlpkit.contracts.tokenizer import Aligned
from nlpkit.data.marks import mark_tokens
from nlpkit.errors import DivergedError, UsageError
from nlpkit.objectives.examples.text import forward, longest_sequence
from nlpkit.runs.open_checkpoint import Opened

_AT_ONCE = 64  # batches that are sorted together


@dataclass(frozen=True)
class Encoded:
    """The tokens of a text; the first `given` ones are context and are not scored."""

    ids: np.ndarray  # (T,) int64
    words: np.ndarray  # (T,) int64: the number of each token's word
    offsets: list[tuple[int, int]]  # the characters [start, stop) of each token
    given: int = 0
    unknown: int = 0  # unknown tokens, whether they are among `ids` or were left out

    def __len__(self) -> int:
        return len(self.ids)

    def make_key(self) -> bytes:
        """Return what two texts share if they have the same log-probabilities."""
        return b"%d %d " % (self.given, len(self.ids)) + self.ids.tobytes() + self.words.tobytes()


class Likelihood:
    """Scores texts with an opened checkpoint; `method` is one of the objective's."""

    def __init__(
        self,
        opened: Opened,
        method: str | None = None,
        *,
        of_answers: bool = False,
        tokens_per_batch: int = 4096,
    ):
        """Take an opened checkpoint; `of_answers` chooses the default method for answers.

        Raises:
            UsageError: the objective does not score text, or not by this method.
        """
        self.opened, self.tokens_per_batch = opened, tokens_per_batch
        self.objective = _find_scoring(opened.objective)
        methods = self.objective.scoring_methods
        default = self.objective.answer_method if of_answers else methods[0]
        self.method = method or default
        if self.method not in methods:
            raise UsageError(f"--method {method}: this model has {', '.join(methods)}")
        self._device = next(opened.model.parameters()).device

    @property
    def max_text(self) -> float:
        """The most tokens of a text that the model takes; the objective may make shorter ones."""
        frame = self.objective.config.max_length - self.objective.max_text
        return longest_sequence(self.opened.part.config) - frame

    def encode(self, texts: Sequence[str]) -> list[Encoded]:
        """Return the tokens of each text, without unknown ones if the objective drops them."""
        tokenizer, drop = self.opened.tokenizer, self.objective.drop_unknown
        found = cast(Aligned, tokenizer).encode_with_offsets(list(texts))
        result = []
        for text, (ids, offsets) in zip(texts, found, strict=True):
            tokens = np.asarray(ids, np.int64)
            begins = (mark_tokens(text, offsets, ["word_start"], False) & bit("word_start")) != 0
            words = np.cumsum(begins)
            is_known = tokens != (-1 if tokenizer.unk_id is None else tokenizer.unk_id)
            unknown = int((~is_known).sum())
            if drop and unknown:
                tokens, words = tokens[is_known], words[is_known]
                offsets = [each for each, kept in zip(offsets, is_known, strict=True) if kept]
            result.append(Encoded(tokens, words, offsets, unknown=unknown))
        return result

    def compute_log_probs(
        self, texts: Sequence[Encoded], done: Callable[[int], None] = lambda count: None
    ) -> list[np.ndarray]:
        """Return the log-probability of each token of each text, (T,) float64.

        It is NaN for tokens that are not scored. `done` is called with the number of texts
        that are finished, and may raise to stop.

        Raises:
            DivergedError: a log-probability is not finite.
        """
        found: dict[bytes, np.ndarray] = {}
        for keys, part, read in self._group(texts):
            found |= dict(zip(keys, self._score_window(part), strict=True))
            done(read)
        return [found[text.make_key()] for text in texts]

    def _group(self, texts: Sequence[Encoded]) -> Iterator[tuple[list[bytes], list["_Text"], int]]:
        """Yield different texts with their inputs, about `_AT_ONCE` batches, and the texts read."""
        seen: set[bytes] = set()
        keys: list[bytes] = []
        window: list[_Text] = []
        tokens = 0
        for read, text in enumerate(texts, 1):
            key = text.make_key()
            if key in seen:
                continue
            seen.add(key)
            inputs = self.objective.score_text(text.ids, text.words, text.given, self.method)
            keys.append(key)
            window.append(_Text(text, inputs))
            tokens += sum(len(each.inputs["input_ids"]) for each in inputs)
            if tokens >= _AT_ONCE * self.tokens_per_batch:
                yield keys, window, read
                keys, window, tokens = [], [], 0
        if window:
            yield keys, window, len(texts)

    def _score_window(self, window: Sequence["_Text"]) -> list[np.ndarray]:
        sequences = _Sequences(window)
        values = np.concatenate([np.zeros(0), *self._compute_losses(sequences)])
        result = [np.full(len(each.text.ids), np.nan) for each in window]
        if not np.isfinite(values).all():
            raise DivergedError(f"{self.opened.path}: a log-probability is not finite")
        bounds = np.searchsorted(sequences.owner, np.arange(len(window) + 1))
        values = values[sequences.back]
        for number, scores in enumerate(result):
            own = slice(bounds[number], bounds[number + 1])
            scores[sequences.token[own]] = -values[own]
        return result

    def _compute_losses(self, sequences: "_Sequences") -> Iterator[np.ndarray]:
        opened = self.opened
        names = [name for name in opened.objective.inputs if name != "progress"]
        progress = float(opened.notes.get("progress", 1.0))
        for start, stop in sequences.plan_batches(self.tokens_per_batch):
            fields, lengths, index, ids = sequences.make_batch(start, stop, names)
            given = {name: self._to_tensor(array) for name, array in fields.items()}
            batch = Batch(given, lengths, progress=progress)
            rows, targets = self._to_tensor(index), self._to_tensor(ids)
            with torch.no_grad():
                hidden = forward(opened.objective, opened.model, batch, rows)
                _, losses = opened.model.token_loss(hidden, rows, targets)
            yield losses.double().cpu().numpy()

    def _to_tensor(self, array: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(array).to(self._device)


@dataclass(frozen=True)
class _Text:
    text: Encoded
    inputs: list[ScoringInput]


class _Sequences:
    """The different sequences of a window, by length, and the targets of each."""

    def __init__(self, window: Sequence[_Text]):
        numbers: dict[tuple[bytes, ...], int] = {}
        self.inputs: list[ScoringInput] = []
        sequence, rows, tokens, ids, owner = [], [], [], [], []
        for number, each in enumerate(window):
            for given in each.inputs:
                key = tuple(array.tobytes() for array in given.inputs.values())
                index = numbers.setdefault(key, len(numbers))
                if index == len(self.inputs):
                    self.inputs.append(given)
                sequence.append(np.full(len(given.rows), index))
                rows.append(given.rows)
                tokens.append(given.targets)
                ids.append(each.text.ids[given.targets])
                owner.append(np.full(len(given.rows), number))
        nothing = np.zeros(0, np.int64)
        lengths = np.array([len(each.inputs["input_ids"]) for each in self.inputs], np.int64)
        self.order = np.argsort(lengths, kind="stable")  # runs of equal length are one call
        self.lengths = lengths[self.order]
        place = np.empty_like(self.order)
        place[self.order] = np.arange(len(place))
        self.token = np.concatenate([nothing, *tokens])
        self.owner = np.concatenate([nothing, *owner])
        sorted_by = place[np.concatenate([nothing, *sequence])]
        by_place = np.argsort(sorted_by, kind="stable")
        self.back = np.empty_like(by_place)  # (M,) where each target's loss will be
        self.back[by_place] = np.arange(len(by_place))
        self.place = sorted_by[by_place]
        self.rows = np.concatenate([nothing, *rows])[by_place]
        self.ids = np.concatenate([nothing, *ids])[by_place]

    def plan_batches(self, budget: int) -> Iterator[tuple[int, int]]:
        """Yield the first and the last sequence (exclusive) of each batch of `budget` tokens."""
        ends = np.cumsum(self.lengths)
        start = 0
        while start < len(ends):
            used = ends[start - 1] if start else 0
            stop = max(int(np.searchsorted(ends, used + budget, side="right")), start + 1)
            yield start, stop
            start = stop

    def make_batch(
        self, start: int, stop: int, names: Sequence[str]
    ) -> tuple[dict[str, np.ndarray], tuple[int, ...], np.ndarray, np.ndarray]:
        """Return inputs (N,) and lengths of a batch, the rows (M,) of its targets, and their ids.

        Raises:
            UsageError: the objective does not give an input that the model needs.
        """
        chosen = [self.inputs[index].inputs for index in self.order[start:stop]]
        if missing := [name for name in names if name not in chosen[0]]:
            raise UsageError(f"this model cannot score text: it needs {', '.join(missing)}")
        fields = {name: np.concatenate([each[name] for each in chosen]) for name in names}
        lengths = self.lengths[start:stop]
        own = slice(*np.searchsorted(self.place, [start, stop]))
        offsets = np.cumsum(lengths) - lengths
        index = offsets[self.place[own] - start] + self.rows[own]
        return fields, tuple(lengths.tolist()), index, self.ids[own]


def _find_scoring(objective: Objective) -> Scoring:
    """Return the objective, or the first of a list or mixture, that scores text.

    Raises:
        UsageError: there is none.
    """
    several = objective.objectives or objective.members
    for each in several or (objective,):
        if isinstance(each, Scoring):
            return each
    names = ", ".join(type(each).__module__.rpartition(".")[2] for each in several or (objective,))
    raise UsageError(f"a model trained with {names} cannot score text")
