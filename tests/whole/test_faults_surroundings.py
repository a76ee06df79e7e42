"""Odd surroundings of a real process: streams closed, full or gone, no home, odd places, locales;
and malformed data through the real command line."""

import gzip
import os
import pty
import shlex
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest

from nlpkit import cli
from nlpkit.checkpoints import files, integrity
from nlpkit.checkpoints.run_directory import RunDirectory
from nlpkit.errors import UsageError
from tests import _processes, _server, _tiny
from tests._faults import limited_memory

_SETS = (
    "--set",
    "train.steps=3",
    "--set",
    "train.warmup_steps=1",
    "--set",
    "train.eval_every=null",
)
_STEP = "checkpoints/step-00000003"


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _tiny.write(tmp_path_factory.mktemp("recipe"), documents=60)


def _shell(line: str, *, own: bool = False) -> subprocess.CompletedProcess[str]:
    """Run a line of shell in which $NLPKIT is the command; with `own`, an interpreter of its own.

    A stream that is closed, and limits of the shell, are there only with `own`.
    """
    words = (sys.executable, "-m", "nlpkit") if own else _server.nlpkit()
    return subprocess.run(
        ["bash", "-c", line], capture_output=True, text=True, timeout=600, check=False,
        encoding="utf-8", env=os.environ | {"NLPKIT": shlex.join(words)},
    )  # fmt: skip


def _train(recipe: Path, out: Path) -> str:
    return f"$NLPKIT pretrain '{recipe}' --out '{out}' {' '.join(_SETS)}"


def _check_saved(run: Path) -> None:
    assert integrity.find_corruption(run / _STEP) is None


@pytest.mark.fast_cases(1)
@pytest.mark.parametrize(
    ("redirection", "code", "said"),
    [
        (">/dev/full", 4, "nlpkit: stdout: no space left on device"),
        pytest.param(*(">&-", 4, "nlpkit: stdout: bad file descriptor"), marks=pytest.mark.slow),
        pytest.param("<&- >&- 2>&-", 4, None, marks=pytest.mark.slow),
        # a log that cannot be written is no reason to lose a run
        ("2>/dev/full", 0, None),
    ],
)
def test_surroundings_stream_closed_or_full_saves_all_the_same(
    recipe: Path, tmp_path: Path, redirection: str, code: int, said: str | None
) -> None:
    result = _shell(f"{_train(recipe, tmp_path)} {redirection}", own="&-" in redirection)
    assert result.returncode == code, result.stderr
    assert "Traceback" not in result.stderr
    assert said is None or result.stderr.splitlines()[-1] == said
    _check_saved(tmp_path)


@pytest.mark.slow
def test_surroundings_closed_stderr_of_a_run_puts_nothing_of_it_on_stdout(
    recipe: Path, tmp_path: Path
) -> None:
    result = _shell(f"{_train(recipe, tmp_path)} 2>&-", own=True)
    assert (result.returncode, result.stdout) == (0, f"{tmp_path}/{_STEP}\n")


@pytest.mark.slow
def test_surroundings_closed_stderr_puts_no_error_on_stdout() -> None:
    wrong = _shell("$NLPKIT pretrain nope.yaml 2>&-", own=True)
    assert (wrong.returncode, wrong.stdout) == (4, "")


@pytest.mark.slow
def test_surroundings_reader_of_the_log_goes_away_the_run_goes_on(
    recipe: Path, tmp_path: Path
) -> None:
    result = _shell(f"{_train(recipe, tmp_path)} 2> >(head -1 >&2)")
    assert result.returncode == 0, result.stderr
    assert len(result.stderr.splitlines()) == 1
    _check_saved(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("own", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_surroundings_terminal_is_closed_saves_and_goes_on(
    recipe: Path, tmp_path: Path, own: bool
) -> None:
    # The kernel sends SIGHUP, and every further write to the terminal fails with EIO.
    arguments = ["pretrain", str(recipe), "--out", str(tmp_path), "--set", "train.steps=100000"]
    arguments += ["--max-time", "5m"]  # none is left for ever where the signal is ignored
    if own:  # an interpreter
        child, terminal = pty.fork()
        if child == 0:
            os.environ["OMP_NUM_THREADS"] = "1"
            os.execv(sys.executable, [sys.executable, "-m", "nlpkit", *arguments])
    else:
        terminal, other = os.openpty()
        process = _processes.Process(*arguments, terminal=os.ttyname(other))
    deadline = time.monotonic() + 300
    metrics = tmp_path / "metrics.jsonl"
    said = b""
    while not (metrics.exists() and '"step": 6,' in metrics.read_text()):
        assert time.monotonic() < deadline
        os.set_blocking(terminal, False)
        try:
            said += os.read(terminal, 1 << 16)
        except BlockingIOError:
            time.sleep(0.01)
    assert said.startswith(b"run: ")
    os.close(terminal)
    if own:
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    else:
        os.close(other)
        code = process.wait()
    assert code == 129
    last = max(record["step"] for record in _tiny.metrics(tmp_path))
    assert integrity.find_corruption(files.checkpoint_path(tmp_path, last)) is None


@pytest.mark.parametrize("own", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_surroundings_bare_environment_and_odd_names_are_no_hindrance(
    recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: bool
) -> None:
    run = tmp_path / "with space 和中文 'é'"
    # no home, an ASCII locale, no cache anywhere: the run directory's own takes its place
    for name in os.environ:
        if not name.startswith("NLPKIT_TESTS"):
            monkeypatch.delenv(name)
    words = ("pretrain", recipe, "--out", run, *_SETS)
    bare = {"PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"} if own else {}
    bare |= {"LC_ALL": "C", "LANG": "C", "HOME": "/proc/nowhere", "OMP_NUM_THREADS": "1"}
    if own:
        result = subprocess.run(
            [sys.executable, "-m", "nlpkit", *words],
            capture_output=True, text=True, encoding="utf-8", check=False, env=bare,
            stdin=subprocess.DEVNULL, cwd=Path(__file__).parents[2],
        )  # fmt: skip
    else:
        result = _processes.command(*words, env=bare)
    assert result.returncode == 0, result.stderr
    assert result.stdout == f"{run}/{_STEP}\n"
    assert "no cache in /proc/nowhere/.cache/nlpkit" in result.stderr
    assert (run / "cache").is_dir()
    _check_saved(run)


def test_surroundings_locale_without_utf8_names_paths_as_they_are(tmp_path: Path) -> None:
    ascii_only = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    ended = subprocess.run(
        [sys.executable, "-m", "nlpkit", "score", "bleu", tmp_path / "中文 é", "ref"],
        capture_output=True, text=True, encoding="utf-8", env=os.environ | ascii_only,
    )  # fmt: skip
    assert (ended.returncode, ended.stderr) == (4, f"nlpkit: {tmp_path}/中文 é: no such file\n")


@pytest.mark.parametrize("name", ["RANK", "LOCAL_RANK", "WORLD_SIZE"])
def test_surroundings_number_of_a_process_that_is_none_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    monkeypatch.setenv(name, "x")
    assert cli.run(["pretrain", "gpt2", "--dry-run"]) == 2
    assert capsys.readouterr().err == (
        f"nlpkit: {name}=x in the environment: must be a number, or not set\n"
    )


# eval: torch cannot be imported there, and oneMKL would end the process.
@pytest.mark.parametrize("words", [("pretrain", "gpt2"), ("report", "run"), ("eval", "/runs/x")])
def test_surroundings_working_directory_that_is_gone_is_named(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: tuple[str, ...],
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert cli.run(words) == 4
    said = "nlpkit: the working directory has been removed; change to another one\n"
    assert capsys.readouterr().err == said


def _run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, list[str]]:
    """Run the command line here; return its code and the lines on stderr."""
    from accelerate.state import AcceleratorState

    AcceleratorState._reset_state(reset_partial_state=True)
    code = cli.run(["pretrain", *map(str, arguments), "-q", *_SETS])
    return code, capsys.readouterr().err.splitlines()


@pytest.mark.parametrize("place", ["file", "file/below", "/proc/nowhere/run"])
def test_surroundings_run_directory_that_cannot_be_is_exit_4_and_named(
    recipe: Path, tmp_path: Path, capsys, place: str
) -> None:
    (tmp_path / "file").write_text("x")
    out = tmp_path / place
    code, lines = _run(capsys, recipe, "--out", out)
    assert code == 4
    assert len(lines) == 1
    assert lines[0].startswith(f"nlpkit: {out}: cannot be written: ")
    assert (tmp_path / "file").read_text() == "x"


def test_surroundings_root_of_the_file_system_is_no_run() -> None:
    with pytest.raises(UsageError, match=r"^/: is no directory for a run; give --out another one$"):
        RunDirectory(Path("/")).locked().__enter__()


def test_surroundings_cache_below_a_file_gives_way_to_the_run_directory(
    recipe: Path, tmp_path: Path, capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("x")
    monkeypatch.setenv("NLPKIT_CACHE", str(tmp_path / "file" / "cache"))
    assert _run(capsys, recipe, "--out", tmp_path / "run") == (0, [])
    assert (tmp_path / "run" / "cache").is_dir()


_GOOD = ['{"text": "天地人山水花鸟鱼虫春夏秋冬日月星云风雨雪"}'.encode()] * 40
_BAD = {
    "half": (b'{"text": "abc', "broken JSON at column 10"),
    "number": (b'{"text": 3}', "text"),
    "no text": (b'{"title": "abc"}', "text"),
    "list": (b"[1, 2]", ""),
    "UTF-8": (b'{"text": "\xff\xfe"}', "UTF-8"),
    "nothing": (b"null", ""),
    "deep": (b'{"text": ' + b"[" * 100_000, ""),
    "huge": (b'{"text": "' + b"x" * 3_000_000, ""),
}


@pytest.mark.parametrize("kind", _BAD)
@pytest.mark.parametrize("line", [1, 20, 41])  # with a byte order mark, CRLF, no last newline
def test_data_malformed_row_is_exit_3_and_names_file_and_line(
    recipe: Path, tmp_path: Path, capsys, kind: str, line: int
) -> None:
    row, said = _BAD[kind]
    rows = [*_GOOD[: line - 1], row, *_GOOD[line - 1 :]]
    end = b"\r\n" if line == 20 else b"\n"
    content = end.join(rows) + (b"" if line == 41 else end)
    if line == 1:
        content = b"\xef\xbb\xbf" + content
    for name in ("bad.jsonl", "bad.jsonl.gz"):
        file = tmp_path / name
        file.write_bytes(gzip.compress(content) if name.endswith("gz") else content)
        code, lines = _run(capsys, recipe, "--out", tmp_path / "run", "--set", f"data.train={file}")
        assert code == 3, lines
        assert len(lines) == 1
        assert lines[0].startswith(f"nlpkit: {file}:{line}: ")
        assert said in lines[0]
        assert len(lines[0]) < 1000
    assert not (tmp_path / "run" / "checkpoints").exists()


_FROM_STDIN = "'data={train: {files: \"-\", format: jsonl}}'"


def test_data_malformed_on_stdin_names_its_line(recipe: Path, tmp_path: Path) -> None:
    train = _train(recipe, tmp_path / "run")
    good = 'for i in 1 2 3 4 5 6 7 8; do echo \'{"text": "天地人山水花鸟鱼虫春夏秋冬"}\'; done'
    result = _shell(f"({good}; echo '{{') | {train} --set {_FROM_STDIN}")
    assert result.returncode == 3, result.stderr
    assert ":9: " in result.stderr.splitlines()[-1]
    assert "Traceback" not in result.stderr


@pytest.mark.slow  # test_corpus.py and test_cli.py have what is said, without a process
def test_data_from_a_closed_stdin_is_exit_2(recipe: Path, tmp_path: Path) -> None:
    train = _train(recipe, tmp_path / "run")
    closed = _shell(f"{train} --set {_FROM_STDIN} <&-", own=True)
    assert closed.returncode == 2, closed.stderr
    assert closed.stderr.splitlines()[-1] == "nlpkit: --set data: '-' is stdin, but stdin is closed"


@pytest.mark.parametrize("content", [b"", b"\n\n\n", b"\xef\xbb\xbf"])
def test_data_without_a_document_is_exit_3_and_names_the_file(
    recipe: Path, tmp_path: Path, capsys, content: bytes
) -> None:
    file = tmp_path / "none.txt"
    file.write_bytes(content)
    code, lines = _run(capsys, recipe, "--out", tmp_path / "run", "--set", f"data.train={file}")
    assert code == 3
    assert len(lines) == 1
    assert lines[0].startswith(f"nlpkit: {file}")


def test_diverged_run_is_exit_5_and_says_what_is_kept(recipe: Path, tmp_path: Path, capsys) -> None:
    sets = ("train.lr=1.0e+30", "train.clip=null", "train.schedule=constant", "train.save_every=1")
    words = [word for each in (*sets, "train.warmup_steps=0") for word in ("--set", each)]
    code = cli.run(["pretrain", str(recipe), "--out", str(tmp_path), "-q", *words])
    (line,) = capsys.readouterr().err.splitlines()
    assert code == 5
    assert "is not finite; this step was not applied; the last checkpoint is" in line
    assert "try a lower train.lr or train.clip" in line


def test_model_beyond_the_memory_is_exit_7_and_says_what_to_lower(
    recipe: Path, tmp_path: Path
) -> None:
    sizes = [f"model.{name}_size=1048576" for name in ("hidden", "intermediate")]
    result = _processes.command(
        *("pretrain", recipe, "--out", tmp_path, *_SETS),
        *(word for size in sizes for word in ("--set", size)),
        around=partial(limited_memory, 16_000_000 * 1024),
    )
    assert result.returncode == 7, result.stderr
    assert result.stderr.splitlines()[-1].startswith(
        "nlpkit: out of memory: lower train.tokens_per_batch"
    )
    assert "Traceback" not in result.stderr
