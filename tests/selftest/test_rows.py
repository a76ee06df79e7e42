"""`nlpkit selftest` of rows with a source and a target: it finds targets and sources in sight."""

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from nlpkit import selftest
from nlpkit.attention.kinds import causal
from nlpkit.contracts.batch import IGNORE
from nlpkit.contracts.request import Request
from nlpkit.objectives import cpm_ant_nlg, scheduled_sampling, seq2seq
from nlpkit.selftest import leaks
from nlpkit.selftest.subject import Bench, _is_text
from nlpkit.tokenizers.library.source_and_target import of_sources
from tests import _provable, _tiny_tasks
from tests.parts import one_text
from tests.runs.test_two_tokenizers import RECURRENT, TRANSFORMER, _recipe

PART = "tests.parts.one_text"
COLUMNS = "source: input, target: target, learn_unknown: true"
OF_TARGETS = ["noise floor", "no leak", "no neighbour leak"]
visible = Request.visible


class Unshifted(seq2seq.Objective):
    """Reads each target where it is predicted."""

    def example(self, item, rng):
        made = super().example(item, rng)
        return made | {"input_ids": made["labels"]}


class Late(seq2seq.Objective):
    """Predicts, at each place, what it read one place before."""

    def example(self, item, rng):
        made = super().example(item, rng)
        return made | {"labels": np.append(made["labels"][:1], made["labels"][:-1])}


class Told(seq2seq.Objective):
    """Writes the end of the target into the source."""

    def example(self, item, rng):
        made = super().example(item, rng)
        return made | {"source_ids": np.append(made["source_ids"], item.parts[1][-1:])}


def _next_token(config, q, k):
    """A mask with which a target sees one token to its right."""
    return k["position"] <= q["position"] + 1


def _all_but_the_next(config, q, k):
    """A mask with which a target sees the tokens to its right but the next, which it predicts."""
    return k["position"] != q["position"] + 1


def _neighbours_source(self, q, k):
    """Boundaries with which cross attention also sees the source before."""
    if not self.is_cross:
        return visible(self, q, k)
    apart = self.layout.document_ids[q] - self.keys.document_ids[k]
    return self.mask(q, k) & (apart >= 0) & (apart <= 1)


def _neighbours_target(self, q, k):
    """Boundaries that are kept in cross attention alone."""
    return visible(self, q, k) if self.is_cross else self.mask(q, k)


def _rows(folder: Path, model: str = TRANSFORMER) -> Path:
    """Write a recipe of two tokenizers, and rows of several tokens on each side."""
    path = _recipe(folder, model)
    draw = np.random.default_rng(0)
    texts = [
        "".join(draw.choice(list("天地人山水花鸟鱼"), draw.integers(6, 15))) for _ in range(60)
    ]
    letters = str.maketrans("天地人山水花鸟鱼", "abcdefgh")
    for name, lines in (("a", texts), ("b", [text.translate(letters) for text in texts])):
        (folder / f"{name}.txt").write_text("".join(f"{line}\n" for line in lines), "utf-8")
    return path


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """What is proven of a transformer whose sources have a vocabulary of their own."""
    with _provable.of_recipe(_rows(tmp_path_factory.mktemp("whole"))) as bench:
        bench.subject.model.backend = "reference"
        yield bench


@pytest.fixture
def bench(whole: Bench) -> Iterator[Bench]:
    right = whole.subject.objective
    yield whole
    whole.subject.objective = whole.subject.examples.objective = right


@pytest.mark.parametrize(
    "proof", [pytest.param(OF_TARGETS[0], marks=pytest.mark.slow), *OF_TARGETS[1:]]
)
def test_selftest_of_rows_with_targets_proves_that_no_token_leaks(whole: Bench, proof: str) -> None:
    proofs = selftest._list_proofs(whole.subject)
    assert [*proofs] == [*OF_TARGETS, "packed = alone"]
    passed, figure = proofs[proof]()
    assert passed, figure


@pytest.mark.fast_cases(1)
@pytest.mark.parametrize(
    "objective", ["seq2seq", "scheduled_sampling, teacher_forcing: 0.5"], ids=["forced", "sampled"]
)
def test_selftest_of_rows_of_recurrent_models_holds(tmp_path: Path, objective: str) -> None:
    path = _rows(tmp_path, RECURRENT)
    path.write_text(path.read_text("utf-8").replace("name: seq2seq", f"name: {objective}"), "utf-8")
    with _provable.of_recipe(path) as bench:
        sampled = isinstance(bench.subject.objective, scheduled_sampling.Objective)
        assert sampled == ("scheduled" in objective)
        for proof in (leaks.find_leaks, leaks.find_neighbour_leaks):
            passed, figure = proof(bench.subject)
            assert passed, figure


@pytest.mark.fast_cases(1)
@pytest.mark.parametrize("broken", [Unshifted, Late, Told])
def test_selftest_of_a_target_in_sight_is_a_leak(bench: Bench, broken) -> None:
    _provable.use(bench, broken)
    passed, figure = leaks.find_leaks(bench.subject)
    assert not passed, figure
    assert "move with their own token" in figure


@pytest.mark.slow
@pytest.mark.parametrize(("broken", "mask"), [(Unshifted, None), (seq2seq.Objective, _next_token)])
def test_selftest_of_a_learned_leak_is_below_the_noise(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, broken, mask
) -> None:
    _provable.use(bench, broken)
    if mask is None:  # learned at once
        monkeypatch.setattr(leaks, "NOISE_STEPS", 100)
        monkeypatch.setattr(leaks, "NOISE_LAST", 30)
    else:
        right = bench.subject.build_fresh

        def fresh():
            model = right()
            model.backend = "reference"
            return model

        monkeypatch.setattr(bench.subject, "build_fresh", fresh)
        monkeypatch.setattr(causal, "mask", mask)
    passed, figure = leaks.find_noise_floor(bench.subject)
    assert not passed, figure
    assert "below the minimum without a leak" in figure


@pytest.mark.fast_cases(1)
@pytest.mark.parametrize("mask", [_next_token, _all_but_the_next])
def test_selftest_of_a_decoder_that_sees_later_targets_is_a_leak(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, mask
) -> None:
    monkeypatch.setattr(causal, "mask", mask)
    passed, figure = leaks.find_leaks(bench.subject)
    assert not passed, figure
    assert "targets, 0 move" not in figure  # or through the state of a later target


@pytest.mark.parametrize("boundaries", [_neighbours_source, _neighbours_target])
def test_selftest_of_a_target_that_sees_another_row_is_found(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, boundaries
) -> None:
    monkeypatch.setattr(Request, "visible", boundaries)
    passed, figure = leaks.find_neighbour_leaks(bench.subject)
    assert not passed, figure
    assert "times another one moved" in figure


def test_selftest_changes_each_side_of_a_row_to_words_of_its_own_vocabulary(whole: Bench) -> None:
    subject = whole.subject
    row = subject.draw_sources(1)[0]
    source, target = row.piece.parts
    changed = subject.change_words(row)
    ours, theirs = changed.piece.parts
    assert (changed.piece.label, changed.piece.size) == (row.piece.label, row.piece.size)
    assert (ours != source).all()
    assert (theirs != target).all()
    assert _is_text(of_sources(subject.tokenizer))[ours].all()
    assert subject.is_text[theirs].all()
    last = subject.change_words(row, len(source))  # the target's first
    assert np.array_equal(last.piece.parts[0], source)
    assert np.flatnonzero(last.piece.parts[1] != target).tolist() == [0]


class Peeking(one_text.Objective):
    """Reads each target where it is predicted."""

    def example(self, item, rng):
        made = super().example(item, rng)
        labels = made["labels"]
        return made | {"input_ids": np.where(labels < 0, made["input_ids"], labels)}


class Ends(one_text.Objective):
    """Predicts nothing but the end token."""

    def example(self, item, rng):
        made = super().example(item, rng)
        made["labels"][:-1] = IGNORE
        return made


def _chats(tmp_path: Path) -> Path:
    """Write rows of one text each, and their recipe; return its path."""
    start = _tiny_tasks.start(tmp_path, "gpt", "model.max_positions=128")
    text = _tiny_tasks.NLG.replace(
        "cpm_ant_nlg, max_length: 48", f"{PART}, max_length: 96, {COLUMNS}"
    )
    path = _tiny_tasks.task(tmp_path, "nlg", text, start)
    for part in ("train", "valid"):  # the source of a chat is longer than what is tried of a text
        file = tmp_path / f"nlg.{part}.jsonl"
        rows = [json.loads(line) for line in file.read_text("utf-8").splitlines()]
        long = [row | {"input": row["input"] + "天地人" * 5} for row in rows]
        _tiny_tasks.write_rows(file, long)
    return path


@pytest.mark.slow
def test_selftest_of_rows_of_one_text_proves_all(tmp_path: Path) -> None:
    with _provable.of_recipe(_chats(tmp_path)) as bench:
        found = {proof.name: proof for proof in selftest.prove(bench)}
    assert {*OF_TARGETS} < found.keys()
    assert [(proof.name, proof.figure) for proof in found.values() if not proof.passed] == []


@pytest.mark.slow
def test_selftest_of_rows_of_one_text_finds_the_targets_at_its_end(tmp_path: Path) -> None:
    with _provable.of_recipe(_chats(tmp_path)) as bench:
        passed, figure = leaks.find_leaks(bench.subject)
        assert passed, figure
        _provable.use(bench, Peeking)
        passed, figure = leaks.find_leaks(bench.subject)
        assert not passed
        assert "move with their own token" in figure
        _provable.use(bench, Ends)
        passed, figure = leaks.find_leaks(bench.subject)
        assert not passed
        assert "give what is predicted a text of its own" in figure


class Seen(cpm_ant_nlg.Objective):
    """Reads each target where it is predicted."""

    def example(self, item, rng):
        made = super().example(item, rng)
        return made | {"input_ids": np.where(made["labels"] < 0, made["input_ids"], made["labels"])}


@pytest.mark.slow
def test_selftest_of_targets_of_different_lengths_knows_where_they_end(tmp_path: Path) -> None:
    path = _tiny_tasks.task(tmp_path, "nlg", _tiny_tasks.NLG, _tiny_tasks.start(tmp_path))
    draw = np.random.default_rng(0)
    texts = ["".join(draw.choice(list("天地人山水花鸟鱼"), n)) for n in draw.geometric(0.5, 60)]
    _tiny_tasks.write_rows(
        tmp_path / "nlg.train.jsonl", [{"input": "天地人山水", "target": text} for text in texts]
    )
    with _provable.of_recipe(path) as bench:
        noise = [bench.subject.draw_noise(20, bench.subject.make_rng(n)) for n in range(9)]
        assert {tuple(map(len, each.texts)) for each in noise} == {tuple(map(len, noise[0].texts))}
        passed, figure = leaks.find_noise_floor(bench.subject)
        assert passed, figure
        _provable.use(bench, Seen)
        passed, figure = leaks.find_noise_floor(bench.subject)
        assert not passed
        assert "below the minimum without a leak" in figure
