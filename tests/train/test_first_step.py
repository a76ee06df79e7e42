"""What comes before the first step of training is short."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests import _tiny

CODE = """
import os, sys
from nlpkit.cli import main
from nlpkit.train import loop

take_step = loop._take_step

def first_step(*arguments):
    take_step(*arguments)
    print([name for name in ("torch._dynamo", "sympy", "rjieba") if name in sys.modules])
    sys.stdout.flush()
    os._exit(0)

loop._take_step = first_step
main()
"""


@pytest.mark.slow
def test_first_step_comes_without_what_it_does_not_need(tmp_path: Path) -> None:
    """Torch's compiler takes 0.7 and 0.4 seconds; optimizers, DTensor and accelerate import it.

    The words of jieba take 0.15 seconds; tokens are in the cache here.
    """
    recipe = _tiny.write(tmp_path)
    _tiny.pretrain(recipe, tmp_path / "before")
    done = subprocess.run(
        [sys.executable, "-c", CODE, "pretrain", recipe, "--out", tmp_path / "run"],
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr
