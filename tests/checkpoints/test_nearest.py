"""A misspelt path of a run or checkpoint is answered with the nearest one that exists."""

from pathlib import Path

import pytest

from nlpkit import cli
from nlpkit.checkpoints.nearest import suggest_path


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with two runs, which is the working directory."""
    for name in ("gpt2_news", "Bert"):
        (tmp_path / "runs" / name / "checkpoints/step-00000100").mkdir(parents=True)
    (tmp_path / "runs/.gpt2_new").mkdir()
    (tmp_path / "runs/gpt2_new.yaml").touch()
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("runs/gpt2_new", "runs/gpt2_news"),
        ("gpt2_news", "runs/gpt2_news"),  # a name alone
        ("gpt2-news", "runs/gpt2_news"),
        ("runs/bert", "runs/Bert"),
        ("run/Bert", "runs/Bert"),
        ("runs/gpt2_new/checkpoints/step-00000100", "runs/gpt2_news/checkpoints/step-00000100"),
        ("runs/gpt2_new/checkpoints/best", "runs/gpt2_news"),  # as far as it is right
        ("runs/Bert/checkpoints/step-100", "runs/Bert/checkpoints/step-00000100"),
    ],
)
def test_nearest_path_is_suggested(given: str, meant: str) -> None:
    assert suggest_path(Path(given)) == f", did you mean {meant}?"


@pytest.mark.parametrize("given", ["runs/t5", "t5", "/nowhere/at/all", "x" * 300, "runs/x/" * 2000])
def test_nothing_is_suggested_where_nothing_is_near(given: str) -> None:
    assert suggest_path(Path(given)) == ""


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("eval runs/gpt2_new", "no such directory"),
        ("generate gpt2_news in.txt", "no such directory"),
        ("report runs/gpt2_new", "no such run directory"),
        ("convert runs/gpt2_new out", "no such directory"),
        (
            "finetune gpt1_classify --from runs/gpt2_new --dry-run",
            "no such checkpoint to start from",
        ),
        ("pretrain gpt2 --dry-run --resume runs/gpt2_new", "no such checkpoint"),
    ],
)
def test_commands_suggest_the_nearest_run(
    here: Path, capsys: pytest.CaptureFixture[str], arguments: str, said: str
) -> None:
    (here / "in.txt").write_text("a\n")
    assert cli.run(arguments.split()) == 4
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.endswith(f": {said}, did you mean runs/gpt2_news?")
