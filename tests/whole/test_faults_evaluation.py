"""Signals and kills aimed into evaluations, in real processes: nothing lost, nothing doubled."""

import json
import signal
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from nlpkit.checkpoints import files, integrity
from nlpkit.train import held_out
from tests import _tiny
from tests._faults import Ended, Server

_SETS = (
    *("train.steps=8", "train.save_every=4", "train.eval_every=3", "train.keep=2"),
    *("train.warmup_steps=1", "train.tokens_per_step=256", "train.tokens_per_batch=128"),
)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, int]:
    """A recipe, the directory of its undisturbed run, and the batches of an evaluation."""
    folder = tmp_path_factory.mktemp("whole")
    path = _tiny.write(folder, documents=60)
    sizes = []
    real = held_out.held_out_batches

    def noted(*arguments: Any) -> Any:
        sizes.append(len(real(*arguments)[0]))
        return real(*arguments)

    with mock.patch.object(held_out, "held_out_batches", noted):
        _tiny.pretrain(path, folder / "run", *_SETS)
    assert sizes[0] > 3
    return path, folder / "run", sizes[0]


def _start(server: Server, path: Path, run: Path, *more: str, **faults: Any) -> Ended:
    words = [word for each in (*_SETS, *more) for word in ("--set", each)]
    if more:
        words.append("--allow-change")
    return server.run("pretrain", path, "--out", run, *words, **faults)


def _state(run: Path, name: str) -> dict[str, Any]:
    """Return where a pointer of the run leads, the state kept there, and its weights."""
    place = files.read_pointer(run, name)
    assert place is not None
    assert integrity.find_corruption(place) is None
    state = json.loads(files.training_file(place).read_text(encoding="utf-8"))
    weights = (place / "model.safetensors").read_bytes()
    return {"name": place.name, "state": state, "weights": weights}


def _check_same(run: Path, undisturbed: Path) -> None:
    assert _tiny.metrics(run) == _tiny.metrics(undisturbed)
    for name in ("latest", "best"):
        assert _state(run, name) == _state(undisturbed, name)


def _evaluated(run: Path) -> list[int]:
    return [record["step"] for record in _tiny.metrics(run) if "held_out" in record]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGHUP"])
def test_signal_inside_evaluations_loses_and_doubles_nothing(
    server, whole, tmp_path: Path, name: str
) -> None:
    path, undisturbed, batches = whole
    number = getattr(signal, name)
    # in the middle of the one at step 3; in the last batch of that at step 6, which is finished and
    # kept; in the final one
    for at, step, kept in ((2, 3, []), (2 * batches, 6, [3, 6]), (1, 8, [3, 6])):
        ended = _start(server, path, tmp_path, evaluation=(at, number))
        assert ended.code == 128 + number, ended.stderr
        assert ended.stderr.splitlines()[-1] == (
            f"nlpkit: stopped by {name}; saved at step {step}; the same command resumes the run"
        )
        assert integrity.find_corruption(files.checkpoint_path(tmp_path, step)) is None
        assert _evaluated(tmp_path) == kept
    assert _start(server, path, tmp_path).code == 0
    _check_same(tmp_path, undisturbed)


@pytest.mark.slow
def test_kill_inside_evaluations_loses_and_doubles_nothing(server, whole, tmp_path: Path) -> None:
    path, undisturbed, batches = whole
    # in the evaluation at step 3, before anything was saved; in that at step 6; in the final one
    for at, kept in ((2, []), (2 * batches, [3]), (batches + 1, [3, 6])):
        ended = _start(server, path, tmp_path, evaluation=(at, signal.SIGKILL))
        assert ended.code == -signal.SIGKILL, ended.stderr
        assert _evaluated(tmp_path) == kept
    assert _start(server, path, tmp_path).code == 0
    _check_same(tmp_path, undisturbed)


@pytest.mark.slow
def test_interrupted_final_evaluation_is_kept_when_the_run_is_made_longer(
    server, whole, tmp_path: Path
) -> None:
    path, _, batches = whole
    short, long = "train.steps=5", "train.steps=8"
    undisturbed, run = tmp_path / "undisturbed", tmp_path / "run"
    for steps in (short, long):
        assert _start(server, path, undisturbed, steps).code == 0
    assert _evaluated(undisturbed) == [3, 5, 6, 8]
    ended = _start(server, path, run, short, evaluation=(batches + 1, signal.SIGTERM))
    assert (ended.code, _evaluated(run)) == (143, [3]), ended.stderr
    # step 5 is saved without its evaluation, which comes now: its checkpoint must learn of it
    assert _start(server, path, run, short).code == 0
    assert _state(run, "latest")["state"]["state"]["evaluated_step"] == 5
    assert _start(server, path, run, long).code == 0
    _check_same(run, undisturbed)


@pytest.mark.slow
def test_interrupted_final_evaluation_is_not_due_once_the_run_is_longer(
    server, whole, tmp_path: Path
) -> None:
    path, undisturbed, batches = whole
    constant = ("train.schedule=constant",)  # else the rate depends on the number of steps
    straight, run = tmp_path / "straight", tmp_path / "run"
    assert _start(server, path, straight, *constant).code == 0
    at = (batches + 1, signal.SIGTERM)
    assert _start(server, path, run, *constant, "train.steps=5", evaluation=at).code == 143
    assert _start(server, path, run, *constant).code == 0
    # as if 8 steps had been asked for from the start: nothing is evaluated at step 5
    _check_same(run, straight)
    assert _tiny.metrics(straight) != _tiny.metrics(undisturbed)
