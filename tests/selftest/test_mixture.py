"""`nlpkit selftest` of a mixture: each member is proven, and that it is drawn as often as said."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from nlpkit import recipe, selftest
from nlpkit.contracts.request import Request
from nlpkit.selftest import batching, texts
from nlpkit.selftest.subject import Bench
from nlpkit.train.log import QUIET, Log
from nlpkit.train.signals import StopFlag
from tests import _tiny
from tests.objectives.test_mixture import RECIPE, SHARES, TWO_HEADS

OF_TEXT = ["noise floor", "no leak", "no neighbour leak", "unmasking", "packed = alone"]
OF_RUN = ["batches", "accumulated = one", "saved = reopened", "resumed = whole"]


@contextmanager
def _bench(folder: Path, text: str = RECIPE) -> Iterator[Bench]:
    resolved = recipe.load(str(_tiny.write(folder, documents=60, text=text)))
    with selftest.bench(resolved, device="cpu", log=Log(QUIET), stop=StopFlag()) as made:
        yield made


@pytest.mark.slow
def test_selftest_of_a_sound_mixture_proves_each_member(tmp_path: Path) -> None:
    with _bench(tmp_path, TWO_HEADS) as bench:
        found = list(selftest.prove(bench))
    of_members = [
        *(f"proofs_mlm: {proof}" for proof in [*OF_TEXT[:4], "shown targets", *OF_TEXT[4:]]),
        "proofs_rtd: no label leak",
        *(f"proofs_rtd: {proof}" for proof in [*OF_TEXT[2:4], "detection", *OF_TEXT[4:]]),
    ]
    assert [proof.name for proof in found] == [*of_members, "members", "packed = alone", *OF_RUN]
    assert [(proof.name, proof.figure) for proof in found if not proof.passed] == []


@pytest.mark.slow
def test_selftest_of_a_mixture_finds_the_one_member_that_leaks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with _bench(tmp_path) as bench:
        right = bench.subject.objective.members[2]

        def example(ids, rng):  # the third member hides nothing
            made = type(right).example(right, ids, rng)
            shown = np.where(made["labels"] >= 0, made["labels"], made["input_ids"])
            return made | {"input_ids": shown}

        monkeypatch.setattr(right, "example", example)
        proofs = selftest._list_member_proofs(bench.subject, bench.subject.objective)
        passed = {name: proof()[0] for name, proof in proofs.items() if name.endswith("no leak")}
    assert passed == {f"{label}: no leak": label != "right" for label in SHARES}


def test_selftest_of_members_drawn_by_other_weights_is_found(tmp_path: Path) -> None:
    with _bench(tmp_path) as bench:
        mixed = bench.subject.objective
        assert texts.count_members(bench.subject, mixed)[0]
        drawn, mixed.shares = mixed.shares, np.full(4, 0.25)
        made = mixed.example
        mixed.example = lambda *given: made(*given)
        examples = list(bench.subject.draw_noise_examples(texts.COUNT, 20, 17))
        mixed.shares = drawn
        bench.subject.draw_noise_examples = lambda *_: iter(examples)
        passed, figure = texts.count_members(bench.subject, mixed)
    assert not passed, figure
    assert "left 2" in figure


@pytest.mark.slow
def test_selftest_of_a_mask_that_forgets_documents_is_found_in_a_mixed_pack(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with _bench(tmp_path) as bench:
        bench.subject.model.backend = "reference"
        assert batching.compare_packed_sums(bench.subject)[0]
        monkeypatch.setattr(Request, "visible", lambda self, q, k: self.mask(q, k))
        passed, figure = batching.compare_packed_sums(bench.subject)
    assert not passed, figure
