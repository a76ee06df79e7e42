"""Forms the group of the processes that a launcher started, or says in one line why there is none.

Launchers such as torchrun put a number for each process into the environment. Without all of it,
torch and accelerate end in errors of their own, or wait for half an hour without a word.
"""

import os
from threading import Timer

from accelerate import PartialState

from nlpkit.errors import UsageError
from nlpkit.train.log import Log

_NEEDED = ("WORLD_SIZE", "RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
_PATIENCE = 5.0  # seconds until it is said that others are waited for
_REMEDY = "start the run with torchrun, or unset them for a run of one process"


def form_group(on_cpu: bool, log: Log) -> None:
    """Wait for the other processes.

    Raises:
        UsageError: the environment is not that of a launcher, or the processes form no group.
    """
    found = {name: os.environ[name] for name in _NEEDED if os.environ.get(name)}
    size, rank = int(found.get("WORLD_SIZE", "1")), int(found.get("RANK", "0"))
    given = " ".join(f"{name}={value}" for name, value in found.items())
    # On a CPU accelerate does without LOCAL_RANK.
    lacking = [n for n in _NEEDED if n not in found and (n != "LOCAL_RANK" or not on_cpu)]
    if rank >= size:
        raise _error(f"{given}: RANK counts from 0 to WORLD_SIZE - 1")
    if lacking and (size > 1 or "LOCAL_RANK" in found):
        raise _error(f"{given}, but no {', '.join(lacking)}")
    where = f"{found.get('MASTER_ADDR')}:{found.get('MASTER_PORT')}"
    waiting = f"process {rank} of {size} waits for the others at {where}; were all of them started?"
    timer = Timer(_PATIENCE, log.info, [waiting])
    timer.daemon = True
    timer.start()
    try:
        formed = PartialState(cpu=on_cpu).num_processes
    except (ValueError, RuntimeError) as error:  # of accelerate, of torch
        what = str(error).partition("\n")[0]
        raise _error(f"{given}: the processes form no group: {what}") from error
    finally:
        timer.cancel()
    if size != formed:
        raise UsageError(
            f"{size} processes were launched, but {formed} form a group; "
            "check the launcher's options and --device"
        )


def _error(what: str) -> UsageError:
    # Another process may not be there to say it: that of rank 0 alone prints such an error.
    os.environ.pop("RANK", None)
    return UsageError(f"environment: {what}; {_REMEDY}")
