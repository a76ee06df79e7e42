"""Chooses the device, the precision and the settings of the memory allocator; the used memory."""

import ctypes
import math
import os
import platform
import resource
import sys
import time
from pathlib import Path

import torch

from nlpkit.errors import UsageError

# glibc's mallopt parameters (malloc.h)
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_MIN_PRODUCTS = 10


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
    fp32. On other CPUs it is slower, up to 60 times. Therefore both are measured, in 60 ms: small
    products first, since large ones would take 0.2 s each on such a CPU.
    """
    if requested != "auto":
        return requested, "asked for"
    if device.type == "cuda":
        if torch.cuda.is_bf16_supported(including_emulation=False):
            return "bf16", "the GPU has bf16 units"
        return "fp32", "the GPU has no bf16 units"
    if device.type != "cpu":
        return "fp32", f"bf16 is not tried on {device.type}"
    for size in (128, 512):
        fp32 = _gemm_seconds(torch.float32, size)
        ratio = fp32 / _gemm_seconds(torch.bfloat16, size, 2 * fp32)
        if ratio < 1 / 8:
            break
    # With a smaller ratio, casts and element-wise operations cost more time than bf16 saves.
    faster = ratio > 1.5
    return ("bf16" if faster else "fp32"), f"bf16 multiplies {ratio:.2g} x as fast here"


def _gemm_seconds(dtype: torch.dtype, size: int, too_long: float = math.inf) -> float:
    """Return the shortest time of a product of two matrices (size, size) on one thread.

    On a busy machine, several threads could wait for each other during all of the time, 25 ms for
    512. Three products that all take `too_long` are enough.
    """
    a, b = torch.ones(size, size, dtype=dtype), torch.ones(size, size, dtype=dtype)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    a @ b
    times: list[float] = []
    stop = time.perf_counter() + 0.025 * size / 512
    while len(times) < _MIN_PRODUCTS or time.perf_counter() < stop:
        if len(times) == 3 and min(times) > too_long:
            break
        start = time.perf_counter()
        a @ b
        times.append(time.perf_counter() - start)
    torch.set_num_threads(threads)
    return min(times)


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
