"""The command line for shells and pipes, without the seconds of its imports.

`nlpkit()` is a command to put in the place of `python -m nlpkit`. Its process has the streams,
directory, environment and umask of the caller, and gets the caller's signals; but limits of
resources, a terminal that controls it, a stream that is closed and the interpreter's own settings
(such as its locale) are not passed on: what depends on them needs an interpreter of its own.
"""

import atexit
import json
import os
import selectors
import shlex
import shutil
import signal
import socket
import sys
import tempfile
from functools import cache
from pathlib import Path

from tests import _processes

_CLIENT = Path(__file__).with_name("_client.py")


@cache
def nlpkit() -> tuple[str, ...]:
    """Return the words of the command; the first call starts the server of this test process."""
    path = tempfile.mkdtemp(prefix="nlpkit-tests-") + "/socket"
    server = _processes.CONTEXT.Process(target=_serve, args=(path, os.getpid()))
    server.start()
    atexit.register(shutil.rmtree, Path(path).parent, ignore_errors=True)
    atexit.register(server.kill)
    _processes.wait_until(lambda: Path(path).exists())
    return sys.executable, "-I", "-S", str(_CLIENT), path


def function() -> str:
    """Return the definition of `nlpkit` for a shell."""
    return f'nlpkit() {{ {shlex.join(nlpkit())} "$@"; }}; '


def _serve(path: str, owner: int) -> None:
    """Fork a process for each client, until the process of the tests is gone."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(f"{path}.new")
    listener.listen(16)
    os.rename(f"{path}.new", path)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for these
    with selectors.DefaultSelector() as waiting:
        waiting.register(listener, selectors.EVENT_READ)
        while os.path.exists(f"/proc/{owner}"):
            if waiting.select(1):
                client, _ = listener.accept()
                if os.fork() == 0:
                    listener.close()
                    waiting.close()
                    _attend(client)
                client.close()


def _attend(client: socket.socket) -> None:
    """Run one command line in a process of its own, and tell the client how it ended."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    _, streams, _, _ = socket.recv_fds(client, 1, 3)
    with client.makefile("rw", encoding="utf-8") as answers:
        order = json.loads(answers.readline())
        process = os.fork()
        if process == 0:
            _processes.be_command_line(
                order["arguments"], order["folder"], order["environment"], streams, order["umask"]
            )
        for stream in streams:
            os.close(stream)
        answers.write(f"{process}\n")
        answers.flush()
        code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
        answers.write(f"{code}\n")
        answers.flush()
    os._exit(0)
