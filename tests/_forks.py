"""The server of `_processes` and `_server`: it forks processes that have imported everything.

One serves all workers of a run of the tests, since the imports take seconds; the first that needs
it starts it, and it ends with the run. A client connects to its socket, sends three open files and
an order, a line of JSON, and is told the number of its process and then, in a second line, how
that ended.
"""

import atexit
import contextlib
import fcntl
import gc
import importlib
import json
import os
import pickle
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).parents[1]
_PLACE = "NLPKIT_TESTS_SERVER"
_SERVE = "import sys; sys.path[0] = sys.argv[1]; from tests import _forks; _forks.serve()"


def share() -> None:
    """Choose the folder of the server, for this process and for the workers that it starts."""
    if _PLACE not in os.environ:
        folder = tempfile.mkdtemp(prefix="nlpkit-tests-")
        os.environ[_PLACE] = f"{os.getpid()}:{folder}"
        atexit.register(shutil.rmtree, folder, ignore_errors=True)


@cache
def address() -> str:
    """Return the path of the server's socket, once it answers."""
    folder = Path(os.environ[_PLACE].partition(":")[2])
    server = None
    with contextlib.suppress(FileExistsError):  # another worker starts it
        (folder / "starting").touch(exist_ok=False)
        command = [sys.executable, "-c", _SERVE, str(_ROOT)]
        server = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)
        atexit.register(server.poll)  # and so it is kept
    while not (folder / "socket").exists():
        assert server is None or server.poll() is None, "the server of the processes has ended"
        time.sleep(0.01)
    return f"{folder}/socket"


def sync_nothing() -> None:
    """Let `os.fsync` only look whether there is such a file, in this process.

    No power is cut here, and to wait for the disk took a tenth of the time of most runs. The
    interpreters that tests start sync as users' do.
    """

    def fsync(handle: int) -> None:
        os.fstat(handle)

    os.fsync = fsync


def serve() -> None:
    """Fork a process for each client and tell how it ended, until the run of the tests is gone."""
    owner, _, folder = os.environ[_PLACE].partition(":")
    importlib.import_module("tests._imported")
    gc.freeze()  # what was imported stays: no process need look through it
    gc.set_threshold(20_000, 20, 50)  # as in the workers, see conftest.py
    sync_nothing()
    clients: dict[int, socket.socket] = {}
    ended, end = socket.socketpair()
    end.setblocking(False)
    with socket.socket(socket.AF_UNIX) as listener, selectors.DefaultSelector() as waiting:
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        signal.set_wakeup_fd(end.fileno())
        listener.bind(f"{folder}/new")
        listener.listen(64)
        os.rename(f"{folder}/new", f"{folder}/socket")
        waiting.register(listener, selectors.EVENT_READ)
        waiting.register(ended, selectors.EVENT_READ)
        while os.path.exists(f"/proc/{owner}"):
            for key, _ in waiting.select(1):
                if key.fileobj is ended:
                    ended.recv(64)
                    _tell(clients)
                    continue
                client, _ = listener.accept()
                process = os.fork()
                if process == 0:
                    signal.set_wakeup_fd(-1)
                    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                    waiting.close()
                    for other in (listener, ended, end, *clients.values()):
                        other.close()
                    _attend(client)
                clients[process] = client
                client.sendall(f"{process}\n".encode())


def _tell(clients: dict[int, socket.socket]) -> None:
    """Tell the clients whose processes have ended."""
    with contextlib.suppress(ChildProcessError):  # none is left
        while (found := os.waitpid(-1, os.WNOHANG))[0]:
            with clients.pop(found[0]) as client, contextlib.suppress(OSError):
                client.sendall(f"{os.waitstatus_to_exitcode(found[1])}\n".encode())


def _attend(client: socket.socket) -> None:
    """Be what a client orders."""
    _, streams, _, _ = socket.recv_fds(client, 1, 3)
    with client, client.makefile("r", encoding="utf-8") as orders:
        order = json.loads(orders.readline())
    be_command_line(order, streams)


def be_command_line(order: dict[str, Any], streams: list[int]) -> None:
    """Be the command line, in a process that was forked for it; `streams` are open files."""
    from nlpkit import cli

    if order.get("terminal"):
        os.setsid()
        for stream in streams:
            os.close(stream)
        streams = [os.open(order["terminal"], os.O_RDWR) for _ in streams]  # it controls us now
    else:
        os.setpgid(0, 0)
    os.chdir(order["folder"])
    os.environ.clear()
    os.environ.update(order["environment"])
    tempfile.tempdir = None  # TMPDIR counts anew
    own = [] if order.get("script") else [""]
    extra = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:] = list(dict.fromkeys([*own, *filter(None, extra), *filter(None, sys.path)]))
    copies = [fcntl.fcntl(stream, fcntl.F_DUPFD, 3) for stream in streams]
    for stream in streams:
        os.close(stream)  # a reader waits for the last copy to be closed
    for number, copy in enumerate(copies):
        os.dup2(copy, number)
        os.close(copy)
    os.umask(order["umask"])
    # As an interpreter that starts makes them: the others know whether the old files can seek.
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", 1, "utf-8", "backslashreplace", closefd=False)  # noqa: SIM115
    sys.argv = ["nlpkit", *order["arguments"]]
    around: Callable[[], Any] = pickle.loads(bytes.fromhex(order.get("around", "")) or _NOTHING)
    code: Any = 99
    try:
        with around():
            cli.main()
    except SystemExit as ended:
        code = ended.code or 0
    finally:
        sys.stdout.flush()
        os._exit(code)


_NOTHING = pickle.dumps(contextlib.nullcontext)
