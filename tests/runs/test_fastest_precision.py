"""`precision: auto`: where products are faster in bf16, batches of the run decide."""

import json
import math
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from nlpkit import plan as planning
from nlpkit import recipe
from nlpkit.contracts.batch import Batch
from nlpkit.runs import build, fastest_precision
from nlpkit.runs import run as runs
from nlpkit.runs.fastest_precision import Precision
from nlpkit.runs.run import Training
from nlpkit.train import machine
from nlpkit.train.log import NORMAL, QUIET, Log
from tests import _tiny

AUTO = "train.precision=auto"
SHORT = ("train.steps=2", "train.warmup_steps=1", "train.eval_every=null")
OPEN = Precision("bf16", "of the test", is_open=True)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _tiny.write(tmp_path_factory.mktemp("tiny"))


def _finds(monkeypatch: pytest.MonkeyPatch, product: str, speed: float | None) -> None:
    """Let a product find this type, and a batch this speed; None: none is to be timed."""

    def timed(*_: object) -> float:
        assert speed is not None, "a batch was timed"
        return speed

    monkeypatch.setattr(machine, "choose_precision", lambda *_: (product, "of the test"))
    monkeypatch.setattr(fastest_precision, "_speed", timed)


@pytest.mark.fast_cases(1)
@pytest.mark.parametrize(("speed", "chosen"), [(1.6, "bf16"), (1.04, "fp32"), (0.7, "fp32")])
def test_batch_decides_and_the_run_keeps_what_it_found(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys, speed: float, chosen: str
) -> None:
    _finds(monkeypatch, "bf16", speed)
    types = _types(monkeypatch)
    _tiny.pretrain(tiny, tmp_path / "run", AUTO, *SHORT, verbosity=NORMAL)
    said = f"precision: {chosen} (a batch in bf16 is {speed:.2g} x as fast)\n"
    assert said in capsys.readouterr().err
    assert json.loads((tmp_path / "run/run.json").read_text())["precision"] == chosen
    assert types == {chosen}


@pytest.mark.parametrize("is_old", [False, True], ids=["recorded", "of an older version"])
def test_run_from_a_checkpoint_keeps_its_precision(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_old: bool
) -> None:
    _finds(monkeypatch, "bf16", 1.6)
    start = _tiny.pretrain(tiny, tmp_path / "run", AUTO, *SHORT)
    if is_old:
        state = json.loads((start / "training.json").read_text())
        assert state.pop("precision") == "bf16"
        _tiny.reseal(start, "training.json", json.dumps(state))
    else:  # alone, without its run
        start = shutil.copytree(start, tmp_path / "step-00000002")
    _finds(monkeypatch, "fp32", None)  # as on another machine
    types = _types(monkeypatch)
    out, sets = tmp_path / "on", (AUTO, *SHORT, "train.steps=3")
    _tiny.pretrain(tiny, out, *sets, resume=str(start))
    assert json.loads((out / "run.json").read_text())["precision"] == "bf16"
    assert types == {"bf16"}


@pytest.mark.parametrize(
    ("product", "sets"),
    [
        ("fp32", (AUTO,)),
        ("bf16", ("train.precision=bf16",)),
        pytest.param("bf16", (AUTO, "train.memory=20GB"), marks=pytest.mark.slow),
    ],
    ids=["slow products", "asked for", "a batch for this type"],
)
def test_no_batch_is_timed_where_nothing_is_open(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, product: str, sets: tuple[str, ...]
) -> None:
    if AUTO in sets:
        _finds(monkeypatch, product, None)
    else:
        monkeypatch.setattr(fastest_precision, "_speed", lambda *_: pytest.fail("timed"))
    if "train.memory=20GB" in sets:
        sets = (*sets, "train.tokens_per_batch=null")
    _tiny.pretrain(tiny, tmp_path / "run", *sets, *SHORT)
    assert json.loads((tmp_path / "run/run.json").read_text())["precision"] == product


def _types(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Return the set that every forward pass will add its type to."""
    found: set[str] = set()
    real = runs.forward

    def forward(*arguments: Any) -> Any:
        found.add("bf16" if torch.is_autocast_enabled("cpu") else "fp32")
        return real(*arguments)

    monkeypatch.setattr(runs, "forward", forward)
    return found


@pytest.fixture
def ready(tiny: Path, tmp_path: Path) -> Iterator[tuple[Training, Any]]:
    """A module that is ready to train, and the stream of its batches."""
    resolved = recipe.load(str(tiny), [f"out={tmp_path}/run"])
    plan = planning.make(resolved, tmp_path / "run", "cpu", Log(QUIET))
    torch.manual_seed(0)
    model = build.build_model(plan.part, plan.data.vocab_size, "auto")
    threads = torch.get_num_threads()
    yield Training(model, plan.data.objective), plan.stream
    torch.set_num_threads(threads)


def test_both_types_are_timed_and_nothing_is_left_behind(
    ready: tuple[Training, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    training, stream = ready
    torch.set_num_threads(2)
    types, state = _types(monkeypatch), torch.get_rng_state()
    found = fastest_precision.time_batches(OPEN, training, stream)
    assert found.name in types == {"fp32", "bf16"}
    assert not found.is_open
    assert training.precision == "fp32"
    assert torch.get_num_threads() == 2
    assert torch.equal(torch.get_rng_state(), state)
    assert all(parameter.grad is None for parameter in training.parameters())


@pytest.mark.parametrize(
    ("taken", "speed"),
    [((3, 2), 1.5), ((5, 5, 6, 3), 2.0), ((3, 4, 3, 3, 5, 6), 5 / 6)],
    ids=["faster with few tokens", "faster with more", "not faster"],
)
def test_first_part_of_each_type_does_not_count_and_more_tokens_follow_if_bf16_is_not_faster(
    ready: tuple[Training, Any],
    monkeypatch: pytest.MonkeyPatch,
    taken: tuple[float, ...],
    speed: float,
) -> None:
    passes = iter([time for each in taken for time in (9, each / 4, each * 3 / 4)])
    now, tokens = 0.0, []

    def clock() -> float:
        return now

    def compute(training: Training, batch: Batch) -> None:
        nonlocal now
        now += next(passes)
        tokens.append(batch.tokens)

    monkeypatch.setattr(fastest_precision.time, "thread_time", clock)
    monkeypatch.setattr(fastest_precision, "compute_gradients", compute)
    assert fastest_precision._speed(*ready) == speed
    assert next(passes, None) is None
    rounds = [tokens[start : start + 6] for start in range(0, len(tokens), 6)]
    assert all(each[:3] == each[3:] for each in rounds)  # both types read the same
    assert sorted(rounds) == rounds


@pytest.mark.slow
def test_timing_changes_no_bit_of_the_run(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _tiny.pretrain(tiny, tmp_path / "given", *SHORT)
    monkeypatch.setattr(machine, "choose_precision", lambda *_: ("bf16", "of the test"))
    monkeypatch.setattr(fastest_precision, "_GAIN", math.inf)  # fp32, whatever is found
    _tiny.pretrain(tiny, tmp_path / "timed", AUTO, *SHORT)
    assert _tiny.metrics(tmp_path / "timed") == _tiny.metrics(tmp_path / "given")


@pytest.mark.slow
def test_plan_says_what_the_run_would_choose(
    tiny: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    from nlpkit import cli

    _finds(monkeypatch, "bf16", 0.8)
    assert cli.run(["plan", str(tiny), "--set", AUTO, "--json", "--device", "cpu", "-q"]) == 0
    estimate = json.loads(capsys.readouterr().out)["estimate"]
    assert estimate["precision"] == "fp32 (a batch in bf16 is 0.8 x as fast)"
