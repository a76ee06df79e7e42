"""`train.trackers`: what trackers get, what is refused, and that none makes a run fail."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, get_args

import pytest
from accelerate.tracking import LOGGER_TYPE_TO_CLASS, GeneralTracker
from safetensors.torch import load_file

from nlpkit import recipe
from nlpkit.errors import NlpkitError, RecipeError, Unsupported
from nlpkit.train.trackers import TrackedRun, Tracker, Trackers, check_installed, flatten
from tests import _tiny

_TENSORBOARD = "train.trackers=[tensorboard]"


def _events(run: Path) -> dict[str, list[tuple[int, float]]]:
    """Return what TensorBoard itself reads: the points of each curve."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(run / "tensorboard"), size_guidance={"scalars": 0}).Reload()
    return {
        name: [(point.step, point.value) for point in found.Scalars(name)]
        for name in found.Tags()["scalars"]
    }


def _expected(run: Path, *keys: str, held_out: bool = False) -> list[tuple[int, Any]]:
    """Return the points of metrics.jsonl at `keys`, rounded to float32 as events hold them."""
    points = []
    for record in _tiny.metrics(run):
        if ("held_out" in record) == held_out:
            value = record["held_out"] if held_out else record
            for key in keys:
                value = value[key]
            points.append((record["step"], pytest.approx(value, rel=1e-6)))
    return points


def test_tensorboard_reads_what_metrics_jsonl_has(tmp_path: Path) -> None:
    path = _tiny.write(tmp_path)
    _tiny.pretrain(path, tmp_path / "run", _TENSORBOARD)
    found = _events(tmp_path / "run")
    assert len(_expected(tmp_path / "run", "loss")) == 12
    assert found["train/loss"] == _expected(tmp_path / "run", "loss")
    for name in ("lr", "grad_norm", "tokens", "targets"):
        assert found[f"train/{name}"] == _expected(tmp_path / "run", name)
    for name in ("tokens_per_second", "seconds", "memory_bytes"):
        assert [step for step, _ in found[f"train/{name}"]] == [*range(1, 13)]
    for name in ("loss", "perplexity", "bits_per_character"):
        expected = _expected(tmp_path / "run", name, held_out=True)
        assert [step for step, _ in expected] == [5, 10, 12]
        assert found[f"held_out/{name}"] == expected
    part = next(name for name in found if name.startswith("held_out/losses/")).rpartition("/")[2]
    assert found[f"train/losses/{part}"] == _expected(tmp_path / "run", "losses", part)
    (settings,) = (tmp_path / "run/tensorboard").rglob("hparams.yml")
    told = settings.read_text("utf-8")
    assert "train.lr: 0.01\n" in told
    assert "model.hidden_size: 32\n" in told


@pytest.mark.slow
def test_run_with_trackers_is_bit_for_bit_the_run_without(tmp_path: Path) -> None:
    path = _tiny.write(tmp_path)
    ends = [
        _tiny.pretrain(path, tmp_path / name, *sets)
        for name, sets in (("plain", ()), ("tracked", (_TENSORBOARD,)))
    ]
    assert _tiny.metrics(tmp_path / "plain") == _tiny.metrics(tmp_path / "tracked")
    one, other = (load_file(end / "model.safetensors") for end in ends)
    assert all(one[name].equal(other[name]) for name in one.keys() | other.keys())


@pytest.mark.slow
def test_run_that_goes_on_appends_and_takes_back_what_was_not_saved(tmp_path: Path) -> None:
    path, run = _tiny.write(tmp_path), tmp_path / "run"
    sets = (_TENSORBOARD, "train.eval_every=5", "train.save_every=3", "train.keep=9")
    with pytest.raises(NlpkitError):
        _tiny.pretrain(path, run, *sets, stop=_tiny.StopAfter(25))
    # As killed: the last checkpoint is gone, events and metrics go beyond the one before.
    saved = sorted((run / "checkpoints").glob("step-*"))
    recorded = _tiny.metrics(run)[-1]["step"]
    (saved[-1] / "manifest.json").unlink()
    assert int(saved[-2].name[5:]) < recorded < 12
    identity = json.loads((run / "run.json").read_text())["tracked_as"]
    _tiny.pretrain(path, run, *sets)
    assert _events(run)["train/loss"] == _expected(run, "loss")
    assert _events(run)["held_out/loss"] == _expected(run, "loss", held_out=True)
    assert json.loads((run / "run.json").read_text())["tracked_as"] == identity
    assert len([*(run / "tensorboard").rglob("hparams.yml")]) == 1


def test_setting_of_trackers_may_change_between_two_starts(tmp_path: Path) -> None:
    path, run = _tiny.write(tmp_path), tmp_path / "run"
    with pytest.raises(NlpkitError):
        _tiny.pretrain(path, run, stop=_tiny.StopAfter(20))
    first = _tiny.metrics(run)[-1]["step"]
    _tiny.pretrain(path, run, _TENSORBOARD)
    steps = [step for step, _ in _events(run)["train/loss"]]
    assert steps == [*range(first + 1, 13)]
    assert first > 0


class _Fake(GeneralTracker):
    """A tracker in memory that raises at the call `fails` names."""

    name = "wandb"
    requires_logging_directory = False
    calls: list[str]
    fails = ""

    def __init__(self, run_name: str, **options: Any):
        super().__init__()
        self.run_name, self.options = run_name, options

    @property
    def tracker(self) -> None:
        return None

    def _call(self, name: str) -> None:
        type(self).calls.append(name)
        print("a word on stdout")
        if name == self.fails:
            raise ConnectionError("no route to host\nand many more lines")

    def start(self) -> None:
        self._call("start")

    def store_init_configuration(self, values: dict) -> None:
        self._call("settings")

    def log(self, values: dict, step: int | None = None, **options: Any) -> None:
        self._call(f"log {step}")

    def finish(self) -> None:
        self._call("finish")


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> type[_Fake]:
    """Take the place of wandb."""
    monkeypatch.setitem(LOGGER_TYPE_TO_CLASS, "wandb", _Fake)
    monkeypatch.setattr(_Fake, "calls", [], raising=False)
    monkeypatch.setattr(_Fake, "fails", "")
    return _Fake


@pytest.mark.fast_cases(2)
@pytest.mark.parametrize(
    ("fails", "calls"),
    [
        ("start", ["start"]),
        ("settings", ["start", "settings"]),
        ("log 2", ["start", "settings", "log 1", "log 2"]),
        ("finish", ["start", "settings", "log 1", "log 2", "log 3", "log 3", "finish"]),
    ],
)
def test_tracker_that_fails_is_one_warning_and_gets_no_more(
    tmp_path: Path, fake: type[_Fake], capsys: pytest.CaptureFixture[str], fails: str, calls: list
) -> None:
    fake.fails = fails
    path = _tiny.write(tmp_path)
    sets = ("train.trackers=[wandb, tensorboard]", "train.steps=3", "train.warmup_steps=1")
    last = _tiny.pretrain(path, tmp_path / "run", *sets)
    assert last.name == "step-00000003"
    assert fake.calls == calls
    told = capsys.readouterr()
    warnings = [line for line in told.err.splitlines() if "warning:" in line]
    assert [line.partition("warning: ")[2] for line in warnings] == [
        "train.trackers: wandb failed and is not used any more: no route to host"
    ]
    assert "a word" not in told.out  # stdout is the result of the verb
    assert len(_events(tmp_path / "run")["train/loss"]) == 3  # the other goes on


def test_wandb_is_told_to_go_on_with_its_run(tmp_path: Path, fake: type[_Fake]) -> None:
    warnings: list[str] = []
    run = TrackedRun("tiny", tmp_path / "out", "00ff", 7, {"train.lr": 0.5})
    trackers = Trackers(["wandb", "wandb"], run, warnings.append)
    (tracker,) = trackers._active.values()
    assert tracker.run_name == "tiny"
    assert tracker.options == {
        "dir": str(tmp_path / "out"), "name": "out", "id": "00ff", "resume": "allow",
    }  # fmt: skip
    assert not warnings


def test_flatten_gives_names_that_trackers_take() -> None:
    step = {"step": 3, "tokens": 9, "loss": 1.5, "losses": {"blank": 2.0, "rest": None}}
    assert flatten(step) == {"train/tokens": 9, "train/loss": 1.5, "train/losses/blank": 2.0}
    scores = {"f1:average=macro": 0.5, "mcc": None}
    held_out = {"loss": 1.25, "perplexity": None, "metrics": scores}
    assert flatten({"step": 3, "tokens": 9, "held_out": held_out}) == {
        "held_out/loss": 1.25, "held_out/metrics/f1_average_macro": 0.5,
    }  # fmt: skip


def test_trackers_are_those_of_accelerate() -> None:
    assert {*get_args(Tracker)} == {*LOGGER_TYPE_TO_CLASS}


def test_unknown_tracker_is_a_mistake_of_the_recipe_with_the_nearest_name(tmp_path: Path) -> None:
    path = _tiny.write(tmp_path)
    with pytest.raises(RecipeError, match=r"train\.trackers\.0: .*did you mean tensorboard\?$"):
        recipe.load(str(path), ["train.trackers=[tensorbord]"])
    assert recipe.load(str(path)).recipe.train.trackers == []


@pytest.mark.parametrize("dry", [(), pytest.param(("--dry-run",), marks=pytest.mark.slow)])
def test_tracker_that_is_not_installed_is_refused_before_torch_and_before_anything_is_written(
    tmp_path: Path, dry: tuple[str, ...]
) -> None:
    path = _tiny.write(tmp_path)
    code = (
        "import importlib.util as u, sys; sys.modules['torch'] = None; find = u.find_spec;"
        "u.find_spec = lambda name: None if name == 'wandb' else find(name);"
        "from nlpkit.cli import run; sys.exit(run(sys.argv[1:]))"
    )
    words = ("pretrain", str(path), "--out", "run", "--set", "train.trackers=[wandb]", *dry)
    result = subprocess.run(
        [sys.executable, "-c", code, *words],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert result.returncode == 2, result.stderr
    assert result.stderr == "nlpkit: train.trackers: wandb is not installed (pip install wandb)\n"
    assert not (tmp_path / "run").exists()


def test_installed_tracker_is_not_imported_to_be_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "tensorboard"]:
        monkeypatch.delitem(sys.modules, name)
    check_installed("train.trackers", ["tensorboard"])
    assert "tensorboard" not in sys.modules
    # A directory, such as wandb makes one called wandb, is no package.
    (tmp_path / "wandb_of_a_run").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("wandb_of_a_run", "no_such_package"):
        with pytest.raises(Unsupported, match=rf"^train\.trackers: {name} is not installed"):
            check_installed("train.trackers", [name])
