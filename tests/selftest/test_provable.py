"""`nlpkit selftest` of masked, paired, detecting and reordering objectives, sound and broken."""

import math
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

from nlpkit import selftest
from nlpkit.attention.kinds import relative
from nlpkit.contracts.batch import IGNORE, FlaggedIds, Loss, Term
from nlpkit.contracts.objective import Objective
from nlpkit.contracts.request import Request
from nlpkit.objectives import plm, reorder
from nlpkit.selftest import batching, leaks, texts
from nlpkit.selftest.heads import look
from nlpkit.selftest.subject import Bench, _shorten
from tests import _provable
from tests.parts import (
    proofs_electra,
    proofs_mlm,
    proofs_nsp,
    proofs_rtd,
    proofs_span,
    proofs_twice,
)

HIDING = ["noise floor", "no leak", "no neighbour leak", "unmasking"]
RUNS = ["packed = alone", "batches", "accumulated = one", "saved = reopened", "resumed = whole"]


@pytest.mark.parametrize(
    ("objectives", "proofs"),
    [
        pytest.param(
            ("nsp", "mlm"),
            [
                "noise floor", "no leak", "no label leak", "no neighbour leak", "unmasking",
                "shown targets", "negatives",
            ],
            marks=pytest.mark.slow,
        ),
        pytest.param(
            ("rtd",),
            ["no label leak", "no neighbour leak", "unmasking", "detection"],
            marks=pytest.mark.slow,
        ),
        pytest.param(
            ("reorder",),
            ["no label leak", "no neighbour leak", "unmasking"],
            marks=pytest.mark.slow,
        ),
        pytest.param(("electra",), [*HIDING, "detection"], marks=pytest.mark.slow),
        pytest.param(("plm",), HIDING, marks=pytest.mark.slow),
        pytest.param(("span",), HIDING, marks=pytest.mark.slow),
    ],
    ids=["nsp+mlm", "rtd", "reorder", "electra", "plm", "span"],
)  # fmt: skip
def test_selftest_of_a_sound_objective_proves_what_fits_it(
    tmp_path: Path, objectives: tuple[str, ...], proofs: list[str]
) -> None:
    with _provable.bench(tmp_path, *objectives, tokens=_provable.ALL) as bench:
        found = list(selftest.prove(bench))
    assert [proof.name for proof in found] == [*proofs, *RUNS]
    assert [(proof.name, proof.figure) for proof in found if not proof.passed] == []


# Masked


class Visible(proofs_mlm.Objective):
    """Hides nothing, and says that it shows what it always shows."""

    def transform(self, example, rng):
        made = super().transform(example, rng)
        inputs = np.where(made["labels"] != IGNORE, made["labels"], made["input_ids"])
        return made | {"input_ids": inputs}

    def shown(self, example):
        return super().shown(example) & (np.arange(len(example["labels"])) % 5 == 0)


class Unsaid(proofs_mlm.Objective):
    """Hides nothing, and says that every target is shown by design."""

    def transform(self, example, rng):
        made = super().transform(example, rng)
        inputs = np.where(made["labels"] != IGNORE, made["labels"], made["input_ids"])
        return made | {"input_ids": inputs}


class Shifted(proofs_mlm.Objective):
    """Puts labels two places to the left."""

    def transform(self, example, rng):
        made = super().transform(example, rng)
        return made | {"labels": np.append(made["labels"][2:], [IGNORE, IGNORE])}


class Special(proofs_mlm.Objective):
    """Draws special tokens as random ones."""

    def __init__(self, config, tokenizer, model_config):
        super().__init__(config, tokenizer, model_config)
        self.words = np.array([self.start, self.end])


class Withheld(proofs_mlm.Objective):
    """Shows most of its targets, and does not say which."""

    hidden = 0.2
    shown, shown_rate = Objective.shown, Objective.shown_rate


class Often(proofs_mlm.Objective):
    """Shows as many as others, and says that it should be a tenth."""

    shown_rate = 0.1


# Paired


class Same(proofs_nsp.Objective):
    """Takes the second text of the same document, from another place."""

    def second(self, ids, cut, negative):
        return ids[: len(ids) - cut]


class Told(proofs_nsp.Objective):
    """Token types of pairs that do not follow are all 0."""

    def example(self, ids, rng, negatives):
        made = super().example(ids, rng, negatives)
        return made | {"token_type_ids": made["token_type_ids"] * (1 - made["pair"])}


class Guessed(proofs_nsp.Objective):
    """Labels have nothing to do with the pair."""

    def example(self, ids, rng, negatives):
        return super().example(ids, rng, negatives) | {"pair": rng.integers(2)}


# Detecting


class Drawn(proofs_rtd.Objective):
    """Calls a token replaced also where the one drawn is the original one."""

    def labels(self, whole, inputs, chosen):
        return chosen


class Silent(proofs_rtd.Objective):
    """Calls every token original."""

    def labels(self, whole, inputs, chosen):
        return np.zeros(len(whole))


# Detecting samples that the loss draws


class Uncovered(proofs_electra.Objective):
    """Its generator sees what it predicts."""

    def hidden(self, whole, chosen):
        return whole


class Sampled(proofs_electra.Objective):
    """Calls a sample replaced also where it is the original one."""

    def replaced(self, sampled, original, labels):
        return labels >= 0


class Unread(proofs_electra.Objective):
    """Its discriminator reads the original text."""

    def judged(self, sampled, original):
        return original


class Chance(proofs_electra.Objective):
    """Draws its samples by torch's generator."""

    def numbers(self, batch):
        return torch.rand(len(batch.fields["labels"]))


# Permuted


class Unordered(plm.Objective):
    """Its labels are of the next place."""

    def example(self, ids, rng):
        made = super().example(ids, rng)
        labels = made["labels"]
        return made | {"labels": np.where(labels < 0, IGNORE, np.roll(made["input_ids"], 7))}


# Spans


class Intact(proofs_span.Objective):
    """Its source keeps what is to be predicted."""

    def kept(self, span):
        return span


class Cut(proofs_span.Objective):
    """Its target lacks the first token of each span; the length is what it should be."""

    def written(self, span):
        return np.append(span[1:], span[-1:])


# Reordering


class Kept(reorder.Objective):
    """Leaves the tokens where they are."""

    def order(self, size, rng):
        return np.arange(size)


class Inverse(reorder.Objective):
    """Says where each place of the text went, not which place each token had."""

    def example(self, ids, rng):
        made = super().example(ids, rng)
        place = made["place"].copy()
        place[1:-1] = np.argsort(place[1:-1])
        return made | {"place": place}


@pytest.fixture(scope="module")
def shared_bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Bench]]:
    """Return what is proven of the objective of a name, made once: proofs change nothing of it."""
    with ExitStack() as stack:
        yield cache(
            lambda name: stack.enter_context(
                _provable.bench(tmp_path_factory.mktemp("bench"), name)
            )
        )


# What is slow here is in `make test` as a defect of a shipped objective, in the objectives' tests.
@pytest.mark.parametrize(
    ("broken", "proof", "said"),
    [
        (Visible, leaks.find_leaks, "move with their own token"),
        (Unsaid, leaks.find_leaks, "no token of the text is a hidden target"),
        pytest.param(
            Unsaid, leaks.find_noise_floor, "all show a word by design", marks=pytest.mark.slow
        ),
        (Unsaid, texts.count_shown, "100.00% of"),
        (Shifted, texts.check_unmasking, "is not in its example"),
        pytest.param(
            *(Special, texts.count_shown, "have a special token instead"), marks=pytest.mark.slow
        ),
        (Often, texts.count_shown, "10.00% ±"),
        pytest.param(
            *(Same, texts.check_negatives, "0 of 200 examples have text of another document"),
            marks=pytest.mark.slow,
        ),
        (Same, texts.check_unmasking, None),
        pytest.param(
            *(Told, leaks.find_label_leaks, "something other than the text"), marks=pytest.mark.slow
        ),
        (Guessed, texts.check_negatives, "no label tells them"),
        (Withheld, leaks.find_leaks, "give the objective a method `shown(example)` that"),
        pytest.param(
            Withheld,
            leaks.find_noise_floor,
            "returns (T,) bool, True for these targets",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            *(Uncovered, leaks.find_leaks, "move with their own token"), marks=pytest.mark.slow
        ),
        pytest.param(
            Uncovered,
            leaks.find_noise_floor,
            "below the minimum without a leak",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            *(Sampled, texts.check_detection, "with the wrong label"), marks=pytest.mark.slow
        ),
        pytest.param(*(Unread, texts.check_detection, "0 replaced"), marks=pytest.mark.slow),
        pytest.param(*(Chance, batching.compare_packed, "max |Δ| / loss"), marks=pytest.mark.slow),
        (Unordered, texts.check_unmasking, "is not in its example"),
        pytest.param(
            *(Intact, leaks.find_leaks, "move with their own token"), marks=pytest.mark.slow
        ),
        pytest.param(
            *(Cut, texts.check_unmasking, "`unmask(example)`, which returns the example"),
            marks=pytest.mark.slow,
        ),
        pytest.param(
            *(Drawn, texts.check_detection, "with the wrong label"), marks=pytest.mark.slow
        ),
        pytest.param(
            *(Silent, texts.check_detection, "with the wrong label"), marks=pytest.mark.slow
        ),
        pytest.param(
            *(Kept, leaks.find_label_leaks, "something other than the text"), marks=pytest.mark.slow
        ),
        (Inverse, texts.check_unmasking, "is not in its example"),
    ],
)
def test_selftest_of_a_broken_objective_fails(
    shared_bench: Callable[[str], Bench], monkeypatch: pytest.MonkeyPatch, broken, proof, said
) -> None:
    if broken is Kept:  # learned at once
        monkeypatch.setattr(leaks, "NOISE_STEPS", 100)
        monkeypatch.setattr(leaks, "NOISE_LAST", 30)
    bench = shared_bench(re.split(r"[._]", broken.__base__.__module__)[-1])
    right = bench.subject.objective
    try:
        _provable.use(bench, broken)
        passed, figure = proof(bench.subject)
    finally:
        bench.subject.objective = bench.subject.examples.objective = right
    if said is None:  # both halves are runs of the piece: another proof finds it
        assert passed, figure
    else:
        assert not passed, figure
        assert said in figure


def _seeing_themselves(config, q, k):
    """A mask with which a query sees its own token: its rank is one less than the token's."""
    return k["rank"] <= q["rank"] + 1


def _seeing_all(config, q, k):
    """A mask with which contents see all of their sequence, and tell it to the queries."""
    return (k["rank"] <= q["rank"]) | (len(q.fields["rank"]) == len(k.fields["rank"]))


@pytest.mark.slow
@pytest.mark.parametrize("mask", [_seeing_all, _seeing_themselves])
def test_selftest_of_streams_that_see_too_much_is_a_leak(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mask
) -> None:
    with _provable.bench(tmp_path, "plm") as bench:
        assert leaks.find_leaks(bench.subject)[0]
        monkeypatch.setattr(relative, "mask", mask)
        passed, figure = leaks.find_leaks(bench.subject)
    assert not passed, figure


@pytest.mark.parametrize(
    "objectives",
    [
        pytest.param(("electra",), marks=pytest.mark.slow),
        ("span",),
        *(pytest.param((name,), marks=pytest.mark.slow) for name in ("nsp", "rtd", "reorder")),
    ],
)
def test_selftest_of_a_mask_that_forgets_documents_is_found_by_every_head(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, objectives: tuple[str, ...]
) -> None:
    with _provable.bench(tmp_path, *objectives) as bench:
        _provable.by_reference(bench)
        assert leaks.find_neighbour_leaks(bench.subject)[0]
        assert batching.compare_packed(bench.subject)[0]
        monkeypatch.setattr(Request, "visible", lambda self, q, k: self.mask(q, k))
        assert not leaks.find_neighbour_leaks(bench.subject)[0]
        assert not batching.compare_packed(bench.subject)[0]


class Shared(proofs_mlm.Objective):
    """Has its loss divided by the number of pairs."""

    def num_targets(self, batch):
        return {"mlm": len(batch["pair"])}


class Averaged(proofs_mlm.Objective):
    """Its loss is the mean of a batch, scaled by the targets of the first of a list."""

    def loss(self, model, hidden, batch):
        term = super().loss(model, hidden, batch).terms["mlm"]
        scale = len(batch.fields["pair"]) / term.num_targets
        return Loss({"mlm": Term(term.loss_sum * scale, term.num_targets)})


@pytest.mark.parametrize(
    ("broken", "said"), [(Shared, "targets of mlm are counted as 24"), (Averaged, "differ by")]
)
def test_selftest_of_a_second_term_divided_by_the_firsts_count_is_found(
    tmp_path: Path, broken, said: str
) -> None:
    with _provable.bench(tmp_path, "nsp", "mlm") as bench:
        assert batching.compare_gradients(bench)[0]
        _provable.use(bench, proofs_nsp.Objective, broken)
        passed, figure = batching.compare_gradients(bench)
    assert not passed
    assert said in figure


def test_selftest_watches_every_head_with_its_rows(tmp_path: Path) -> None:
    with _provable.bench(tmp_path, "nsp", "mlm") as bench:
        subject = bench.subject
        made = [
            subject.make_example(s, subject.make_rng(i))
            for i, s in enumerate(subject.draw_sources(90))
        ]
        batch = subject.pack(made)
        with torch.no_grad():
            seen = look(subject, subject.model, batch)
    assert {*seen.words} == {"tokens"}
    assert {*seen.labels} == {"2 classes"}
    labels = batch.fields["labels"]
    assert seen.words["tokens"].index.tolist() == np.flatnonzero(labels != IGNORE).tolist()
    pairs = seen.labels["2 classes"]
    assert pairs.targets.tolist() == batch.fields["pair"].tolist()
    # Untrained, the head gives both about the same: ln 2 each.
    assert pairs.each.tolist() == pytest.approx([math.log(2)] * len(made), abs=0.3)


class Marking(proofs_mlm.Objective):
    """Hides whole words, which the flags tell apart."""

    token_flags = ("word_start",)

    def example(self, ids, rng):
        assert isinstance(ids, FlaggedIds)
        assert ids.has("word_start").any()
        return super().example(ids.ids, rng)


class Copying(proofs_twice.Objective):
    """The second run reads what it predicts."""

    def second(self, ids, labels):
        return torch.where(labels == IGNORE, ids, labels)


@pytest.mark.slow
def test_selftest_follows_a_held_out_loss_that_runs_the_model_on_other_tokens(
    tmp_path: Path,
) -> None:
    with _provable.bench(tmp_path, "twice") as bench:
        subject = bench.subject
        proofs = (leaks.find_leaks, batching.compare_packed, texts.count_shown)
        for passed, figure in (proof(subject) for proof in proofs):
            assert passed, figure
        _provable.use(bench, Copying)
        passed, figure = leaks.find_leaks(subject)
        assert not passed
        assert "move with their own token" in figure


def test_selftest_gives_made_up_and_changed_sources_their_marks(tmp_path: Path) -> None:
    with _provable.bench(tmp_path, "mlm") as bench:
        _provable.use(bench, Marking)
        subject = bench.subject
        noise = subject.draw_noise(10, subject.make_rng(0))
        assert noise.piece.has("word_start").tolist() == [True, False] * 5
        changed = subject.change_words(noise, 3)
        assert np.flatnonzero(changed.ids != noise.ids).tolist() == [3]
        assert np.array_equal(changed.piece.token_flags, noise.piece.token_flags)
        assert texts.count_shown(subject)[0]


def test_cut_of_a_pair_of_texts_has_some_of_both() -> None:
    flags = np.repeat([0, 4], [30, 10]).astype(np.uint8)  # 4: `second_side`
    found = _shorten(FlaggedIds(np.arange(40), flags), 16)
    assert found.ids.tolist() == [*range(22, 38)]  # eight before the 30th, eight from it on
