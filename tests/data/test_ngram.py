"""The n-gram baseline equals modified Kneser-Ney computed by its formula, one token at a time."""

import json
import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from nlpkit.data.ngram import NGram
from tests import _tiny

BOS = -1
Gram = tuple[int, ...]


class ByHand:
    """Chen & Goodman (1999), section 4.1.6, over dictionaries."""

    def __init__(self, order: int, vocab_size: int, documents: Sequence[Sequence[int]]):
        self.order, self.vocab_size = order, vocab_size
        raw: list[Counter[Gram]] = [Counter() for _ in range(order + 1)]
        for document in documents:
            text = (BOS, *document)
            for n in range(1, order + 1):
                raw[n].update(text[i : i + n] for i in range(len(text) - n + 1))
        self.counts: list[dict[Gram, int]] = [{}]
        for n in range(1, order + 1):
            if n == order:
                found = dict(raw[n])
            else:
                before: dict[Gram, set[int]] = defaultdict(set)
                for gram in raw[n + 1]:
                    before[gram[1:]].add(gram[0])
                found = {g: raw[n][g] if g[0] == BOS else len(before[g]) for g in raw[n]}
            found.pop((BOS,), None)  # never predicted
            self.counts.append(found)
        self.discounts = [self._discount(found) for found in self.counts]

    @staticmethod
    def _discount(found: dict[Gram, int]) -> list[float]:
        n1, n2, n3, n4 = (sum(c == k for c in found.values()) for k in (1, 2, 3, 4))
        if not all((n1, n2, n3, n4)):
            return [0.0, 0.5, 1.0, 1.5]
        y = n1 / (n1 + 2 * n2)
        chosen = [0.0, 1 - 2 * y * n2 / n1, 2 - 3 * y * n3 / n2, 3 - 4 * y * n4 / n3]
        fits = all(0 <= d <= k for k, d in enumerate(chosen))
        return chosen if fits else [0.0, 0.5, 1.0, 1.5]

    def probability(self, word: int, context: Gram) -> float:
        n = len(context) + 1
        lower = self.probability(word, context[1:]) if context else 1 / self.vocab_size
        after = {g: c for g, c in self.counts[n].items() if g[:-1] == context}
        total = sum(after.values())
        if not total:
            return lower
        discount = self.discounts[n]
        kept = after.get((*context, word), 0)
        mass = sum(discount[min(c, 3)] for c in after.values())
        return (max(kept - discount[min(kept, 3)], 0) + mass * lower) / total

    def nats(self, document: Sequence[int]) -> list[float]:
        text = (BOS, *document)
        return [
            -math.log(self.probability(text[i], text[max(0, i - self.order + 1) : i]))
            for i in range(1, len(text))
        ]


def _documents(rng: np.random.Generator, number: int, vocab_size: int) -> list[np.ndarray]:
    share = 1 / np.arange(1, vocab_size + 1)
    lengths = rng.integers(0, 30, number)
    return [rng.choice(vocab_size, n, p=share / share.sum()) for n in lengths]


@pytest.mark.parametrize("order", [1, 2, 3, 4])
@pytest.mark.parametrize("number", [2, 60])  # with too few counts of counts, and with enough
def test_ngram_is_modified_kneser_ney_by_hand(order: int, number: int) -> None:
    rng = np.random.default_rng(order)
    train, held_out = _documents(rng, number, 12), _documents(rng, 20, 15)
    model = NGram(order, 15).fit(train)
    by_hand = ByHand(order, 15, [each.tolist() for each in train])
    expected = [nat for each in held_out for nat in by_hand.nats(each.tolist())]
    np.testing.assert_allclose(np.concatenate(model.nats(held_out)), expected, rtol=1e-12)


def test_ngram_probabilities_of_all_tokens_sum_to_1() -> None:
    rng = np.random.default_rng(0)
    model = NGram(3, 10).fit(_documents(rng, 40, 8))
    for context in ([], [0], [1, 0], [9, 9], [0, 9]):
        last = [model.nats([np.array([*context, word])])[0][-1] for word in range(10)]
        assert math.fsum(math.exp(-nat) for nat in last) == pytest.approx(1, abs=1e-12)


def test_ngram_of_one_order_more_knows_more_of_a_text_with_order() -> None:
    text = [np.tile(np.arange(7), 40)]
    means = [np.concatenate(NGram(order, 7).fit(text).nats(text)).mean() for order in (1, 2)]
    assert means[0] == pytest.approx(math.log(7), rel=1e-2)
    assert means[1] < 0.2


@pytest.mark.slow
def test_run_with_a_baseline_has_the_loss_of_ngrams_in_its_log_and_report(
    tmp_path: Path,
) -> None:
    tiny, out = _tiny.write(tmp_path), tmp_path / "out"
    done = _tiny.command("pretrain", tiny, "--set", "eval.baseline=2", "--out", out)
    assert done.returncode == 0, done.stderr
    nats = json.loads((out / "run.json").read_text("utf-8"))["held_out_ngram"]["nats"]
    assert f"held-out loss of 2-grams: {nats:.4f} nats/token" in done.stderr
    page = _tiny.command("report", out, "-o", tmp_path / "r.html")
    assert page.returncode == 0, page.stderr
    row = f">loss of 2-grams of the held-out text</th><td>{nats:.4f} nats/token<"
    assert row in (tmp_path / "r.html").read_text("utf-8")


@pytest.mark.slow
def test_run_with_a_baseline_but_no_held_out_text_is_warned_and_trains(tmp_path: Path) -> None:
    sets = ("eval.baseline=2", "data.valid=[]", "train.steps=2", "train.warmup_steps=1")
    words = [word for each in sets for word in ("--set", each)]
    done = _tiny.command("pretrain", _tiny.write(tmp_path), *words, "--out", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert "--set eval.baseline: has no effect where nothing is held out" in done.stderr
    assert "held_out_ngram" not in json.loads((tmp_path / "out/run.json").read_text("utf-8"))


def test_ngram_of_no_text_is_uniform() -> None:
    (nats,) = NGram(3, 5).fit([]).nats([np.array([1, 4])])
    np.testing.assert_allclose(nats, math.log(5))
