"""Which learning rate is best at which width: the sweeps behind the rates of `model.size`.

    python bench/dial.py OUT [--widths 128 256 512] [--optimizers muon adamw] [--coarse]

Trains the recipe gpt2 on its text, with as few layers and steps as --layers and --steps say, one
thread, one run at a time. The rates of a width go up and down by 2 until the best one lies between
worse ones, then, unless --coarse, by √2 beside it; the first one is that of the width before, by
its root. With --rates it tries these alone. `best` is the lowest point of the parabola through the
best rate and its neighbours, by the logarithm of the rate.
The same command goes on where it was stopped; --steps of another number need another OUT.
"""

import json
import math
import statistics
import sys
from argparse import ArgumentParser, Namespace, RawTextHelpFormatter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from _runs import Runs, as_options

from nlpkit.checkpoints.run_directory import METRICS

HEAD = 64  # width of an attention head
UNIT = 1e-3  # rates are UNIT times a power of √2
START = {"muon": 6, "adamw": 4}  # the first power that is tried, at the first width


def rate_of(power: int) -> float:
    """Return the rate that is this power of √2 above UNIT, with three digits."""
    return float(f"{UNIT * 2 ** (power / 2):.3g}")


def climbed(start: int, loss: Callable[[int], float], coarse: bool) -> dict[int, float]:
    """Return the losses of the powers that were tried; the best one has a neighbour on each side.

    First by steps of 2 (two powers), then, unless `coarse`, by √2 beside the best one.
    """
    found = {start: loss(start)}
    for step in (2,) if coarse else (2, 1):
        while True:
            best = min(found, key=lambda power: found[power])
            missing = [power for power in (best - step, best + step) if power not in found]
            if not missing:
                break
            found[missing[0]] = loss(missing[0])
    return dict(sorted(found.items()))


def lowest(losses: Mapping[float, float]) -> float | None:
    """Return the rate at the lowest point of the parabola through the best rate and its neighbours.

    None if the best rate has no neighbour on one side.
    """
    rates = sorted(losses)
    best = rates.index(min(rates, key=lambda rate: losses[rate]))
    if best in (0, len(rates) - 1):
        return None
    x, y, z = (math.log(rate) for rate in rates[best - 1 : best + 2])
    a, b, c = (losses[rate] for rate in rates[best - 1 : best + 2])
    left, right = (y - x) * (b - c), (y - z) * (b - a)
    return math.exp(y - ((y - x) * left - (y - z) * right) / (2 * (left - right)))


class Bench(Runs):
    """Trains the recipe gpt2 at a width, with an optimizer and a rate."""

    def __init__(self, out: Path, options: Namespace):
        super().__init__(out, Path())
        self.options = options

    def loss(self, width: int, optimizer: str, rate: float, seed: int) -> float:
        """Return the held-out loss after the last step."""
        place = f"{optimizer}-{width}-{rate:g}-{seed}"
        path = self.out / place
        steps, layers = self.options.steps, self.options.layers
        settings = [
            *(f"model.hidden_size={width}", f"model.num_layers={layers}"),
            *(f"model.num_heads={width // HEAD}", "model.max_positions=256"),
            *(f"train.optimizer={optimizer}", f"train.lr={rate:g}", f"train.steps={steps}"),
            *("train.schedule=linear", "train.warmup_ratio=0.1", f"seed={seed}"),
            *("train.eval_every=null", "train.save_every=100000", "data.workers=1"),
        ]

        def make() -> dict[str, Any]:
            command = ("pretrain", "gpt2", *as_options(settings), "--out", str(path), "--quiet")
            _, seconds = self.timed(*command, log=place)
            lines = (path / METRICS).read_text(encoding="utf-8").splitlines()
            loss = [r["held_out"]["loss"] for r in map(json.loads, lines) if "held_out" in r][-1]
            return {"loss": loss, "seconds": seconds}

        found = self.kept(path, make)
        print(f"{place}: {found}", file=sys.stderr, flush=True)
        return float(found["loss"])

    def mean_loss(self, width: int, optimizer: str, rate: float) -> float:
        """Return the mean of the losses of all seeds."""
        seeds = range(1, self.options.seeds + 1)
        return statistics.fmean(self.loss(width, optimizer, rate, seed) for seed in seeds)

    def swept(self, width: int, optimizer: str, start: int) -> dict[float, float]:
        """Return the loss of each rate that was tried."""
        if self.options.rates:
            return {r: self.mean_loss(width, optimizer, r) for r in sorted(self.options.rates)}
        coarse = self.options.coarse
        tried = climbed(start, lambda p: self.mean_loss(width, optimizer, rate_of(p)), coarse)
        return {rate_of(power): loss for power, loss in tried.items()}


def _print_table(optimizer: str, tables: Mapping[int, Mapping[float, float]]) -> None:
    rates = sorted({rate for losses in tables.values() for rate in losses})
    print(f"\n| {optimizer}: width | " + " | ".join(f"{rate:g}" for rate in rates) + " | best |")
    print("|---" * (2 + len(rates)) + "|")
    for width, losses in tables.items():
        cells = [f"{losses[rate]:.3f}" if rate in losses else "" for rate in rates]
        best = lowest(losses)
        cells.append("not bracketed" if best is None else f"{best:.2g}")
        print(f"| {width} | " + " | ".join(cells) + " |")
    sys.stdout.flush()


def main() -> None:
    """Train what is missing and print a table for each optimizer."""
    made = ArgumentParser(description=__doc__, formatter_class=RawTextHelpFormatter)
    made.add_argument("out", type=Path)
    made.add_argument("--widths", nargs="+", type=int, default=(128, 256, 512))
    made.add_argument("--optimizers", nargs="+", default=("muon", "adamw"), choices=sorted(START))
    made.add_argument("--rates", nargs="+", type=float)
    made.add_argument("--coarse", action="store_true")
    made.add_argument("--layers", type=int, default=2)
    made.add_argument("--steps", type=int, default=100)
    made.add_argument("--seeds", type=int, default=1)
    options = made.parse_args()
    bench = Bench(options.out.resolve(), options)
    for optimizer in options.optimizers:
        tables: dict[int, dict[float, float]] = {}
        for width in options.widths:
            start = START[optimizer]
            if tables:
                before, losses = list(tables.items())[-1]
                best = min(losses, key=lambda rate: losses[rate])
                start = round(2 * math.log2(best / UNIT) - math.log2(width / before))
            tables[width] = bench.swept(width, optimizer, start)
        _print_table(optimizer, tables)


if __name__ == "__main__":
    main()
