"""Time and peak memory of a step on a GPU (or a CPU, to try the benchmark), and the machine."""

import gc
import platform
import shutil
import statistics
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from importlib.metadata import PackageNotFoundError, version

import torch

from nlpkit.errors import Unsupported
from nlpkit.train import memory
from nlpkit.train.machine import used_memory


@dataclass(frozen=True)
class Measured:
    """Medians and peak of the rounds of a step; or why there are none."""

    seconds: list[float]
    peak: int  # bytes beyond those in use before
    problem: str = ""

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)


def measure(
    make: Callable[[], Callable[[int], None]], device: torch.device, rounds: int, warm_up: int
) -> Measured:
    """Measure the step that `make` returns, called with the number of the round.

    The rounds of the warm-up come first: in them kernels are compiled. A step that cannot be done
    is a result, too.
    """
    empty_cache(device)
    before = used_memory(device)[0]
    try:
        step = make()
        for number in range(warm_up):
            step(number)
        memory.forget_peak(device)
        seconds = [_seconds(step, warm_up + number, device) for number in range(rounds)]
        return Measured(seconds, max(0, used_memory(device)[1] - before))
    except Unsupported as error:
        return Measured([], 0, f"refused: {str(error).rpartition(': ')[2]}")
    except (RuntimeError, MemoryError) as error:
        if memory.is_shortage(error):
            return Measured([], 0, "out of memory")
        # One kernel that fails must not end the others' table.
        return Measured([], 0, f"{type(error).__name__}: {str(error).splitlines()[0]}")


def _seconds(step: Callable[[int], None], number: int, device: torch.device) -> float:
    if device.type != "cuda":
        start = time.perf_counter()
        step(number)
        return time.perf_counter() - start
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize(device)
    begin.record()
    step(number)
    end.record()
    torch.cuda.synchronize(device)
    return begin.elapsed_time(end) / 1000


def empty_cache(device: torch.device) -> None:
    """Return freed memory, so that each subject begins alike."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.empty_cache()


def machine(device: torch.device) -> str:
    """Return date, device, driver and versions, for the head of a table."""
    about = [str(date.today()), f"torch {torch.__version__}"]
    if device.type == "cuda":
        facts = torch.cuda.get_device_properties(device)
        about += [
            f"{facts.name}, {facts.total_memory / 2**30:.0f} GiB, capability "
            f"{facts.major}.{facts.minor}",
            f"driver {_driver()}, CUDA {torch.version.cuda}",
        ]
    else:
        about.append(f"{platform.machine()} CPU: only to try the command, no figures of a GPU")
    packages = ("triton", "flash-attn", "transformers")
    return ", ".join([*about, *(f"{name} {_version(name)}" for name in packages)])


def _driver() -> str:
    program = shutil.which("nvidia-smi")
    if program is None:
        return "unknown (no nvidia-smi)"
    query = [program, "--query-gpu=driver_version", "--format=csv,noheader"]
    done = subprocess.run(query, capture_output=True, text=True)
    return done.stdout.split("\n")[0].strip() or "unknown"


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
