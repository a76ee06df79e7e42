"""Real processes of the command line that start at once: forked from one that imported everything.

What a test says of imports, of the interpreter's options or of a closed stream needs an
interpreter of its own (`subprocess`); every other test takes these.
"""

import fcntl
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["tests._imported"])


@dataclass
class _Order:
    """What a child gets."""

    arguments: list[str]
    folder: str
    environment: dict[str, str]
    streams: tuple[str, str, str]
    around: Callable[[], Any] | None
    script: bool


class Process:
    """A running command line, with the methods of `subprocess.Popen` that tests use.

    `around` is a picklable function; it gives a context manager in which the command line runs.
    With `script` the path of modules is that of the installed script `nlpkit`: the working
    directory is not on it.
    """

    def __init__(
        self,
        *arguments: object,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        stdin: str = "",
        around: Callable[[], Any] | None = None,
        script: bool = False,
    ):
        self._folder = tempfile.TemporaryDirectory(prefix="streams-")
        streams = tuple(f"{self._folder.name}/{name}" for name in ("in", "out", "err"))
        for path in streams:
            Path(path).write_text(stdin if path is streams[0] else "", encoding="utf-8")
        order = _Order(
            [str(argument) for argument in arguments],
            str(cwd or Path.cwd()),
            dict(os.environ) | {"OMP_NUM_THREADS": "1"} | dict(env or {}),
            streams,  # type: ignore[arg-type]
            around,
            script,
        )
        self._streams = streams
        self._process = CONTEXT.Process(target=_child, args=(order,))
        self._process.start()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """The exit code, negative for the signal that killed it; None while it runs."""
        return self._process.exitcode

    def poll(self) -> int | None:
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        if self._process.exitcode is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def wait(self, timeout: float = 300) -> int:
        if not wait([self._process.sentinel], timeout):
            self.kill()
            raise subprocess.TimeoutExpired("nlpkit", timeout)
        self._process.join()
        assert self.returncode is not None
        return self.returncode

    def communicate(self, timeout: float = 300) -> tuple[str, str]:
        """Return stdout and stderr of the process, which has ended."""
        self.wait(timeout)
        out, err = (
            Path(path).read_text(encoding="utf-8", errors="replace") for path in self._streams[1:]
        )
        self._folder.cleanup()
        return out, err

    def stderr_so_far(self) -> str:
        return Path(self._streams[2]).read_text(encoding="utf-8", errors="replace")


def command(*arguments: object, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run the command line to its end."""
    process = Process(*arguments, **options)
    stdout, stderr = process.communicate()
    code = process.returncode
    assert code is not None
    return subprocess.CompletedProcess(list(map(str, arguments)), code, stdout, stderr)


def launched(number: int, *arguments: object, **env: str) -> subprocess.CompletedProcess[str]:
    """Run the command line in so many processes, with what `torchrun` puts into the environment.

    The answer is that of rank 0; every rank must end with the same code.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    group = {"WORLD_SIZE": str(number), "LOCAL_WORLD_SIZE": str(number), **env}
    group |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    processes = [
        Process(*arguments, env=group | {"RANK": str(rank), "LOCAL_RANK": str(rank)})
        for rank in range(number)
    ]
    ends = [process.communicate() for process in processes]
    codes = {process.returncode for process in processes}
    assert len(codes) == 1, "\n".join(err for _, err in ends)
    return subprocess.CompletedProcess(list(map(str, arguments)), codes.pop() or 0, *ends[0])


def wait_until(true: Callable[[], bool], process: Process | None = None, limit: int = 300) -> None:
    """Wait until something is true; fail if the process ends before, or after `limit` seconds."""
    deadline = time.monotonic() + limit
    while not true():
        if process is not None and process.poll() is not None and not true():
            raise AssertionError(f"the process has ended: {process.stderr_so_far()}")
        assert time.monotonic() < deadline, "it did not come"
        time.sleep(0.005)


def _child(order: _Order) -> None:
    """Be the command line of an order."""
    flags = (os.O_RDONLY, *[os.O_WRONLY | os.O_APPEND] * 2)
    streams = [os.open(path, flag) for path, flag in zip(order.streams, flags, strict=True)]
    be_command_line(
        order.arguments,
        order.folder,
        order.environment,
        streams,
        around=order.around,
        script=order.script,
    )


def be_command_line(
    arguments: list[str],
    folder: str,
    environment: dict[str, str],
    streams: list[int],
    umask: int | None = None,
    *,
    around: Callable[[], Any] | None = None,
    script: bool = False,
) -> None:
    """Be the command line, in a process that was forked for it; `streams` are open files."""
    from contextlib import nullcontext

    from nlpkit import cli

    os.setpgid(0, 0)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    tempfile.tempdir = None  # TMPDIR counts anew
    own = [] if script else [""]
    extra = environment.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:] = list(dict.fromkeys([*own, *filter(None, extra), *filter(None, sys.path)]))
    copies = [fcntl.fcntl(stream, fcntl.F_DUPFD, 3) for stream in streams]
    for stream in streams:
        os.close(stream)  # a reader waits for the last copy to be closed
    for number, copy in enumerate(copies):
        os.dup2(copy, number)
        os.close(copy)
    if umask is not None:
        os.umask(umask)
    # As an interpreter that starts makes them: multiprocessing has closed stdin, and the others
    # know whether the old files can seek.
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", 1, "utf-8", "backslashreplace", closefd=False)  # noqa: SIM115
    sys.argv = ["nlpkit", *arguments]
    code: Any = 99
    try:
        with around() if around else nullcontext():
            cli.main()
    except SystemExit as ended:
        code = ended.code or 0
    finally:
        sys.stdout.flush()
        os._exit(code)
