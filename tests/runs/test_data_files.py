"""What `nlpkit eval RUN` reads: the run's own files, wherever it lies, and finite weights."""

import math
import os
import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from nlpkit import cli, recipe
from nlpkit.checkpoints import changes
from nlpkit.checkpoints.run_directory import DATA_FILES, RunDirectory
from tests import _tiny


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with relative paths in its recipe, and its run."""
    folder = tmp_path_factory.mktemp("project")
    path = _tiny.write(folder)
    path.write_text(path.read_text("utf-8").replace(f"{folder}/", ""), encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("NLPKIT_CACHE", str(folder / "cache"))
        _tiny.pretrain(path, folder / "runs/tiny", "train.steps=4")
    return folder


def _eval(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    code = cli.run(["eval", *map(str, arguments)])
    shown = capsys.readouterr()
    return code, shown.out, shown.err


def _moved(project: Path, folder: Path) -> Path:
    """Return a copy of the project below another folder."""
    return Path(shutil.copytree(project, folder / "copy", symlinks=True))


def test_eval_reads_the_files_of_the_run_where_a_foreign_file_has_the_same_name(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.chdir(project)
    _, own, _ = _eval(capsys, "runs/tiny")
    (tmp_path / "valid.txt").write_text("天地人山水花\n" * 5, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    code, out, err = _eval(capsys, project / "runs/tiny")
    assert (code, out) == (0, own)
    assert f"held-out data: {project}/valid.txt" in err


def test_eval_finds_the_files_of_a_project_that_was_moved(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    moved = _moved(project, tmp_path)
    os.rename(project / "valid.txt", project / "away.txt")
    try:
        monkeypatch.chdir("/")
        code, _, err = _eval(capsys, moved / "runs/tiny")
    finally:
        os.rename(project / "away.txt", project / "valid.txt")
    assert code == 0, err
    assert f"held-out data: {moved}/valid.txt" in err


def test_eval_refuses_files_that_have_changed_or_are_gone(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    moved, text = _moved(project, tmp_path), (project / "valid.txt").read_bytes()
    monkeypatch.chdir(moved)
    (project / "valid.txt").write_bytes(text + b"\n")
    try:
        (moved / "valid.txt").unlink()
        code, out, err = _eval(capsys, "runs/tiny")
        assert (code, out) == (3, "")
        assert (
            f"nlpkit: {project}/valid.txt: not the text that {moved}/runs/tiny has read"
            in (err.splitlines()[-1])
        )
        assert _eval(capsys, "runs/tiny", "--data", project / "valid.txt")[0] == 0
        (project / "valid.txt").unlink()
        code, out, err = _eval(capsys, "runs/tiny")
        assert (code, out) == (4, "")
        assert f"nlpkit: {project}/valid.txt: no such file" in err.splitlines()[-1]
    finally:
        (project / "valid.txt").write_bytes(text)


def test_eval_of_a_run_without_a_record_of_files_looks_them_up_and_warns(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    moved = _moved(project, tmp_path)
    monkeypatch.chdir(moved)
    _, own, _ = _eval(capsys, "runs/tiny")
    (moved / "runs/tiny" / DATA_FILES).unlink()
    code, out, err = _eval(capsys, "runs/tiny")
    assert (code, out) == (0, own)
    assert "runs/tiny has no record of the files" in err
    # Training that goes on adds the record.
    resolved = recipe.load("tiny.yaml", ["out=runs/tiny", "train.steps=5"])
    assert changes.check_changes(RunDirectory(Path("runs/tiny")), resolved, True) == ["train.steps"]
    _tiny.pretrain(moved / "tiny.yaml", moved / "runs/tiny", "train.steps=5",
                   allow_change=True)  # fmt: skip
    assert "has no record" not in _eval(capsys, "runs/tiny")[2]


def test_eval_finds_data_that_came_through_a_pipe(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.chdir(project)
    sets = ("train.steps=4", "data.train=train.txt", "data.valid='-'")
    with open("valid.txt", "rb") as text, monkeypatch.context() as patch:
        patch.setattr("sys.stdin", open(text.fileno(), closefd=False))  # noqa: SIM115
        _tiny.pretrain(project / "tiny.yaml", tmp_path / "run", *sets)
    _, own, _ = _eval(capsys, "runs/tiny")
    _, out, _ = _eval(capsys, tmp_path / "run")
    assert out.splitlines()[1:] == own.splitlines()[1:]


@pytest.mark.parametrize(
    ("name", "value", "what"),
    [
        ("input_embedding", math.nan, "2 of 23 tensors have values that are not finite"),
        ("output_layernorm", math.inf, "1 of 23 tensors has values that are not finite"),
        (
            "output_layernorm",
            3e38,
            "the held-out loss is nan: the weights are finite, but too large",
        ),
    ],
)
def test_eval_of_weights_that_diverged_gives_5_and_no_figures(
    project: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    name: str,
    value: float,
    what: str,
) -> None:
    found = Path(shutil.copytree(project / "runs/tiny/checkpoints/latest", tmp_path / "found"))
    (found / "manifest.json").unlink()
    weights = load_file(found / "model.safetensors")
    next(tensor for key, tensor in weights.items() if name in key).fill_(value)
    save_file(weights, found / "model.safetensors", {"format": "pt"})
    code, out, err = _eval(capsys, found, "--data", project / "valid.txt")
    assert (code, out) == (5, "")
    assert f"nlpkit: {found}: {what}" in err.splitlines()[-1]
