"""Memory of a process: its peak is its own, and products of ever new shapes do not add to it."""

import os
import platform
import subprocess
import sys

import pytest

MIB = 2**20


def _printed(code: str, **environment: str) -> list[int]:
    """Return the integers that `code` prints in a process of its own."""
    untold = ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY")
    clean = {name: value for name, value in os.environ.items() if name not in untold}
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True, text=True, check=True, env=clean | environment,
    )  # fmt: skip
    return [int(word) for word in done.stdout.split()]


@pytest.mark.skipif(platform.system() != "Linux", reason="the peak is read from /proc")
def test_peak_of_a_child_is_not_that_of_its_parent() -> None:
    # ru_maxrss of the child, started by vfork and exec, would be the parent's 600 MiB and more.
    child = (
        "import torch; from nlpkit.train import memory;print(memory.used(torch.device('cpu'))[1])"
    )
    parent = (
        f"import subprocess, sys; block = b'x' * (1500 * {MIB});"
        f"print(subprocess.check_output([sys.executable, '-c', {child!r}], text=True))"
    )
    [peak] = _printed(parent)
    assert 0 < peak < 1000 * MIB


# Resident growth over products of 600 shapes that the caches have not seen.
_PRODUCTS = f"""
import torch
from nlpkit.train import machine, memory
if TUNED:
    machine.tune_memory()
cpu, right = torch.device("cpu"), torch.ones(256, 640, dtype=torch.bfloat16)
for rows in range(64, 264):
    torch.ones(rows, 256, dtype=torch.bfloat16) @ right
before = memory.used(cpu)[0]
for rows in range(264, 864):
    torch.ones(rows, 256, dtype=torch.bfloat16) @ right
print((memory.used(cpu)[0] - before) // {MIB})
"""


@pytest.mark.skipif(platform.system() != "Linux", reason="resident memory is read from /proc")
def test_products_of_ever_new_shapes_keep_no_memory() -> None:
    # Untold, torch 2.13 keeps 0.5 MiB of compiled kernels for each of the 600 shapes where the CPU
    # has bf16 units; told so, none beyond those that it keeps after the first 200.
    [growth] = _printed(f"TUNED = True\n{_PRODUCTS}")
    assert growth < 30


@pytest.mark.skipif(platform.system() != "Linux", reason="resident memory is read from /proc")
def test_products_tuning_leaves_the_users_own_choice() -> None:
    code = (
        "import os; from nlpkit.train import machine; machine.tune_memory();"
        "print(os.environ['ONEDNN_PRIMITIVE_CACHE_CAPACITY'], os.environ['LRU_CACHE_CAPACITY'])"
    )
    assert _printed(code, ONEDNN_PRIMITIVE_CACHE_CAPACITY="7", LRU_CACHE_CAPACITY="9") == [7, 9]
