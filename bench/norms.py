"""The RMS norm of the families on a CPU beside torch's.

    OMP_NUM_THREADS=1 python bench/norms.py [--rounds 9]

Forward and backward in float32, processor time in milliseconds, in turns, medians.
"""

import argparse
import statistics
import time

import torch
from torch import nn

from nlpkit.models.layers.packs import RMSNorm
from nlpkit.train import machine


def _time(norm, x, grad):
    start = time.thread_time()
    norm(x).backward(grad)
    taken = time.thread_time() - start
    x.grad = norm.weight.grad = None
    return 1e3 * taken


def main():
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=9)
    given = parser.parse_args()
    machine.configure_allocator()
    torch.manual_seed(0)
    print("| tokens x width | ours | torch's | times as fast |\n|---|---|---|---|")
    for tokens, width in ((4096, 256), (1024, 768), (4096, 1024)):
        x, grad = torch.randn(2, tokens, width)
        x.requires_grad_()
        norms = [kind(width, 1e-6) for kind in (RMSNorm, nn.RMSNorm)]
        turns = [[_time(norm, x, grad) for norm in norms] for _ in range(given.rounds + 2)][2:]
        ours, theirs = (statistics.median(each) for each in zip(*turns, strict=True))
        ratio = statistics.median(b / a for a, b in turns)
        print(f"| {tokens:,} x {width:,} | {ours:.2f} | {theirs:.2f} | {ratio:.1f} |")


if __name__ == "__main__":
    main()
