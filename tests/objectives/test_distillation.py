"""Distillation: a term towards a frozen teacher, beside the loss of the objective before it."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from nlpkit import cli, recipe
from nlpkit.checkpoints import files
from nlpkit.contracts.batch import IGNORE, Batch
from nlpkit.errors import FileError, RecipeError, UsageError
from nlpkit.objectives.distillation import Config, Objective
from tests import _dotted, _tiny
from tests._processes import FSDP, launched

SETS = ("train.steps=4", "train.eval_every=2", "train.save_every=2")


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkpoint of a trained model."""
    folder = tmp_path_factory.mktemp("teacher")
    path = _tiny.write(folder, text=_dotted.recipe("gpt"))
    _tiny.pretrain(path, folder / "run", "train.steps=2")
    found = files.read_pointer(folder / "run", "latest")
    assert found is not None
    return found


def _student(folder: Path, teacher: Path, more: str = "") -> Path:
    first = "{name: clm, max_length: 64, weight: 0.5}"
    added = f"{{name: distillation, teacher: {teacher}, weight: 0.5{more}}}"
    text = _dotted.recipe("gpt").replace("{name: clm, max_length: 64}", f"[{first}, {added}]")
    return _tiny.write(folder, text=text)


class _Linear(torch.nn.Module):
    """A model whose states are a table's rows; the table of the output is another one."""

    def __init__(self, seed: int, width: int, tokens: int = 11):
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.states = torch.nn.Parameter(torch.randn(11, width, generator=generator))
        self.table = torch.nn.Parameter(torch.randn(tokens, width, generator=generator))

    def forward(self, lengths, input_ids):
        return self.states[input_ids]

    def logits(self, hidden):
        return hidden @ self.table.T


def _batch() -> Batch:
    rng = np.random.default_rng(0)
    labels = torch.from_numpy(rng.integers(0, 11, 40))
    labels[::3] = IGNORE
    return Batch(
        {"input_ids": torch.from_numpy(rng.integers(0, 11, 40)), "labels": labels}, (25, 15)
    )


def _bound(teacher: torch.nn.Module, temperature: float) -> Objective:
    objective = Objective(Config(teacher="it", temperature=temperature), None, None)
    objective.frozen_models = {"teacher": teacher.requires_grad_(False)}
    return objective


@pytest.mark.parametrize("temperature", [1.0, 4.0])
@pytest.mark.parametrize("chunk", [4, 512])
def test_loss_and_gradients_are_those_of_torch(temperature, chunk, monkeypatch) -> None:
    monkeypatch.setattr("nlpkit.objectives.distillation._CHUNK", chunk)
    student, teacher, batch = _Linear(1, 5), _Linear(2, 7), _batch()
    hidden = student(batch.lengths, batch.fields["input_ids"])
    loss = _bound(teacher, temperature).loss(student, hidden, batch)
    term = loss.terms["distillation"]
    term.loss_sum.backward()
    found = [each.grad.clone() for each in student.parameters()]
    # By hand: sum p (log p - log q) T², of the targets.
    student.zero_grad()
    rows = batch.fields["labels"] != IGNORE
    ids = batch.fields["input_ids"][rows]
    p = F.softmax(teacher.states[ids] @ teacher.table.T / temperature, 1)
    q = F.softmax(student.states[ids] @ student.table.T / temperature, 1)
    expected = (p * (p.log() - q.log())).sum() * temperature**2
    expected.backward()
    torch.testing.assert_close(term.loss_sum, expected)
    for mine, parameter in zip(found, student.parameters(), strict=True):
        torch.testing.assert_close(mine, parameter.grad)
    assert all(each.grad is None for each in teacher.parameters())
    assert term.num_targets == int(rows.sum())
    assert not term.is_text


def test_loss_is_nothing_for_the_teacher_itself_and_without_targets() -> None:
    teacher, batch = _Linear(1, 5), _batch()
    objective = _bound(teacher, 2.0)
    hidden = teacher(batch.lengths, batch.fields["input_ids"])
    assert float(objective.loss(teacher, hidden, batch).terms["distillation"].loss_sum) == 0
    batch.fields["labels"][:] = IGNORE
    assert float(objective.loss(teacher, hidden, batch).terms["distillation"].loss_sum) == 0


def test_teacher_with_another_number_of_tokens_is_refused() -> None:
    student, batch = _Linear(1, 5), _batch()
    hidden = student(batch.lengths, batch.fields["input_ids"])
    with pytest.raises(UsageError, match="the teacher it predicts 13 tokens, the student 11"):
        _bound(_Linear(2, 7, tokens=13), 1.0).loss(student, hidden, batch)


@pytest.mark.slow
def test_run_stopped_goes_on_bit_for_bit_and_is_evaluated_from_elsewhere(
    teacher: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch
) -> None:
    monkeypatch.chdir(teacher.parents[2])
    student = _student(tmp_path, teacher.relative_to(teacher.parents[2]))
    _tiny.pretrain(student, tmp_path / "whole", *SETS)
    _tiny.pretrain_with_stops(student, tmp_path / "stopped", [5], *SETS)
    records = _tiny.metrics(tmp_path / "whole")
    assert _tiny.metrics(tmp_path / "stopped") == records
    monkeypatch.chdir(tmp_path)
    capsys.readouterr()
    assert cli.run(["eval", str(tmp_path / "whole"), "--json", "--device", "cpu"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {"clm", "distillation"} <= found["losses"].keys()
    losses = found["losses"]
    assert found["loss"] == pytest.approx((losses["clm"] + losses["distillation"]) / 2, rel=1e-5)
    assert found["perplexity"] == pytest.approx(np.exp(losses["clm"]), rel=1e-5)


def test_student_that_is_the_teacher_loses_nothing(teacher: Path, tmp_path: Path) -> None:
    student = _student(tmp_path, teacher)
    text = student.read_text("utf-8").split("\n")
    kept = [line for line in text if not line.startswith(("model:", "tokenizer:"))]
    student.write_text("\n".join([*kept, f"init_from: {teacher}"]), "utf-8")
    _tiny.pretrain(student, tmp_path / "run", "train.steps=1", "train.lr=1e-9")
    (record,) = [each for each in _tiny.metrics(tmp_path / "run") if "held_out" in each]
    assert record["held_out"]["losses"]["distillation"] == pytest.approx(0, abs=1e-4)


def test_alone_and_first_it_is_refused_with_the_line(tmp_path: Path) -> None:
    text = _dotted.recipe("gpt").replace(
        "{name: clm, max_length: 64}", "{name: distillation, teacher: runs/none}"
    )
    message = "5:19: objective.name: distillation adds a loss to that of the objective before it"
    with pytest.raises(RecipeError, match=message):
        recipe.load(str(_tiny.write(tmp_path, text=text)))


def test_behind_a_task_it_is_refused_with_the_line(tmp_path: Path) -> None:
    text = _dotted.recipe("gpt").replace(
        "{name: clm, max_length: 64}",
        "[{name: classification}, {name: distillation, teacher: runs/none}]",
    )
    with pytest.raises(RecipeError, match="distillation cannot follow classification, which reads"):
        recipe.load(str(_tiny.write(tmp_path, text=text)))


def test_missing_teacher_is_named_with_its_line(tmp_path: Path) -> None:
    student = _student(tmp_path, tmp_path / "none")
    message = r"yaml:5:\d+: objective.1.teacher: frozen model teacher: .*none: no such directory"
    with pytest.raises(FileError, match=message):
        _tiny.pretrain(student, tmp_path / "run", *SETS)
    assert not (tmp_path / "run").exists()


def test_teacher_with_another_tokenizer_is_refused(teacher: Path, tmp_path: Path) -> None:
    student = _student(tmp_path, teacher)
    with pytest.raises(UsageError, match=r"frozen model teacher: .* has another tokenizer"):
        _tiny.pretrain(student, tmp_path / "run", *SETS, "tokenizer.vocab_size=100")


@pytest.mark.slow
@pytest.mark.parametrize("first", [pytest.param("mlm", marks=pytest.mark.slow), "wwm"])
def test_masked_objectives_are_distilled(first: str, tmp_path: Path) -> None:
    base = _dotted.recipe("bert").replace("cpm_ant, vocab", "wordpiece, vocab")
    base = base.replace("clm", first)
    text = base.replace("num_layers: 2", "num_layers: 3")
    _tiny.pretrain(_tiny.write(tmp_path, text=text), tmp_path / "teacher", *SETS)
    listed = (
        f"[{{name: {first}, max_length: 64}}, {{name: distillation, teacher: {tmp_path}/teacher}}]"
    )
    text = base.replace(f"{{name: {first}, max_length: 64}}", listed)
    (tmp_path / "student").mkdir()
    _tiny.pretrain(_tiny.write(tmp_path / "student", text=text), tmp_path / "run", *SETS)
    record = [each for each in _tiny.metrics(tmp_path / "run") if "held_out" in each][-1]
    assert record["held_out"]["losses"]["distillation"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("shards", [{}, FSDP], ids=["ddp", "fsdp"])
def test_two_processes_have_the_losses_of_one(shards: dict[str, str], teacher, tmp_path) -> None:
    student = _student(tmp_path, teacher)
    dropouts = [f"model.{name}_dropout=0" for name in ("embedding", "residual", "attention")]
    sets = [word for each in (*SETS, *dropouts) for word in ("--set", each)]
    runs = tmp_path / "one", tmp_path / "two"
    assert _tiny.command("pretrain", student, "--out", runs[0], *sets).returncode == 0
    done = launched(2, "pretrain", student, "--out", runs[1], *sets, **shards)
    assert done.returncode == 0, done.stderr
    one, two = ([r["loss"] for r in _tiny.metrics(run) if "loss" in r] for run in runs)
    assert two == pytest.approx(one, abs=1e-5)


def test_plan_without_data_says_that_the_teacher_is_left_out(
    teacher: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    student = _student(tmp_path, teacher)
    assert cli.run(["plan", str(student), "--no-data"]) == 0
    said = "warning: --no-data: FLOPs and memory are without the frozen model teacher\n"
    assert said in capsys.readouterr().err
