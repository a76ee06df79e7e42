"""Runs a module in a process whose torch has a CUDA device that computes nothing.

Fake tensors on `cuda` have shapes and types, but no values. A torch without CUDA can neither index
them nor take their gradients, because both ask for the device; `_fake_cuda.cpp` is one.
"""

import functools
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch

SOURCE = Path(__file__).with_suffix(".cpp")


@functools.cache
def _library() -> Path:
    """Return the compiled device."""
    root = Path(torch.__file__).parent
    made = Path(tempfile.mkdtemp(prefix="fake-cuda-")) / "fake_cuda.so"
    command = [
        *("g++", "-std=c++20", "-shared", "-fPIC", f"-I{root / 'include'}", str(SOURCE)),
        *("-o", str(made), f"-L{root / 'lib'}", "-ltorch_cpu", "-lc10"),
        f"-Wl,-rpath,{root / 'lib'}",
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        first = done.stderr.splitlines()[0]
        pytest.skip(f"the device does not compile against torch {torch.__version__}: {first}")
    return made


def run(module: str, *arguments: str) -> Any:
    """Return what the module prints as JSON; skip where there can be no such device."""
    if sys.platform != "linux" or shutil.which("g++") is None:
        pytest.skip("needs Linux and g++")
    if torch.backends.cuda.is_built():
        pytest.skip("this torch has a CUDA device of its own")
    environment = {**os.environ, "LD_PRELOAD": str(_library())}
    command = [sys.executable, "-m", module, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])
