"""Log-probabilities of the tokens of many texts: many short sequences, packed and never padded.

The objective says how a text is scored (`contracts/abilities.Scoring`): a causal model needs one
sequence, a masked one a sequence for each token. Sequences that several texts have in common are
computed once, and so are the beginnings that causal ones share (`shared_prefixes`). The others are
sorted by length and packed into batches; only the states that predict a target are computed in the
last layer and multiplied by the vocabulary.

T tokens of a text, N tokens of a pack, M targets.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, cast

import numpy as np
import torch

from nlpkit.contracts.abilities import Scoring
from nlpkit.contracts.batch import Batch, bit
from nlpkit.contracts.objective import Objective
from nlpkit.contracts.tokenizer import Aligned
from nlpkit.data.token_flags import flag_tokens
from nlpkit.errors import DivergedError, UsageError
from nlpkit.models import soft_prompt
from nlpkit.objectives.examples.text import forward, longest_sequence
from nlpkit.runs import shared_prefixes
from nlpkit.runs.open_checkpoint import Opened
from nlpkit.runs.soft_prompts import VirtualTokens

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
        # Is called before each text and each batch, and may raise.
        self.should_stop: Callable[[], None] = lambda: None
        self.objective = _find_scoring(opened.objective)
        methods = self.objective.scoring_methods
        default = self.objective.answer_method if of_answers else methods[0]
        self.method = method or default
        if self.method not in methods:
            raise UsageError(f"--method {method}: this model has {', '.join(methods)}")

    @property
    def _device(self) -> torch.device:
        device: torch.device = next(self.opened.model.parameters()).device
        return device

    @property
    def max_text(self) -> float:
        """The most tokens of a text that the model takes; the objective may make shorter ones."""
        frame = self.objective.config.max_length - self.objective.max_text
        virtual = len(getattr(self.opened.model, soft_prompt.NAME, ()))
        if isinstance(prompt := self.opened.part.prompt, VirtualTokens):
            virtual = prompt.count  # of a run, whose model is not built yet
        return longest_sequence(self.opened.part.config) - virtual - frame

    @property
    def _inputs(self) -> list[str]:
        """The inputs of the model that an objective gives for each token."""
        return [name for name in self.opened.objective.inputs if name != "progress"]

    def encode(self, texts: Sequence[str]) -> list[Encoded]:
        """Return the tokens of each text, without unknown ones if the objective drops them."""
        tokenizer, drop = self.opened.tokenizer, self.objective.drop_unknown
        found = cast(Aligned, tokenizer).encode_with_offsets(list(texts))
        result = []
        for text, (ids, offsets) in zip(texts, found, strict=True):
            tokens = np.asarray(ids, np.int64)
            begins = (flag_tokens(text, offsets, ["word_start"], False) & bit("word_start")) != 0
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
        sequences: dict[tuple[bytes, ...], _Sequence] = {}
        tokens = 0
        for read, text in enumerate(texts, 1):
            self.should_stop()
            key = text.make_key()
            if key in found:
                continue
            log_probs = found[key] = np.full(len(text), np.nan)
            for each in self.objective.score_text(text.ids, text.words, text.given, self.method):
                same = tuple(array.tobytes() for array in each.inputs.values())
                sequence = sequences.setdefault(same, _Sequence(each.inputs, []))
                ids = text.ids[each.targets]
                sequence.scored.append(_Scored(each.rows, ids, log_probs, each.targets))
                tokens += len(sequence)
            if tokens >= _AT_ONCE * self.tokens_per_batch:
                self._score(sequences.values())
                done(read)
                sequences, tokens = {}, 0
        self._score(sequences.values())
        done(len(texts))
        return [found[text.make_key()] for text in texts]

    def check_inputs(self, given: Collection[str]) -> None:
        """Raise `UsageError` if an input that the model needs is not among those of a sequence."""
        if missing := [name for name in self._inputs if name not in given]:
            raise UsageError(f"this model cannot score text: it needs {', '.join(missing)}")

    def _score(self, sequences: Collection["_Sequence"]) -> None:
        """Write the log-probabilities of what the sequences score."""
        if self._score_shared(sequences):
            return
        by_length = sorted(sequences, key=len)  # runs of equal length are one call
        for batch in _split(by_length, self.tokens_per_batch):
            self.should_stop()
            losses = self._compute_losses(batch)
            self._write([scored for sequence in batch for scored in sequence.scored], losses)

    def _score_shared(self, sequences: Collection["_Sequence"]) -> bool:
        """Score the sequences as branches of a tree, if they can and do share their beginnings."""
        model = self.opened.model
        inputs = (sequence.inputs for sequence in sequences)
        if not shared_prefixes.can_share(model, self._inputs, inputs):
            return False
        listed = [(sequence.inputs["input_ids"], each) for sequence in sequences
                  for each in sequence.scored]  # fmt: skip
        if (tree := shared_prefixes.arrange([ids for ids, _ in listed])) is None:
            return False
        for part in tree.split(self.tokens_per_batch):
            self.should_stop()
            scored = [listed[number][1] for number in tree.order[part]]
            targets = [(each.rows, each.ids) for each in scored]
            given = model, tree.tokens[part], targets, self._device
            with torch.no_grad():
                losses = shared_prefixes.compute_losses(*given)
            self._write(scored, losses)
        return True

    def _write(self, scored: Sequence["_Scored"], losses: np.ndarray) -> None:
        """Write the losses (M,) of all targets, in order, as log-probabilities of their texts."""
        if not np.isfinite(losses).all():
            raise DivergedError(f"{self.opened.path}: a log-probability is not finite")
        first = 0
        for each in scored:
            each.log_probs[each.targets] = -losses[first : first + len(each.targets)]
            first += len(each.targets)

    def _compute_losses(self, sequences: Sequence["_Sequence"]) -> np.ndarray:
        """Return the losses (M,) of all targets of a batch, in order."""
        objective, model, names = self.opened.objective, self.opened.model, self._inputs
        self.check_inputs(sequences[0].inputs)
        fields = {name: self._join([each.inputs[name] for each in sequences]) for name in names}
        lengths = tuple(map(len, sequences))
        begins = np.cumsum((0, *lengths[:-1])).tolist()
        pairs = zip(begins, sequences, strict=True)
        places = [begin + each.rows for begin, sequence in pairs for each in sequence.scored]
        rows = self._join(places)
        targets = self._join([each.ids for sequence in sequences for each in sequence.scored])
        batch = Batch(fields, lengths, progress=float(self.opened.notes.get("progress", 1.0)))
        with torch.no_grad():
            hidden = forward(objective, model, batch, rows)
            _, losses = model.token_loss(hidden, rows, targets)
        return losses.double().cpu().numpy()

    def _join(self, arrays: Sequence[np.ndarray]) -> torch.Tensor:
        return torch.from_numpy(np.concatenate(arrays)).to(self._device)


class _Scored(NamedTuple):
    """Targets of a sequence, which are tokens of one text."""

    rows: np.ndarray  # (M,) the tokens of the sequence whose states predict them
    ids: np.ndarray  # (M,)
    log_probs: np.ndarray  # (T,) those of the text, where these are written
    targets: np.ndarray  # (M,) index in them


@dataclass(frozen=True)
class _Sequence:
    """A sequence, and what it scores of all the texts that have it in common."""

    inputs: Mapping[str, np.ndarray]
    scored: list[_Scored]

    def __len__(self) -> int:
        return len(self.inputs["input_ids"])


def _split(sequences: Sequence[_Sequence], budget: int) -> Iterator[list[_Sequence]]:
    """Yield batches of at most `budget` tokens; a longer sequence is a batch of its own."""
    batch: list[_Sequence] = []
    tokens = 0
    for sequence in sequences:
        if batch and tokens + len(sequence) > budget:
            yield batch
            batch, tokens = [], 0
        batch.append(sequence)
        tokens += len(sequence)
    if batch:
        yield batch


def _find_scoring(objective: Objective) -> Scoring:
    """Return the objective, or the first of a list or mixture, that scores text."""
    several = objective.objectives or objective.members
    for each in several or (objective,):
        if isinstance(each, Scoring):
            return each
    names = ", ".join(type(each).__module__.rpartition(".")[2] for each in several or (objective,))
    raise UsageError(f"a model trained with {names} cannot score text")
