"""`train.rows_per_step`: by hand with single rows, resumed, in processes, planned, refused."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch.utils.data import DataLoader

from nlpkit import plan as planning
from nlpkit import recipe
from nlpkit.checkpoints import files
from nlpkit.errors import UsageError
from nlpkit.plan import without_data
from nlpkit.runs import build
from nlpkit.runs.planned import Planned
from nlpkit.runs.run import Training
from nlpkit.train.log import QUIET, Log
from nlpkit.train.machine import to_device
from nlpkit.train.schedule import ResolvedTraining, resolve_steps
from nlpkit.train.settings import Config
from nlpkit.train.state import Pace, State
from tests import _tiny
from tests._processes import launched

ROWS = 7
SETS = (f"train.rows_per_step={ROWS}", "train.tokens_per_batch=128", "train.eval_every=null")
EPOCHS = (*SETS, "train.epochs=3")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _tiny.write(tmp_path_factory.mktemp("tiny"), documents=30)


@pytest.fixture(scope="module")
def whole(tiny: Path) -> Path:
    """The run of 3 epochs that nothing interrupted."""
    _tiny.pretrain(tiny, tiny.parent / "whole", *EPOCHS)
    return tiny.parent / "whole"


def _plan(path: Path, *sets: str) -> Planned:
    return planning.make(recipe.load(str(path), sets), path.parent / "none", "cpu", Log(QUIET))


def _steps_of_epoch(path: Path) -> int:
    """Return the number of steps of an epoch: the last one has the rows that are left."""
    rows = len(_plan(path, *EPOCHS).data.examples)
    assert rows % ROWS
    return rows // ROWS + 1


BY_HAND = (
    *("train.steps=4", "train.optimizer={name: sgd, momentum: 0.0}", "train.lr=0.5"),
    *("train.clip=null", "train.schedule=constant", "train.warmup_steps=0"),
    *("train.weight_decay=0.0", "model.dropout=0.0", "data.valid=[]"),
)


def test_a_step_is_that_of_its_rows_one_by_one(tiny: Path, tmp_path: Path) -> None:
    """The gradient is that of the mean over all targets of the rows, in whatever batches."""
    _tiny.pretrain(tiny, tmp_path, *SETS, *BY_HAND)
    plan, cpu = _plan(tiny, *SETS, *BY_HAND), torch.device("cpu")
    torch.manual_seed(plan.resolved.recipe.seed)
    model = build.build_model(plan.part, plan.data.vocab_size, "auto")
    training = Training(model, plan.data.objective).train()
    parameters = list(model.parameters())
    records = _tiny.metrics(tmp_path)
    assert len(records) == 4
    groups = DataLoader(plan.data.examples.epoch(0).tolist(), ROWS, collate_fn=list)
    for record, group in zip(records, groups, strict=False):
        rows = [to_device(plan.data.examples.batch([row], 0), cpu) for row in group]
        sums = [term.loss_sum for row in rows for term in training(row).terms.values()]
        targets = sum(row.targets for row in rows)
        loss = torch.stack(sums).sum() / targets
        grads = torch.autograd.grad(loss, parameters, materialize_grads=True)
        norm = torch.stack([grad.norm() for grad in grads]).norm()
        assert record["targets"] == targets
        assert record["loss"] == pytest.approx(loss.item(), abs=1e-5)
        assert record["grad_norm"] == pytest.approx(norm.item(), rel=1e-4)
        with torch.no_grad():
            for parameter, grad in zip(parameters, grads, strict=True):
                parameter -= 0.5 * grad


@pytest.mark.slow
def test_three_epochs_are_three_times_the_steps_of_one(tiny: Path, whole: Path) -> None:
    of_epoch = _steps_of_epoch(tiny)
    plan = _plan(tiny, *EPOCHS)
    packing = planning.describe(plan)["packing"]
    assert plan.settings.steps == packing["steps"] == 3 * of_epoch
    assert (packing["steps_per_epoch"], packing["epochs"]) == (of_epoch, 3)
    assert packing["batches_per_step"] == len(plan.stream.plan(0)) / of_epoch > 1
    assert resolve_steps(
        plan.resolved.recipe.train.model_copy(update={"epochs": 0.5}), plan.stream
    ).steps == -(-of_epoch // 2)
    records = [record for record in _tiny.metrics(whole) if "loss" in record]
    assert len(records) == 3 * of_epoch
    tokens = int(plan.data.examples.sizes.sum())
    assert [records[n * of_epoch - 1]["tokens"] for n in (1, 2, 3)] == [
        tokens,
        2 * tokens,
        3 * tokens,
    ]


@pytest.mark.slow
def test_stopped_and_resumed_it_is_the_same_bit_for_bit(
    tiny: Path, whole: Path, tmp_path: Path
) -> None:
    place = _tiny.pretrain_with_stops(tiny, tmp_path, [17, 23], *EPOCHS)
    assert _tiny.metrics(tmp_path) == _tiny.metrics(whole)
    latest = files.read_pointer(whole, "latest")
    assert latest is not None
    for name in ("model.safetensors", "optimizer.safetensors"):
        ours, theirs = load_file(place / name), load_file(latest / name)
        assert all(torch.equal(ours[key], theirs[key]) for key in theirs)


@pytest.mark.slow
@pytest.mark.parametrize("number", [2, 3])
def test_several_processes_take_the_same_steps(tiny: Path, tmp_path: Path, number: int) -> None:
    sets = [part for each in (*EPOCHS, "model.dropout=0.0") for part in ("--set", each)]
    one = _tiny.command("pretrain", tiny, "--out", tmp_path / "one", *sets)
    assert one.returncode == 0, one.stderr
    done = launched(number, "pretrain", tiny, "--out", tmp_path / "more", *sets)
    assert done.returncode == 0, done.stderr
    assert "count for nothing" not in done.stderr
    for ours, theirs in _tiny.figures_of_both(tmp_path / "one", tmp_path / "more"):
        assert theirs["loss"] == pytest.approx(ours["loss"], abs=1e-4)
        assert theirs.get("tokens") == ours.get("tokens")


def test_plan_and_dry_run_say_the_steps(tiny: Path) -> None:
    of_epoch = _steps_of_epoch(tiny)
    sets = [part for each in EPOCHS for part in ("--set", each)]
    shown = _tiny.command("plan", tiny, *sets, "--json")
    assert shown.returncode == 0, shown.stderr
    found = json.loads(shown.stdout)
    assert found["packing"]["steps"] == 3 * of_epoch
    tokens = 3 * found["packing"]["tokens_per_epoch"]
    assert found["estimate"]["tokens"] == pytest.approx(tokens, rel=0.3)
    assert found["estimate"]["total_seconds"] > 0
    train = found["settings"]["train"]
    assert (train["rows_per_step"], train["tokens_per_step"]) == (ROWS, None)
    dry = _tiny.command("pretrain", tiny, *sets, "--dry-run")
    assert f"{3 * of_epoch} steps in all" in dry.stderr


def test_time_left_is_that_of_steps_like_those_before() -> None:
    settings = ResolvedTraining(steps=10, rows_per_step=4, schedule="constant")
    # 600 tokens in 4 steps: 6 steps have 900, at 90 a second
    assert Pace(settings).seconds_left(State(step=4, tokens=600), 90.0) == pytest.approx(10)


def test_rows_take_the_place_of_tokens_and_the_other_way_round(tiny: Path, tmp_path: Path) -> None:
    child = tmp_path / "child.yaml"
    child.write_text(f"extends: {tiny}\ntrain: {{rows_per_step: 5}}\n")
    train = recipe.load(str(child)).recipe.train
    assert (train.rows_per_step, train.tokens_per_step, train.tokens_per_batch) == (5, None, 256)
    train = recipe.load(str(child), ["train.tokens_per_step=1024"]).recipe.train
    assert (train.rows_per_step, train.tokens_per_step) == (None, 1024)
    assert Config(steps=1, rows_per_step=5, schedule="constant").batch_budget == 4096


def test_a_changed_number_of_rows_is_another_run(tiny: Path, whole: Path) -> None:
    assert (whole / "recipe.yaml").exists()
    sets = [part for each in (*EPOCHS, "train.rows_per_step=8") for part in ("--set", each)]
    done = _tiny.command("pretrain", tiny, "--out", whole, *sets)
    assert done.returncode == 2
    assert "train.rows_per_step" in done.stderr


def test_what_rows_do_not_go_with_is_named(tiny: Path) -> None:
    sets = [*SETS, "train.schedule={name: tests.parts.ramp}", "train.warmup_steps=0"]
    with pytest.raises(UsageError) as caught:
        _plan(tiny, *sets)
    assert str(caught.value) == (
        "--set train.rows_per_step: schedule tests.parts.ramp decides the batches of each step; "
        "set tokens_per_step"
    )
    with pytest.raises(UsageError) as caught:
        without_data.make(recipe.load(str(tiny), [*SETS, "train.steps=3"]))
    assert str(caught.value) == (
        "--no-data: train.rows_per_step depends on data, how long rows are; set tokens_per_step"
    )
