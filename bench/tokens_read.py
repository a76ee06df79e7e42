"""Time training steps whose last layer computes the states that the loss reads, or all of them.

    OMP_NUM_THREADS=1 python bench/tokens_read.py [--recipes bert cpm_ant …] [--rounds 8]

The first batches of each recipe, forward and backward, the two ways in turns; processor time.
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import torch
from _turns import machine

from nlpkit import plan as planning
from nlpkit import recipe
from nlpkit.contracts.batch import Batch
from nlpkit.objectives.examples import text
from nlpkit.runs import build
from nlpkit.runs.run import Training
from nlpkit.train.log import QUIET, Log
from nlpkit.train.machine import to_device

WAYS = {"those read": text._find_rows, "all states": lambda *given: None}
TYPES = (torch.float32, torch.bfloat16)


def _seconds(training: Training, batch: Batch, way: str, dtype: torch.dtype) -> float:
    text._find_rows = WAYS[way]
    start = time.process_time()
    with torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
        loss = training(batch)
    loss.mean(batch.num_targets).backward()
    training.zero_grad()
    return time.process_time() - start


def _measure(name: str, batches: int, rounds: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        resolved = recipe.load(name, [f"out={folder}/run"])
        plan = planning.make(resolved, Path(folder) / "run", "cpu", Log(QUIET))
        device = torch.device("cpu")
        given = [to_device(each, device) for n in range(batches) for each in plan.stream[n].batches]
    training = Training(
        build.build_model(plan.part, plan.data.vocab_size, "auto"), plan.data.objective
    ).train()
    for dtype in TYPES:
        times: dict[str, list[float]] = {way: [] for way in WAYS}
        ratios = []
        for number in range(rounds + 1):  # the first one is not counted: kernels are compiled
            ways = [*WAYS] if number % 2 else [*reversed(WAYS)]
            for batch in given:
                taken = {way: _seconds(training, batch, way, dtype) for way in ways}
                if number:
                    ratios.append(taken["all states"] / taken["those read"])
                    for way, seconds in taken.items():
                        times[way].append(seconds)
        shown = [f"{statistics.median(times[way]):.3f}" for way in WAYS]
        low, *_, high = statistics.quantiles(ratios, n=10)
        gain = f"{statistics.median(ratios):.2f} ({low:.2f}–{high:.2f})"
        print("|", " | ".join([name, str(dtype).removeprefix("torch."), *shown, gain]), "|")


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--recipes", nargs="+", default=["bert", "albert", "electra", "cpm_ant"])
    parser.add_argument("--batches", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=8)
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{machine(1)}, CPU seconds of a step's forward and backward, medians\n")
    print("| recipe | type |", " | ".join(WAYS), "| gain, median (10 % – 90 %) |")
    print("|---" * (3 + len(WAYS)) + "|")
    for name in options.recipes:
        _measure(name, options.batches, options.rounds)


if __name__ == "__main__":
    main()
