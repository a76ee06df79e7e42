"""Which evaluation is the best: the run, its report and the summary of seeds say the same."""

import json
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from safetensors.torch import load_file

from nlpkit import recipe
from nlpkit.checkpoints import files
from nlpkit.errors import NlpkitError
from nlpkit.report import history, page
from nlpkit.train import loop
from nlpkit.train.held_out import Overfitting
from nlpkit.train.log import QUIET, Log, Metrics
from nlpkit.train.state import Pace, State, best_step
from tests import _tiny, _tiny_tasks

_NAN = float("nan")


@pytest.mark.parametrize(
    ("losses", "accuracies", "by_loss", "by_accuracy"),
    [
        ([3.0, 2.0, 2.5], [0.5, 0.6, 0.7], 20, 30),
        ([2.0, 2.0, 2.0], [0.5, 0.5, 0.5], 10, 10),  # the first of equal ones
        ([_NAN, 2.0, _NAN], [None, -0.5, -0.75], 20, 20),  # a correlation may be negative
        ([_NAN, _NAN, _NAN], [None, None, None], None, None),
        ([3.0, 4.0, 5.0], [0.0, None, 0.0], 10, 10),
    ],
)
def test_best_step_by_hand(
    losses: list[float], accuracies: list[Any], by_loss: int | None, by_accuracy: int | None
) -> None:
    evaluations = {
        step: {"loss": loss, "metrics": {"accuracy": accuracy}}
        for step, loss, accuracy in zip((10, 20, 30), losses, accuracies, strict=True)
    }
    assert best_step(evaluations, "loss") == by_loss
    assert best_step(evaluations, "accuracy") == by_accuracy


def test_score_that_no_evaluation_has_is_undefined() -> None:
    assert best_step({1: {"loss": 1.0}, 2: {"loss": 2.0}}, "mcc") is None


def _run(path: Path, best_by: str, draw: random.Random) -> State:
    """Write a run of 30 evaluations, noted as the loop does; return its last state."""
    path.mkdir()
    (path / "recipe.yaml").write_text(f"name: x\ntrain: {{steps: 30, best_by: {best_by}}}\n")
    settings = SimpleNamespace(best_by=best_by, patience=None, steps=30, budget_seconds=None)
    job: Any = SimpleNamespace(
        settings=settings,
        log=Log(QUIET),
        metrics=Metrics(path / "metrics.jsonl", 0, 0),
        overfitting=Overfitting(),
        pace=Pace(settings),  # type: ignore[arg-type]
    )
    state = State()
    for step in range(1, 31):
        state.step = step
        scores = {"accuracy": draw.choice([None, draw.randint(-8, 8) / 8])}
        figures = {"loss": draw.randint(8, 24) / 8, "losses": {}, "perplexity": None,
                   "bits_per_character": None, "metrics": scores}  # fmt: skip
        loop._note_evaluation(job, state, figures)
    job.metrics.close()
    return state


@pytest.mark.parametrize("best_by", ["loss", "accuracy"])
def test_run_report_and_seeds_choose_the_same_evaluation(tmp_path: Path, best_by: str) -> None:
    draw = random.Random(0)
    other = 0
    for number in range(10):
        path = tmp_path / str(number)
        state = _run(path, best_by, draw)
        found = history.read(path, "x")
        assert found.best == (state.best_step, state.best_value)
        chosen = {"loss": found.chosen["loss"]} | found.chosen["metrics"]
        assert chosen[best_by] == state.best_value
        shown = page._write_evaluations([found])
        assert shown.count("(best)") == 1
        assert f">{state.best_step} (best)<" in shown
        fact = page._collect_facts(found)[f"best held-out {best_by}"]
        unit = " nats/target" if best_by == "loss" else ""
        assert fact == f"{state.best_value:.4f}{unit} at step {state.best_step}"
        other += best_step(found.evaluations, "loss") != state.best_step
    assert (other > 0) == (best_by != "loss")  # the two figures do not agree by chance


def _as_before(checkpoint: Path, best_by: str) -> float:
    """Write the state of a checkpoint as nlpkit did before it had `best_value`; return that."""
    name = files.training_file(checkpoint).name
    now = json.loads((checkpoint / name).read_text("utf-8"))["state"]
    data = json.loads((checkpoint / name).read_text("utf-8"))["data"]
    sign = 1 if best_by == "loss" else -1
    _tiny.reseal(checkpoint, name, f"""{{
 "state": {{
  "step": {now["step"]},
  "tokens": {now["tokens"]},
  "position": {now["position"]},
  "best_loss": {sign * now["best_value"]!r},
  "best_step": {now["best_step"]},
  "evaluations_without_gain": {now["evaluations_without_gain"]},
  "evaluated_step": {now["evaluated_step"]}
 }},
 "data": "{data}",
 "nlpkit": "0.1.0"
}}
""")  # fmt: skip
    return now["best_value"]


@pytest.mark.slow
@pytest.mark.parametrize("best_by", ["loss", "accuracy"])
def test_checkpoint_of_an_older_nlpkit_goes_on_exactly(tmp_path: Path, best_by: str) -> None:
    start = _tiny.pretrain(_tiny.write(tmp_path / "base"), tmp_path / "base/run")
    for split, count in (("train", 60), ("valid", 20)):
        rows = _tiny_tasks.rows_of("nlu", count, len(split))
        _tiny_tasks.write_rows(tmp_path / f"nlu.{split}.jsonl", rows)
    text = _tiny_tasks.NLU.replace("FOLDER", str(tmp_path)).replace("NAME", "nlu")
    path = tmp_path / "nlu.yaml"
    path.write_text(text.replace("START", str(start)), encoding="utf-8")
    sets = (f"train.best_by={best_by}", "train.eval_every=2", "train.patience=3",
            "train.steps=30", "train.save_every=5")  # fmt: skip
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    last = _tiny.pretrain(path, whole, *sets)
    with pytest.raises(NlpkitError):
        _tiny.pretrain(path, cut, *sets, stop=_tiny.StopAfter(25))
    checkpoint = files.read_pointer(cut, "latest")
    assert checkpoint is not None
    value = _as_before(checkpoint, best_by)
    state = json.loads(files.training_file(checkpoint).read_text("utf-8"))["state"]
    assert State.from_json(state, best_by).best_value == value > 0
    found = _tiny.pretrain(path, cut, *sets)
    assert found.name == last.name
    assert _tiny.metrics(cut) == _tiny.metrics(whole)
    assert (cut / "checkpoints/best").resolve().name == (whole / "checkpoints/best").resolve().name
    for name in ("model.safetensors", files.OPTIMIZER_STATE):
        ours, theirs = load_file(found / name), load_file(last / name)
        assert all(ours[key].equal(theirs[key]) for key in ours.keys() | theirs.keys())
    new = json.loads(files.training_file(found).read_text("utf-8"))
    assert new["best_by"] == best_by
    assert "best_loss" not in new["state"]
    assert history.read(cut, "cut").best == (new["state"]["best_step"], new["state"]["best_value"])


@pytest.mark.slow
def test_best_by_takes_a_score_with_its_options(tmp_path: Path) -> None:
    base = _tiny_tasks.start(tmp_path, "gpt")
    path = _tiny_tasks.task(tmp_path, "classes", _tiny_tasks.CLASSES, base)
    score = "f1:average=macro"
    _tiny.pretrain(path, tmp_path / "run", f"eval.metrics=['{score}']", f"train.best_by='{score}'",
                   "train.eval_every=2")  # fmt: skip
    found = [r for r in _tiny.metrics(tmp_path / "run") if "held_out" in r]
    scores = {record["step"]: record["held_out"]["metrics"][score] for record in found}
    best = max(scores, key=lambda step: (scores[step], -step))
    assert (tmp_path / "run/checkpoints/best").resolve().name == f"step-{best:08d}"


@pytest.mark.slow
def test_best_figure_is_forgotten_where_another_one_decides(tmp_path: Path) -> None:
    path = _tiny.write(tmp_path)
    checkpoint = _tiny.pretrain(path, tmp_path / "run", "train.steps=5")
    name = files.training_file(checkpoint).name
    text = (checkpoint / name).read_text("utf-8").replace('"best_by": "loss"', '"best_by": "mcc"')
    _tiny.reseal(checkpoint, name, text)
    # No loss is below 0, and the mcc of 0 is no loss that could be beaten.
    text = json.dumps(json.loads(text) | {"state": json.loads(text)["state"] | {"best_value": 0}})
    _tiny.reseal(checkpoint, name, text)
    last = _tiny.pretrain(path, tmp_path / "run", "train.steps=10", allow_change=True)
    state = json.loads(files.training_file(last).read_text("utf-8"))["state"]
    assert state["best_step"] == 10
    assert recipe.load(str(tmp_path / "run/recipe.yaml")).recipe.train.best_by == "loss"
