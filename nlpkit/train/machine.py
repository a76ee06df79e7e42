"""What this machine has and does best: device, compute type, memory allocator."""

import ctypes
import os
import platform
import time

import torch

from nlpkit.errors import UsageError

# glibc's mallopt parameters (malloc.h)
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_LEAST_PRODUCTS = 10


def find_device(name: str) -> torch.device:
    """Return the device that `--device` names; `auto` is the accelerator here, else the CPU.

    Raises:
        UsageError: there is no such device here.
    """
    own = torch.accelerator.current_accelerator(check_available=True)
    if name == "auto":
        return own or torch.device("cpu")
    try:
        device = torch.device(name)
        # A tensor would take memory of the GPU, in every process of a launch.
        counted = own is not None and own.type == device.type
        if not counted or (device.index or 0) >= torch.accelerator.device_count():
            torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).split("\n")[0]
        raise UsageError(f"--device {name}: there is none here: {reason}") from error
    return device


def choose_precision(asked: str, device: torch.device) -> tuple[str, str]:
    """Return `fp32` or `bf16` and the reason, in words.

    On a CPU bf16 is several times as fast as fp32 where the cores have bf16 units (AMX,
    AVX512-BF16 on recent AMD), and slower where they have not: so 50 ms of it are tried.
    """
    if asked != "auto":
        return asked, "asked for"
    if device.type == "cuda":
        if torch.cuda.is_bf16_supported(including_emulation=False):
            return "bf16", "the GPU has bf16 units"
        return "fp32", "the GPU has no bf16 units"
    if device.type != "cpu":
        return "fp32", f"bf16 is not tried on {device.type}"
    ratio = _gemm_seconds(torch.float32) / _gemm_seconds(torch.bfloat16)
    # Below this, casts and element-wise work eat the gain.
    faster = ratio > 1.5
    return ("bf16" if faster else "fp32"), f"bf16 multiplies {ratio:.1f} x as fast as fp32 here"


def _gemm_seconds(dtype: torch.dtype) -> float:
    """Return the least time of a product by one thread.

    Of several threads each would wait for the last, on a busy machine for all of the 25 ms.
    """
    a, b = torch.ones(512, 512, dtype=dtype), torch.ones(512, 512, dtype=dtype)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    a @ b
    times: list[float] = []
    stop = time.perf_counter() + 0.025
    while len(times) < _LEAST_PRODUCTS or time.perf_counter() < stop:
        start = time.perf_counter()
        a @ b
        times.append(time.perf_counter() - start)
    torch.set_num_threads(threads)
    return min(times)


def configure_allocator() -> None:
    """Make memory neither come and go at every step nor grow; call before the first product.

    glibc is told to keep freed pages (returning them costs 18 % of a step in page faults). The bf16
    products go through two caches of compiled kernels, oneDNN's and that of torch's binding to it,
    each of 1024 kernels if not told otherwise. Packs have ever new shapes, and a kernel for each
    lies between the blocks of the heap, so that freed ones are not joined. Told so, the shipped
    CPM-Ant recipe reaches 1.2 GiB in 160 steps; with only the first cache told so, 2.1 GiB.
    """
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "128")
    os.environ.setdefault("LRU_CACHE_CAPACITY", "16")
    if platform.libc_ver()[0] == "glibc":
        libc = ctypes.CDLL(None)
        libc.mallopt(_M_MMAP_THRESHOLD, ctypes.c_int(1 << 25))  # the most that glibc takes
        libc.mallopt(_M_TRIM_THRESHOLD, ctypes.c_int(-1))
