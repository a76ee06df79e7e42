"""Chooses the device, the precision and the settings of the memory allocator; the used memory."""

import ctypes
import os
import platform
import re
import resource
import sys
from pathlib import Path

import torch

from nlpkit.errors import UsageError

# glibc's mallopt parameters (malloc.h)
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
# What Linux calls them on processors of Intel, of AMD, of Arm.
_BF16_UNITS = {"amx_bf16", "avx512_bf16", "bf16"}


def find_device(name: str) -> torch.device:
    """Return the device of `--device`; `auto` is the accelerator if there is one, else the CPU.

    Raises:
        UsageError: the device is not available.
    """
    own = torch.accelerator.current_accelerator(check_available=True)
    if name == "auto":
        return own or torch.device("cpu")
    try:
        device = torch.device(name)
        # No tensor is allocated on a GPU, because it would use GPU memory in every process.
        is_own = own is not None and own.type == device.type
        if not is_own or (device.index or 0) >= torch.accelerator.device_count():
            torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).split("\n")[0]
        raise UsageError(f"--device {name}: not available: {reason}") from error
    return device


def choose_precision(requested: str, device: torch.device) -> tuple[str, str]:
    """Return `fp32` or `bf16`, and the reason in words.

    On a CPU with bf16 units (AMX, or AVX512-BF16 on recent AMD) bf16 is several times as fast as
    fp32. On other CPUs it is slower, up to 60 times.
    """
    if requested != "auto":
        return requested, "asked for"
    if device.type == "cuda":
        has_units = torch.cuda.is_bf16_supported(including_emulation=False)
    else:
        has_units = device.type == "cpu" and bool(_BF16_UNITS & _cpu_flags())
    name, units = ("bf16", "with") if has_units else ("fp32", "without")
    return name, f"{device.type} {units} bf16 units"


def _cpu_flags(path: Path = Path("/proc/cpuinfo")) -> set[str]:
    """Return what Linux says that the processor can do."""
    text = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
    return {
        flag for line in re.findall(r"^(?:flags|Features).*", text, re.M) for flag in line.split()
    }


def use_deterministic_algorithms(device: torch.device) -> None:
    """Set torch to deterministic algorithms.

    An operation without a deterministic algorithm is an error on a CPU, and a warning on a GPU.
    """
    if device.type == "cpu":
        # The same as `use_deterministic_algorithms`, which imports torch's compiler (0.7 s).
        torch.set_deterministic_debug_mode("error")
    else:
        torch.use_deterministic_algorithms(True, warn_only=True)
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    # With this setting, torch would write every new tensor twice.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


def configure_allocator() -> None:
    """Configure glibc and oneDNN so that memory does not grow; call before the first product.

    glibc keeps freed pages: returning them costs 18 % of a step in page faults. Products in bf16
    use two caches of compiled kernels, one in oneDNN and one in torch, each with 1024 entries by
    default. Nearly every packed batch has new shapes, and a kernel for each shape would fragment
    the heap. With small caches the shipped CPM-Ant recipe needs 1.2 GiB in 160 steps; if only the
    first cache is small, it needs 2.1 GiB.
    """
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "128")
    os.environ.setdefault("LRU_CACHE_CAPACITY", "16")
    if platform.libc_ver()[0] == "glibc":
        libc = ctypes.CDLL(None)
        libc.mallopt(_M_MMAP_THRESHOLD, ctypes.c_int(1 << 25))  # the largest allowed value
        libc.mallopt(_M_TRIM_THRESHOLD, ctypes.c_int(-1))


def used_memory(device: torch.device) -> tuple[int, int]:
    """Return the bytes in use and the peak since `memory.forget_peak`: of GPU or process."""
    if device.type == "cuda":
        return torch.cuda.memory_allocated(device), torch.cuda.max_memory_allocated(device)
    status = read_table(Path("/proc/self/status"))
    if "VmHWM" in status:
        return status["VmRSS"], status["VmHWM"]
    scale = 1 if sys.platform == "darwin" else 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * scale
    return peak, peak


def read_table(path: Path) -> dict[str, int]:
    """Return the numbers in a file with lines like `name: 12 kB` or `name 12`, in bytes."""
    table = {}
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return {}
    for line in lines:
        name, *values = line.replace(":", " ", 1).split()
        if values and values[0].isdigit():
            table[name] = int(values[0]) * (1024 if values[1:] == ["kB"] else 1)
    return table
