"""CPM-Ant's examples, tensor by tensor by hand, by counting, and by what training can reach.

Statistical bounds hold with a chance of about 1e-6 that a right implementation fails; as seeds are
fixed, they either hold for good or do not.
"""

import math
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nlpkit.contracts.batch import IGNORE
from nlpkit.data.pack import collate
from nlpkit.models.cpm_ant import Config as ModelConfig
from nlpkit.models.cpm_ant.model import Model
from nlpkit.objectives.cpm_ant import Config, Objective
from tests._losses import loss_of, only_term

VOCAB, BOS, EOS = 50, 6, 7
TOKENIZER = SimpleNamespace(vocab_size=VOCAB, bos_id=BOS, eos_id=EOS)
DRAWS = 20_000
T, F, _ = True, False, IGNORE


def _objective(
    prompt_length: int = 3, prompts: tuple[int, int] = (1, 2), cls: type = Objective, **config
) -> Objective:
    names = SimpleNamespace(infilling=prompts[0], generation=prompts[1])
    model = SimpleNamespace(prompt_length=prompt_length, prompts=names)
    return cls(Config(**config), TOKENIZER, model)


class Draws:
    """A generator whose three draws are given."""

    def __init__(self, task: float, hidden: int, chosen: list[int] | None = None):
        self.task, self.hidden, self.chosen = task, hidden, chosen

    def random(self) -> float:
        return self.task

    def integers(self, low: int, high: int) -> int:
        assert low <= self.hidden < high
        self.range = (low, high)
        return self.hidden

    def choice(self, size: int, count: int, replace: bool = True) -> np.ndarray:
        assert self.chosen is not None
        assert len(self.chosen) == count
        assert not replace
        assert max(self.chosen) < size
        return np.array(self.chosen)


def _lists(example: dict[str, np.ndarray]) -> dict[str, object]:
    return {name: array.tolist() for name, array in example.items()}


def test_example_infilling_by_hand() -> None:
    # 11 12 13 14 is piece; the text is <s> 11 12 13 14 </s>, at its places 1 and 4 are targets.
    draws = Draws(0.49, 2, [0, 3])
    example = _objective().example(np.array([11, 12, 13, 14], np.uint16), draws)
    assert draws.range == (1, 6)  # n of 1 … 5
    assert _lists(example) == {
        # Prompt block 1 of 3 ids: 50 + 1 * 3 + (0, 1, 2).
        "input_ids": [53, 54, 55, BOS, 11, 12, 13, 14, EOS],
        "segment": [0, 0, 0, 1, 1, 1, 1, 1, 1],
        "position": [0, 1, 2, 3, 4, 5, 6, 7, 8],
        "context": [T, T, T, T, F, T, T, F, T],
        "labels": [_, _, _, 11, _, _, 14, _, _],
        "task": 0,
    }


def test_example_generation_by_hand() -> None:
    # The last 3 of <s> 11 12 13 14 </s>; the label of 12, the context's last, is the first target.
    example = _objective().example(np.array([11, 12, 13, 14], np.uint16), Draws(0.5, 3))
    assert _lists(example) == {
        "input_ids": [56, 57, 58, BOS, 11, 12, 13, 14, EOS],
        "segment": [0, 0, 0, 2, 2, 2, 2, 2, 2],
        "position": [0, 1, 2, 3, 4, 5, 6, 7, 8],
        "context": [T, T, T, T, T, T, F, F, F],
        "labels": [_, _, _, _, _, 13, 14, EOS, _],
        "task": 1,
    }


def test_example_of_all_targets_leaves_the_beginning() -> None:
    for draws in (Draws(0, 5, [4, 1, 0, 3, 2]), Draws(1, 5)):
        example = _objective().example(np.array([11, 12, 13, 14]), draws)
        assert example["context"].tolist() == [T, T, T, T, F, F, F, F, F]
        assert example["labels"].tolist() == [_, _, _, 11, 12, 13, 14, EOS, _]


def test_example_of_one_target_in_generation_is_the_end() -> None:
    example = _objective().example(np.array([11]), Draws(1, 1))
    assert example["labels"].tolist() == [_, _, _, _, EOS, _]


def test_example_arrays_have_the_types_and_shapes_of_fields() -> None:
    objective = _objective()
    example = objective.example(np.arange(9, 29, dtype=np.uint32), np.random.default_rng(0))
    assert example.keys() == objective.fields.keys()
    for name, field in objective.fields.items():
        assert example[name].dtype == field.dtype
        assert example[name].shape == ((25,) if field.per == "token" else ())


def test_default_prompts_are_the_documents() -> None:
    # infilling 0, generation 1: spec/cpm_ant.md
    config = ModelConfig(prompt_length=2)
    objective = Objective(Config(), TOKENIZER, config)
    for draws, first in ((Draws(0, 1, [0]), 50), (Draws(1, 1), 52)):
        made = objective.example(np.array([11]), draws)["input_ids"]
        assert made.tolist() == [first, first + 1, BOS, 11, EOS]


def _chi_square(counts: np.ndarray) -> float:
    expected = counts.sum() / counts.size
    return float(((counts - expected) ** 2 / expected).sum())


def _bound(size: int) -> float:
    """Return what chi-square of `size` cells exceeds once in a million (Wilson & Hilferty 1931)."""
    free = size - 1
    return free * (1 - 2 / (9 * free) + 4.753 * math.sqrt(2 / (9 * free))) ** 3


def _contexts(piece: int, **config) -> tuple[np.ndarray, np.ndarray]:
    """Return tasks (20,000,) and contexts of the text (20,000, piece + 2) of as many draws."""
    objective = _objective(**config)
    rng = np.random.default_rng(5)
    made = [objective.example(np.arange(8, 8 + piece), rng) for _ in range(DRAWS)]
    return np.array([m["task"] for m in made]), np.array([m["context"][3:] for m in made])


@pytest.fixture(scope="module")
def drawn() -> tuple[np.ndarray, np.ndarray]:
    return _contexts(8)


def test_tasks_are_half_and_half(drawn: tuple[np.ndarray, np.ndarray]) -> None:
    # Standard deviation sqrt(20,000) / 2 = 71.
    assert abs(drawn[0].sum() - DRAWS / 2) < 5 * 71


@pytest.mark.parametrize("task", [0, 1])
def test_targets_are_as_many_as_uniform(drawn: tuple[np.ndarray, np.ndarray], task: int) -> None:
    hidden = (~drawn[1][drawn[0] == task]).sum(1)
    assert (hidden.min(), hidden.max()) == (1, 9)
    assert _chi_square(np.bincount(hidden, minlength=10)[1:]) < _bound(9)


def test_beginning_and_prompt_are_never_targets(drawn: tuple[np.ndarray, np.ndarray]) -> None:
    assert drawn[1][:, 0].all()
    rng = np.random.default_rng(1)
    for _number in range(500):
        example = _objective().example(np.arange(8, 20), rng)
        assert example["context"][:4].all()
        assert (example["labels"][:3] == IGNORE).all()
        assert example["labels"][-1] == IGNORE
        assert not np.isin(example["labels"], [BOS, *range(VOCAB, VOCAB + 9)]).any()


def test_infilling_targets_are_anywhere_alike(drawn: tuple[np.ndarray, np.ndarray]) -> None:
    hidden = ~drawn[1][drawn[0] == 0][:, 1:]
    # Each place is a target with E[n] / 9 = 5/9, independently from draw to draw.
    deviation = math.sqrt(len(hidden) * 5 / 9 * 4 / 9)
    assert np.abs(hidden.sum(0) - len(hidden) * 5 / 9).max() < 5 * deviation
    one = hidden[hidden.sum(1) == 1]
    assert _chi_square(one.sum(0)) < _bound(9)
    # Two of nine: 36 pairs, all alike.
    pairs = Counter(tuple(np.flatnonzero(row)) for row in hidden if row.sum() == 2)
    assert len(pairs) == 36
    assert _chi_square(np.array(list(pairs.values()))) < _bound(36)


def test_generation_targets_are_the_tail(drawn: tuple[np.ndarray, np.ndarray]) -> None:
    context = drawn[1][drawn[0] == 1]
    assert (np.diff(context.astype(int), axis=1) <= 0).all()


@pytest.mark.slow
def test_mask_rate_is_uniform_with_mean_one_half() -> None:
    _tasks, context = _contexts(198)
    rate = (~context[:, 1:]).mean(1)
    # Uniform on 1/199 … 1: mean 0.5025, standard deviation 0.2887 / sqrt(20,000) = 0.00204.
    assert abs(rate.mean() - 0.5025) < 5 * 0.00204
    # Cells of ten rates each: 1/199 … 10/199 and so on, the last nine left out.
    assert _chi_square(np.histogram(rate, bins=np.arange(20) / 19.9 + 1e-9)[0]) < _bound(19)


@pytest.mark.parametrize(("rate", "task"), [(0.0, 1), (1.0, 0)])
def test_infilling_rate_of_none_or_all_makes_one_task(rate: float, task: int) -> None:
    objective = _objective(infilling_rate=rate)
    rng = np.random.default_rng(0)
    assert {int(objective.example(np.arange(8, 20), rng)["task"]) for _ in range(500)} == {task}
    # The smallest number that `random` gives is 0.
    assert objective.example(np.array([11]), Draws(0.0, 1, [0]))["task"] == task


def test_infilling_rate_is_the_share() -> None:
    objective = _objective(infilling_rate=0.2)
    rng = np.random.default_rng(0)
    tasks = [int(objective.example(np.array([11]), rng)["task"]) for _ in range(DRAWS)]
    # Standard deviation sqrt(0.2 * 0.8 / 20,000) = 0.0028.
    assert abs(np.mean(tasks) - 0.8) < 5 * 0.0028


@settings(max_examples=200, deadline=None)
@given(ids=st.lists(st.integers(8, VOCAB - 1), min_size=1, max_size=60), seed=st.integers(0, 9999))
def test_example_hides_nothing_of_its_source(ids: list[int], seed: int) -> None:
    objective = _objective()
    example = objective.example(np.array(ids), np.random.default_rng(seed))
    # The mask is in `context`; the ids stay whole, and labels are the ids that they stand for.
    assert example["input_ids"][3:].tolist() == [BOS, *ids, EOS]
    (places,) = np.nonzero(example["labels"] != IGNORE)
    assert (example["labels"][places] == example["input_ids"][places + 1]).all()
    assert (~example["context"][places + 1]).all()
    assert (
        len(places) == (~example["context"]).sum() == objective.num_targets(example)["cpm_ant"] >= 1
    )


def test_example_leaves_its_ids_alone() -> None:
    ids = np.array([11, 12, 13])
    _objective().example(ids, np.random.default_rng(0))
    assert ids.tolist() == [11, 12, 13]


def test_pieces_by_hand() -> None:
    # 15 - 3 - 2 = 10 tokens a piece; the last one must have 4.
    objective = _objective(max_length=15, min_piece=4)
    assert objective.max_piece == 10
    lengths = [10, 11, 14, 13, 0, 3, 4, 35, 20]
    pieces = objective.spans(np.array(lengths))
    found = list(zip(pieces.document, pieces.start, pieces.stop, strict=True))
    assert found == [
        (0, 0, 10),
        (1, 0, 10),  # one token too many is dropped
        (2, 0, 10), (2, 10, 14),
        (3, 0, 10),
        (6, 0, 4),
        (7, 0, 10), (7, 10, 20), (7, 20, 30), (7, 30, 35),
        (8, 0, 10), (8, 10, 20),
    ]  # fmt: skip
    assert pieces.dropped == {
        "short_pieces": 3,  # of 1, 3 and 3 tokens
        "short_piece_tokens": 7,
        "documents_without_piece": 2,  # the empty one and that of 3
    }


def test_pieces_of_no_document_are_none() -> None:
    pieces = _objective().spans(np.array([], np.int64))
    assert len(pieces) == 0
    assert set(pieces.dropped.values()) == {0}


@settings(max_examples=100, deadline=None)
@given(
    lengths=st.lists(st.integers(0, 200), max_size=30),
    room=st.integers(5, 40),
    min_piece=st.integers(1, 5),
)
def test_pieces_and_what_is_dropped_are_all_tokens(
    lengths: list[int], room: int, min_piece: int
) -> None:
    objective = _objective(max_length=room + 5, min_piece=min_piece)
    pieces = objective.spans(np.array(lengths, np.int64))
    sizes = pieces.stop - pieces.start
    assert len(pieces) == 0 or min_piece <= sizes.min() <= sizes.max() <= room
    assert int(sizes.sum()) + pieces.dropped["short_piece_tokens"] == sum(lengths)
    covered = [np.zeros(n, int) for n in lengths]
    for document, start, stop in zip(pieces.document, pieces.start, pieces.stop, strict=True):
        covered[document][start:stop] += 1
    assert all((c <= 1).all() and (np.diff(c) <= 0).all() for c in covered)


def test_length_is_the_made_examples() -> None:
    objective = _objective(max_length=45, min_piece=1)
    sizes = np.arange(1, objective.max_piece + 1)
    rng = np.random.default_rng(0)
    for size, length in zip(sizes, objective.length(sizes), strict=True):
        example = objective.example(np.full(size, 9), rng)
        assert {len(example[n]) for n, f in objective.fields.items() if f.per == "token"} == {
            length
        }
    assert objective.length(sizes)[-1] == 45


@pytest.mark.parametrize(
    ("max_length", "min_piece", "left"), [(4, 1, -1), (5, 1, 0), (36, 32, 31), (12, 8, 7)]
)
def test_max_length_without_room_is_refused(max_length: int, min_piece: int, left: int) -> None:
    with pytest.raises(ValueError, match="max_length") as caught:
        _objective(max_length=max_length, min_piece=min_piece)
    assert str(caught.value) == (
        f"objective.max_length: {max_length} leaves {left} tokens for text after 3 prompt tokens, "
        f"<s> and </s>; min_piece is {min_piece}"
    )
    _objective(max_length=max_length + min_piece - left, min_piece=min_piece)


def test_loss_is_the_models_with_each_task_apart() -> None:
    objective = _objective()
    examples = [
        objective.example(np.array([11, 12]), Draws(0, 2, [0, 2])),  # targets 11 and </s>
        objective.example(np.array([13, 14, 15]), Draws(1, 2)),  # 15 and </s>
        objective.example(np.array([16]), Draws(0, 1, [0])),  # 16
    ]
    packed = collate(examples, objective.fields)
    batch = {name: torch.from_numpy(array) for name, array in packed.fields.items()}
    asked = {}

    class Stub:
        def __call__(self, lengths, **inputs):
            asked.update(inputs, lengths=lengths)
            return torch.arange(len(inputs["input_ids"]))

        def token_loss(self, hidden, index, targets):
            asked.update(index=index.tolist(), hidden=hidden)
            return targets.float().sum(), targets.float()

    loss = loss_of(objective, Stub(), batch, packed.lengths)
    assert asked["lengths"] == (7, 8, 6)
    assert set(asked) - {"lengths", "index", "hidden"} == set(objective.inputs)
    # <s> of the first at 3, its 12 at 5; 14 at 7 + 5, 15 at 7 + 6; <s> of the third at 15 + 3.
    assert asked["index"] == [3, 5, 12, 13, 18]
    assert loss.num_targets == objective.num_targets(packed.fields) == {"cpm_ant": 5}
    assert only_term(loss).loss_sum.item() == 11 + 7 + 15 + 7 + 16
    assert {name: (part.item(), n) for name, (part, n) in loss.parts.items()} == {
        "infilling": (11 + 7 + 16, 3),
        "generation": (15 + 7, 2),
    }


class Unshifted(Objective):
    """As training transformers' port does: everything is context, labels are the inputs."""

    def example(self, ids, rng):
        made = super().example(ids, rng)
        made["labels"] = np.where(made["context"], IGNORE, made["input_ids"])
        made["context"] = np.ones_like(made["context"])
        return made


class Uncovered(Objective):
    """Labels are right but everything is context, so that the next token is seen."""

    def example(self, ids, rng):
        made = super().example(ids, rng)
        made["context"] = np.ones_like(made["context"])
        return made


NOISE = np.arange(8, VOCAB)  # 42 words, all alike
STEPS, LAST = 250, 50


def _over_the_floor(cls: type) -> float:
    """Return the loss on noise less its lower bound, nats a target, over the last steps.

    No model can expect less than ln 42 for a word it has not seen; `</s>` may cost nothing.
    """
    config = ModelConfig(
        hidden_size=32, num_layers=2, num_heads=2, intermediate_size=64, prompt_types=3,
        prompt_length=3, segment_types=3, num_buckets=16, max_distance=24,
    )  # fmt: skip
    torch.manual_seed(0)
    model = Model(config, VOCAB)
    objective = _objective(prompts=(0, 1), cls=cls)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    rng = np.random.default_rng(0)
    over = targets = 0.0
    for step in range(STEPS):
        examples = [objective.example(rng.choice(NOISE, 20), rng) for _ in range(16)]
        packed = collate(examples, objective.fields)
        batch = {name: torch.from_numpy(array) for name, array in packed.fields.items()}
        term = only_term(loss_of(objective, model, batch, packed.lengths))
        (term.loss_sum / term.num_targets).backward()
        optimizer.step()
        optimizer.zero_grad()
        if step >= STEPS - LAST:
            words = int((batch["labels"] >= NOISE[0]).sum())
            over += term.loss_sum.item() - words * math.log(len(NOISE))
            targets += term.num_targets
    return over / targets


# `nlpkit selftest` of a sound recipe, and of one that is not, has both in `make test`.
@pytest.mark.slow
def test_training_on_noise_stays_above_its_entropy() -> None:
    # 0.01: twice what chance moves the mean of some 8,000 losses by (deviation about 0.5 each).
    over = _over_the_floor(Objective)
    assert -0.01 < over < 0.3


@pytest.mark.slow
@pytest.mark.parametrize("broken", [Unshifted, Uncovered])
def test_training_on_noise_falls_below_its_entropy_where_targets_leak(broken: type) -> None:
    assert _over_the_floor(broken) < -0.5
