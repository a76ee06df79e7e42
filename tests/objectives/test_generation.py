"""The objective generation: what is predicted, what is generated, what is refused."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from nlpkit import recipe
from nlpkit.contracts.batch import IGNORE, Batch
from nlpkit.contracts.reader import RowError
from nlpkit.data.items import Row
from nlpkit.errors import RecipeError
from nlpkit.generate.settings import Settings
from nlpkit.generate.texts import Writer
from nlpkit.models.gru import Config as ModelSettings
from nlpkit.objectives.generation import Config, Objective
from nlpkit.runs.open_checkpoint import Opened, open_checkpoint
from tests import _tiny

RECIPE = """\
name: tiny
model: {family: gru, hidden_size: 24, num_layers: 1, dropout: 0.0}
tokenizer: {kind: bpe, vocab_size: 300}
data: {train: [ROWS], valid: [ROWS]}
objective: {name: generation, source: label, target: text, max_length: 40}
train: {steps: 90, tokens_per_step: 256, tokens_per_batch: 256, lr: 2.0e-2, warmup_steps: 4,
  eval_every: 90, save_every: 90, precision: fp32}
"""


class _Tokenizer:
    vocab_size, bos_id, eos_id, unk_id, pad_id = 20, None, None, 0, None

    def special_id(self, token: str) -> int | None:
        return {"_start_": 1, "_delimiter_": 2, "</s>": 3}.get(token)


def _objective(**settings: object) -> Objective:
    given = {"source": "label", "target": "text", "max_length": 10, **settings}
    return Objective(Config(**given), _Tokenizer(), ModelSettings(hidden_size=8))


def _row(**values: object) -> Row:
    return Row({"label": "good", "text": "well", **values}, "rows.tsv", 2)


def test_target_and_its_end_are_predicted_from_the_framed_source() -> None:
    objective = _objective()
    item = objective.item(_row(), [[7, 8], [9, 0, 10]])  # 0 is unknown
    example = objective.example(item, np.random.default_rng(0))
    assert example["input_ids"].tolist() == [1, 7, 8, 2, 9, 0, 10]
    assert example["labels"].tolist() == [IGNORE] * 3 + [9, IGNORE, 10, 3]
    assert item.size == 7
    assert objective.num_targets(example) == {"generation": 3}
    assert objective.unlearned(item) == 1
    learned = _objective(learn_unknown=True).example(item, np.random.default_rng(0))
    assert learned["labels"].tolist() == [IGNORE] * 3 + [9, 0, 10, 3]


@pytest.mark.parametrize(
    ("sizes", "kept", "cut"),
    [  # max_length 10 leaves 8 tokens for both
        ((3, 5), (3, 5), {}),
        ((6, 5), (3, 5), {"sources cut": 1, "tokens cut from sources": 3}),
        (
            (4, 9),
            (1, 7),
            {"sources cut": 1, "tokens cut from sources": 3}
            | {"targets cut": 1, "tokens cut from targets": 2},
        ),
    ],
)
def test_what_is_too_long_is_cut_and_counted(sizes, kept, cut) -> None:
    objective = _objective()
    item = objective.item(_row(), [list(range(4, 4 + n)) for n in sizes])
    assert tuple(map(len, item.parts)) == kept
    assert item.cut == cut
    assert len(objective.example(item, np.random.default_rng(0))["input_ids"]) <= 10


def test_prompt_is_the_begin_of_an_example() -> None:
    prompt = _objective().continue_text([7, 8, 9], 5)
    assert prompt.given["input_ids"].tolist() == [1, 7, 8, 9, 2]
    assert prompt.predicted_from.tolist() == [4, -1, -1, -1, -1]
    assert _objective().continue_text([4, 5, 6, 7, 8, 9], 5).given["input_ids"].tolist() == [
        *(1, 7, 8, 9, 2)
    ]
    with pytest.raises(ValueError, match="the source is empty"):
        _objective().continue_text([], 5)


def test_new_tokens_that_leave_none_for_the_source_are_named() -> None:
    objective = _objective()
    with pytest.raises(ValueError, match="leave no token for the source; lower --max-new-tokens"):
        objective.continue_text([5, 6], objective.max_length - 2)


def test_label_may_be_a_number_and_a_wrong_value_is_named() -> None:
    assert _objective().texts(_row(label=3)) == ("3", "well")
    with pytest.raises(RowError, match='"label" is an array, not a string or an integer'):
        _objective().texts(_row(label=["good"]))


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    """A run on two labels, each with texts of its own letters."""
    folder = tmp_path_factory.mktemp("labels")
    draw = np.random.default_rng(0)
    letters = {"good": "abc", "bad": "xyz"}
    rows = [
        f"{label}\t{''.join(draw.choice(list(letters[label]), 8))}\n"
        for label in ["good", "bad"] * 30
    ]
    (folder / "rows.tsv").write_text("label\ttext\n" + "".join(rows), "utf-8")
    path = folder / "tiny.yaml"
    path.write_text(RECIPE.replace("ROWS", str(folder / "rows.tsv")), "utf-8")
    _tiny.pretrain(path, folder / "run")
    return folder / "run"


def _text_loss(opened: Opened, label: str, text: str) -> float:
    objective, tokenizer = opened.objective, opened.tokenizer
    item = objective.item(_row(), [tokenizer.encode(label), tokenizer.encode(text)])
    made = objective.example(item, np.random.default_rng(0))
    fields = {name: torch.from_numpy(array) for name, array in made.items()}
    batch = Batch(fields, (len(made["input_ids"]),))
    hidden = opened.model(batch.lengths, fields["input_ids"])
    return objective.loss(opened.model, hidden, batch).terms["generation"].loss_sum.item()


@pytest.mark.slow
def test_text_is_likelier_from_its_own_label(run: Path) -> None:
    opened = open_checkpoint(run, device="cpu")
    # Only the first token, of two equally likely halves, tells more: at most ln 2.
    for own, other, text in (("good", "bad", "abcabcab"), ("bad", "good", "xyzxyzxy")):
        assert _text_loss(opened, own, text) < _text_loss(opened, other, text) - 0.2


def test_label_is_what_a_line_of_generate_is_continued_from(run: Path) -> None:
    opened = open_checkpoint(run, device="cpu")
    settings = Settings(max_new_tokens=6, min_new_tokens=3)
    writer = Writer(opened.model, opened.tokenizer, opened.objective, settings)
    together = [each.outputs[0].text for each in writer.write(["good", "bad"])]
    alone = [each.outputs[0].text for each in writer.write(["good", "bad"], batch=1)]
    assert together == alone
    assert all(together)
    assert not any("good" in text or "bad" in text for text in together)  # no part of the prompt


def test_loss_is_cross_entropy_of_the_target_alone(run: Path) -> None:
    opened = open_checkpoint(run, device="cpu")
    objective, tokenizer, model = opened.objective, opened.tokenizer, opened.model
    source, target = (tokenizer.encode(text) for text in ("good", "abca"))
    ids = torch.tensor([objective.start, *source, objective.delimiter, *target, objective.end])
    states = model.cells(F.embedding(ids, model.token_embedding)[:, None])[0][:, 0]
    logits = states @ model.token_embedding.T + model.token_bias
    first = len(source) + 1
    expected = F.cross_entropy(logits[first:-1], ids[first + 1 :], reduction="sum")
    item = objective.item(_row(), [source, target])
    made = objective.example(item, np.random.default_rng(0))
    batch = Batch({n: torch.from_numpy(a) for n, a in made.items()}, (len(ids) - 1,))
    hidden = model(batch.lengths, batch.fields["input_ids"])
    loss = objective.loss(model, hidden, batch).terms["generation"]
    assert loss.num_targets == len(target) + 1
    torch.testing.assert_close(loss.loss_sum, expected)


def test_encoder_is_refused(tmp_path) -> None:
    text = RECIPE.replace("dropout: 0.0", "num_directions: 2").replace("ROWS", "rows.tsv")
    path = tmp_path / "tiny.yaml"
    path.write_text(text, "utf-8")
    with pytest.raises(RecipeError, match=r"generation needs causal .* with num_directions 2"):
        recipe.load(str(path))


def test_preferences_of_an_outside_part_are_learned(tmp_path: Path) -> None:
    rows = "".join(
        f"good\t{'ab' * n}\t{'xy' * n}\nbad\t{'xy' * n}\t{'ab' * n}\n" for n in (2, 3, 4)
    )
    (tmp_path / "rows.tsv").write_text("label\ttext\twrong\n" + rows * 8, "utf-8")
    text = RECIPE.replace("90", "40").replace("ROWS", str(tmp_path / "rows.tsv"))
    path = tmp_path / "tiny.yaml"
    path.write_text(text.replace("name: generation", "name: tests.parts.preferences"), "utf-8")
    _tiny.pretrain(path, tmp_path / "run")
    lines = (tmp_path / "run/metrics.jsonl").read_text("utf-8").splitlines()
    losses = [record["loss"] for line in lines if "loss" in (record := json.loads(line))]
    # Without any preference it is log(1 + e ** MARGIN).
    assert losses[0] == pytest.approx(math.log1p(math.exp(0.5)), abs=0.1)
    assert losses[-1] < 0.2
