"""`python -I -S _client.py SOCKET ARGUMENTS`: the command line, in a process of `_server`.

It gives its streams, directory and environment away, passes signals on, and ends as that process
does. It imports little, so that it starts at once.
"""

import json
import os
import signal
import socket
import sys


def main() -> None:
    """Be the command line."""
    order = {
        "arguments": sys.argv[2:],
        "folder": os.getcwd(),
        "environment": dict(os.environ),
        "umask": os.umask(0o22),
    }
    with socket.socket(socket.AF_UNIX) as server:
        server.connect(sys.argv[1])
        socket.send_fds(server, [b"."], [0, 1, 2])
        answers = server.makefile("rw", encoding="utf-8")
        answers.write(json.dumps(order) + "\n")
        answers.flush()
        process = int(answers.readline())
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, lambda number, _: os.kill(process, number))
        for stream in range(3):  # whoever reads them must see that the process has closed them
            os.close(stream)
        code = int(answers.readline())
    if code < 0:
        signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


main()
