"""BERT's masked language modelling: our training step against `transformers.Trainer`.

    python bench/train_encoder.py [--rounds 5] [--layers 4] [--hidden 256] [--data FILE …]

Subjects, each in fp32 and in bf16, with the same sizes, texts, masking rate and number of updates:
- Trainer: as it comes. BertForMaskedLM, DataCollatorForLanguageModeling, random batches of
  documents, padded to the longest; logits for every position.
- grouped: the same with `train_sampling_strategy="group_by_length"`.
- nlpkit: what `nlpkit pretrain` does: packed, no padding, logits for the masked positions only.

Subjects take turns, round by round, in an order that changes (`_turns.py`); the first round warms
up. All see the same documents in a round: batches of `LengthGroupedSampler` over the whole text,
taken evenly from one of its sorted blocks, so that they have the lengths of the whole text. Trainer
gets their documents in random order, grouped these batches as they are.

Prints a table on stdout: real tokens a second (padding does not count), ratios within the same type
and to Trainer in fp32, peak memory above that of the libraries. On a busy machine only ratios are
usable, and only with `--threads 1 --clock cpu`.
"""

import argparse
import os
import statistics
import tempfile
from functools import partial
from pathlib import Path

import numpy as np
import torch
from _trainer import Round, TrainerSubject, texts_of
from _turns import Turns, Worker, gemm_rate, machine
from transformers.trainer_pt_utils import LengthGroupedSampler

from nlpkit.data.corpus import Config as DataConfig
from nlpkit.data.corpus import Counts, documents, resolve
from nlpkit.data.pack import collate, plan_bins
from nlpkit.models.bert import Config
from nlpkit.models.bert.model import Model, flops
from nlpkit.objectives import mlm
from nlpkit.objectives.contract import forward
from nlpkit.tokenizers import wordpiece
from nlpkit.train.loop import to_device
from nlpkit.train.machine import configure_allocator
from nlpkit.train.optim import optimizers
from nlpkit.train.settings import Config as TrainConfig

ROOT = Path(__file__).parent.parent
PRECISIONS = "fp32", "bf16"
KINDS = ("Trainer", "grouped", "nlpkit")
TRAIN = TrainConfig(steps=1000, lr=5e-4, warmup_steps=10)


def main() -> None:
    arguments = _arguments()
    with tempfile.TemporaryDirectory() as folder:
        tokenizer, pieces = _text(arguments)
        tokenizer.save(folder)
        rounds = _rounds(arguments, pieces)
        workers = {
            f"{kind} {precision}": _worker(kind, precision, arguments, Path(folder), rounds)
            for precision in arguments.precisions
            for kind in arguments.kinds
        }
        seconds: dict[str, list[float]] = {name: [] for name in workers}
        for number in range(len(rounds)):
            for name in np.random.default_rng(number).permutation(list(workers)):
                took = workers[name].train(number)
                if number:  # the first round warms up
                    seconds[name].append(getattr(took, arguments.clock))
        peaks = {name: worker.finish() for name, worker in workers.items()}
    _print(arguments, tokenizer.vocab_size, rounds[1:], seconds, peaks)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--updates", type=int, default=8, help="in each round")
    parser.add_argument("--batch", type=int, default=32, help="documents in a batch of Trainer")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--max-length", type=int, default=512)
    parser.add_argument("--min-length", type=int, default=16, help="shorter texts are left out")
    parser.add_argument("--vocabulary", type=int, default=8192)
    parser.add_argument("--data", nargs="*", default=[str(ROOT / "data/en/train/*.jsonl")])
    parser.add_argument("--kinds", nargs="*", choices=KINDS, default=list(KINDS))
    parser.add_argument("--precisions", nargs="*", choices=PRECISIONS, default=list(PRECISIONS))
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument(
        "--clock",
        choices=("wall", "cpu"),
        default="wall",
        help="cpu: processor time, for a busy machine, with --threads 1",
    )
    return parser.parse_args()


def model_config(arguments: argparse.Namespace) -> Config:
    """Return the model; no dropout of probabilities, as in `recipes/bert.yaml`."""
    return Config(
        hidden_size=arguments.hidden,
        num_layers=arguments.layers,
        num_heads=arguments.hidden // 64,
        intermediate_size=4 * arguments.hidden,
        max_positions=arguments.max_length,
        attention_dropout=0.0,
    )


def _text(arguments: argparse.Namespace) -> tuple[wordpiece.Tokenizer, list[np.ndarray]]:
    """Return the tokenizer and all pieces of at most `max_length` - 2 tokens."""
    config = DataConfig.model_validate({"train": arguments.data})
    inputs, _ = resolve(config, None, Path(tempfile.gettempdir()))
    texts = [document.text for document in documents(inputs, config, Counts())]
    tokenizer = wordpiece.Tokenizer.train(texts, wordpiece.Config(vocab_size=arguments.vocabulary))
    most = arguments.max_length - 2
    cut = [
        np.array(ids[start : start + most])
        for ids in tokenizer.encode_batch(texts)
        for start in range(0, len(ids), most)
    ]
    return tokenizer, [ids for ids in cut if len(ids) + 2 >= arguments.min_length]


def _rounds(arguments: argparse.Namespace, pieces: list[np.ndarray]) -> list[Round]:
    """Return for each round its batches of documents of like lengths."""
    generator = torch.Generator().manual_seed(0)
    rng = np.random.default_rng(0)
    size = arguments.batch
    lengths = [len(ids) for ids in pieces]
    # The sampler sorts blocks of so many batches.
    block = max(1, min(len(pieces) // (size * 4), 50))
    rounds: list[Round] = []
    while len(rounds) <= arguments.rounds:
        order = list(LengthGroupedSampler(size, lengths=lengths, generator=generator))
        batches = [
            [pieces[i] for i in order[start : start + size]]
            for start in range(0, len(order) - size + 1, size)
        ]
        for start in range(0, len(batches) - block + 1, block):
            # One batch out of each equal part of a sorted block.
            edges = np.linspace(0, block, arguments.updates + 1)
            picked = (edges[:-1] + rng.random(arguments.updates) * np.diff(edges)).astype(int)
            rounds.append([batches[start + i] for i in rng.permutation(picked)])
    return rounds[: arguments.rounds + 1]


def _worker(
    kind: str,
    precision: str,
    arguments: argparse.Namespace,
    folder: Path,
    rounds: list[Round],
) -> Worker:
    make = _Ours if kind == "nlpkit" else partial(TrainerSubject, grouped=kind == "grouped")
    make = partial(make, model_config(arguments), folder, rounds, bf16=precision == "bf16")
    return Worker(make, arguments.threads)


class _Ours:
    """What `nlpkit pretrain` does with these texts."""

    def __init__(self, config: Config, folder: Path, rounds: list[Round], *, bf16: bool):
        configure_allocator()
        self.rounds, self.bf16 = rounds, bf16
        tokenizer = wordpiece.Tokenizer.load(folder)
        longest = config.max_positions
        self.objective = mlm.Objective(mlm.Config(max_length=longest), tokenizer, config)
        self.model = Model(config, tokenizer.vocab_size)
        (self.optimizer,) = optimizers(self.model, TRAIN)
        self.rng = np.random.default_rng(0)
        # As many updates a round as Trainer makes.
        largest = max(sum(len(ids) + 2 for ids in texts_of(batches)) for batches in rounds)
        self.budget = max(longest, int(1.01 * largest / len(rounds[0])))

    def run(self, turns: Turns) -> None:
        """Train on the texts of each round."""
        for number in turns:
            pieces = texts_of(self.rounds[number])
            order = self.rng.permutation(len(pieces))
            sizes = np.array([len(pieces[i]) + 2 for i in order])
            bins = plan_bins(order, sizes, self.budget, self.rng)
            for index in range(len(bins)):
                self._step([pieces[i] for i in bins[index]])

    def _step(self, pieces: list[np.ndarray]) -> None:
        objective = self.objective
        made = collate([objective.example(ids, self.rng) for ids in pieces], objective.fields)
        made.num_targets = objective.num_targets(made.fields)
        batch = to_device(made, torch.device("cpu"))
        with torch.autocast("cpu", torch.bfloat16, enabled=self.bf16):
            loss = objective.loss(self.model, forward(objective, self.model, batch), batch)
        loss.mean(batch.num_targets).backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()


def _print(
    arguments: argparse.Namespace,
    vocab_size: int,
    rounds: list[Round],
    seconds: dict[str, list[float]],
    peaks: dict[str, int],
) -> None:
    lengths = [[len(ids) + 2 for ids in texts_of(batches)] for batches in rounds]
    every = np.concatenate(lengths)
    low, middle, high = np.percentile(every, [10, 50, 90])
    print(
        f"BERT {arguments.layers} x {arguments.hidden}, vocabulary {vocab_size}, texts of "
        f"{every.min()} to {every.max()} tokens (mean {every.mean():.0f}; 10 %, 50 %, 90 %: "
        f"{low:.0f}, {middle:.0f}, {high:.0f}), {len(rounds)} rounds of {arguments.updates} "
        f"updates x {arguments.batch} texts"
    )
    grouped = [batch for batches in rounds for batch in batches]
    mixed = [
        [texts_of(batches)[i] for i in chosen]
        for number, batches in enumerate(rounds)
        for chosen in np.array_split(
            np.random.default_rng(number).permutation(len(texts_of(batches))), len(batches)
        )
    ]
    print(
        f"Positions for each token: Trainer {_padded(mixed)}, grouped {_padded(grouped)}, nlpkit 1"
    )
    clock = "wall time" if arguments.clock == "wall" else "processor time"
    print(f"{machine(arguments.threads)}, {clock}, load {os.getloadavg()[0]:.1f}")
    print()
    print(
        "| | real tokens/s, median (best) | x Trainer fp32 | x Trainer | x grouped | "
        "peak memory | x Trainer | x grouped | GEMM share |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    for name, spent in seconds.items():
        precision = name.split()[1]
        rates = [sum(each) / took for each, took in zip(lengths, spent, strict=True)]
        same = f"Trainer {precision}", f"grouped {precision}"
        cells = [
            name,
            f"{statistics.median(rates):,.0f} ({max(rates):,.0f})",
            *(_faster(seconds.get(base), spent) for base in ("Trainer fp32", *same)),
            f"{peaks[name] / 2**20:,.0f} MiB",
            *(f"{peaks[name] / peaks[base]:.2f}" if base in peaks else "" for base in same),
            _share(arguments, vocab_size, lengths, spent, precision),
        ]
        print("| " + " | ".join(cells) + " |")


def _padded(batches: Round) -> str:
    """Return the positions of these batches, padded to the longest, for each token."""
    tokens = sum(len(ids) + 2 for ids in texts_of(batches))
    return f"{sum(len(batch) * (max(map(len, batch)) + 2) for batch in batches) / tokens:.2f}"


def _faster(base: list[float] | None, spent: list[float]) -> str:
    """Return how many times as fast as `base`: the median over the rounds."""
    if base is None:
        return ""
    return f"{statistics.median(b / s for b, s in zip(base, spent, strict=True)):.2f}"


def _share(
    arguments: argparse.Namespace,
    vocab_size: int,
    lengths: list[list[int]],
    spent: list[float],
    precision: str,
) -> str:
    """Return the best share of the rate of matrix products, counting only the work needed."""
    dtype = torch.float32 if precision == "fp32" else torch.bfloat16
    config = model_config(arguments)
    work = [flops(config, vocab_size, each, round(0.15 * sum(each))) for each in lengths]
    rate = max(w / s for w, s in zip(work, spent, strict=True))
    return f"{rate / gemm_rate(dtype, arguments.threads, arguments.clock):.0%}"


if __name__ == "__main__":
    main()
