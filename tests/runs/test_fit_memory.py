"""`train.memory`: the batch that fits, gradient checkpointing where it is needed, the record."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from nlpkit import plan as planning
from nlpkit import recipe
from nlpkit.contracts.batch import Batch
from nlpkit.errors import NlpkitError, RecipeError, UsageError
from nlpkit.runs import fit_memory, trial
from nlpkit.runs.fastest_precision import Precision
from nlpkit.runs.planned import Planned
from nlpkit.train import machine, memory
from nlpkit.train.log import QUIET, Log
from nlpkit.units import format_bytes, parse_bytes
from tests import _tiny

MB = 10**6
STEP = ("train.tokens_per_batch=null", "model.dropout=0.0", "train.precision=fp32")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _tiny.write(tmp_path_factory.mktemp("tiny"))


class Machine:
    """Memory in which a trial takes 100 MB and 1 MB for each token of its longest batch.

    With gradient checkpointing it is a fourth of that for each token.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        self.now = self.peak = 100 * MB
        self.tried: list[tuple[int, bool]] = []
        monkeypatch.setattr(machine, "used_memory", lambda device: (self.now, self.peak))
        monkeypatch.setattr(memory, "limit", lambda device: 10**12)
        # To give the real memory back takes long where a worker has much of it.
        monkeypatch.setattr(memory, "release", lambda device: None)
        monkeypatch.setattr(memory, "forget_peak", lambda device: setattr(self, "peak", self.now))
        monkeypatch.setattr(trial.Trial, "update", lambda tried: 0.0)
        monkeypatch.setattr(trial.Trial, "train", lambda *given: self.train(*given))

    def train(self, tried: trial.Trial, batch: Batch) -> float:
        on = tried.settings.gradient_checkpointing
        self.tried.append((tried.settings.tokens_per_batch, on))
        self.peak = max(self.peak, self.now + MB // (4 if on else 1) * batch.tokens)
        return 0.0


def test_amounts_of_memory() -> None:
    sizes = [20 * 10**9, 512 * MB, 3 * 2**29]
    assert [parse_bytes(each) for each in ("20GB", "512 mb", "1.5GiB")] == sizes
    assert (format_bytes(1.5e9), format_bytes(3.2e8)) == ("1.5 GB", "320 MB")
    for wrong in ("20", "GB", "20XB", "-1GB", "0GB", "", "9" * 400 + "GB"):
        with pytest.raises(ValueError, match="is not an amount of memory such as 20GB"):
            parse_bytes(wrong)


def test_memory_and_a_batch_exclude_each_other(tiny: Path) -> None:
    with pytest.raises(RecipeError) as caught:
        recipe.load(str(tiny), ["train.memory=1GB"])
    said = "train.memory: 1GB and train.tokens_per_batch: 256 exclude each other"
    assert said in str(caught.value)
    with pytest.raises(RecipeError, match="'much' is not an amount of memory such as 20GB"):
        recipe.load(str(tiny), ["train.memory=much", *STEP])


@pytest.mark.fast_cases(2)
@pytest.mark.parametrize(
    ("limit", "batch", "on"),
    [  # 100 MB and 1 MB a token, 0.25 MB with checkpointing; a step is 512 tokens
        ("800MB", 512, False),
        ("500MB", 256, False),
        ("240MB", 128, False),
        ("150MB", 128, True),  # not even 64 tokens fit without
    ],
)
def test_the_largest_batch_that_fits_is_chosen(
    tiny: Path, monkeypatch: pytest.MonkeyPatch, limit: str, batch: int, on: bool
) -> None:
    machine = Machine(monkeypatch)
    plan = _plan(tiny, f"train.memory={limit}")
    assert (plan.settings.tokens_per_batch, plan.settings.gradient_checkpointing) == (batch, on)
    assert plan.settings.batches_per_step == 512 // batch
    assert (batch, on) in machine.tried
    assert plan.resolved.origin["train.tokens_per_batch"] == "train.memory"
    assert (plan.resolved.origin["train.gradient_checkpointing"] == "train.memory") == on
    assert planning.describe(plan)["packing"]["tokens_per_batch"] == batch


def _plan(path: Path, *sets: str) -> Planned:
    resolved = recipe.load(str(path), [*STEP, *sets])
    return planning.make(resolved, path.parent / "none", "cpu", Log(QUIET))


def test_every_process_gets_as_many_batches_where_that_is_possible(tiny: Path) -> None:
    plan = _plan(tiny)
    longest = int(plan.data.examples.sizes.max())
    assert fit_memory.candidates(plan, 1) == [n for n in (64, 128, 256, 512) if n >= longest]
    assert fit_memory.candidates(plan, 2)[-1] == 256
    assert fit_memory.candidates(plan, 3)[-1] == 512  # 512 has no divisor 3


def test_too_little_memory_is_one_line_with_what_is_needed(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Machine(monkeypatch)
    with pytest.raises(UsageError) as caught:
        _plan(tiny, "train.memory=101MB")
    said = str(caught.value)
    assert said.startswith("--set train.memory: 101MB: even a batch of ")
    assert "with train.gradient_checkpointing; give more memory, lower objective.max_length" in said
    assert "\n" not in said


@pytest.mark.slow
def test_a_run_keeps_what_was_chosen_whatever_the_memory_is_later(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = (*STEP, "train.tokens_per_step=256")
    fixed = ("train.tokens_per_batch=128", "train.gradient_checkpointing=true")
    plain = _tiny.pretrain(tiny, tmp_path / "plain", *step, *fixed)
    Machine(monkeypatch)
    with monkeypatch.context() as small:
        small.setattr(fit_memory, "choose", lambda *a, **b: fit_memory.Fitted(128, True, 5))
        with pytest.raises(NlpkitError):
            _tiny.pretrain(
                tiny, tmp_path / "run", *step, "train.memory=150MB", stop=_tiny.StopAfter(25)
            )
    assert json.loads((tmp_path / "run/run.json").read_text())["fitted"] == [128, True, 5]
    begun = _metrics(tmp_path / "run")
    assert 0 < len(begun) < 12
    # Other memory, or none that is named: the run goes on as it began, also in another directory.
    last = sorted((tmp_path / "run/checkpoints").glob("step-*"))[-1]
    _tiny.pretrain(tiny, tmp_path / "other", *step, resume=str(last))
    done = _tiny.pretrain(tiny, tmp_path / "run", *step, "train.memory=900MB")
    theirs = _metrics(tmp_path / "plain")
    assert _metrics(tmp_path / "run") == theirs
    assert _metrics(tmp_path / "other") == theirs[len(theirs) - len(_metrics(tmp_path / "other")) :]
    name = "model.safetensors"
    assert (done / name).read_bytes() == (plain / name).read_bytes()


def test_batch_of_the_recipe_wins_over_what_was_chosen_and_steps_are_multiples_of_it(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fit_memory, "choose", lambda *a, **b: fit_memory.Fitted(128, False, 5))
    step = (*STEP, "train.tokens_per_step=256", "train.warmup_steps=1")
    memory = (*step, "train.memory=150MB", "train.steps=1")
    start = str(_tiny.pretrain(tiny, tmp_path / "run", *memory))
    longer = (*memory, "train.steps=2", "train.tokens_per_step=192")
    with pytest.raises(UsageError, match="192 is not a multiple of the batch of 128 tokens that"):
        _tiny.pretrain(tiny, tmp_path / "other", *longer, resume=start)
    own = (*step, "train.tokens_per_batch=64", "train.steps=2")
    _tiny.pretrain(tiny, tmp_path / "own", *own, resume=start)
    assert json.loads((tmp_path / "own/run.json").read_text())["fitted"] is None
    plan = planning.make(recipe.load(str(tiny), [*own]), tmp_path / "run", "cpu", Log(QUIET))
    assert plan.settings.tokens_per_batch == 64


def test_a_run_whose_batch_is_chosen_begins_with_the_weights_of_init_from(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = (*STEP, "train.steps=1", "train.warmup_steps=1")
    base = _tiny.pretrain(tiny, tmp_path / "base", *one, "train.tokens_per_batch=128")
    begin = (*one, f"init_from={base}", "seed=2")
    given = _tiny.pretrain(tiny, tmp_path / "given", *begin, "train.tokens_per_batch=512")
    Machine(monkeypatch)
    chosen = _tiny.pretrain(tiny, tmp_path / "chosen", *begin, "train.memory=900MB")
    name = "model.safetensors"
    assert (chosen / name).read_bytes() == (given / name).read_bytes()


def test_what_was_chosen_for_a_start_that_ended_early_is_forgotten(
    tiny: Path, tmp_path: Path
) -> None:
    (tmp_path / "run.json").write_text('{"fitted": [128, true, 5]}')
    # The checkpoint would resume with these batches, and not with those of its first steps.
    saved = _tiny.pretrain(tiny, tmp_path, "train.steps=1", "train.warmup_steps=1")
    assert json.loads((tmp_path / "run.json").read_text())["fitted"] is None
    assert "fitted" not in json.loads((saved / "training.json").read_text())


def _metrics(run: Path) -> list[dict]:
    return [record for record in _tiny.metrics(run) if "loss" in record]


@pytest.mark.slow
def test_a_real_run_stays_near_what_was_estimated(tiny: Path, tmp_path: Path) -> None:
    # Whatever this process takes, and a little more: the smallest batches fit.
    here = machine.used_memory(planning.machine.find_device("cpu"))[0]
    limit = f"train.memory={here // MB + 400}MB"
    _tiny.pretrain(tiny, tmp_path / "run", *STEP, limit, "train.steps=4", "train.warmup_steps=1")
    batch, on, peak = json.loads((tmp_path / "run/run.json").read_text())["fitted"]
    assert 512 % batch == 0
    assert not on
    assert here * 0.5 < peak <= here + 401 * MB


def test_frozen_models_that_are_loaded_are_not_counted_twice(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = _plan(tiny)
    least = 100 * MB + plan.state_bytes
    Machine(monkeypatch)
    monkeypatch.setattr(memory, "limit", lambda device: 1)  # nothing is tried
    plan.part.frozen = [SimpleNamespace(parameters=MB)]
    assert trial.measure(plan, Precision("fp32", "given")).state == least
