"""What all tests share."""

import os
import signal
from pathlib import Path

import pytest

# Before torch is imported, for it and for every process that a test starts: runs in this process
# and in others must round alike, and the models are too small for a second thread.
os.environ["OMP_NUM_THREADS"] = "1"
# Unbuffered streams would hide what goes wrong when they are flushed at exit.
os.environ.pop("PYTHONUNBUFFERED", None)

import torch

# A shell's background jobs are started deaf to ^C, and so would be every process of a test.
signal.signal(signal.SIGINT, signal.default_int_handler)

REAL_DATA = Path(__file__).resolve().parents[2] / "shared" / "data"


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep tokenised test data out of the user's cache."""
    monkeypatch.setenv("NLPKIT_CACHE", str(tmp_path_factory.mktemp("cache")))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("real_data") and not REAL_DATA.is_dir():
            item.add_marker(pytest.mark.skip(reason=f"the real data sets are not in {REAL_DATA}"))
        if item.get_closest_marker("gpu") and not torch.cuda.is_available():
            item.add_marker(pytest.mark.skip(reason="no CUDA device"))
