"""Time of recurrent layers, forward and backward, on sequences of many lengths.

    OMP_NUM_THREADS=1 python bench/recurrence.py

`ours` is nlpkit's way on CPUs; `packed` is torch's module on a `PackedSequence`; `padded` is
torch's module on a rectangle; `alone` is torch's module, one sequence after another. All compute
the same states. The figure is real tokens a second of CPU time, the best of several turns, in each
of which the ways come one after another.
"""

import argparse
import random
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_sequence, pad_sequence

from nlpkit.models.layers.recurrence import TimeFirst
from nlpkit.models.layers.recurrent import make_layers, run
from nlpkit.models.layers.recurrent_config import CellsConfig


def _lengths(kind: str, tokens: int) -> list[int]:
    draw, found = random.Random(0), list[int]()
    while sum(found) < tokens:
        found.append(128 if kind == "equal" else draw.randint(8, 248))
    return found


def _ways(layers: nn.RNNBase, x: Tensor, lengths: list[int]) -> dict[str, Callable[[], Tensor]]:
    texts = list(x.split(lengths))
    return {
        "ours": lambda: run(layers, x, TimeFirst.of(lengths))[0],
        "packed": lambda: layers(pack_sequence(texts, enforce_sorted=False))[0].data,
        "padded": lambda: layers(pad_sequence(texts))[0],
        "alone": lambda: torch.cat([layers(text[:, None])[0][:, 0] for text in texts]),
    }


def main() -> None:
    """Print a table: cells and lengths down, ways across."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--turns", type=int, default=5)
    arguments = parser.parse_args()
    sizes = CellsConfig(hidden_size=arguments.width, num_layers=arguments.layers, dropout=0.0)
    for cell in ("rnn", "lstm", "gru"):
        for kind in ("equal", "ragged"):
            lengths = _lengths(kind, arguments.tokens)
            layers = make_layers(cell, sizes, arguments.width)
            x = torch.randn(sum(lengths), arguments.width, requires_grad=True)
            best: dict[str, float] = {}
            for _ in range(arguments.turns):
                for name, way in _ways(layers, x, lengths).items():
                    start = time.process_time()
                    way().sum().backward()
                    taken = time.process_time() - start
                    best[name] = min(best.get(name, taken), taken)
            figures = "  ".join(f"{n} {len(x) / taken:8,.0f}" for n, taken in best.items())
            print(f"{cell:4} {kind:6} {len(lengths):3} sequences  {figures}")


if __name__ == "__main__":
    main()
