"""UniLM: four attention masks in one model, drawn by their weights."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch

from nlpkit import recipe
from nlpkit.attention.choice import AttentionChoice
from nlpkit.attention.masks import dense_mask
from nlpkit.contracts.batch import IGNORE
from nlpkit.contracts.request import Layout
from nlpkit.data.pack import collate
from nlpkit.errors import RecipeError
from nlpkit.models import bert
from nlpkit.models.bert import model as bert_model
from nlpkit.objectives import unilm
from nlpkit.objectives.examples.text import forward
from nlpkit.recipe.fit import missing_needs
from tests import _dotted, _tiny
from tests._masked import bound_of, document, flagged, tokenizer

SIZES = {"hidden_size": 16, "num_layers": 2, "num_heads": 2, "intermediate_size": 24}
RANGE = (AttentionChoice.of("seen_range"),)
CONFIG = bert.Config(**SIZES, type_vocab_size=6).model_copy(update={"attention": RANGE})


def _objective(model: object = CONFIG, **settings) -> unilm.Objective:
    return unilm.Objective(unilm.Config(**settings), tokenizer(), model)


TEXT = flagged("one two three. four five six. seven.")


@pytest.mark.slow
@pytest.mark.parametrize("count", [5_000, pytest.param(20_000, marks=pytest.mark.slow)])
def test_masks_are_drawn_by_their_weights(count: int) -> None:
    objective = _objective()
    rng = np.random.default_rng(0)
    drawn = np.bincount(
        [int(objective.example(TEXT, rng)["mask"][0]) for _ in range(count)], minlength=4
    )
    # Dong et al. 2019, sec. 2.3: 1/3 both, 1/6 left, 1/6 right, 1/3 sequence to sequence.
    for share, wanted in zip(drawn / count, (1 / 3, 1 / 6, 1 / 6, 1 / 3), strict=True):
        assert share == pytest.approx(wanted, abs=bound_of(wanted, count))


@pytest.mark.parametrize("name", unilm.MASKS)
def test_attention_sees_what_the_mask_says(name: str) -> None:
    weights = {mask: float(mask == name) for mask in unilm.MASKS}
    objective = _objective(**weights)
    example = objective.example(TEXT, np.random.default_rng(0))
    size = len(example["input_ids"])
    assert objective.fields["mask"].names[int(example["mask"][0])] == name
    fields = {n: torch.from_numpy(example[n]) for n in ("first", "last")}
    layout = Layout((size,), "cpu").with_fields(fields)
    seen = dense_mask(RANGE[0], layout).numpy()
    row, column = np.arange(size)[:, None], np.arange(size)[None]
    first = len(objective.restore(objective.unmask(example))[0]) + 2  # [CLS] A [SEP]
    wanted = {
        "both": np.ones((size, size), np.bool_),
        "left": column <= row,
        "right": column >= row,
        "source": np.where(row < first, column < first, column <= row),
    }[name]
    assert np.array_equal(seen, wanted)
    types = {"both": {0, 1}, "left": {2}, "right": {3}, "source": {4, 5}}[name]
    assert {*example["token_type_ids"].tolist()} == types


@pytest.mark.parametrize("count", [400, pytest.param(1500, marks=pytest.mark.slow)])
def test_source_comes_back_and_texts_are_cut_at_sentences(count: int) -> None:
    objective = _objective()
    rng = np.random.default_rng(0)
    tokens = targets = 0
    for _ in range(count):
        piece = document(10, rng)
        example = objective.example(piece, rng)
        one, two = objective.restore(objective.unmask(example))
        assert np.array_equal(np.append(one, two), piece.ids)
        assert len(one) in np.flatnonzero(piece.has("sentence_start"))
        chosen = example["labels"] != IGNORE
        ends = [0, len(one) + 1, -1]
        assert not chosen[ends].any()
        tokens, targets = tokens + len(piece), targets + int(chosen.sum())
    assert tokens > 65 * count
    assert targets / tokens == pytest.approx(0.15, abs=bound_of(0.15, tokens))


def test_loss_has_a_part_for_each_mask() -> None:
    torch.manual_seed(0)
    model = bert_model.Model(CONFIG, tokenizer().vocab_size).eval()
    objective = _objective(rate=0.5)
    made = [objective.example(TEXT, np.random.default_rng(n)) for n in range(20)]
    batch = collate(made, objective.fields)
    counts = objective.num_targets(batch.fields)
    batch.fields = {n: torch.from_numpy(v) for n, v in batch.fields.items()}
    loss = objective.loss(model, forward(objective, model, batch), batch)
    parts = loss.parts
    assert {*parts} == {f"unilm.{name}" for name in unilm.MASKS}
    assert counts == loss.num_targets == {"unilm": sum(count for _, count in parts.values())}
    assert float(sum(total for total, _ in parts.values())) == pytest.approx(
        loss.terms["unilm"].loss_sum.item(), rel=1e-5
    )
    for number, name in enumerate(unilm.MASKS):
        own = [e for e in made if e["mask"][0] == number]
        assert parts[f"unilm.{name}"][1] == sum(int((e["labels"] != IGNORE).sum()) for e in own)


def test_family_without_ranges_lacks_what_it_needs() -> None:
    assert missing_needs(unilm.Objective, CONFIG) == []
    assert missing_needs(unilm.Objective, bert.Config(**SIZES)) == ["ranges"]


def test_model_with_two_types_is_refused_with_both_ways_out() -> None:
    two = bert.Config(**SIZES).model_copy(update={"attention": RANGE})
    with pytest.raises(ValueError, match=r"set model\.type_vocab_size: 6, or mask_types: false"):
        _objective(two)
    example = _objective(two, mask_types=False, left=0.0, right=0.0).example(
        TEXT, np.random.default_rng(0)
    )
    assert {*example["token_type_ids"].tolist()} == {0, 1}


def test_refusal_names_the_kind_of_attention_that_unilm_needs() -> None:
    with pytest.raises(RecipeError) as error:
        recipe.load("bert", ["objective={name: unilm, max_length: 64}"])
    assert str(error.value).endswith("family bert does not have; set attention: {kind: seen_range}")
    recipe.load("bert", ["objective={name: unilm, max_length: 64}", "attention.kind=seen_range"])


@pytest.mark.parametrize(
    ("first", "family"),
    [
        ("{name: unilm, max_length: 40}", "bert"),
        ("{name: plm, max_length: 40}", "xlnet"),
        ("{name: mixture, of: [{name: nsp}, {name: mlm, alias: masked}]}", "bert"),
    ],
)
def test_examples_with_labels_are_not_masked_again(tmp_path: Path, first: str, family: str) -> None:
    text = _dotted.recipe("gpt").replace("{name: clm, max_length: 64}", f"[{first}, {{name: wwm}}]")
    text = re.sub(r"(?m)^model: .*", f"model: {{family: {family}}}", text)
    text += "attention: {kind: seen_range}\n" if "unilm" in first else ""
    name = first.partition(",")[0].removeprefix("{name: ")
    with pytest.raises(RecipeError, match=rf"5:\d+: objective\.1\.name: .* labels of {name};"):
        recipe.load(str(_tiny.write(tmp_path, text=text)))
