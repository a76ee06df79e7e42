"""Measures the used and the available memory, and recognizes errors that mean "out of memory".

On Linux, the numbers come from /proc and the control groups. On other systems, the limit is the
physical memory. For a GPU, the numbers come from torch.
"""

import ctypes
import gc
import os
import platform
import resource
from contextlib import suppress
from pathlib import Path

import torch

from nlpkit.errors import NO_MEMORY
from nlpkit.train.machine import read_table, used_memory


def forget_peak(device: torch.device) -> None:
    """Reset the peak of `used`, if the system allows it."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # proc(5): resets VmHWM


def release(device: torch.device) -> None:
    """Give freed memory back to the system, which glibc and torch would keep."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
    elif platform.libc_ver()[0] == "glibc":
        ctypes.CDLL(None).malloc_trim(0)


def limit(device: torch.device) -> int:
    """Return how many bytes this process can use in total, including the bytes in use."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return free + torch.cuda.memory_reserved(device)
    return available() + used_memory(device)[0]


def available(root: Path = Path("/")) -> int:
    """Return how many more bytes this process can use; `root` is the parent of /proc and /sys.

    This is the minimum of the free memory and of what is left of each limit: the limits of the
    control groups and of `ulimit -v`.
    """
    proc = root / "proc"
    free = [
        read_table(proc / "meminfo").get("MemAvailable")
        or os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    ]
    try:
        groups = (proc / "self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        groups = []
    for line in groups:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            names = "memory.max", "memory.current", "inactive_file"
            free += _left(root / "sys/fs/cgroup", path, *names)
        elif "memory" in controllers.split(","):
            names = "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"
            free += _left(root / "sys/fs/cgroup/memory", path, *names)
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    if soft != resource.RLIM_INFINITY:
        free.append(soft - read_table(proc / "self/status").get("VmSize", 0))
    return max(0, min(free))


def _left(mount: Path, path: str, limit_file: str, used_file: str, cache_key: str) -> list[int]:
    """Return the free bytes of a control group and of its parents; file cache counts as free."""
    first = mount / path.lstrip("/")
    free = []
    for group in (first, *first.parents):
        with suppress(OSError, ValueError):  # no such group, or its limit is `max`
            cached = read_table(group / "memory.stat").get(cache_key, 0)
            in_use = int((group / used_file).read_text()) - cached
            free.append(int((group / limit_file).read_text()) - in_use)
        if group == mount:
            break
    return free


def is_shortage(error: BaseException) -> bool:
    """Return whether an error means that there is not enough memory."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(w in str(error) for w in NO_MEMORY)
