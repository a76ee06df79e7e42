"""What all tests share."""

import contextlib
import gc
import importlib
import itertools
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

# Before torch is imported, for it and for every process that a test starts: runs in this process
# and in others must round alike, and the models are too small for a second thread.
os.environ["OMP_NUM_THREADS"] = "1"
# Unbuffered streams would hide what goes wrong when they are flushed at exit.
os.environ.pop("PYTHONUNBUFFERED", None)
# Without bytecode every worker, and every process of a test, would compile all modules anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

import torch

from tests import _forks

if TYPE_CHECKING:
    from tests._faults import Server

# A shell's background jobs are started deaf to ^C, and so would be every process of a test.
signal.signal(signal.SIGINT, signal.default_int_handler)

sys.dont_write_bytecode = False
# Modules and tests stay to the end: to look for rubbish among them took a fourth of the collection.
gc.disable()
# One server of processes for all workers.
_forks.share()
_forks.sync_nothing()

GPU = torch.cuda.is_available()
TESTS = Path(__file__).parent
REAL_DATA = Path(__file__).resolve().parents[2] / "shared" / "data"


@pytest.fixture(autouse=True)
def _seed() -> None:
    # Without a GPU torch writes down the stack, 60 calls deep, for each that might come later.
    (torch.manual_seed if GPU else torch.default_generator.manual_seed)(0)


# The files that take longest, which begin first: the workers are to end together.
LONGEST = (
    "whole/test_every_part.py",
    "selftest/test_selftest.py",
    "train/test_train.py",
    "commands/test_compare.py",
    "whole/test_path.py",
    "commands/test_finetune.py",
    "docs/test_readme.py",
    "attention/test_attention.py",
    "commands/test_pretrain.py",
    "commands/test_grid.py",
    "data/test_store.py",
    "commands/test_suite.py",
    "docs/test_site.py",
    "checkpoints/test_lora.py",
    "commands/test_eval.py",
    "models/test_encoder_runs.py",
    "report/test_report.py",
    "whole/test_faults_native.py",
    "train/test_budget_runs.py",
    "selftest/test_provable.py",
    "selftest/test_objectives.py",
    "train/test_optimizers_runs.py",
    "checkpoints/test_pipelines.py",
    "recipe/test_recipe.py",
    "objectives/test_rtd.py",
    "whole/test_faults_save.py",
    "contracts/test_dotted.py",
    "whole/test_faults_evaluation.py",
    "generate/test_engine.py",
    "train/test_budget.py",
    "whole/test_faults_kill.py",
    "commands/test_cli.py",
    "plan/test_plan.py",
    "score/test_bleu_fuzz.py",
    "evaluate/test_metrics.py",
    "runs/test_two_tokenizers.py",
    "whole/test_layers.py",
    "objectives/test_tasks_gpt_runs.py",
    "objectives/test_cpm_ant.py",
    "whole/test_faults_surroundings.py",
    "commands/test_score.py",
    "objectives/test_tasks_spans_runs.py",
    "whole/test_faults_signals.py",
    "models/test_gpt.py",
    "train/test_trackers.py",
    "selftest/test_rows.py",
    "attention/test_parts_outside.py",
    "commands/test_completion.py",
)


@pytest.fixture(scope="session")
def _caches(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Yield the paths of directories that are not there yet."""
    root = tmp_path_factory.mktemp("caches")
    return (root / str(number) for number in itertools.count())


@pytest.fixture(autouse=True)
def _own_cache(_caches: Iterator[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep tokenised test data out of the user's cache."""
    monkeypatch.setenv("NLPKIT_CACHE", str(next(_caches)))


@pytest.fixture(scope="session")
def server() -> "Server":
    """Return what runs command lines, with faults, in processes of their own."""
    from tests._faults import Server

    return Server()


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """Import this worker's share of the test files first.

    Every worker collects every file. Rewriting their asserts is half of that on a fresh checkout;
    so each writes the bytecode of some, and reads that of the others.
    """
    worker = getattr(session.config, "workerinput", None)
    if worker is None or session.config.getoption("file_or_dir"):
        return
    number, count = int(worker["workerid"].removeprefix("gw")), worker["workercount"]
    for file in sorted(TESTS.rglob("test_*.py"))[number::count]:
        # What fails will fail again where pytest reports it.
        with contextlib.suppress(Exception, pytest.skip.Exception):
            parts = file.relative_to(TESTS).with_suffix("").parts
            importlib.import_module(".".join((str(__package__), *parts)))


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()
    gc.set_threshold(20_000, 20, 50)  # seldom: at Python's own rate it takes 2 % of the time


def _mark_slow_cases(items: list[pytest.Item]) -> None:
    """Of each test with `fast_cases(n)`, leave n of its cases fast, evenly over the list."""
    cases: dict[str, list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("fast_cases") and not item.get_closest_marker("slow"):
            cases.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for group in cases.values():
        count = next(group[0].iter_markers("fast_cases")).args[0]
        kept = {number * len(group) // count for number in range(count)}
        for number, item in enumerate(group):
            if number not in kept:
                item.add_marker(pytest.mark.slow)


@pytest.hookimpl(tryfirst=True)  # before -m takes the slow ones away
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    _mark_slow_cases(items)
    rank = {TESTS / name: number for number, name in enumerate(LONGEST)}
    items.sort(key=lambda item: rank.get(item.path, len(rank)))
    for item in items:
        if item.get_closest_marker("real_data") and not REAL_DATA.is_dir():
            item.add_marker(pytest.mark.skip(reason=f"the real data sets are not in {REAL_DATA}"))
        if item.get_closest_marker("gpu") and not GPU:
            item.add_marker(pytest.mark.skip(reason="no CUDA device"))
