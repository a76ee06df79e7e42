"""The loss of a step beside its three matrix products alone, which are its bound.

    OMP_NUM_THREADS=1 python bench/cross_entropy.py [--vocabulary 8192 30000] [--width 768] \
        [--rounds 5]

2,048 targets, states 256 wide; processor time in milliseconds, in turns, medians, forward and
backward. bf16 is that of autocast, as in training: states and table in float32. The products are
those of the loss, in its chunks: logits, the gradient of the states, the gradient of the table.
"""

import argparse
import statistics
import time

import torch

from nlpkit.models.layers.vocabulary_head import chunk_size, linear_cross_entropy
from nlpkit.train import machine

TARGETS = 2048


def _loss(hidden, table, targets, dtype):
    with torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
        total, _ = linear_cross_entropy(hidden, table, targets)
    (total / TARGETS).backward()
    hidden.grad = table.grad = None


def _products(hidden, table, logits):
    size = chunk_size(len(table), table.dtype)
    with torch.no_grad():
        for chunk in hidden.split(size):
            chunk @ table.T
            grad = logits[: len(chunk)]
            grad @ table, grad.T @ chunk


def main():
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--vocabulary", type=int, nargs="+", default=[2000, 8192, 30000])
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    machine.configure_allocator()
    torch.manual_seed(0)
    print("| vocabulary | type | loss | products alone | their share |\n|---|---|---|---|---|")
    for size in given.vocabulary:
        for dtype in (torch.float32, torch.bfloat16):
            hidden = torch.randn(TARGETS, given.width).requires_grad_()
            table = (torch.randn(size, given.width) / given.width**0.5).requires_grad_()
            cast = [each.detach().to(dtype) for each in (hidden, table)]
            logits = torch.ones(chunk_size(size, dtype), size, dtype=dtype)
            targets = torch.randint(0, size, (TARGETS,))
            ways = {
                "loss": lambda h=hidden, w=table, t=targets, d=dtype: _loss(h, w, t, d),
                "products": lambda c=cast, g=logits: _products(*c, g),
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
