"""What a step takes beside other programs: one thread, all threads, all threads that always spin.

    python bench/busy_machine.py OUT [--neighbours 0 1 2] [--rounds 3] [--steps 16]

Trains the recipe gpt1 for a few steps by the command line, beside so many other programs that do
nothing but count. The ways take turns. Always spinning is libgomp's own default, as it is set by
GOMP_SPINCOUNT=300000; then nlpkit does not watch the machine (nlpkit/train/spinning.py).

Prints the median and the best wall time of the steps; the first one of each run is left out.
"""

import json
import os
import statistics
import subprocess
import sys
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from _turns import machine

from nlpkit.checkpoints.run_directory import METRICS

THREADS = str(len(os.sched_getaffinity(0)))
WAYS = {
    "one thread": {"OMP_NUM_THREADS": "1"},
    f"{THREADS} threads": {"OMP_NUM_THREADS": THREADS},
    f"{THREADS} threads, spinning": {"OMP_NUM_THREADS": THREADS, "GOMP_SPINCOUNT": "300000"},
}


@contextmanager
def _neighbours(number: int) -> Iterator[None]:
    """Run so many programs that take a processor each."""
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(number)]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


def _seconds(out: Path, way: str, steps: int) -> list[float]:
    """Return the wall time of each step but the first."""
    settings = [f"train.steps={steps}", "train.eval_every=null", f"train.save_every={steps}"]
    command = [sys.executable, "-m", "nlpkit", "pretrain", "gpt1", "--resume", "never", "-q"]
    command += [word for each in settings for word in ("--set", each)]
    environment = {k: v for k, v in os.environ.items() if k != "OMP_WAIT_POLICY"} | WAYS[way]
    subprocess.run(
        [*command, "--out", str(out), "--device", "cpu"],
        env=environment, check=True, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    lines = (out / METRICS).read_text(encoding="utf-8").splitlines()
    found = [step["seconds"] for step in map(json.loads, lines) if "seconds" in step]
    return found[1:]


def main() -> None:
    """Measure all ways beside each number of neighbours and print a table."""
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--neighbours", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=16)
    given = parser.parse_args()
    print(f"gpt1, s/step, median (best) of {given.rounds} rounds: {machine(int(THREADS))}\n")
    print("| other programs |", " | ".join(WAYS), "|")
    print("|---" * (1 + len(WAYS)) + "|")
    for number in given.neighbours:
        taken: dict[str, list[float]] = {way: [] for way in WAYS}
        for turn in range(given.rounds):
            for way in WAYS:
                with _neighbours(number):
                    place = given.out / f"{number}-{turn}-{way.replace(' ', '_')}"
                    taken[way] += _seconds(place, way, given.steps)
        cells = [f"{statistics.median(each):.3f} ({min(each):.3f})" for each in taken.values()]
        print(f"| {number} |", " | ".join(cells), "|", flush=True)


if __name__ == "__main__":
    main()
