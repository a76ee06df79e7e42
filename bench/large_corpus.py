"""Pretrain on a corpus that is larger than the memory that the process may have.

    python bench/large_corpus.py OUT [--gigabytes 2] [--memory 1] [--steps 20]

Writes text of random words, with Zipf's weights, and runs `nlpkit pretrain gpt2` on it: the command
trains a tokenizer, tokenizes, and takes some steps. The kernel refuses each of its processes more
than --memory GB of memory of their own (RLIMIT_DATA; files that are mapped are not counted). Prints
the peak of resident memory of the largest process and the seconds, for the first start, and for
another run on the tokens that are there.
"""

import argparse
import os
import random
import resource
import subprocess
import sys
import time
from pathlib import Path

from _turns import machine

GB = 10**9
_LETTERS = "abcdefghijklmnopqrstuvwxyz"


def write_text(path: Path, size: int) -> None:
    """Write `size` bytes of lines of 200 words, drawn with Zipf's weights from 20,000."""
    rng = random.Random(1)
    words = ["".join(rng.choices(_LETTERS, k=rng.randint(1, 9))) for _ in range(20_000)]
    weights = [1 / rank for rank in range(1, len(words) + 1)]
    # Blocks of lines in random order: to draw every word of 2 GB would take half an hour.
    lines = [" ".join(rng.choices(words, weights, k=200)) + "\n" for _ in range(20_000)]
    with open(path, "w", encoding="utf-8") as file:
        while file.tell() < size:
            rng.shuffle(lines)
            file.write("".join(lines))


def run(out: Path, name: str, text: Path, memory: int, steps: int) -> None:
    """Run the command and print its figures."""
    sets = [
        f"data.train=[{text}]",
        "data.valid_fraction=0.001",
        "data.valid=[]",
        f"train.steps={steps}",
        f"data.cache={out / 'cache'}",
    ]
    command = [sys.executable, "-m", "nlpkit", "pretrain", "gpt2", "--out", str(out / name)]
    command += [word for each in sets for word in ("--set", each)]
    start = time.perf_counter()
    with open(out / f"{name}.log", "w", encoding="utf-8") as log:
        done = subprocess.Popen(
            command,
            stdout=log,
            stderr=log,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_DATA, (memory, memory)),
        )
        _, status, usage = os.wait4(done.pid, 0)
    if os.waitstatus_to_exitcode(status):
        raise SystemExit(f"{' '.join(command)}: failed; see {log.name}")
    wall, cpu = time.perf_counter() - start, usage.ru_utime + usage.ru_stime
    print(f"| {name} | {usage.ru_maxrss * 1024 / GB:.2f} GB | {wall:.0f} | {cpu:.0f} |", flush=True)


def main() -> None:
    """Write the text unless it is there, and run twice."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("--gigabytes", type=float, default=2)
    parser.add_argument("--memory", type=float, default=1)
    parser.add_argument("--steps", type=int, default=20)
    options = parser.parse_args()
    out, memory = options.out.resolve(), int(options.memory * GB)
    out.mkdir(parents=True, exist_ok=True)
    text = out / f"{options.gigabytes:g}GB.txt"
    if not text.exists():
        write_text(text, int(options.gigabytes * GB))
    print(f"{machine(len(os.sched_getaffinity(0)))}; {text.stat().st_size / GB:.2f} GB of text,")
    print(f"at most {options.memory:g} GB of memory of its own for each process\n")
    print("| run | peak memory | wall seconds | CPU seconds |\n|---|---|---|---|")
    for name in ("first", "second"):
        run(out, name, text, memory, options.steps)


if __name__ == "__main__":
    main()
