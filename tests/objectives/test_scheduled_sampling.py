"""Scheduled sampling: which tokens of a target the decoder reads, in the course of a run."""

import numpy as np
import pytest

from nlpkit import recipe
from nlpkit.errors import RecipeError
from nlpkit.models.seq2seq import model as seq2seq_model
from nlpkit.objectives.scheduled_sampling import Config, Objective, teacher_forcing
from tests import _tiny

RECIPE = """\
name: tiny
model: {family: seq2seq, hidden_size: 16, num_layers: 1, dropout: 0.1, SIZES}
tokenizer: {kind: bpe, vocab_size: 300}
data: {train: [{files: [A, B]}], valid: [{files: [A, B]}], format: parallel}
objective: {name: scheduled_sampling, max_length: 64, final_teacher_forcing: 0.25}
train: {steps: 6, tokens_per_step: 256, tokens_per_batch: 128, lr: 1.0e-2, warmup_steps: 2,
  eval_every: 3, save_every: 3, precision: fp32}
"""


def _write(folder, sizes: str = "score: general"):
    path = _tiny.write(folder, text=RECIPE.replace("SIZES", sizes), documents=40)
    lines = (folder / "valid.txt").read_text("utf-8").split("\n")[:-1] * 3
    (folder / "a.txt").write_text("".join(f"{line[:20]}\n" for line in lines), encoding="utf-8")
    (folder / "b.txt").write_text("".join(f"{line[19::-1]}\n" for line in lines), "utf-8")
    text = path.read_text("utf-8").replace("A,", f"{folder}/a.txt,")
    path.write_text(text.replace("B]", f"{folder}/b.txt]"), "utf-8")
    return path


@pytest.mark.parametrize(
    ("settings", "progress", "expected"),
    [  # hand arithmetic; of the sigmoid: (σ(-2.5) - σ(-5)) / (σ(5) - σ(-5)) = 0.07010
        ({}, 0.0, 1.0),
        ({}, 0.5, 0.75),
        ({}, 1.0, 0.5),
        ({"decay": "exponential", "final_teacher_forcing": 0.25}, 0.5, 0.5),
        # 0.8 (0.2 / 0.8)^0.5
        ({"decay": "exponential", "teacher_forcing": 0.8, "final_teacher_forcing": 0.2}, 0.5, 0.4),
        ({"decay": "inverse_sigmoid"}, 0.0, 1.0),
        ({"decay": "inverse_sigmoid"}, 0.25, 1 - 0.5 * 0.07010),
        ({"decay": "inverse_sigmoid"}, 0.5, 0.75),
        ({"decay": "inverse_sigmoid"}, 1.0, 0.5),
        ({"teacher_forcing": 0.2, "final_teacher_forcing": 0.2}, 0.7, 0.2),
    ],
)
def test_probability_follows_the_schedule(settings, progress, expected) -> None:
    assert teacher_forcing(Config(**settings), progress) == pytest.approx(expected, abs=1e-4)


def test_exponential_decay_to_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="decay: exponential never reaches 0"):
        Config(decay="exponential", final_teacher_forcing=0.0)


def test_share_of_forced_tokens_is_the_probability_and_only_falls() -> None:
    objective = object.__new__(Objective)
    objective.config = Config(final_teacher_forcing=0.1)
    example = {"draw": np.random.default_rng(0).random(4000, np.float32)}
    forced = [objective.at_progress(example, p)["teacher_forced"] for p in (0.0, 0.5, 1.0)]
    # four standard errors of a share of 4000 draws are at most 0.032
    shares = [float(each.mean()) for each in forced]
    assert shares == pytest.approx([1.0, 0.55, 0.1], abs=0.032)
    assert not (forced[2] & ~forced[1]).any()


@pytest.mark.slow
def test_run_reads_its_own_tokens_later_and_resumes_bit_for_bit(tmp_path, monkeypatch) -> None:
    shares: list[tuple[bool, float]] = []
    plain = seq2seq_model.Model.forward

    def forward(self, *args, teacher_forced=None, **inputs):
        shares.append((self.training, float(teacher_forced.float().mean())))
        return plain(self, *args, teacher_forced=teacher_forced, **inputs)

    monkeypatch.setattr(seq2seq_model.Model, "forward", forward)
    path = _write(tmp_path)
    _tiny.pretrain(path, tmp_path / "whole")
    trained = [share for training, share in shares if training]
    assert trained[0] == 1.0
    assert 0.2 < trained[-1] < 0.6  # 5/6 of the way from 1 to 0.25 is 0.375
    _tiny.pretrain_with_stops(path, tmp_path / "broken", [4])
    assert _tiny.metrics(tmp_path / "broken") == _tiny.metrics(tmp_path / "whole")


def test_decoder_without_previous_output_is_refused(tmp_path) -> None:
    said = r"objective\.name: scheduled_sampling needs model\.previous_output"
    with pytest.raises(RecipeError, match=said):
        recipe.load(str(_write(tmp_path, "previous_output: false")))


def test_seed_alone_decides_the_draws() -> None:
    objective = object.__new__(Objective)
    objective.config = Config(final_teacher_forcing=0.5, teacher_forcing=0.5)
    objective.begin = 1
    objective.end = objective.source_end = 2
    objective.tokenizer = type("T", (), {"unk_id": None})()
    item = type("I", (), {"parts": (np.arange(3, 8), np.arange(5, 12))})()
    one, two, other = (objective.example(item, np.random.default_rng(s)) for s in (0, 0, 1))
    assert np.array_equal(one["draw"], two["draw"])
    assert not np.array_equal(one["draw"], other["draw"])
    assert one["teacher_forced"].dtype == np.bool_
