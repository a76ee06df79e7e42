"""Real processes of the command line that start at once: forked from one that imported everything.

What a test says of imports, of the interpreter's options or of a closed stream needs an
interpreter of its own (`subprocess`); every other test takes these.
"""

import contextlib
import json
import os
import pickle
import select
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from tests import _forks

_FLAGS = {"in": os.O_RDONLY} | dict.fromkeys(("out", "err"), os.O_WRONLY | os.O_APPEND)


class Process:
    """A running command line, with the methods of `subprocess.Popen` that tests use.

    `around` is a picklable function; it gives a context manager in which the command line runs.
    With `script` the path of modules is that of the installed script `nlpkit`: the working
    directory is not on it. `terminal` is the path of one, which controls the process and has its
    streams.
    """

    def __init__(
        self,
        *arguments: object,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        stdin: str = "",
        around: Callable[[], Any] | None = None,
        script: bool = False,
        terminal: str = "",
    ):
        self._folder = tempfile.TemporaryDirectory(prefix="streams-")
        self._streams = [f"{self._folder.name}/{name}" for name in _FLAGS]
        for path in self._streams:
            Path(path).write_text(stdin if path is self._streams[0] else "", encoding="utf-8")
        order = {
            "arguments": [str(argument) for argument in arguments],
            "folder": str(cwd or Path.cwd()),
            "environment": dict(os.environ) | {"OMP_NUM_THREADS": "1"} | dict(env or {}),
            "umask": _umask(),
            "script": script,
            "terminal": terminal,
            "around": pickle.dumps(around).hex() if around else "",
        }
        self._server = socket.socket(socket.AF_UNIX)
        self._server.connect(_forks.address())
        streams = [os.open(*each) for each in zip(self._streams, _FLAGS.values(), strict=True)]
        socket.send_fds(self._server, [b"."], streams)
        for stream in streams:
            os.close(stream)
        self._server.sendall(json.dumps(order).encode() + b"\n")
        self._told = b""  # two lines: the number of the process, its exit code
        self._listen(lines=1)
        self.pid = int(self._told.split()[0])

    def _listen(self, lines: int, timeout: float | None = None) -> bool:
        """Return whether so many lines have come from the server in time."""
        while self._told.count(b"\n") < lines:
            if not select.select([self._server], [], [], timeout)[0]:
                return False
            told = self._server.recv(64)
            assert told, "the server of the processes has ended"
            self._told += told
            if self._told.count(b"\n") == 2:
                self._server.close()
        return True

    @property
    def returncode(self) -> int | None:
        """The exit code, negative for the signal that killed it; None while it runs."""
        return int(self._told.split()[1]) if self._listen(lines=2, timeout=0) else None

    def poll(self) -> int | None:
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.returncode is None:
            with contextlib.suppress(ProcessLookupError):  # it ends just now
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def wait(self, timeout: float = 300) -> int:
        if not self._listen(lines=2, timeout=timeout):
            self.kill()
            raise subprocess.TimeoutExpired("nlpkit", timeout)
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


def _umask() -> int:
    """Return the mask of new files' rights, which can only be read by setting it."""
    mask = os.umask(0o77)
    os.umask(mask)
    return mask


def command(*arguments: object, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run the command line to its end."""
    process = Process(*arguments, **options)
    stdout, stderr = process.communicate()
    code = process.returncode
    assert code is not None
    return subprocess.CompletedProcess(list(map(str, arguments)), code, stdout, stderr)


def printed(function: Callable[[], None]) -> str:
    """Return what a function of a module prints in a process that has computed nothing before."""
    done = command(around=partial(_Called, function))
    assert done.returncode == 0, done.stderr
    return done.stdout


class _Called:
    """Calls a function in place of the command line."""

    def __init__(self, function: Callable[[], None]):
        self.function = function

    def __enter__(self) -> None:
        self.function()
        raise SystemExit(0)

    def __exit__(self, *_: object) -> None:
        pass


# What `accelerate launch --use_fsdp` puts into the environment, and what the log says then.
FSDP = {"ACCELERATE_USE_FSDP": "true"}
SHARDED = "FSDP: shards of the parameters"


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
