"""Time from torch's import to the end of the first training step, as `nlpkit pretrain` runs it.

    python bench/first_step.py [RECIPE ...] [--rounds 3]

Each recipe is run once before, so that its tokenizer and its tokens are in the cache; then in new
processes, in turns. Medians in seconds: torch's own import, and from its end to the end of the
first step, by the clock and by the processor (all threads).
"""

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

CHILD = """
import json, os, sys, time

def now():
    return time.monotonic(), time.process_time()

times = [now()]
import torch
times.append(now())
from nlpkit.train import loop
finish = loop._finish_step

def timed(job, state):
    finish(job, state)
    if not state.step:  # it is called once before the first step
        return
    times.append(now())
    print(json.dumps([[b - a for a, b in zip(*pair)] for pair in zip(times, times[1:])]))
    sys.stdout.flush()
    os._exit(0)

if os.environ["FIRST_STEP"] == "timed":
    loop._finish_step = timed
from nlpkit.cli import main
sys.argv[0] = "nlpkit"
main()
"""


def _run(recipe: str, out: Path, *more: str, timed: bool) -> str:
    command = [sys.executable, "-c", CHILD, "pretrain", recipe, "--out", str(out), *more]
    environment = {**os.environ, "FIRST_STEP": "timed" if timed else ""}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode:
        raise SystemExit(done.stderr)
    return done.stdout


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("recipes", nargs="*", default=["cpm_ant", "gpt1", "bert", "t5"])
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    if options.rounds < 1:
        parser.error("--rounds: at least 1")
    found: dict[str, list[list[list[float]]]] = {recipe: [] for recipe in options.recipes}
    with tempfile.TemporaryDirectory() as folder:
        outs = (Path(folder, str(number)) for number in itertools.count())
        for recipe in found:
            _run(recipe, next(outs), "--set", "train.steps=1", timed=False)
        for _ in range(options.rounds):
            for recipe, times in found.items():
                times.append(json.loads(_run(recipe, next(outs), timed=True)))
    print("| recipe | import torch | first step after it | its processor time |\n|---|---|---|---|")
    for recipe, times in found.items():
        imported = statistics.median(each[0][0] for each in times)
        step, processor = (statistics.median(each[1][k] for each in times) for k in (0, 1))
        print(f"| {recipe} | {imported:.2f} | {step:.2f} | {processor:.2f} |")


if __name__ == "__main__":
    main()
