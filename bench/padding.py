"""What padding costs: a packed step of BERT against the padded one of `transformers`.

    python bench/padding.py [--data ../shared/data] [--rounds 5] [--layers 4] [--hidden 256]

Both have the same sizes, and do a forward and a backward pass of the encoder on the same batches of
texts in random order (ids are random, lengths are those of real texts: words, or characters of
Chinese, cut at `--longest`). `transformers`' BertModel gets them padded to the longest of each
batch, with a mask, through torch's `scaled_dot_product_attention`; ours packed. A step that costs
the same for each position would be max / mean length times as fast without padding
(ByteTransformer, Zhai et al. 2022, arXiv:2210.03052, has this figure).

Subjects take turns, round by round (`_turns.py`); the first round warms up. On a busy machine only
ratios are usable, and only with `--threads 1 --clock cpu`.
"""

import argparse
import json
import os
import re
import statistics
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from _turns import Turns, Worker, machine
from transformers import BertConfig, BertModel

from nlpkit.models.bert import Config
from nlpkit.models.bert.model import Model
from nlpkit.train.machine import configure_allocator

TEXTS = {
    "CLUE": "zh_lm/clue_small.txt",
    "WikiText-2": "en_lm/wikitext2.valid.txt",
    "SST-2": "en_task/sst2.train.jsonl",
    "SNLI": "en_task/snli.train.jsonl",
}
VOCABULARY = 8192
_TOKEN = re.compile(r"[一-鿿]|\w+|[^\w\s]")
Batch = list[np.ndarray]  # ids of texts


def main() -> None:
    arguments = _arguments()
    print(f"BERT {arguments.layers} x {arguments.hidden}, {arguments.dtype}, batches of "
          f"{arguments.batch} texts, {machine(arguments.threads)}, {arguments.clock} time, load "
          f"{os.getloadavg()[0]:.1f}\n")  # fmt: skip
    print(
        "| texts | longest | max / mean of a batch | padded, tokens/s | packed, tokens/s | ratio |"
    )
    print("|---|---|---|---|---|---|")
    for name, path in TEXTS.items():
        lengths = np.array(list(_lengths(arguments.data / path, arguments.longest)))
        rounds = _rounds(arguments, lengths)
        workers = {kind: Worker(kind, arguments.threads, arguments) for kind in (_Padded, _Packed)}
        seconds: dict[type, list[float]] = {kind: [] for kind in workers}
        for number, batches in enumerate(rounds):
            for kind in (_Padded, _Packed) if number % 2 else (_Packed, _Padded):
                took = getattr(workers[kind].train(batches), arguments.clock)
                if number:  # the first round warms up
                    seconds[kind].append(took)
        for worker in workers.values():
            worker.finish()
        sizes = [[len(ids) for ids in batch] for batches in rounds[1:] for batch in batches]
        tokens = sum(map(sum, sizes))
        positions = sum(len(each) * max(each) for each in sizes)
        padded, packed = (sum(seconds[kind]) for kind in (_Padded, _Packed))
        ratio = statistics.median(a / b for a, b in zip(*seconds.values(), strict=True))
        print(f"| {name} | {max(map(max, sizes))} | {positions / tokens:.2f} | "
              f"{tokens / padded:,.0f} | {tokens / packed:,.0f} | {ratio:.2f} |")  # fmt: skip


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batches", type=int, default=6, help="in each round")
    parser.add_argument("--batch", type=int, default=32, help="texts in a batch")
    parser.add_argument("--longest", type=int, default=512)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--dtype", choices=("fp32", "bf16"), default="fp32")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall")
    return parser.parse_args()


def _lengths(path: Path, longest: int) -> Iterator[int]:
    """Yield the length of each text, with the two tokens around it; empty lines are none."""
    for line in path.read_text(encoding="utf-8").splitlines():
        if path.suffix == ".jsonl":
            row = json.loads(line)
            line = " ".join(str(row[name]) for name in row if name != "label")
        if count := len(_TOKEN.findall(line)):
            yield min(count + 2, longest)


def _rounds(arguments: argparse.Namespace, lengths: np.ndarray) -> list[list[Batch]]:
    rng = np.random.default_rng(0)
    return [
        [
            [rng.integers(VOCABULARY, size=size) for size in rng.choice(lengths, arguments.batch)]
            for _ in range(arguments.batches)
        ]
        for _ in range(arguments.rounds + 1)
    ]


class _Padded:
    """`transformers`' model on padded batches."""

    def __init__(self, arguments: argparse.Namespace):
        self.bf16 = arguments.dtype == "bf16"
        config = BertConfig(
            vocab_size=VOCABULARY, hidden_size=arguments.hidden,
            num_hidden_layers=arguments.layers, num_attention_heads=arguments.hidden // 64,
            intermediate_size=4 * arguments.hidden, max_position_embeddings=arguments.longest,
            attention_probs_dropout_prob=0.0,
        )  # fmt: skip
        self.model = BertModel(config, add_pooling_layer=False)

    def run(self, turns: Turns) -> None:
        for batches in turns:
            for batch in batches:
                ids = torch.nn.utils.rnn.pad_sequence(list(map(torch.from_numpy, batch)), True)
                sizes = torch.tensor([len(ids) for ids in batch])
                mask = (torch.arange(ids.shape[1]) < sizes[:, None]).long()
                with torch.autocast("cpu", torch.bfloat16, enabled=self.bf16):
                    states = self.model(input_ids=ids, attention_mask=mask).last_hidden_state
                states[mask.bool()].float().square().mean().backward()
                self.model.zero_grad()


class _Packed:
    """Ours on the same texts, end to end."""

    def __init__(self, arguments: argparse.Namespace):
        configure_allocator()
        self.bf16 = arguments.dtype == "bf16"
        config = Config(
            hidden_size=arguments.hidden, num_layers=arguments.layers,
            num_heads=arguments.hidden // 64, intermediate_size=4 * arguments.hidden,
            max_positions=arguments.longest, attention_dropout=0.0,
        )  # fmt: skip
        self.model = Model(config, VOCABULARY)

    def run(self, turns: Turns) -> None:
        for batches in turns:
            for batch in batches:
                ids = torch.from_numpy(np.concatenate(batch))
                with torch.autocast("cpu", torch.bfloat16, enabled=self.bf16):
                    states = self.model(list(map(len, batch)), ids, torch.zeros_like(ids))
                states.float().square().mean().backward()
                self.model.zero_grad()


if __name__ == "__main__":
    main()
