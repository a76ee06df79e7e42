"""Masked language modelling: its rates, its replacements, a rate that follows the run.

Expected numbers are the settings themselves, within bounds of the binomial distribution, and hand
arithmetic.
"""

from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from nlpkit import recipe
from nlpkit.contracts.batch import IGNORE, Batch
from nlpkit.data.loader import Examples
from nlpkit.data.pack import collate
from nlpkit.errors import RecipeError
from nlpkit.objectives import mixture, mlm
from nlpkit.objectives.several.combined import Combined
from nlpkit.tokenizers import bpe
from tests import _tiny
from tests._masked import MODEL, bound, bound_of, examples, plain, tokenizer
from tests.parts import encoder


@pytest.mark.fast_cases(1)
@pytest.mark.parametrize("tokens", [30_000, pytest.param(100_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("size", "rate"), [(3, 0.15), (62, 0.15), (62, 0.4), (500, 0.4)])
def test_share_of_targets_is_the_rate_for_pieces_of_any_length(
    size: int, rate: float, tokens: int
) -> None:
    count = -(-tokens // max(size, 15))
    made = examples(bound("mlm", rate=rate), count, size)
    targets = sum(int((example["labels"] != IGNORE).sum()) for example in made)
    # The numbers of targets of an example differ by at most 1, so binomial bounds are wide.
    assert targets / (count * size) == pytest.approx(rate, abs=bound_of(rate, count * size))


@pytest.mark.fast_cases(1)
@pytest.mark.parametrize("shares", [(0.1, 0.1), (0.1, 0.0), (0.0, 0.0), (0.3, 0.2)])
def test_shares_of_the_three_fates_are_the_settings(shares: tuple[float, float]) -> None:
    objective = bound("mlm", rate=0.5, random=shares[0], unmask=shares[1])
    made = list(examples(objective, 450, 500))
    inputs, labels = (np.concatenate([e[n] for e in made]) for n in ("input_ids", "labels"))
    chosen = labels != IGNORE
    total = int(chosen.sum())
    assert total > 100_000
    kept = int((inputs[chosen] == labels[chosen]).sum()) / total
    masked = int((inputs[chosen] == objective.mask).sum()) / total
    # A random token is the right one once in all tokens of text.
    lucky = shares[0] / len(objective.text_ids)
    assert masked == pytest.approx(1 - sum(shares), abs=bound_of(sum(shares), total))
    assert kept == pytest.approx(shares[1] + lucky, abs=bound_of(shares[1] + lucky, total))
    assert (inputs[~chosen] != objective.mask).all()
    if shares == (0.0, 0.0):
        assert (kept, masked) == (0, 1)


def test_random_tokens_are_all_tokens_of_text_equally_often_and_nothing_else() -> None:
    objective = bound("mlm", rate=1.0, random=1.0, unmask=0.0)
    made = np.concatenate([e["input_ids"][1:-1] for e in examples(objective, 200, 510)])
    counts = np.bincount(made, minlength=tokenizer().vocab_size)
    special = [*tokenizer().special_ids]
    assert [tokenizer().token(i) for i in special] == ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    assert counts[special].sum() == 0
    words = tokenizer().vocab_size - len(special)
    each = np.delete(counts, special) / len(made)
    assert abs(each - 1 / words).max() < bound_of(1 / words, len(made))


def test_tokens_that_are_parts_of_characters_are_text_in_a_vocabulary_of_bytes() -> None:
    # The second byte of a character has no character of its own (`token_characters` is 0).
    made = bpe.Tokenizer.train(["春"], bpe.Config(vocab_size=258)).extended(
        ["[CLS]", "[SEP]", "[MASK]"]
    )
    objective = mlm.Objective(mlm.Config(), made, MODEL)
    ids = np.array(made.encode("春"))
    assert made.token_characters()[ids].tolist() == [1, 0, 0]
    assert objective.is_text[ids].all()
    assert len(objective.text_ids) == 256


def test_special_tokens_are_never_targets_and_the_source_comes_back() -> None:
    objective = bound("mlm", rate=1.0)
    rng = np.random.default_rng(0)
    for number in range(50):
        ids = plain(40, rng)
        ids[number % 40] = tokenizer().unk_id
        example = objective.example(ids, rng)
        # [CLS], the unknown token and [SEP] are no targets; all others are.
        free = np.flatnonzero(example["labels"] == IGNORE).tolist()
        assert free == [0, 1 + number % 40, 41]
        restored = objective.unmask(example)["input_ids"]
        assert restored[1:-1].tolist() == ids.tolist()
        frame = objective.frame
        assert restored[[0, -1]].tolist() == [*frame.start, *frame.end]


def test_example_depends_on_its_random_numbers_alone() -> None:
    objective = bound("mlm")
    ids = plain(60, np.random.default_rng(0))
    one, two, three = (objective.example(ids, np.random.default_rng(n)) for n in (1, 1, 2))
    assert all(np.array_equal(one[name], two[name]) for name in one)
    assert not np.array_equal(one["labels"], three["labels"])


# Static masks: expected is what Liu et al. 2019, sec. 4.1, say of BERT's data


class Documents:
    """Three documents of 40 tokens."""

    lengths, starts, weights = np.full(3, 40), np.array([0, 3]), np.ones(1)

    def document(self, index: int) -> np.ndarray:
        return plain(40, np.random.default_rng(index))


def _masks(objective, epochs: int = 6, piece: int = 0, seed: int = 1) -> list[list[int]]:
    """Return the inputs of a piece in each epoch."""
    made = Examples(Documents(), objective, seed)
    return [made.make(piece, epoch)["input_ids"].tolist() for epoch in range(epochs)]


def _different(masks: list[list[int]]) -> int:
    return len({*map(tuple, masks)})


def test_masks_of_an_example_are_new_in_each_epoch_or_as_many_as_asked_for() -> None:
    assert _different(_masks(bound("mlm"))) == 6
    assert _different(_masks(bound("mlm", masks=1))) == 1
    three = _masks(bound("mlm", masks=3))
    assert _different(three) == 3
    assert three[:3] == three[3:]


def test_static_masks_differ_by_seed_and_document_and_begin_as_dynamic_ones() -> None:
    static = bound("mlm", masks=1)
    assert _masks(static)[0] == _masks(bound("mlm"))[0]
    assert _masks(static, 1) != _masks(static, 1, seed=2)
    masked = [np.array(_masks(static, 1, piece)[0]) == static.mask for piece in range(3)]
    assert _different([each.tolist() for each in masked]) == 3


def test_example_carried_over_to_the_next_epoch_keeps_its_mask() -> None:
    made = Examples(Documents(), bound("mlm", masks=2), 1)
    carried = made.make(int(made.carry_over(np.array([1]))[0]), 1)
    assert np.array_equal(carried["input_ids"], made.make(1, 0)["input_ids"])
    assert not np.array_equal(carried["input_ids"], made.make(1, 1)["input_ids"])


def test_static_masks_beside_dynamic_ones_repeat_the_whole_example() -> None:
    static, dynamic = bound("mlm", masks=1), bound("mlm")
    dynamic.parts = ("other",)  # losses of a list have different names
    assert _different(_masks(Combined([static, dynamic], [1.0, 1.0]))) == 1
    of = [{"name": "mlm", "alias": "static", "masks": 2}, {"name": "mlm"}]
    mixed = bound("mixture", of=[mixture.Member.model_validate(each) for each in of])
    masks = _masks(mixed)
    assert masks[:2] == masks[2:4] == masks[4:]
    assert masks[0] != masks[1]


# A rate that follows the run


def test_rate_falls_in_a_line_and_targets_are_among_those_before() -> None:
    objective = bound("mlm", rate=0.3, final_rate=0.15)
    made = list(examples(objective, 200, 500))
    before: list[np.ndarray] = []
    for progress in (0.0, 0.25, 0.5, 1.0):
        rate = 0.3 - 0.15 * progress
        now = [objective.at_progress(example, progress) for example in made]
        chosen = [example["labels"] != IGNORE for example in now]
        share = sum(int(c.sum()) for c in chosen) / 100_000
        assert share == pytest.approx(rate, abs=bound_of(rate, 100_000))
        assert all((b | ~c).all() for b, c in zip(before, chosen, strict=False))
        before = chosen
        for example, original in zip(now, made, strict=True):
            whole = objective.unmask(original)["input_ids"]
            assert np.array_equal(objective.unmask(example)["input_ids"], whole)
            free = example["labels"] == IGNORE
            assert np.array_equal(example["input_ids"][free], whole[free])


def test_rate_that_rises_begins_with_the_lower_one() -> None:
    objective = bound("mlm", rate=0.1, final_rate=0.4)
    made = list(examples(objective, 200, 500))
    for progress, rate in ((0.0, 0.1), (1.0, 0.4)):
        now = [objective.at_progress(example, progress)["labels"] for example in made]
        share = sum(int((labels != IGNORE).sum()) for labels in now) / 100_000
        assert share == pytest.approx(rate, abs=bound_of(rate, 100_000))


RECIPE = """\
name: tiny
model: {family: tests.parts.encoder, hidden_size: 16, num_layers: 1, num_heads: 2,
  intermediate_size: 16, max_positions: 64}
tokenizer: {kind: wordpiece, vocab_size: 200, min_frequency: 1}
data: {train: [TRAIN], valid: [VALID]}
objective: {name: mlm, max_length: 64, rate: 0.6, final_rate: 0.1}
train: {steps: 8, tokens_per_step: 512, tokens_per_batch: 256, lr: 1.0e-2, warmup_steps: 2,
  precision: fp32, eval_every: 4, save_every: 3, keep: 9}
"""


@pytest.mark.slow
def test_run_with_a_falling_rate_resumes_bit_for_bit(tmp_path: Path) -> None:
    path = _tiny.write(tmp_path, text=RECIPE)
    whole = _tiny.pretrain(path, tmp_path / "whole")
    stopped = _tiny.pretrain_with_stops(path, tmp_path / "stopped", [9, 14], "train.workers=1")
    ours, theirs = (_tiny.metrics(tmp_path / name) for name in ("whole", "stopped"))
    assert ours == theirs
    assert (whole / "model.safetensors").read_bytes() == (
        stopped / "model.safetensors"
    ).read_bytes()
    steps = [record for record in ours if "lr" in record]
    tokens = np.diff([0, *(record["tokens"] for record in steps)])
    # Before step k of 8 the rate is 0.6 - 0.5 (k - 1) / 8; two tokens of an example are special.
    for record, size in zip(steps, tokens, strict=True):
        rate = 0.6 - 0.5 * (record["step"] - 1) / 8
        assert 0.85 * rate < record["targets"] / size < rate
    # All evaluations are at the last rate, with the same targets, so they can be compared.
    targets = {record["held_out"]["targets"] for record in ours if "held_out" in record}
    assert len(targets) == 1


# Text, families, settings


def test_pieces_of_one_stream_lose_nothing_and_end_documents() -> None:
    objective = bound("mlm", max_length=8, contiguous=True)
    lengths = np.array([5, 1, 9])
    found = objective.spans(lengths)
    # 5 + 1 + 9 tokens and three ends are 18: three pieces of 6.
    assert (found.document.tolist(), found.start.tolist(), found.stop.tolist()) == (
        [0, 1, 2],
        [0, 0, 4],
        [6, 6, 10],
    )
    assert found.after == (tokenizer().special_id("[SEP]"),)
    assert objective.length(found.stop - found.start).tolist() == [8, 8, 8]


def test_family_without_pairs_gets_no_token_types() -> None:
    class Single(encoder.Config):
        CAN: ClassVar[tuple[str, ...]] = ()
        mask_token = "[UNK]"

    objective = bound("mlm", Single(hidden_size=8, num_layers=1, num_heads=1))
    assert objective.inputs == ("input_ids",)
    assert {*objective.fields} == {"input_ids", "labels"}
    assert objective.mask == tokenizer().unk_id
    assert "[UNK]" in objective.special_tokens(objective.config, objective.model_config)
    example = objective.example(plain(9, np.random.default_rng(0)), np.random.default_rng(0))
    assert {*example} == {"input_ids", "labels"}


class Model:
    """Records what is asked of it."""

    def token_loss(self, hidden, index, targets):
        self.rows, self.targets = index.tolist(), targets.tolist()
        return hidden[index].sum(), None


def test_loss_has_logits_of_targets_alone() -> None:
    objective = bound("mlm")
    made = list(examples(objective, 20, 30))
    batch = collate(made, objective.fields)
    model = Model()
    tensors = {name: torch.from_numpy(values) for name, values in batch.fields.items()}
    loss = objective.loss(model, torch.ones(len(tensors["labels"]), 1), Batch(tensors, ()))
    labels = batch.fields["labels"]
    assert model.rows == np.flatnonzero(labels != IGNORE).tolist()
    assert model.targets == labels[labels != IGNORE].tolist()
    assert loss.num_targets == objective.num_targets(batch.fields) == {"mlm": len(model.rows)}
    assert loss.terms["mlm"].is_text


def test_shares_above_1_are_refused_with_both() -> None:
    with pytest.raises(ValidationError, match=r"random 0\.6 and unmask 0\.5 are shares"):
        mlm.Config(random=0.6, unmask=0.5)


def test_recipe_with_a_causal_family_is_refused_at_its_line(tmp_path: Path) -> None:
    text = RECIPE.replace("tests.parts.encoder", "gpt").replace("intermediate_size: 16, ", "")
    with pytest.raises(RecipeError, match=r"tiny\.yaml:6:19: objective\.name: mlm needs bidir"):
        recipe.load(str(_tiny.write(tmp_path, text=text)))
