"""`--device` of the command line where there is no such device: one line, exit code 2, no trace."""

from pathlib import Path

import pytest
import torch

from nlpkit.errors import UsageError
from nlpkit.train import machine
from tests import _tiny

# A machine without a GPU, also where the tests run on one that has some.
_NO_GPU = {"CUDA_VISIBLE_DEVICES": ""}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a recipe and its finished run."""
    folder = tmp_path_factory.mktemp("device")
    path = _tiny.write(folder)
    _tiny.pretrain(path, folder / "run", "train.steps=2", "train.warmup_steps=1")
    return folder


@pytest.mark.parametrize(
    "words",
    [
        ("pretrain", "tiny.yaml", "--out", "new"),
        ("pretrain", "tiny.yaml", "--out", "new", "--dry-run"),
        ("finetune", "tiny.yaml", "--out", "new", "--from", "run"),
        ("finetune", "tiny.yaml", "--out", "new", "--from", "run", "--seeds", "2"),
        ("plan", "tiny.yaml"),
        ("selftest", "tiny.yaml"),
        ("eval", "run"),
        ("generate", "run", "valid.txt"),
    ],
    ids=lambda words: "-".join(w.strip("-") for w in words if w in words[:1] or w[:2] == "--"),
)
def test_device_that_is_not_there_is_one_line_and_writes_nothing(
    run: Path, words: tuple[str, ...]
) -> None:
    before = sorted(run.rglob("*"))
    result = _tiny.command(*words, "-q", "--device", "cuda", cwd=run, env=_NO_GPU)
    assert result.returncode == 2, result.stderr
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    assert line.startswith("nlpkit: --device cuda: not available: ")
    assert sorted(run.rglob("*")) == before


def test_auto_is_the_accelerator_or_the_cpu() -> None:
    own = torch.accelerator.current_accelerator(check_available=True)
    assert machine.find_device("auto") == (own or torch.device("cpu"))
    assert machine.find_device("cpu") == torch.device("cpu")


def test_device_with_a_number_that_is_not_there_is_refused() -> None:
    with pytest.raises(UsageError, match=r"^--device cuda:77: not available: [^\n]+$"):
        machine.find_device("cuda:77")


def test_device_that_torch_does_not_know_is_one_of_a_short_list() -> None:
    with pytest.raises(UsageError, match=r"gpu: not available: give auto, cpu, cuda or cuda:1$"):
        machine.find_device("gpu")


@pytest.mark.gpu
def test_device_of_this_machine_is_found() -> None:
    last = torch.cuda.device_count() - 1
    assert machine.find_device(f"cuda:{last}") == torch.device("cuda", last)
    assert machine.find_device("cuda").type == "cuda"
