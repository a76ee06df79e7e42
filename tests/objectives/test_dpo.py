"""Direct preference optimization: pairs in packs, TRL's formula, the reference model."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from nlpkit import cli, recipe
from nlpkit import plan as planning
from nlpkit.contracts.batch import IGNORE, LENGTHS
from nlpkit.contracts.reader import LeftOut, RowError
from nlpkit.data.items import Row
from nlpkit.data.pack import pack_examples
from nlpkit.errors import UsageError
from nlpkit.models.gru import Config as ModelSettings
from nlpkit.objectives import dpo
from nlpkit.objectives.dpo import Config, Objective
from nlpkit.train.log import QUIET, Log
from tests import _tiny
from tests._processes import FSDP, launched

MODEL = "model: {family: gpt2, hidden_size: 24, num_layers: 1, num_heads: 2, max_positions: 64}\n"
START = f"""\
name: start
{MODEL}tokenizer: {{kind: bpe, vocab_size: 300}}
data: {{train: [ROWS], valid: [ROWS]}}
objective: {{name: generation, source: prompt, target: either, max_length: 40}}
train: {{steps: 20, tokens_per_step: 256, tokens_per_batch: 256, lr: 1.0e-2, warmup_steps: 4,
  eval_every: 20, save_every: 20, precision: fp32}}
"""
RECIPE = """\
name: tiny
init_from: START
model: {embedding_dropout: 0, attention_dropout: 0, residual_dropout: 0}
data: {train: [ROWS], valid: [ROWS]}
objective: {name: dpo, max_length: 40MORE}
train: {steps: 6, tokens_per_step: 512, tokens_per_batch: 256, lr: 2.0e-3, warmup_steps: 2,
  eval_every: 3, save_every: 3, precision: fp32, best_by: reward_accuracy}
"""


class _Tokenizer:
    vocab_size, bos_id, eos_id, unk_id, pad_id = 20, None, None, 0, None

    def special_id(self, token: str) -> int | None:
        return {"_start_": 1, "_delimiter_": 2, "</s>": 3}.get(token)


def _objective(**settings: object) -> Objective:
    return Objective(Config(**{"max_length": 10, **settings}), _Tokenizer(), ModelSettings())


def _row(**values: object) -> Row:
    return Row({"prompt": "p", "chosen": "good", "rejected": "bad", **values}, "rows.jsonl", 2)


class _Model(torch.nn.Module):
    """States of a table; a log-probability depends on the token and on its number in the pack."""

    def __init__(self, seed: int):
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.states = torch.nn.Parameter(torch.randn(20, 6, generator=generator))
        self.table = torch.nn.Parameter(torch.randn(20, 6, generator=generator))

    def forward(self, lengths, input_ids):
        return self.states[input_ids]

    def token_losses(self, hidden, index, targets):
        return F.cross_entropy(hidden[index] @ self.table.T, targets, reduction="none")

    def token_loss(self, hidden, index, targets):
        losses = self.token_losses(hidden, index, targets)
        return losses.sum(), losses.detach()


def test_pair_has_the_prompt_twice_with_each_answer() -> None:
    objective = _objective()
    item = objective.item(_row(), [[7, 8], [9, 0], [10, 11, 12]])  # 0 is unknown
    example = objective.example(item, np.random.default_rng(0))
    assert example["input_ids"].tolist() == [1, 7, 8, 2, 9, 0, 1, 7, 8, 2, 10, 11, 12]
    assert example["labels"].tolist() == [IGNORE] * 3 + [9, IGNORE, 3, *[IGNORE] * 3, 10, 11, 12, 3]
    assert example[LENGTHS].tolist() == [6, 7]
    assert item.size == len(example["labels"])
    assert objective.num_targets(example) == {"dpo": 1}
    assert objective.unlearned(item) == 1


def test_prompt_is_cut_alike_for_both_answers_and_counted() -> None:
    item = _objective().item(_row(), [[5, 6, 7, 8], [9], [10, 11, 12, 13, 14]])
    assert [part.tolist() for part in item.parts] == [[6, 7, 8], [9], [10, 11, 12, 13, 14]]
    assert item.cut == {"prompts cut": 1, "tokens cut from prompts": 1}
    item = _objective().item(_row(), [[5, 6], [9], [10] * 9])
    assert [len(part) for part in item.parts] == [1, 1, 7]
    assert item.cut["tokens cut from answers"] == 2


def test_answers_that_are_the_same_once_cut_are_left_out() -> None:
    with pytest.raises(LeftOut, match="pairs left out, whose answers are the same"):
        _objective().item(_row(), [[5, 6], [10] * 8, [10] * 9])


def test_same_answer_twice_is_a_wrong_row() -> None:
    with pytest.raises(RowError, match="both answers are the same text"):
        _objective().texts(_row(rejected="good"))


@pytest.mark.parametrize(("beta", "smoothing"), [(0.1, 0.0), (0.5, 0.1)])
def test_loss_and_gradients_are_those_of_the_formula(beta: float, smoothing: float) -> None:
    objective = _objective(beta=beta, label_smoothing=smoothing)
    rows = [[[7, 8], [9, 10], [10, 11, 12]], [[5], [6, 7, 8], [9]], [[4, 9], [13], [14, 0]]]
    rng = np.random.default_rng(0)
    made = [objective.example(objective.item(_row(), ids), rng) for ids in rows]
    batch = pack_examples(objective, made)
    batch.fields = {name: torch.as_tensor(each) for name, each in batch.fields.items()}
    policy, reference = _Model(1), _Model(2).requires_grad_(False)
    objective.frozen_models = {"reference": reference}
    hidden = policy(batch.lengths, batch.fields["input_ids"])
    term = objective.loss(policy, hidden, batch).terms["dpo"]
    term.loss_sum.backward()
    found = [each.grad.clone() for each in policy.parameters()]
    policy.zero_grad()

    # As trl's DPOTrainer: sums of log-probabilities of each answer, one sequence at a time.
    def log_probability(model, prompt, answer):
        ids = torch.tensor([1, *prompt, 2, *answer, 3])
        likely = (model.states[ids[:-1]] @ model.table.T).log_softmax(1)
        each = likely.gather(1, ids[1:, None])[len(prompt) + 1 :, 0]
        return each[ids[len(prompt) + 2 :] != 0].sum()

    losses, right = [], 0
    for prompt, chosen, rejected in rows:
        ratios = log_probability(policy, prompt, chosen) - log_probability(policy, prompt, rejected)
        theirs = [log_probability(reference, prompt, each) for each in (chosen, rejected)]
        logits = ratios - (theirs[0] - theirs[1])
        losses.append(
            -F.logsigmoid(beta * logits) * (1 - smoothing)
            - F.logsigmoid(-beta * logits) * smoothing
        )
        right += bool(logits > 0)
    expected = sum(losses)
    expected.backward()
    torch.testing.assert_close(term.loss_sum, expected)
    for mine, parameter in zip(found, policy.parameters(), strict=True):
        torch.testing.assert_close(mine, parameter.grad)
    assert term.num_targets == 3
    assert term.parts["reward_accuracy"][0] == right


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that writes an answer of either kind."""
    folder = tmp_path_factory.mktemp("start")
    rng = np.random.default_rng(0)
    rows = []
    for number in range(60):
        thing = f"{rng.choice(['bread', 'salt', 'tea', 'wood'])} {number}"
        answers = {"chosen": f"Yes, {thing}, please.", "rejected": f"No {thing}!"}
        either = answers[str(rng.choice(["chosen", "rejected"]))]
        rows.append({"prompt": f"More {thing}?", **answers, "either": either})
    (folder / "rows.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows), "utf-8")
    path = folder / "start.yaml"
    path.write_text(START.replace("ROWS", str(folder / "rows.jsonl")), "utf-8")
    _tiny.pretrain(path, folder / "start")
    return folder


def _write(start: Path, folder: Path, more: str = "") -> Path:
    text = RECIPE.replace("ROWS", str(start / "rows.jsonl")).replace("MORE", more)
    path = folder / "tiny.yaml"
    path.write_text(text.replace("START", str(start / "start")), "utf-8")
    return path


def _held_out(run: Path) -> list[dict]:
    return [each["held_out"] for each in _tiny.metrics(run) if "held_out" in each]


def test_run_learns_the_preference_and_goes_on_bit_for_bit(
    start: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = _write(start, tmp_path)
    _tiny.pretrain(path, tmp_path / "whole")
    _tiny.pretrain_with_stops(path, tmp_path / "stopped", [5])
    assert _tiny.metrics(tmp_path / "stopped") == _tiny.metrics(tmp_path / "whole")
    last = _held_out(tmp_path / "whole")[-1]
    assert last["metrics"]["reward_accuracy"] > 0.9
    assert last["losses"]["reward_margin"] > 0
    assert last["loss"] < np.log(2)
    capsys.readouterr()
    assert cli.run(["eval", str(tmp_path / "whole"), "--json", "--device", "cpu"]) == 0
    found = json.loads(capsys.readouterr().out)
    best = max(_held_out(tmp_path / "whole"), key=lambda each: each["metrics"]["reward_accuracy"])
    assert found["loss"] == pytest.approx(best["loss"], rel=1e-5)


def test_reference_may_be_named_and_is_needed(start: Path, tmp_path: Path) -> None:
    first = _write(start, tmp_path)
    _tiny.pretrain(first, tmp_path / "one", "train.steps=2")
    named = _write(start, tmp_path, f", reference: {start / 'start'}")
    _tiny.pretrain(named, tmp_path / "two", "train.steps=2")
    assert _tiny.metrics(tmp_path / "one") == _tiny.metrics(tmp_path / "two")
    text = first.read_text("utf-8").split("\n")
    text[1:3] = [MODEL.strip(), "tokenizer: {kind: bpe, vocab_size: 300}"]
    first.write_text("\n".join(text).replace(f", reference: {start / 'start'}", ""), "utf-8")
    with pytest.raises(UsageError, match=r"tiny.yaml:5:\d+: objective.reference: it is by default"):
        _tiny.pretrain(first, tmp_path / "three")


def test_model_that_generation_has_not_tuned_is_refused(start: Path, tmp_path: Path) -> None:
    plain = tmp_path / "plain.yaml"
    text = START.replace("ROWS", str(start / "rows.jsonl")).replace("target: either, ", "")
    plain.write_text(text.replace("generation, source: prompt", "clm"), "utf-8")
    _tiny.pretrain(plain, tmp_path / "plain", "train.steps=1", "data.text_key=prompt")
    with pytest.raises(UsageError, match=r"another tokenizer .*: a checkpoint that has these"):
        _tiny.pretrain(_write(start, tmp_path), tmp_path / "x", f"init_from={tmp_path / 'plain'}")


ADAPTERS = "lora={targets: [token_embedding, c_attn, c_fc]}"


@pytest.mark.slow
def test_reference_beside_adapters_has_no_weights_of_its_own(
    start: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = _write(start, tmp_path)
    shared = {}
    forward = Objective.loss

    def loss(self: Objective, model: Any, hidden: torch.Tensor, batch: Any) -> Any:
        found = forward(self, model, hidden, batch)
        ours = {each.data_ptr() for each in model.parameters()}
        reference = self.frozen_models["reference"]
        shared.update({n: p.data_ptr() in ours for n, p in reference.named_parameters()})
        return found

    monkeypatch.setattr(Objective, "loss", loss)
    _tiny.pretrain(path, tmp_path / "one", ADAPTERS)
    assert len(shared) > 10
    assert all(shared.values())
    monkeypatch.setattr(dpo, "_share_weights", lambda *_: None)
    shared.clear()
    _tiny.pretrain(path, tmp_path / "two", ADAPTERS)
    assert not any(shared.values())
    assert _tiny.metrics(tmp_path / "one") == _tiny.metrics(tmp_path / "two")
    assert _held_out(tmp_path / "one")[-1]["losses"]["reward_margin"] > 0


def test_plan_counts_the_reference_beside_adapters_once(start: Path, tmp_path: Path) -> None:
    path = _write(start, tmp_path)

    def make(*sets: str) -> dict[str, Any]:
        resolved = recipe.load(str(path), [*sets])
        plan = planning.make(resolved, tmp_path / "run", "cpu", Log(QUIET))
        return planning.describe(plan)["model"]

    whole, adapted = make(), make(ADAPTERS)
    assert whole["frozen_parameters"] == whole["parameters"]
    assert adapted["frozen_parameters"] == 0


@pytest.mark.slow
def test_selftest_passes(start: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = cli.run(["selftest", str(_write(start, tmp_path)), "--device", "cpu"])
    shown = capsys.readouterr()
    assert code == 0, shown.out + shown.err


@pytest.mark.slow
@pytest.mark.parametrize("shards", [{}, FSDP], ids=["ddp", "fsdp"])
def test_two_processes_have_the_losses_of_one(shards: dict[str, str], start, tmp_path) -> None:
    path, runs = _write(start, tmp_path), (tmp_path / "one", tmp_path / "two")
    assert _tiny.command("pretrain", path, "--out", runs[0]).returncode == 0
    done = launched(2, "pretrain", path, "--out", runs[1], **shards)
    assert done.returncode == 0, done.stderr
    one, two = ([r["loss"] for r in _tiny.metrics(run) if "loss" in r] for run in runs)
    assert two == pytest.approx(one, abs=1e-5)
