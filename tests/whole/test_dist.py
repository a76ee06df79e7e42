"""The wheel and the sdist of `make dist`, and the wheel in an environment outside the clone."""

import json
import os
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests._path import SMALL

ROOT = Path(__file__).parents[2]
SETS = [word for each in SMALL for word in ("--set", each)]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what `make dist` makes."""
    out = tmp_path_factory.mktemp("dist")
    build = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(ROOT)]
    done = subprocess.run(build, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return out


@pytest.fixture(scope="module")
def nlpkit(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The command of an environment that has nlpkit from the wheel, and the clone's packages."""
    folder = tmp_path_factory.mktemp("empty") / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    # Their own .pth files are not read from here: nlpkit of the clone is not among them.
    packages = folder / "lib" / version / "site-packages"
    (packages / "clone.pth").write_text(sysconfig.get_path("purelib") + "\n", "utf-8")
    (wheel,) = built.glob("*.whl")
    pip = [sys.executable, "-m", "pip", "--python", str(folder / "bin/python"), "install"]
    done = subprocess.run(
        [*pip, "--no-deps", "--no-index", str(wheel)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return folder / "bin/nlpkit"


def _run(program: Path, folder: Path, *words: str, text: str = "", code: int = 0) -> str:
    surroundings = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    surroundings |= {"HOME": str(folder / "home"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [str(program), *words],
        cwd=folder, env=surroundings, input=text, capture_output=True, encoding="utf-8",
    )  # fmt: skip
    assert done.returncode == code, done.stderr
    return done.stdout


@pytest.mark.slow
def test_wheel_trains_evaluates_generates_and_scores_in_an_empty_folder(
    nlpkit: Path, tmp_path: Path
) -> None:
    where = _run(nlpkit.parent / "python", tmp_path, "-c", "import nlpkit; print(nlpkit.__file__)")
    assert Path(where.strip()).is_relative_to(nlpkit.parents[1])
    checkpoint = _run(nlpkit, tmp_path, "pretrain", "cpm_ant", *SETS)
    assert Path(checkpoint.strip()).is_relative_to(tmp_path / "runs/cpm_ant")
    figures = json.loads(_run(nlpkit, tmp_path, "eval", "runs/cpm_ant", "--json"))
    assert 0 < figures["loss"] < 20
    options = ("--max-new-tokens", "4", "--min-new-tokens", "2")
    lines = _run(nlpkit, tmp_path, "generate", "runs/cpm_ant", *options, text="今天天气\n春天\n")
    assert lines.count("\n") == 2
    (tmp_path / "hyp.txt").write_text(lines, "utf-8")
    same = ("hyp.txt", "hyp.txt", "--json")
    assert json.loads(_run(nlpkit, tmp_path, "score", "accuracy", *same))["score"] == 1
    (tmp_path / "mine.yaml").write_text(_run(nlpkit, tmp_path, "recipes", "gpt2"), "utf-8")
    plan = json.loads(_run(nlpkit, tmp_path, "plan", "mine.yaml", "--no-probe", "--json"))
    assert plan["data"]["train"]["documents"] > 100
    assert "papers/bert_base" in _run(nlpkit, tmp_path, "recipes", "papers")


@pytest.mark.slow
def test_wheel_and_sdist_have_what_a_user_needs(built: Path) -> None:
    (wheel,), (sdist,) = built.glob("*.whl"), built.glob("*.tar.gz")
    inside = set(zipfile.ZipFile(wheel).namelist())
    for folder in ("recipes", "suites"):
        files = {path.relative_to(ROOT).as_posix() for path in (ROOT / folder).rglob("*.yaml")}
        assert {f"nlpkit/_shipped/{name}" for name in files} <= inside
    code = (path for path in (ROOT / "nlpkit").rglob("*") if path.suffix in (".py", ".css", ".js"))
    assert {path.relative_to(ROOT).as_posix() for path in code} <= inside
    assert not [name for name in inside if name.startswith(("tests/", "docs/"))]
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    tracked = subprocess.run(
        ["git", "-C", str(ROOT), "ls-files"], capture_output=True, text=True, check=True
    )
    left_out = ("tests/", "bench/", ".ci/", ".github/")  # by pyproject.toml
    needed = {name for name in tracked.stdout.splitlines() if not name.startswith(left_out)}
    assert needed - names == set()
    assert not [name for name in names if name.startswith((*left_out, ".venv", "runs/", "dist/"))]
