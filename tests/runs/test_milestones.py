"""`train.words` and `train.save_at`: steps by hand, folders, stops, kills, mistakes."""

import random
from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from nlpkit import cli, recipe
from nlpkit import plan as planning
from nlpkit.errors import NlpkitError, UsageError
from nlpkit.json_types import JsonObject
from nlpkit.runs import milestones, save
from nlpkit.train.log import NORMAL, QUIET, Log
from tests import _processes, _tiny

RECIPE = """\
name: tiny
model: {family: gpt2, hidden_size: 16, num_layers: 1, num_heads: 2, max_positions: 64}
tokenizer: {kind: bpe, vocab_size: 300, min_frequency: 1}
data: {train: [TRAIN]}
objective: {name: clm, max_length: 32}
train: {words: 0.4k, save_at: [50, 200, 210, 400], lr: 1.0e-2, schedule: linear, precision: fp32,
  save_every: 1, keep: 99, tokens_per_step: 64, tokens_per_batch: 64}
"""
NAMES = ["chck_50", "chck_200", "chck_210", "chck_400"]


def _write(folder: Path) -> Path:
    path = _tiny.write(folder, text=RECIPE)
    draw = random.Random(0)
    lines = [" ".join(draw.choices(("sun", "moon", "and", "stars"), k=draw.randint(3, 30)))
             for _ in range(12)]  # fmt: skip
    (folder / "train.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _write(tmp_path_factory.mktemp("words"))


@pytest.fixture(scope="module")
def whole(path: Path) -> Path:
    _tiny.pretrain(path, path.parent / "whole")
    return path.parent / "whole"


def _steps(run: Path) -> list[JsonObject]:
    return [each for each in _tiny.metrics(run) if "loss" in each]


def _folders(run: Path) -> dict[str, bytes]:
    """Return the weights of the folders of a run, by name."""
    return {each.name: (each / "model.safetensors").read_bytes() for each in run.glob("*chck_*")}


def _plan(path: Path, *sets: str) -> JsonObject:
    plan = planning.make(recipe.load(str(path), sets), path.parent / "none", "cpu", Log(QUIET))
    return planning.describe(plan)["packing"]


def test_run_ends_with_the_step_that_reads_the_last_word(path, whole) -> None:
    seen = [each["words"] for each in _steps(whole)]
    assert seen == sorted(seen)
    assert seen[-2] < 400 <= seen[-1]
    packing = _plan(path)
    text = (path.parent / "train.txt").read_text("utf-8")
    assert packing["words_per_epoch"] == len(text.split())
    assert (packing["steps"], packing["words"]) == (len(seen), seen[-1])
    assert packing["save_at"] == {
        name: 1 + next(i for i, n in enumerate(seen) if n >= int(name[5:])) for name in NAMES
    }
    written = sum(map(len, _folders(whole).values()))  # with the names of the tensors
    assert 0.95 * written < packing["save_at_bytes"] < written


def test_folders_hold_the_model_of_their_step_and_open_in_transformers(path, whole) -> None:
    found = _folders(whole)
    assert sorted(found) == sorted(NAMES)
    for name, step in _plan(path)["save_at"].items():
        saved = whole / f"checkpoints/step-{step:08d}/model.safetensors"
        assert found[name] == saved.read_bytes()
        AutoModelForCausalLM.from_pretrained(whole / name)
        AutoTokenizer.from_pretrained(whole / name)
    assert found["chck_50"] != found["chck_200"]


def test_stopped_run_has_the_same_folders_and_counts(path, whole, tmp_path) -> None:
    out = tmp_path / "broken"
    for step in (1, 3, 4):
        with pytest.raises(NlpkitError, match=f"saved at step {step}"):
            _tiny.pretrain(path, out, stop=_tiny.StopAtStep(out, step))
    _tiny.pretrain(path, out)
    assert _folders(out) == _folders(whole)
    assert _steps(out) == _steps(whole)


@pytest.mark.fast_cases(1)
@pytest.mark.parametrize("where", ["write_model", "rename"])
def test_run_killed_while_a_folder_is_written_writes_it_again(
    path, whole, tmp_path, monkeypatch, where
) -> None:
    out, sets = tmp_path / "killed", ("train.save_every=99",)
    real = save.write_model

    def die(run, directory, *rest):
        real(run, directory, *rest)
        if directory.name == ".chck_200":
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        if where == "rename":  # after it, before the checkpoint of the step
            patched.setattr(milestones, "number_of", lambda *_: 1 / 0)
        else:
            patched.setattr(save, "write_model", die)
        with pytest.raises((KeyboardInterrupt, ZeroDivisionError)):
            _tiny.pretrain(path, out, *sets)
    _tiny.pretrain(path, out, *sets)
    assert _folders(out) == _folders(whole)


def test_folders_may_be_asked_for_later(path, whole, tmp_path, capsys) -> None:
    out, plain = tmp_path / "later", ("train.words=null", "train.save_at=[]")
    steps = f"train.steps={len(_steps(whole))}"
    with pytest.raises(NlpkitError, match="saved at step 2"):
        _tiny.pretrain(path, out, *plain, steps, stop=_tiny.StopAtStep(out, 2))
    assert "words" not in _steps(out)[-1]
    _tiny.pretrain(path, out, "train.words=null", steps, verbosity=NORMAL)
    assert "chck_50: the run has read more words already" in capsys.readouterr().err
    assert _steps(out)[2:] == _steps(whole)[2:]
    assert _folders(out) == {n: w for n, w in _folders(whole).items() if n != "chck_50"}


@pytest.mark.fast_cases(1)
@pytest.mark.parametrize("sets", [
    ("train.tokens_per_step=[{until: 0.5, value: 64}, {value: 192}]",),
    ("train.rows_per_step=3", "train.tokens_per_batch=64"),
])  # fmt: skip
def test_steps_of_other_sizes_read_the_words_all_the_same(path, tmp_path, sets) -> None:
    packing = _plan(path, *sets)
    _tiny.pretrain(path, tmp_path / "run", *sets)
    seen = [each["words"] for each in _steps(tmp_path / "run")]
    assert seen[-2] < 400 <= seen[-1]
    assert (packing["steps"], packing["words"]) == (len(seen), seen[-1])
    assert sorted(_folders(tmp_path / "run")) == sorted(NAMES)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "400]",
            "401]",
            "6:31: train.save_at: 401 is beyond the words of the run, train.words: 400",
        ),
        ("words: 0.4k", "steps: 2", "train.save_at: 400 is beyond the "),
        (
            "200, 210",
            "200, 200",
            "6:31: train.save_at: 200 after 200; the numbers of words must rise",
        ),
        ("0.4k", "0.4k, steps: 3", "train.words: 400 and train.steps: 3 exclude each other"),
        ("0.4k", "many", "6:16: train.words: 'many' is not a number of words such as 15M"),
        ("50,", "0,", "6:32: train.save_at.0: 0 is not a number of words"),
        ("save_at", "saves_at", "train.saves_at: unknown setting, did you mean save_at?"),
    ],
)
def test_mistakes_are_a_line(path, tmp_path, old, new, message) -> None:
    text = path.read_text("utf-8")
    assert text.count(old) == 1
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text(text.replace(old, new), encoding="utf-8")
    with pytest.raises(UsageError) as raised:
        _tiny.pretrain(wrong, tmp_path / "run")
    assert message in str(raised.value)
    assert str(wrong) in str(raised.value)
    assert not list(tmp_path.glob("run/*/"))


def test_numbers_that_a_run_ends_before_are_named(path, tmp_path, capsys) -> None:
    sets = ("data.valid_fraction=0.3", "train.eval_every=1", "train.patience=1", "train.lr=1e-30")
    _tiny.pretrain(path, tmp_path / "run", *sets, verbosity=NORMAL)  # ends early
    assert "train.save_at: not reached: 200, 210, 400 words" in capsys.readouterr().err
    assert [*_folders(tmp_path / "run")] == ["chck_50"]


@pytest.mark.slow
def test_two_processes_count_and_save_as_one(path, whole, tmp_path) -> None:
    out, one = tmp_path / "two", tmp_path / "one"
    off = [f"model.{name}_dropout=0.0" for name in ("embedding", "attention", "residual")]
    sets = [word for each in off for word in ("--set", each)]
    done = _processes.launched(2, "pretrain", path, "--out", out, "--device", "cpu", *sets)
    assert done.returncode == 0, done.stderr
    _tiny.pretrain(path, one, *off)
    assert [each["words"] for each in _steps(out)] == [each["words"] for each in _steps(one)]
    assert sorted(_folders(out)) == sorted(NAMES)


def test_commands_that_upload_the_folders_are_printed(whole, tmp_path, capsys) -> None:
    assert cli.run(["report", str(whole), "--push", "me/it"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"hf upload me/it {whole / name} . --revision {name}" for name in NAMES
    ]
    (tmp_path / "chck_1M.zip").write_bytes(b"")
    (tmp_path / "chck_1M_old").mkdir()
    (tmp_path / "chck_2k").write_bytes(b"")
    assert cli.run(["report", str(tmp_path), "--push", "me/it"]) == 2
    said = capsys.readouterr().err
    for name in ("chck_1M.zip", "chck_1M_old", "chck_2k"):
        assert f"--push: {tmp_path / name} is not uploaded: no folder of train.save_at" in said
    assert "has no chck_ folder; train.save_at says when" in said
    (tmp_path / "chck_1M").mkdir()
    assert cli.run(["report", str(tmp_path), "--push", "me/it"]) == 0
    out = f"hf upload me/it {tmp_path / 'chck_1M'} . --revision chck_1M\n"
    assert capsys.readouterr().out == out
