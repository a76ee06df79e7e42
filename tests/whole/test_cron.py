"""docs/cron.sh: a run in slices until it is done, then nothing; exit codes and the log."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from nlpkit.checkpoints import integrity
from tests import _tiny

SCRIPT = Path("docs/cron.sh").resolve()


def _cron(folder: Path, command: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"NLPKIT": str(command), "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        ["sh", str(SCRIPT), *map(str, arguments)],
        capture_output=True, text=True, check=False, cwd=folder, env=environment, timeout=600,
    )  # fmt: skip


def _command(path: Path, body: str) -> Path:
    path.write_text(f"#!/bin/sh\n{body}\n", encoding="utf-8")
    path.chmod(0o755)
    return path


def _nlpkit(folder: Path) -> Path:
    code = (
        "import sys; from nlpkit.cli import run; code = run(sys.argv[1:]);"
        "print('torch was imported' if 'torch' in sys.modules else 'no torch');"
        "sys.exit(code)"
    )
    root = SCRIPT.parent.parent
    return _command(
        folder / "nlpkit", f'PYTHONPATH="{root}" exec "{sys.executable}" -c "{code}" "$@"'
    )


@pytest.mark.parametrize(
    ("code", "left", "said"),
    [
        (0, 0, "done"),
        (75, 0, "not done: time is up, or another process is at it; goes on next time"),
        (143, 0, "stopped by a signal; goes on next time"),
        (3, 3, "failed, exit code 3"),
        (1, 1, "failed, exit code 1"),
    ],
)
def test_cron_exit_code_is_logged_with_a_time_stamp_and_failures_are_passed_on(
    tmp_path: Path, code: int, left: int, said: str
) -> None:
    fake = _command(tmp_path / "fake", f'echo "called: $*"; echo oh >&2; exit {code}')
    result = _cron(tmp_path, fake, "my recipe.yaml", "2h", "--set", "seed=2")
    assert result.returncode == left
    assert result.stdout == ""
    log = (tmp_path / "nlpkit-cron.log").read_text(encoding="utf-8").splitlines()
    assert log[:2] == ["called: pretrain my recipe.yaml --max-time 2h --set seed=2", "oh"]
    assert re.fullmatch(
        rf"\d{{4}}-\d\d-\d\d \d\d:\d\d:\d\d cron: my recipe\.yaml: {re.escape(said)}", log[2]
    )
    assert (result.stderr == "") == (left == 0)
    if left:
        assert f"failed, exit code {code}" in result.stderr
        assert "oh" in result.stderr.splitlines()


@pytest.mark.parametrize("options", [(), ("--set", "seed=2")])
def test_cron_without_a_time_takes_fifty_minutes(tmp_path: Path, options: tuple[str, ...]) -> None:
    fake = _command(tmp_path / "fake", 'echo "called: $*"')
    assert _cron(tmp_path, fake, "r.yaml", *options).returncode == 0
    log = (tmp_path / "nlpkit-cron.log").read_text(encoding="utf-8")
    assert f"called: pretrain {' '.join(('r.yaml --max-time 50m', *options))}\n" in log


def test_cron_mails_the_lines_of_this_call_alone(tmp_path: Path) -> None:
    _cron(tmp_path, _command(tmp_path / "fake", "echo earlier; exit 2"), "r.yaml")
    result = _cron(tmp_path, _command(tmp_path / "fake", "echo now; exit 3"), "r.yaml")
    assert result.stderr.splitlines()[1:] == ["now"]


def test_cron_without_a_log_that_can_be_written_trains_nothing(tmp_path: Path) -> None:
    fake = _command(tmp_path / "fake", f"touch {tmp_path}/called")
    (tmp_path / "nlpkit-cron.log").symlink_to(tmp_path / "none/log")
    result = _cron(tmp_path, fake, "r.yaml")
    assert (result.returncode, len(result.stderr.splitlines())) == (4, 1)
    assert not (tmp_path / "called").exists()


def test_cron_without_a_recipe_says_how_it_is_used(tmp_path: Path) -> None:
    result = _cron(tmp_path, tmp_path / "fake")
    assert result.returncode == 2
    assert result.stderr.startswith("Usage: cron.sh RECIPE")


@pytest.mark.slow
def test_cron_trains_in_slices_until_done_and_then_does_nothing(tmp_path: Path) -> None:
    path, run = _tiny.write(tmp_path), tmp_path / "run"
    command, steps = _nlpkit(tmp_path), [0]
    # So long that it takes several slices on any machine; then shortened to two steps more.
    last = 10**6
    arguments = (
        "--out",
        run,
        "--set",
        "train.save_every=1000000",
        "--set",
        "train.schedule=constant",
    )
    seconds, slices = 8, 0
    while len(steps) < 4:
        given = (path, f"{seconds}s", *arguments, "--set", f"train.steps={last}")
        result = _cron(tmp_path, command, *given)
        assert (result.returncode, result.stderr) == (0, "")
        slices += 1
        saved = max(
            (int(p.name.removeprefix("step-")) for p in run.glob("checkpoints/step-*")), default=0
        )
        if saved == steps[-1]:  # a slow machine: no step in this time
            seconds *= 2
            assert seconds < 600
            continue
        newest = integrity.find_newest_valid(run, lambda line: None)
        assert newest.step == saved > steps[-1]
        steps.append(saved)
    ending = (*arguments, "--set", f"train.steps={steps[-1] + 2}", "--allow-change")
    assert _cron(tmp_path, command, path, "50m", *ending).returncode == 0
    before = {p: p.stat().st_mtime_ns for p in run.rglob("*") if p.name != "lock"}
    assert _cron(tmp_path, command, path, "50m", *ending).returncode == 0
    assert before == {p: p.stat().st_mtime_ns for p in run.rglob("*") if p.name != "lock"}
    log = (tmp_path / "nlpkit-cron.log").read_text(encoding="utf-8").splitlines()
    assert any(line.endswith("is finished; nothing to do") for line in log[-5:])
    assert "no torch" in log[-5:]
    outcomes = [line.partition("cron: ")[2].split(": ", 1)[1] for line in log if " cron: " in line]
    assert [outcome.partition(":")[0] for outcome in outcomes] == ["not done"] * slices + [
        "done"
    ] * 2
