"""Our training step against the plain way to train CPM-Ant with transformers' modules.

    python bench/train_step.py [--rounds 5] [--layers 12] [--hidden 256] [--max-length 512]

Every subject runs in a process of its own (so that peak memory is its own) and they take turns,
round by round: in each round all see the same documents, in a different order of subjects. The
plain way: transformers' encoder layers, a right-padded batch of documents in random order, dense
mask and bias (looked up once a step), logits for every position, AdamW. Ours: packed, attention
document by document, logits on targets only.

Prints a table on stdout: real tokens a second (padding does not count), peak memory, share of what
the machine's matrix products reach.
"""

import argparse
import json
import os
import statistics
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from _turns import Turns, Worker, gemm_rate, machine
from transformers import CpmAntConfig, CpmAntForCausalLM

from nlpkit.data.corpus import Config as DataConfig
from nlpkit.data.corpus import Counts, documents, resolve
from nlpkit.data.pack import collate, plan_bins
from nlpkit.models.cpm_ant import Config
from nlpkit.models.cpm_ant.model import Model, flops
from nlpkit.objectives import cpm_ant as objective_file
from nlpkit.tokenizers import cpm_ant as tokenizer_file
from nlpkit.train.loop import to_device
from nlpkit.train.machine import configure_allocator
from nlpkit.train.optim import optimizers
from nlpkit.train.settings import Config as TrainConfig

ROOT = Path(__file__).parent.parent
BUDGET = 4096  # tokens of one of our batches
SUBJECTS = ("plain fp32", "ours fp32", "plain bf16", "ours bf16")
TRAIN = TrainConfig(steps=1000, lr=1e-3, warmup_steps=10)


def main() -> None:
    arguments = _arguments()
    tokenizer, ids = _text(arguments)
    rounds = _rounds(arguments, tokenizer, ids)
    workers = {}
    for name in arguments.subjects:
        kind, precision = name.split()
        make = _Ours if kind == "ours" else _Plain
        workers[name] = Worker(
            make, arguments.threads, arguments, tokenizer.vocab_size, precision == "bf16"
        )
    seconds: dict[str, list[float]] = {name: [] for name in workers}
    for number, examples in enumerate(rounds):
        for name in np.random.default_rng(number).permutation(list(workers)):
            spent = workers[name].train(examples)
            if number:  # the first round warms up
                seconds[name].append(getattr(spent, arguments.clock))
    peaks = {name: worker.finish() for name, worker in workers.items()}
    _print(arguments, tokenizer.vocab_size, rounds[1:], seconds, peaks)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--documents", type=int, default=48, help="in each round")
    parser.add_argument("--batch", type=int, default=16, help="documents in a plain batch")
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--max-length", type=int, default=512)
    parser.add_argument("--vocabulary", type=int, default=8000)
    parser.add_argument("--data", nargs="*", default=[str(ROOT / "data/zh/train/*.jsonl")])
    parser.add_argument("--subjects", nargs="*", default=list(SUBJECTS))
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument(
        "--clock",
        choices=("wall", "cpu"),
        default="wall",
        help="cpu: processor time, for a busy machine, with --threads 1",
    )
    return parser.parse_args()


def model_config(arguments: argparse.Namespace) -> Config:
    """Return the model; width of the feed-forward layer and heads as CPM-Ant's proportions."""
    return Config(
        hidden_size=arguments.hidden,
        num_layers=arguments.layers,
        num_heads=arguments.hidden // 32,
        intermediate_size=arguments.hidden * 5 // 2,
    )


def _text(arguments: argparse.Namespace) -> tuple[Any, list[np.ndarray]]:
    config = DataConfig.model_validate({"train": arguments.data})
    inputs, _ = resolve(config, None, Path("/tmp"))
    texts = [document.text for document in documents(inputs, config, Counts())]
    tokenizer = tokenizer_file.Tokenizer.train(
        texts, tokenizer_file.Config(vocab_size=arguments.vocabulary)
    )
    return tokenizer, [np.array(ids) for ids in tokenizer.encode_batch(texts) if len(ids) >= 16]


def _rounds(
    arguments: argparse.Namespace, tokenizer: Any, ids: list[np.ndarray]
) -> list[list[dict[str, np.ndarray]]]:
    """Return the examples of each round, in random order."""
    objective = objective_file.Objective(
        objective_file.Config(max_length=arguments.max_length, min_piece=16),
        tokenizer,
        model_config(arguments),
    )
    rng = np.random.default_rng(0)
    order = rng.permutation(len(ids))
    rounds = []
    for number in range(arguments.rounds + 1):
        chosen = order[number * arguments.documents : (number + 1) * arguments.documents]
        rounds.append([objective.example(ids[i][: objective.max_piece], rng) for i in chosen])
    return rounds


class _Ours:
    """What `nlpkit pretrain` does with these examples."""

    def __init__(self, arguments: argparse.Namespace, vocab_size: int, bf16: bool):
        configure_allocator()
        self.bf16 = bf16
        self.model = Model(model_config(arguments), vocab_size)
        (self.optimizer,) = optimizers(self.model, TRAIN)
        self.inputs = objective_file.Objective.inputs

    def run(self, turns: Turns) -> None:
        """Train on the examples of each round."""
        for examples in turns:
            self._train(examples)

    def _train(self, examples: list[dict[str, np.ndarray]]) -> None:
        sizes = np.array([len(example["input_ids"]) for example in examples])
        bins = plan_bins(np.arange(len(examples)), sizes, BUDGET, None)
        for index in range(len(bins)):
            batch = collate([examples[i] for i in bins[index]], objective_file.Objective.fields)
            fields = to_device(batch, torch.device("cpu")).fields
            with torch.autocast("cpu", torch.bfloat16, enabled=self.bf16):
                hidden = self.model(batch.lengths, **{name: fields[name] for name in self.inputs})
                rows = (fields["labels"] >= 0).nonzero().squeeze(1)
                total, _ = self.model.token_loss(hidden, rows, fields["labels"][rows])
            (total / len(rows)).backward()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
            self.optimizer.zero_grad()


class _Plain:
    """transformers' modules, used as one would."""

    def __init__(self, arguments: argparse.Namespace, vocab_size: int, bf16: bool):
        config = model_config(arguments)
        self.bf16 = bf16
        self.model = CpmAntForCausalLM(
            CpmAntConfig(
                vocab_size=vocab_size,
                hidden_size=config.hidden_size,
                num_attention_heads=config.num_heads,
                dim_head=config.width_per_head,
                dim_ff=config.intermediate_size,
                num_hidden_layers=config.num_layers,
            )
        )
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.batch = arguments.batch

    def run(self, turns: Turns) -> None:
        """Train on the examples of each round."""
        for examples in turns:
            for start in range(0, len(examples), self.batch):
                self._step(examples[start : start + self.batch])

    def _step(self, examples: list[dict[str, np.ndarray]]) -> None:
        loss = plain_loss(self.model, examples, self.bf16)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()


def plain_loss(
    model: CpmAntForCausalLM, examples: list[dict[str, np.ndarray]], bf16: bool, device: str = "cpu"
) -> torch.Tensor:
    """Return the mean loss of the targets of a padded batch, with all its logits."""
    ids, segment, context, labels = (
        padded(examples, name, value, device)
        for name, value in (("input_ids", 0), ("segment", 0), ("context", 0), ("labels", -100))
    )
    place = torch.arange(ids.shape[1], device=device)
    real = place < torch.tensor([[len(e["input_ids"])] for e in examples], device=device)
    mask = context[:, None, :] | (~context[:, :, None] & (place[None, :] <= place[:, None]))
    mask = mask & real[:, None, :]
    body = model.cpmant
    position = place.repeat(len(examples), 1)
    with torch.autocast(device, torch.bfloat16, enabled=bf16):
        bias = body.position_bias(position, position, segment, segment)
        hidden = body.input_embedding(ids) + body.segment_embedding(segment)
        hidden, _, _ = body.encoder(hidden, mask, bias)
        logits = model.lm_head(hidden)
    return F.cross_entropy(logits.float().flatten(0, 1), labels.flatten(), ignore_index=-100)


def padded(
    examples: list[dict[str, np.ndarray]], name: str, value: int, device: str
) -> torch.Tensor:
    """Return a field of the examples as (B, T), `value` where an example has ended."""
    longest = max(len(example["input_ids"]) for example in examples)
    rows = [np.pad(e[name], (0, longest - len(e[name])), constant_values=value) for e in examples]
    return torch.from_numpy(np.stack(rows)).to(device)


def _print(
    arguments: argparse.Namespace,
    vocab_size: int,
    rounds: list[list[dict[str, np.ndarray]]],
    seconds: dict[str, list[float]],
    taken: dict[str, int],
) -> None:
    tokens = [sum(len(e["input_ids"]) for e in examples) for examples in rounds]
    work = [
        flops(
            model_config(arguments), vocab_size, [len(e["input_ids"]) for e in examples],
            sum(int((e["labels"] >= 0).sum()) for e in examples),
        )
        for examples in rounds
    ]  # fmt: skip
    peaks = {
        "fp32": gemm_rate(torch.float32, arguments.threads, arguments.clock),
        "bf16": gemm_rate(torch.bfloat16, arguments.threads, arguments.clock),
    }
    base = next(iter(seconds))
    lengths = [len(e["input_ids"]) for examples in rounds for e in examples]
    print(
        f"{arguments.layers} layers x {arguments.hidden}, max_length {arguments.max_length}, "
        f"vocabulary {vocab_size}, sequences of {min(lengths)}..{max(lengths)} tokens "
        f"(mean {np.mean(lengths):.0f}), {len(rounds)} rounds of {arguments.documents} documents"
    )
    reached = ", ".join(f"{name} {peak / 1e9:.0f} GFLOP/s" for name, peak in peaks.items())
    clock = "wall time" if arguments.clock == "wall" else "processor time"
    print(f"{machine(arguments.threads)}, {clock}; matrix products reach {reached}")
    print()
    print(
        "| | real tokens/s, median (best) | ratio of medians | peak memory | ratio | GEMM share |"
    )
    print("|---|---|---|---|---|---|")
    result = {}
    for name, spent in seconds.items():
        rates = [t / s for t, s in zip(tokens, spent, strict=True)]
        ratio = statistics.median(b / s for b, s in zip(seconds[base], spent, strict=True))
        share = max(w / s for w, s in zip(work, spent, strict=True)) / peaks[name.split()[1]]
        print(
            f"| {name} | {statistics.median(rates):,.0f} ({max(rates):,.0f}) | {ratio:.2f} | "
            f"{taken[name] / 2**20:,.0f} MiB | {taken[name] / taken[base]:.2f} | {share:.0%} |"
        )
        result[name] = {"tokens_per_second": rates, "memory_bytes": taken[name]}
    if os.environ.get("NLPKIT_BENCH_JSON"):
        Path(os.environ["NLPKIT_BENCH_JSON"]).write_text(json.dumps(result), encoding="utf-8")


if __name__ == "__main__":
    main()
