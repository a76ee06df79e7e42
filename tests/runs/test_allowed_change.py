"""`--allow-change`: what a run cannot go on with is one line, and leaves the run as it was."""

import shutil
from pathlib import Path

import pytest

from nlpkit import cli, recipe
from nlpkit.checkpoints import changes
from nlpkit.checkpoints.run_directory import RunDirectory
from tests import _tiny

RECIPE = """\
name: tiny
model: {family: gpt2, hidden_size: 32, num_layers: 2, num_heads: 4, max_positions: 64}
tokenizer: {kind: bpe, vocab_size: 300}
data: {train: [TRAIN], valid: [VALID]}
objective: {name: clm, max_length: 64}
train: {steps: 4, tokens_per_step: 512, tokens_per_batch: 256, lr: 1.0e-2, schedule: constant,
  precision: auto, save_every: 2}
"""
WEIGHTS = (
    "a run keeps its weights, also with --allow-change, and those of RUN/checkpoints/step-00000004 "
    "do not fit; give --out another directory"
)
TOKENS = (
    "a run keeps its data and their tokens, also with --allow-change; give --out another directory"
)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A recipe, and its run, which is finished."""
    folder = tmp_path_factory.mktemp("base")
    path = _tiny.write(folder, documents=60, text=RECIPE)
    assert _pretrain(path, folder / "run") == 0
    return path, folder / "run"


def _pretrain(path: Path, out: Path, *arguments: str) -> int:
    from accelerate.state import AcceleratorState

    AcceleratorState._reset_state(reset_partial_state=True)
    return cli.run(["pretrain", str(path), "--out", str(out), "--device", "cpu", *arguments])


def _content(run: Path) -> dict[Path, bytes]:
    """Return the content of all files of a run but its lock, which names the process."""
    found = [path for path in run.rglob("*") if path.is_file() and path.name != "lock"]
    return {path: path.read_bytes() for path in found}


@pytest.mark.fast_cases(2)
@pytest.mark.parametrize(
    ("sets", "code", "said"),
    [
        (["model.hidden_size=64"], 2, f"--set model.hidden_size: 32 then, 64 now; {WEIGHTS}"),
        (["model.num_layers=3"], 2, f"--set model.num_layers: 2 then, 3 now; {WEIGHTS}"),
        (
            ["model.family=gpt"],
            2,
            '--set model.family: "gpt2" then, "gpt" now, model.passes: 1 then, not set now; '
            + WEIGHTS,
        ),
        (
            ["data.train=[FOLDER/valid.txt]"],
            2,
            '--set data.train: data.train.0.files.0: "FOLDER/train.txt" then, "FOLDER/valid.txt" '
            "now; " + TOKENS,
        ),
        (
            ["model.family=bert", "objective.name=mlm"],
            2,
            '--set objective.name: "clm" then, "mlm" now, objective.contiguous: true then, false '
            f"now, objective.learn_unknown: false then, not set now, and 3 more; {TOKENS}",
        ),
    ],
)
def test_refused_change_is_one_line_and_leaves_the_run_as_it_was(
    base, tmp_path: Path, capsys, sets: list[str], code: int, said: str
) -> None:
    path, run = base[0], tmp_path / "run"
    shutil.copytree(base[1], run, symlinks=True)
    before = _content(run)
    # The precision is noted in run.json: that of a run which goes on.
    folder, words = str(path.parent), ["--set", "train.precision=bf16"]
    for each in sets:
        words += ["--set", each.replace("FOLDER", folder)]
    assert _pretrain(path, run, "-q", *words, "--allow-change") == code
    line = said.replace("RUN", str(run)).replace("FOLDER", folder)
    assert capsys.readouterr().err == f"nlpkit: {line}\n"
    assert _content(run) == before
    assert _pretrain(path, run) == 0
    assert f"{run} is finished; nothing to do" in capsys.readouterr().err


def test_smaller_batches_in_the_middle_of_an_epoch_are_warned_of(
    base: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    shutil.copytree(base[1], run, symlinks=True)
    sets = ("--set", "train.tokens_per_batch=128", "--set", "train.steps=5", "--allow-change")
    assert _pretrain(base[0], run, *sets) == 0
    said = (
        "train.tokens_per_batch: 256 then, 128 now: in this epoch, text is read again or left out"
    )
    assert said in capsys.readouterr().err


def test_start_that_saved_nothing_leaves_nothing_to_one_with_other_settings(tmp_path: Path) -> None:
    path, out = _tiny.write(tmp_path), tmp_path / "run"
    directory = RunDirectory(out)
    out.mkdir()
    directory.write_recipe(recipe.load(str(path), [f"out={out}"]))
    directory.set_status(marker=1)
    changes.forget_start(directory, recipe.load(str(path), [f"out={out}"]))
    assert directory.status() == {"marker": 1}
    sets = ("--set", "train.steps=1", "--set", "train.warmup_steps=1")
    assert cli.run(["pretrain", str(path), "--out", str(out), "-q", *sets]) == 0
    assert "marker" not in directory.status()
