"""Lists in `train`: equal to runs whose setting is changed by hand, exact on resume, mistakes."""

from pathlib import Path

import pytest
import yaml

from nlpkit import plan as planning
from nlpkit import recipe
from nlpkit.errors import NlpkitError, UsageError
from nlpkit.plan import probe
from nlpkit.train import phases
from nlpkit.train.log import NORMAL, QUIET, Log
from nlpkit.train.schedule import batches_per_step, resolve_steps
from nlpkit.train.settings import Config
from tests import _processes, _schema, _tiny
from tests._timed import FakeTime, Killed, drive

RECIPE = """\
name: tiny
model: {family: gpt2, hidden_size: 16, num_layers: 1, num_heads: 2, max_positions: 64}
tokenizer: {kind: bpe, vocab_size: 300, min_frequency: 1}
data: {train: [TRAIN], valid: [VALID]}
objective: {name: clm, max_length: 32}
train: {steps: 8, lr: 1.0e-2, schedule: linear, precision: fp32, eval_every: 4, save_every: 8,
  tokens_per_step: SIZE, tokens_per_batch: 128, weight_decay: DECAY}
"""
SIZES = "[{until: 0.5, value: 128}, {value: 384}]"
LENGTHS = "[{until: 0.5, value: 16}, {value: 32}]"
DECAYS = "[{until: 0.5, value: 0.1}, {value: 5}]"


def _write(folder: Path, size: str, decay: str) -> Path:
    return _tiny.write(folder, text=RECIPE.replace("SIZE", size).replace("DECAY", decay))


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _write(tmp_path_factory.mktemp("phases"), SIZES, DECAYS)


@pytest.fixture(scope="module")
def whole(path: Path) -> Path:
    _tiny.pretrain(path, path.parent / "whole")
    return path.parent / "whole"


def _weights(out: Path) -> bytes:
    return (out / "checkpoints/latest/model.safetensors").read_bytes()


def _metrics(out: Path) -> list[dict]:
    """Return the records without the values of settings, which a run without lists has not."""
    return [{k: v for k, v in each.items() if k != "settings"} for each in _tiny.metrics(out)]


def _section(**settings: object) -> Config:
    return Config.model_validate({"steps": 10, "schedule": "linear"} | settings)


def test_value_changes_with_the_step_that_begins_at_the_border() -> None:
    sizes = [{"until": 0.3, "value": 256}, {"until": 0.7, "value": 512}, {"value": 1024}]
    settings = _section(tokens_per_step=sizes)
    assert (settings.tokens_per_step, settings.batch_budget) == (1024, 256)
    size = batches_per_step(resolve_steps(settings, None))
    assert not isinstance(size, int)
    assert [size(step) for step in range(1, 11)] == [1] * 3 + [2] * 4 + [4] * 3
    assert phases.mean_batches(settings) * 10 == 3 + 8 + 12
    assert settings.model_dump()["tokens_per_step"] == sizes
    again = Config.model_validate(settings.model_dump())
    assert (again.phases, again.batch_budget) == (settings.phases, 256)


@pytest.mark.slow
def test_run_equals_one_whose_settings_are_changed_by_hand(path, whole, tmp_path) -> None:
    plain = _write(tmp_path, "128", "0.1")
    out = tmp_path / "by_hand"
    with pytest.raises(NlpkitError, match="saved at step 4"):
        _tiny.pretrain(plain, out, stop=_tiny.StopAtStep(out, 4))
    sets = ("train.tokens_per_step=384", "train.weight_decay=5.0")
    _tiny.pretrain(plain, out, *sets, allow_change=True)
    assert _metrics(out) == _metrics(whole)
    assert _weights(out) == _weights(whole)
    other = _tiny.pretrain(path, tmp_path / "other", "train.weight_decay=0.1")
    assert other.joinpath("model.safetensors").read_bytes() != _weights(whole)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_run_stopped_in_each_phase_and_at_the_border_is_the_same(
    path, whole, tmp_path, workers
) -> None:
    out, sets = tmp_path / "broken", (f"train.workers={workers}",)
    for step in (2, 4, 5, 7):
        with pytest.raises(NlpkitError, match=f"saved at step {step}"):
            _tiny.pretrain(path, out, *sets, stop=_tiny.StopAtStep(out, step))
    _tiny.pretrain(path, out, *sets)
    assert _tiny.metrics(out) == _tiny.metrics(whole)
    assert _weights(out) == _weights(whole)


def test_change_is_a_line_on_stderr_and_in_the_record_of_its_step(path, tmp_path, capsys) -> None:
    _tiny.pretrain(path, tmp_path / "run", verbosity=NORMAL)
    said = capsys.readouterr().err
    assert "step 5: train.tokens_per_step is 384 (before: 128)" in said
    assert "step 5: train.weight_decay is 5 (before: 0.1)" in said
    records = [each["settings"] for each in _tiny.metrics(tmp_path / "run") if "loss" in each]
    names = ("train.tokens_per_step", "train.weight_decay")
    values = [(128, 0.1)] * 4 + [(384, 5)] * 4
    assert records == [dict(zip(names, each, strict=True)) for each in values]


@pytest.mark.slow
def test_killed_run_with_a_budget_takes_its_phases_again(path, tmp_path, monkeypatch) -> None:
    time = FakeTime()
    drive(monkeypatch, time, 3.0, 4.0, 1.0)
    sets = ("train.steps=null", "train.budget=60s", "train.save_every=3")
    sets, out = (*sets, f"objective.max_length={LENGTHS}"), tmp_path / "killed"
    lost = []
    for death in (22.0, 20.0):
        time.deaths = [time.now + death]
        with pytest.raises(Killed):
            _tiny.pretrain(path, out, *sets)
        lost.append([each for each in _tiny.metrics(out) if "loss" in each])
        time.now += 5000
    _tiny.pretrain(path, out, *sets)
    final = [each for each in _tiny.metrics(out) if "loss" in each]
    for records in lost:
        assert final[: len(records)] == records
    before, tokens, sizes = 0.0, 0, set()
    for each in final:
        size = each["tokens"] - tokens
        assert (size > 130) == (before >= 0.5), each
        assert each["settings"]["objective.max_length"] == (32 if before >= 0.5 else 16)
        sizes.add(size > 130)
        before, tokens = each["progress"], each["tokens"]
    assert sizes == {False, True}


@pytest.mark.slow
def test_plan_counts_the_steps_and_tokens_of_all_phases(path) -> None:
    sets = ["train.steps=null", "train.epochs=2", f"objective.max_length={LENGTHS}"]
    resolved = recipe.load(str(path), sets)
    plan = planning.make(resolved, path.parent / "none", "cpu", Log(QUIET), measure=False)
    described = planning.describe(plan)
    packing = described["packing"]
    assert packing["batches_per_step"] == 2  # 1 and 3, half of the steps each
    assert packing["epochs"] == pytest.approx(2, abs=0.05)
    first, second = packing["phases"]
    assert (first["until"], first["objective.max_length"]) == (0.5, 16)
    assert first["steps"] + second["steps"] == packing["steps"]
    assert second["tokens"] == pytest.approx(3 * first["tokens"], rel=0.05)
    assert max(plan.first.lengths) == 16
    estimate = probe.probe(plan)
    assert [each["steps"] for each in estimate["phases"]] == [packing["steps"] / 2] * 2
    seconds = sum(each["training_seconds"] for each in estimate["phases"])
    assert seconds == pytest.approx(estimate["training_seconds"])
    tokens = sum(each["tokens"] for each in estimate["phases"])
    assert tokens == pytest.approx(estimate["tokens"], abs=2)


@pytest.mark.parametrize("steps", [8, 7])
def test_plan_has_the_steps_of_phases_that_the_run_takes(path, steps) -> None:
    sets = [f"train.steps={steps}", f"objective.max_length={LENGTHS}"]
    resolved = recipe.load(str(path), sets)
    plan = planning.make(resolved, path.parent / "none", "cpu", Log(QUIET), measure=False)
    planned = [each["steps"] for each in planning.describe(plan)["packing"]["phases"]]
    lengths = yaml.safe_load(LENGTHS)
    taken = [phases.value_at(lengths, step / steps) for step in range(steps)]
    assert planned == [taken.count(16), taken.count(32)]


@pytest.mark.slow
def test_two_processes_take_the_steps_of_one(path, tmp_path) -> None:
    out, one = tmp_path / "two", tmp_path / "one"
    off = [f"model.{name}_dropout=0.0" for name in ("embedding", "attention", "residual")]
    off.append(f"objective.max_length={LENGTHS}")
    sets = [word for each in off for word in ("--set", each)]
    done = _processes.launched(2, "pretrain", path, "--out", out, "--device", "cpu", *sets)
    assert done.returncode == 0, done.stderr
    _tiny.pretrain(path, one, *off)
    found, expected = (
        [(e["tokens"], e["loss"]) for e in _tiny.metrics(each) if "loss" in e]
        for each in (out, one)
    )
    assert [tokens for tokens, _ in found] == [tokens for tokens, _ in expected]
    assert [loss for _, loss in found] == pytest.approx([loss for _, loss in expected], rel=1e-4)


@pytest.mark.parametrize(
    ("decay", "message"),
    [
        ("[{until: 0.5, value: 1}, {until: 0.4, value: 2}, {value: 1}]",
         "7:95: train.weight_decay.1.until: must be more than that of the entry before, 0.5"),
        ("[{value: 1}, {value: 2}]", "train.weight_decay.0: only the last entry has no `until`"),
        ("[{until: 0.5, value: 1}, {until: 0.7, value: 2}]",
         "train.weight_decay.1.until: the last entry holds to the end of the run"),
        ("[{until: 1.5, value: 1}, {value: 2}]", "0.until: must be at most 1, got 1.5"),
        ("[{util: 0.5, value: 1}, {value: 2}]",
         "train.weight_decay.0.util: unknown setting, did you mean until?"),
        ("[{until: 0.5, vale: 1}, {value: 2}]",
         "train.weight_decay.0.vale: unknown setting, did you mean value?"),
        ("[{xyz: 0.5, value: 1}, {value: 2}]",
         "train.weight_decay.0.xyz: unknown setting; known: until, value"),
        ("[{until: 0.5, value: x}, {value: 2}]",
         'train.weight_decay.0.value: expected a number, got the text "x"'),
        ("[{until: 0.5, value: 1}, {until: 1}]", "train.weight_decay.1.value: missing"),
        ("[]", "train.weight_decay: must have at least 1 entry"),
    ],
)  # fmt: skip
def test_mistakes_are_named_with_their_line(tmp_path, decay, message) -> None:
    with pytest.raises(UsageError) as raised:
        recipe.load(str(_write(tmp_path, "128", decay)))
    assert message in str(raised.value)


@pytest.mark.parametrize(
    ("decay", "right"),
    [(DECAYS, True), ("0.1", True), ("[{util: 0.5, value: 1}, {value: 2}]", False), ("[]", False),
     ("[{until: 0.5, value: -1}, {value: 2}]", False), ("[{until: 2, value: 1}]", False),
     ("text", False)],
)  # fmt: skip
def test_schema_for_editors_has_the_lists(tmp_path, decay, right) -> None:
    content = yaml.safe_load(_write(tmp_path, SIZES, decay).read_text(encoding="utf-8"))
    content["train"]["lr"] = 0.01
    content["objective"]["max_length"] = yaml.safe_load(LENGTHS)
    assert _schema.validator().is_valid(content) is right


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"tokens_per_batch": 256}, "tokens_per_step: 384 is not a multiple of"),
        ({"memory": "1GB"}, "tokens_per_step: a list does not go with train.memory"),
        (
            {"schedule": {"name": "tests.parts.ramp", "grow_every": 4}},
            "decides the batches of each step",
        ),
    ],
)
def test_what_a_list_does_not_go_with_is_refused(given, message) -> None:
    sizes = [{"until": 0.5, "value": 384}, {"value": 512}]
    with pytest.raises(ValueError, match=message):
        _section(tokens_per_step=sizes, **given)


def _write_lengths(folder: Path, lengths: str) -> Path:
    text = RECIPE.replace("SIZE", "128").replace("DECAY", "0.1")
    return _tiny.write(folder, text=text.replace("max_length: 32", f"max_length: {lengths}"))


# Examples that change in the course of the run, of one document each.
HYBRID = "model: {family: gpt2,", "attention: {kind: hybrid}\nmodel: {family: gpt2,"


@pytest.mark.parametrize(
    ("hybrid", "workers"),
    [(True, 0), *(pytest.param(*each, marks=pytest.mark.slow) for each in ((False, 0), (True, 1)))],
)
def test_run_with_lengths_equals_one_changed_by_hand_and_one_that_is_stopped(
    tmp_path, hybrid, workers
) -> None:
    path, plain = (_write_lengths(tmp_path / n, v) for n, v in (("a", LENGTHS), ("b", "16")))
    for each in (path, plain) if hybrid else ():
        text = each.read_text(encoding="utf-8").replace(*HYBRID)
        each.write_text(text.replace("name: clm", "name: hybrid, contiguous: false"), "utf-8")
    whole, out, broken = (tmp_path / name for name in ("whole", "by_hand", "broken"))
    sets = (f"train.workers={workers}",)
    _tiny.pretrain(path, whole, *sets)
    with pytest.raises(NlpkitError, match="saved at step 4"):
        _tiny.pretrain(plain, out, *sets, stop=_tiny.StopAtStep(out, 4))
    _tiny.pretrain(plain, out, *sets, "objective.max_length=32", allow_change=True)
    for step in (2, 4, 5, 7):
        with pytest.raises(NlpkitError, match=f"saved at step {step}"):
            _tiny.pretrain(path, broken, *sets, stop=_tiny.StopAtStep(broken, step))
    _tiny.pretrain(path, broken, *sets)
    assert _weights(out) == _weights(whole) == _weights(broken)
    assert _tiny.metrics(broken) == _tiny.metrics(whole)
    # What was held out at step 4 was cut by the length of that run.
    trained = [[each for each in _metrics(run) if "loss" in each] for run in (whole, out)]
    assert trained[0] == trained[1]


@pytest.mark.parametrize(
    ("lengths", "message"),
    [
        ("[{until: 0.5, value: 16}, {until: 0.4, value: 8}, {value: 32}]",
         "5:70: objective.max_length.1.until: must be more than that of the entry before, 0.5"),
        ("[{util: 0.5, value: 16}, {value: 32}]", "objective.max_length.0.util: unknown setting"),
        ("[{until: 0.5, value: x}, {value: 32}]", "objective.max_length.0.value: expected an int"),
        ("[{until: 0.5, value: 0}, {value: 32}]", "max_length.0.value: must be at least 1, got 0"),
        ("[]", "objective.max_length: must have at least 1 entry"),
        ("[{value: 3}], lengths: [{value: 3}]", "objective.lengths: unknown setting"),
        ("32, lengths: [{value: 3}]", "objective.lengths: unknown setting"),
        ("32}\ntrain: {steps: 1, phases: {}", "train.phases: unknown setting"),
    ],
)  # fmt: skip
def test_mistakes_in_lengths_are_named_with_their_line(tmp_path, lengths, message) -> None:
    with pytest.raises(UsageError) as raised:
        recipe.load(str(_write_lengths(tmp_path, lengths)))
    assert message in str(raised.value)


@pytest.mark.parametrize(
    ("sets", "message"),
    [
        (["train.tokens_per_step=null", "train.rows_per_step=2", "train.weight_decay=0.1"],
         "5:36: objective.max_length: a list does not go with train.rows_per_step"),
        (["objective={name: classification, max_length: [{value: 8}], text: text}"],
         "a list does not go with objective classification, whose rows are not cut"),
    ],
)  # fmt: skip
def test_what_lengths_do_not_go_with_is_refused_before_torch(tmp_path, sets, message) -> None:
    with pytest.raises(UsageError) as raised:
        recipe.load(str(_write_lengths(tmp_path, LENGTHS)), sets)
    assert message in str(raised.value)
