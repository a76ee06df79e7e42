"""Span masking: lengths, places and fates of spans, and the loss from their boundaries."""

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from nlpkit.contracts.batch import IGNORE, Batch
from nlpkit.data.pack import collate
from nlpkit.objectives import span
from tests._masked import bound, bound_of, document, flagged, tokenizer


def test_lengths_are_geometric_up_to_the_longest() -> None:
    objective = bound("span")
    rng = np.random.default_rng(0)
    # Without the last ones, of which some are cut to what is left.
    drawn = np.concatenate([objective.lengths(4000, rng)[:200] for _ in range(600)])
    assert len(drawn) > 100_000
    chances = 0.2 * 0.8 ** np.arange(10)
    chances /= chances.sum()
    # SpanBERT, sec. 3.1: the mean is 3.8.
    assert (chances * np.arange(1, 11)).sum() == pytest.approx(3.8, abs=0.05)
    shares = np.bincount(drawn, minlength=11)[1:] / len(drawn)
    assert len(shares) == 10
    assert (abs(shares - chances) < bound_of(0.5, len(drawn)) * 2 * np.sqrt(chances)).all()


@pytest.mark.slow
def test_placements_of_spans_are_equally_likely_and_never_touch() -> None:
    rng = np.random.default_rng(0)
    lengths = np.array([2, 1])
    count = 60_000
    found: dict[tuple[int, ...], int] = {}
    for _ in range(count):
        starts = tuple(span.place_spans(6, lengths, rng).tolist())
        found[starts] = found.get(starts, 0) + 1
    # By hand: the first at 0, 1 or 2, the second at least one word after it.
    wanted = {(0, 3), (0, 4), (0, 5), (1, 4), (1, 5), (2, 5)}
    assert {*found} == wanted
    for times in found.values():
        assert times / count == pytest.approx(1 / 6, abs=bound_of(1 / 6, count))


@pytest.mark.parametrize("words", [0, 1, 2, 5, 30])
def test_spans_of_short_texts_fit(words: int) -> None:
    objective = bound("span", rate=0.5)
    rng = np.random.default_rng(0)
    for _ in range(300):
        lengths = objective.lengths(words, rng)
        starts = span.place_spans(words, lengths, rng)
        stops = starts + lengths
        assert (lengths > 0).all()
        assert (starts[1:] > stops[:-1]).all()
        assert not len(stops) or stops[-1] <= words
        assert bool(words) == bool(len(lengths))


def _examples(objective, count: int, sentences: int = 14):
    rng = np.random.default_rng(0)
    documents = [document(sentences, rng) for _ in range(50)]
    for number in range(count):
        piece = documents[number % 50]
        yield piece, objective.example(piece, np.random.default_rng(number))


@pytest.mark.fast_cases(1)
@pytest.mark.parametrize("rate", [0.15, 0.3])
def test_share_of_targets_is_the_rate_and_the_source_comes_back(rate: float) -> None:
    objective = bound("span", rate=rate)
    tokens = targets = 0
    for piece, example in _examples(objective, 1200):
        chosen = example["labels"][1:-1] != IGNORE
        tokens, targets = tokens + len(chosen), targets + int(chosen.sum())
        assert np.array_equal(objective.unmask(example)["input_ids"][1:-1], piece.ids)
    assert tokens > 100_000
    # A span has at most some 50 tokens here, of which an example's last one decides alone.
    assert targets / tokens == pytest.approx(rate, abs=np.sqrt(50) * bound_of(rate, tokens))


@pytest.mark.slow
def test_tokens_of_a_span_share_one_fate() -> None:
    objective = bound("span", rate=0.3)
    fates = {"masked": 0, "kept": 0, "random": 0}
    for _, example in _examples(objective, 1500):
        inputs, labels = example["input_ids"], example["labels"]
        numbers = example["span"]
        assert np.array_equal(numbers > 0, labels != IGNORE)
        for number in range(1, int(numbers.max()) + 1):
            inside = np.flatnonzero(numbers == number)
            assert inside[-1] - inside[0] + 1 == len(inside)
            masked = inputs[inside] == objective.mask
            kept = inputs[inside] == labels[inside]
            assert masked.all() or not masked.any()
            if masked.all():
                fates["masked"] += 1
            elif kept.all():
                fates["kept"] += 1
            else:
                fates["random"] += 1
                assert kept.mean() < 1
    total = sum(fates.values())
    shares = {name: count / total for name, count in fates.items()}
    assert total > 5000
    assert shares["masked"] == pytest.approx(0.8, abs=bound_of(0.8, total))
    # A random token is the right one once in a hundred times.
    assert shares["kept"] == pytest.approx(0.1, abs=bound_of(0.1, total) + 0.002)


def test_words_are_never_cut_by_a_span() -> None:
    objective = bound("span")
    for piece, example in _examples(objective, 300):
        words = np.cumsum(piece.has("word_start"))
        chosen = example["labels"][1:-1] != IGNORE
        shares = np.bincount(words, chosen)[1:] / np.bincount(words)[1:]
        assert {*shares.tolist()} <= {0.0, 1.0}


def test_rate_that_falls_takes_back_whole_spans() -> None:
    objective = bound("span", rate=0.3, final_rate=0.1)
    for piece, example in _examples(objective, 100):
        late = objective.at_progress(example, 1.0)
        before, after = (e["labels"] != IGNORE for e in (example, late))
        assert not (after & ~before).any()
        assert np.array_equal(objective.unmask(late)["input_ids"][1:-1], piece.ids)
        for number in range(1, int(example["span"].max()) + 1):
            assert len({*after[example["span"] == number].tolist()}) == 1
        assert late["span"].max() == len({*late["span"].tolist()}) - 1


class Model:
    """Scores tokens by a table."""

    def __init__(self, width: int):
        torch.manual_seed(0)
        self.table = torch.randn(tokenizer().vocab_size, width)
        self.objective_heads = torch.nn.ModuleDict({span.HEAD: span.boundary_head(width)})
        self.rows: list[int] = []

    def token_loss(self, hidden, index, targets):
        self.rows.append(len(index))
        losses = F.cross_entropy(hidden[index] @ self.table.T, targets, reduction="none")
        return losses.sum(), losses.detach()


def test_boundary_loss_is_that_of_the_paper_span_by_span() -> None:
    objective = bound("span", rate=0.3)
    assert {*objective.heads()} == {span.HEAD}
    made = [example for _, example in _examples(objective, 6, sentences=9)]
    long = flagged("predicts" * 12)  # a word of more tokens than have a place
    objective.highest = 1.0
    made.append(objective.example(long, np.random.default_rng(3)))
    batch = collate(made, objective.fields)
    tensors = {name: torch.from_numpy(values) for name, values in batch.fields.items()}
    model = Model(8)
    hidden = torch.randn(batch.tokens, 8)
    loss = objective.loss(model, hidden, Batch(tensors, batch.lengths))
    # By hand: each target from the state before its span, that behind it, and its place.
    head = model.objective_heads[span.HEAD]
    wanted, count, start = 0.0, 0, 0
    for example in made:
        for number in range(1, int(example["span"].max()) + 1):
            inside = np.flatnonzero(example["span"] == number) + start
            left, right = hidden[inside[0] - 1], hidden[inside[-1] + 1]
            for place, row in enumerate(inside[: span.PLACES].tolist()):
                state = head(left[None], right[None], torch.tensor([place]))
                target = tensors["labels"][row : row + 1]
                wanted += F.cross_entropy(state @ model.table.T, target).item()
                count += 1
        start += len(example["labels"])
    term = loss.terms["sbo"]
    assert term.loss_sum.item() == pytest.approx(wanted, rel=1e-5)
    counted = objective.num_targets(batch.fields)
    assert counted == {"mlm": loss.terms["mlm"].num_targets, "sbo": count} == loss.num_targets
    assert model.rows == [*counted.values()]
    assert counted["sbo"] < counted["mlm"]  # of the long word only the first tokens


def test_head_is_two_layers_with_gelu_and_norm() -> None:
    torch.manual_seed(0)
    head = span.boundary_head(8)
    shapes = {name: tuple(p.shape) for name, p in head.named_parameters()}
    # SpanBERT, eq. 1: two states and a place, of 200 numbers in the released code.
    assert shapes["first.weight"] == (8, 2 * 8 + 200)
    assert shapes["second.weight"] == (8, 8)
    assert shapes["places.weight"] == (20, 200)


def test_without_weight_it_has_no_head_and_no_second_term() -> None:
    objective = bound("span", boundary_weight=0.0)
    assert objective.heads() == {}
    assert objective.parts == ("mlm",)
    (_, example), *_ = _examples(objective, 1)
    assert "span" not in example
    batch = collate([example], objective.fields)
    assert {*objective.num_targets(batch.fields)} == {"mlm"}
