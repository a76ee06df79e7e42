"""Where a run computes: its device, precision and processes, the allocator, the used memory."""

from __future__ import annotations

import ctypes
import os
import platform
import re
import resource
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from nlpkit.contracts.batch import Batch
from nlpkit.errors import UsageError

if TYPE_CHECKING:
    from accelerate import Accelerator

    from nlpkit.train.log import Log
    from nlpkit.train.settings import Config

# What `accelerate launch` sets for --use_fsdp and --dynamo_backend.
FSDP, _COMPILER = "ACCELERATE_USE_FSDP", "ACCELERATE_DYNAMO_BACKEND"
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
        if "one of cpu, cuda" in reason:  # torch lists all that there are
            reason = "give auto, cpu, cuda or cuda:1"
        raise UsageError(f"--device {name}: not available: {reason}") from error
    return device


def choose_precision(requested: str, device: torch.device) -> tuple[str, str]:
    """Return `fp32` or `bf16`, and the reason in words.

    On a CPU with bf16 units (AMX, or AVX512-BF16 on recent AMD) bf16 is several times as fast as
    fp32. On other CPUs it is slower, up to 60 times.
    """
    if requested == "fp32":
        return requested, "asked for"
    has_units = _has_bf16_units(device)
    if requested == "auto":
        name, units = ("bf16", "with") if has_units else ("fp32", "without")
        return name, f"{device.type} {units} bf16 units"
    slow = device.type == "cpu" and not has_units
    return requested, "asked for" + "; no bf16 units: up to 60 x as slow as fp32" * slow


def _has_bf16_units(device: torch.device) -> bool:
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    return device.type == "cpu" and bool(_BF16_UNITS & _cpu_flags())


def _cpu_flags(path: Path = Path("/proc/cpuinfo")) -> set[str]:
    """Return what Linux says that the processor can do."""
    text = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
    return {
        flag for line in re.findall(r"^(?:flags|Features).*", text, re.M) for flag in line.split()
    }


def find_processor(device: torch.device, path: Path = Path("/proc/cpuinfo")) -> str:
    """Return the name of the GPU, or, as Linux tells it, of the processor, and its instructions."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    text = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
    name = re.findall(r"^model name\s*: *(.+)", text, re.M)[:1] or [platform.machine()]
    return ", ".join([*name, torch.backends.cpu.get_cpu_capability()])


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
    the heap.
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


def is_asked(name: str, default: str = "false") -> bool:
    """Return whether a variable of the environment is set to yes."""
    return os.environ.get(name, default).lower() not in ("false", "0", "no")


def is_wrapped(number: int) -> bool:
    """Return whether the model of so many processes is wrapped: one is if it is compiled."""
    return number > 1 or is_asked(_COMPILER)


def make_accelerator(settings: Config, device: str, log: Log) -> Accelerator:
    """Return the accelerator; `Training` applies autocast, as the precision is chosen later.

    Raises:
        UsageError: the device is not available.
    """
    from accelerate import Accelerator, PartialState

    on_cpu = find_device(device).type == "cpu"
    if device not in ("auto", "cpu"):
        os.environ["ACCELERATE_TORCH_DEVICE"] = device
    configure_allocator()
    if {"WORLD_SIZE", "RANK", "LOCAL_RANK"} & os.environ.keys():
        from nlpkit.train import processes

        processes.form_group(on_cpu, log)
    # On a CPU, several processes form a group only with `cpu=True`.
    if not PartialState(cpu=on_cpu).is_main_process:
        log.verbosity = -1  # only rank 0 logs
    # It would shard on GPUs only: on CPUs it takes DistributedDataParallel without a word.
    asked = os.environ.pop(FSDP, None)
    accelerator = Accelerator(cpu=on_cpu, mixed_precision="no")
    accelerator.gradient_accumulation_steps = 1  # one of the environment would divide gradients
    os.environ |= {} if asked is None else {FSDP: asked}
    if settings.deterministic:
        use_deterministic_algorithms(accelerator.device)
    return accelerator


def unwrapped(module: Any) -> Any:
    """Return the module that `wrap` was given.

    As `Accelerator.unwrap_model`, which imports torch's compiler to look for compiled modules.
    """
    module = getattr(module, "_orig_mod", module)  # compiled as `accelerate launch` was asked to
    return module.module if isinstance(module, nn.parallel.DistributedDataParallel) else module


def to_device(batch: Batch, device: torch.device) -> Batch:
    """Return the batch with its arrays as tensors on `device`."""

    def move(array: Any) -> Any:
        tensor = torch.from_numpy(array) if isinstance(array, np.ndarray) else array
        return tensor.to(device, non_blocking=True) if isinstance(tensor, Tensor) else tensor

    fields = {name: move(array) for name, array in batch.fields.items()}
    return replace(batch, fields=fields)
