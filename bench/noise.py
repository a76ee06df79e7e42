"""How much seeds differ, and how often `nlpkit report` calls two equal settings equal.

    OMP_NUM_THREADS=1 python bench/noise.py [--seeds 24] [--out runs/noise]
    OMP_NUM_THREADS=1 python bench/noise.py RUNS… [--rows FILE]

Without RUNS, a very small gpt2 (text) and lstm_tag (a task) are trained with so many seeds on what
nlpkit ships, five CPU seconds each. RUNS are directories with the seeds of one setting
each; --rows takes the figure from what `nlpkit judge --pairs --predictions RUN/FILE` has written.

Of each figure, seeds are drawn without replacement for two sides. The table has the share of draws
with `no difference seen`, and the difference that three seeds a side call `differ` in 80 % of them.
"""

import argparse
import itertools
import random
import statistics
from collections.abc import Sequence
from pathlib import Path

from _turns import machine
from scipy import stats

from nlpkit import cli, report
from nlpkit.report import differences, seeds, sweep

SIDES = ((2, 2), (3, 3), (5, 5), (2, 5))
SEEN = 0.8  # the share of draws in which a difference counts as seen
SMALL = {
    "gpt2": [
        *("model.hidden_size=32", "model.num_layers=1", "model.num_heads=2"),
        *("tokenizer.vocab_size=500", "objective.max_length=64", "train.tokens_per_step=512"),
        *("train.steps=150", "train.eval_every=150", "train.save_every=150"),
    ],
    "lstm_tag": [
        *("model.hidden_size=32", "model.embedding_size=32", "train.lr=2e-2"),
        *("train.steps=80", "train.eval_every=80", "train.save_every=80"),
    ],
}


def _train(out: Path, count: int) -> list[Path]:
    """Train the small models; finished runs are passed over."""
    folders = []
    for recipe, settings in SMALL.items():
        folders.append(out / recipe)
        words = ["pretrain", recipe, "--out", str(folders[-1]), "--seeds", str(count), "-q"]
        code = cli.run([*words, *(word for each in settings for word in ("--set", each))])
        if code:
            raise SystemExit(code)
    return folders


def _read_figures(folder: Path) -> dict[str, list[float]]:
    """Return the figures of the finished runs of a folder: the held-out loss and the scores."""
    table = sweep.make_table(report.read([folder], may_be_empty=True))
    names = differences.list_figures(table)
    return {name: [v for _, v in sweep.list_finished(table.rows, name)] for name in names}


def _read_rows(folder: Path, file: str) -> list[list[float]]:
    return [differences.read_rows(run / file)[1] for run in report.find_runs(folder)]


def _draw(values: Sequence[float], counts: tuple[int, int], draws: int) -> list[seeds.Difference]:
    rng = random.Random(sum(counts))
    found = []
    for _ in range(draws):
        drawn = rng.sample(values, sum(counts))
        found.append(seeds.compare(drawn[: counts[0]], drawn[counts[0] :]))
    return found


def _smallest_seen(found: Sequence[seeds.Difference]) -> float:
    """Return what one side must be better by, that SEEN of these draws call it different."""
    ends = [each.interval or (0.0, 0.0) for each in found]
    apart = [each.difference for each in found]
    needed = [(high - low) / 2 - of for (low, high), of in zip(ends, apart, strict=True)]
    return statistics.quantiles(needed, n=100)[round(100 * SEEN) - 1]


def _describe(name: str, values: Sequence[float], draws: int) -> list[str]:
    deviation, free = statistics.stdev(values), len(values) - 1
    low, high = (deviation * (free / stats.chi2.ppf(p, free)) ** 0.5 for p in (0.975, 0.025))
    cells = [name, str(len(values)), f"{statistics.fmean(values):.4f}"]
    cells += [f"{deviation:.4f} ({low:.4f}–{high:.4f})"]
    seen = "–"
    for counts in SIDES:
        if sum(counts) > len(values):
            cells.append("–")
            continue
        found = _draw(values, counts, draws)
        equal = sum(each.verdict == "no difference seen" for each in found)
        cells.append(f"{equal / draws:.1%}")
        if counts == (3, 3):
            seen = f"{_smallest_seen(found):.4f}"
    return [*cells, seen]


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("runs", nargs="*", type=Path)
    parser.add_argument("--rows")
    parser.add_argument("--seeds", type=int, default=24)
    parser.add_argument("--out", type=Path, default=Path("runs/noise"))
    parser.add_argument("--draws", type=int, default=10_000)
    options = parser.parse_args()
    folders = options.runs or _train(options.out, options.seeds)
    print(f"{machine(1)}, {options.draws:,} draws\n")
    sides = [f"{one}, {other} seeds" for one, other in SIDES]
    head = ["figure", "seeds", "mean", "deviation (95 %)", *sides, "seen with 3, 3"]
    print("|", " | ".join(head), "|")
    print("|---" * len(head) + "|")
    notes = []
    for folder in folders:
        figures = _read_figures(folder)
        if options.rows is not None:
            rows = _read_rows(folder, options.rows)
            figures = {options.rows: [statistics.fmean(each) for each in rows]}
            pairs = [seeds.compare_pairs(*two) for two in itertools.combinations(rows, 2)]
            differ = sum(each.verdict == "differ" for each in pairs)
            notes.append(f"{folder}: {differ} of {len(pairs)} pairs of seeds differ by their rows")
        for name, values in figures.items():
            print("|", " | ".join(_describe(f"{folder.name} {name}", values, options.draws)), "|")
    print("\n".join(["", *notes]))


if __name__ == "__main__":
    main()
