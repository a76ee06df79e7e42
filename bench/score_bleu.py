"""Print time and memory of `nlpkit score bleu` beside those of the command `sacrebleu`.

    OMP_NUM_THREADS=1 python bench/score_bleu.py [--rounds N] [--memory-lines N]

Both are whole commands, from the start of Python to the printed score, on the same files of made-up
text (fixed seed). Rounds are interleaved, so that a busy machine disturbs the ratios less; times
are medians, ratios medians of the ratios of each round. Memory is the peak resident set of one run.
"""

import argparse
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

LETTERS = "etaoinshrdlucmfwygpbvk"


class Run(NamedTuple):
    """One command: seconds by the clock and of the processor, peak memory, what it printed."""

    wall: float
    cpu: float
    megabytes: float
    shown: str


class Case(NamedTuple):
    """What is compared: the files, the tokenizer and how often."""

    name: str
    hypotheses: Path
    references: Path
    tokenize: str
    rounds: int


def english(rng: random.Random) -> tuple[str, str]:
    """Return a reference of 8 … 40 words and a hypothesis that has about 3/4 of them."""
    words = rng.choices(_VOCABULARY, _WEIGHTS, k=rng.randint(8, 40))
    words = [_name(rng) if rng.random() < 0.12 else word for word in words]
    reference = [_dressed(rng, word) for word in words]
    kept = [word if rng.random() > 0.2 else rng.choice(_VOCABULARY) for word in words]
    hypothesis = [_dressed(rng, word) for word in kept]
    return f"{' '.join(hypothesis)}.", f"{' '.join(reference)}."


def chinese(rng: random.Random) -> tuple[str, str]:
    """Return a reference of 15 … 80 characters, some numbers among them, and a hypothesis."""
    characters = rng.choices(_CHARACTERS, _CHARACTER_WEIGHTS, k=rng.randint(15, 80))
    characters = [str(rng.randint(1, 3000)) if rng.random() < 0.02 else c for c in characters]
    kept = [c if rng.random() > 0.2 else rng.choice(_CHARACTERS) for c in characters]
    return f"{''.join(kept)}。", f"{''.join(characters)}。"


def _name(rng: random.Random) -> str:
    return "".join(rng.choices(LETTERS, k=rng.randint(4, 9))).capitalize()


def _dressed(rng: random.Random, word: str) -> str:
    shape = rng.random()
    if shape < 0.06:
        return f"{word},"
    if shape < 0.08:
        return f"{word}'s"
    if shape < 0.09:
        return f'"{word}"'
    return f"{rng.randint(1, 99)},{rng.randint(100, 999)}" if shape < 0.10 else word


_MADE = random.Random(0)
_VOCABULARY = ["".join(_MADE.choices(LETTERS, k=_MADE.randint(1, 9))) for _ in range(4000)]
_WEIGHTS = [1 / (rank + 2) for rank in range(4000)]
_CHARACTERS = ["，", *map(chr, range(0x4E00, 0x4E00 + 3000))]
_CHARACTER_WEIGHTS = [1 / (rank + 8) for rank in range(3001)]


def write(
    folder: Path, name: str, lines: int, pair: Callable[[random.Random], tuple[str, str]]
) -> tuple[Path, Path]:
    """Write hypotheses and references; return their paths."""
    rng = random.Random(1)
    paths = folder / f"{name}.hyp.txt", folder / f"{name}.ref.txt"
    with open(paths[0], "w", encoding="utf-8") as first, open(paths[1], "w", encoding="utf-8") as b:
        for _ in range(lines):
            hypothesis, reference = pair(rng)
            first.write(f"{hypothesis}\n")
            b.write(f"{reference}\n")
    return paths


def run(command: list[str]) -> Run:
    """Run a command to its end, alone; raise `RuntimeError` if it fails."""
    read, write_end = os.pipe()
    start = time.perf_counter()
    process = subprocess.Popen(command, stdout=write_end, stderr=subprocess.DEVNULL)
    os.close(write_end)
    with open(read, encoding="utf-8") as output:
        shown = output.read().strip()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    wall = time.perf_counter() - start
    if process.returncode:
        raise RuntimeError(f"{' '.join(command)}: exit code {process.returncode}")
    return Run(wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1000, shown)


def compare(case: Case) -> tuple[list[Run], list[Run]]:
    """Return the runs of both commands, one after the other in every round."""
    options = ["-tok", case.tokenize, "-w", "4", "-f", "text"]
    hypotheses, references = str(case.hypotheses), str(case.references)
    python = [sys.executable, "-m"]
    ours, theirs = [], []
    for number in range(case.rounds):
        ours.append(run([*python, "nlpkit", "score", "bleu", hypotheses, references, *options]))
        theirs.append(run([*python, "sacrebleu", references, "-i", hypotheses, *options]))
        if ours[-1].shown != theirs[-1].shown:
            raise RuntimeError(f"{ours[-1].shown!r} is not sacrebleu's {theirs[-1].shown!r}")
        both = f"{ours[-1].wall:.2f} s, sacrebleu {theirs[-1].wall:.2f} s"
        print(f"{case.name}, round {number + 1}: {both}", file=sys.stderr, flush=True)
    return ours, theirs


def row(case: Case) -> str:
    """Return the case's row of the table."""
    ours, theirs = compare(case)

    def ratio(name: str) -> float:
        pairs = zip(ours, theirs, strict=True)
        return statistics.median(getattr(a, name) / getattr(b, name) for a, b in pairs)

    def median(runs: list[Run], name: str) -> float:
        return statistics.median(getattr(each, name) for each in runs)

    cells = [
        case.name,
        str(case.rounds),
        *(f"{median(runs, 'wall'):.3f}" for runs in (ours, theirs)),
        f"{ratio('wall'):.2f}",
        f"{ratio('cpu'):.2f}",
        *(f"{max(each.megabytes for each in runs):.0f}" for runs in (ours, theirs)),
    ]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Time every case and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5, help="of 20,000 lines")
    parser.add_argument("--memory-lines", type=int, default=200_000, help="0: not measured")
    options = parser.parse_args()
    print("| text | rounds | nlpkit s | sacrebleu s | wall ratio | cpu ratio | MB | sacrebleu MB |")
    print("|---|---|---|---|---|---|---|---|", flush=True)
    sizes = [(10, 4 * options.rounds + 1), (20_000, options.rounds), (options.memory_lines, 1)]
    with tempfile.TemporaryDirectory() as folder:
        for lines, rounds in sizes:
            for language, tokenize, pair in (("en", "13a", english), ("zh", "zh", chinese)):
                if lines:
                    paths = write(Path(folder), f"{language}{lines}", lines, pair)
                    case = Case(f"{language} {lines:,} ({tokenize})", *paths, tokenize, rounds)
                    print(row(case), flush=True)


if __name__ == "__main__":
    main()
