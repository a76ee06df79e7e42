"""The loss of a step beside its three matrix products alone, which are its bound.

    OMP_NUM_THREADS=1 python bench/cross_entropy.py [--vocabulary 8192 30000] [--rounds 5]

2,048 targets, states 256 wide; processor time in milliseconds, in turns, medians. The products are
those of the loss, in its chunks: logits, the gradient of the states, the gradient of the table.
"""

import argparse
import statistics
import time

import torch

from nlpkit.models.loss import CHUNK, CHUNK_OF_LARGE, LARGE, linear_cross_entropy
from nlpkit.train import machine

TARGETS, WIDTH = 2048, 256


def _products(hidden, table):
    size = CHUNK_OF_LARGE if len(table) > LARGE else CHUNK
    with torch.no_grad():
        table = table.to(hidden.dtype)
        for start in range(0, len(hidden), size):
            states = hidden[start : start + size]
            logits = states @ table.T
            logits @ table, logits.T @ states


def main():
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--vocabulary", type=int, nargs="+", default=[2000, 8192, 30000])
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    machine.configure_allocator()
    torch.manual_seed(0)
    print("| vocabulary | type | loss | products alone | their share |\n|---|---|---|---|---|")
    for size in given.vocabulary:
        for dtype in (torch.float32, torch.bfloat16):
            hidden = torch.randn(TARGETS, WIDTH).to(dtype).requires_grad_()
            table = (torch.randn(size, WIDTH) / 16).requires_grad_()
            targets = torch.randint(0, size, (TARGETS,))
            ways = {
                "loss": lambda h=hidden, w=table, t=targets: linear_cross_entropy(h, w, t),
                "products": lambda h=hidden, w=table: _products(h, w),
            }
            times = {name: [] for name in ways}
            for number in range(given.rounds + 1):
                for name, way in ways.items():
                    start = time.process_time()
                    way()
                    if number:  # the first warms up
                        times[name].append(1000 * (time.process_time() - start))
            loss, products = (statistics.median(each) for each in times.values())
            kind = str(dtype).removeprefix("torch.")
            print(f"| {size:,} | {kind} | {loss:.0f} | {products:.0f} | {products / loss:.0%} |")


if __name__ == "__main__":
    main()
