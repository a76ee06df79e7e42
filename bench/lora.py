"""Print what tuning adapters costs beside tuning everything: time of a step, memory, file.

    OMP_NUM_THREADS=1 python bench/lora.py [--recipe cpm_ant] [--rounds 8] [--rank 8]

The model has the recipe's sizes, the batches its text. Subjects take turns on the same batch, round
by round, in an order that changes, in seconds of this process, so that a busy machine disturbs
less; the first round warms up. Memory of the optimizer and of the gradients is counted, not
sampled: the bytes of every tensor that is held between two steps.
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

from nlpkit import recipe
from nlpkit.contracts.batch import Batch
from nlpkit.contracts.reader import Counts
from nlpkit.data.documents import read_documents
from nlpkit.data.files import find_inputs as resolve
from nlpkit.data.pack import collate, plan_bins
from nlpkit.models import lora
from nlpkit.models.adapter_config import Config as LoraConfig
from nlpkit.models.cpm_ant import model as family
from nlpkit.objectives import cpm_ant as objective_file
from nlpkit.tokenizers import cpm_ant as tokenizer_file
from nlpkit.train.machine import configure_allocator, to_device
from nlpkit.train.optim import optimizers

ROOT = Path(__file__).parent.parent
BUDGET = 4096  # tokens of a batch


class Subject:
    """A model and its optimizer."""

    def __init__(self, settings: recipe.Recipe, vocab_size: int, lora: LoraConfig | None):
        torch.manual_seed(0)
        assert settings.model is not None
        config = settings.model.config
        self.model = family.Model(config, vocab_size)
        if lora is not None:
            lora.adapt(self.model, lora, lora.find_targets(lora, family, config))
        (self.optimizer,) = optimizers(self.model, settings.train)
        self.trained = {n: p for n, p in self.model.named_parameters() if p.requires_grad}

    def step(self, batch: Batch) -> float:
        """Train on a batch; return the seconds of this process that it took."""
        start = time.process_time()
        fields = batch.fields
        inputs = {name: fields[name] for name in objective_file.Objective.inputs}
        hidden = self.model(batch.lengths, **inputs)
        rows = (fields["labels"] >= 0).nonzero().squeeze(1)
        total, _ = self.model.token_loss(hidden, rows, fields["labels"][rows])
        (total / len(rows)).backward()
        torch.nn.utils.clip_grad_norm_(self.trained.values(), 1.0)
        self.optimizer.step()
        self.gradients = sum(_bytes(p.grad) for p in self.trained.values())
        self.optimizer.zero_grad()
        return time.process_time() - start

    def moments(self) -> int:
        """Return the bytes that the optimizer holds."""
        states = self.optimizer.state.values()
        return sum(_bytes(value) for state in states for value in state.values())

    def file(self) -> int:
        """Return the bytes of the trained weights on disk."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "weights.safetensors"
            save_file({name: p.detach() for name, p in self.trained.items()}, path)
            return path.stat().st_size


def _bytes(tensor: Any) -> int:
    return tensor.numel() * tensor.element_size() if isinstance(tensor, torch.Tensor) else 0


def _batches(settings: recipe.Recipe, base: Path, number: int) -> tuple[list[Batch], int]:
    """Return the first batches of the recipe's text, and the size of the vocabulary."""
    assert settings.model is not None
    inputs, _ = resolve(settings.data, base, Path(tempfile.gettempdir()))
    texts = [document.text for document in read_documents(inputs, settings.data, Counts())]
    tokenizer = tokenizer_file.Tokenizer.train(texts, settings.tokenizer.config)
    objective = objective_file.Objective(
        settings.objective[0].config, tokenizer, settings.model.config
    )
    rng = np.random.default_rng(0)
    examples: list[dict[str, np.ndarray]] = []
    for text in texts[: number * 60]:
        ids = np.array(tokenizer.encode(text))[: objective.max_piece]
        if len(ids) >= 16:
            examples.append(objective.example(ids, rng))
    sizes = np.array([len(example["input_ids"]) for example in examples])
    bins = plan_bins(np.arange(len(examples)), sizes, BUDGET, None)
    made = [collate([examples[i] for i in bins[n]], objective.fields) for n in range(number)]
    return [to_device(batch, torch.device("cpu")) for batch in made], tokenizer.vocab_size


def main() -> None:
    """Time every subject on every batch and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--recipe", default="cpm_ant")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--rank", type=int, default=8)
    options = parser.parse_args()
    configure_allocator()
    resolved = recipe.load(options.recipe)
    batches, vocab_size = _batches(resolved.recipe, resolved.base, options.rounds + 1)
    chosen = {
        "everything": None,
        f"LoRA r={options.rank} on q, k, v": LoraConfig(rank=options.rank),
        f"LoRA r={options.rank} on all linear layers": LoraConfig(
            rank=options.rank, targets=lora.ALL
        ),
    }
    subjects = {n: Subject(resolved.recipe, vocab_size, lora) for n, lora in chosen.items()}
    seconds: dict[str, list[float]] = {name: [] for name in subjects}
    for number, batch in enumerate(batches):
        for name in np.random.default_rng(number).permutation(list(subjects)):
            spent = subjects[name].step(batch)
            if number:
                seconds[name].append(spent)
    _print(subjects, seconds, statistics.mean(sum(batch.lengths) for batch in batches[1:]))


def _print(subjects: dict[str, Subject], seconds: dict[str, list[float]], tokens: float) -> None:
    every = next(iter(subjects))
    parameters = sum(p.numel() for p in subjects[every].model.parameters())
    print(
        f"CPM-Ant of {parameters:,} parameters, fp32, {len(seconds[every])} rounds of "
        f"{tokens:,.0f} tokens, {torch.get_num_threads()} thread(s), torch {torch.__version__}"
    )
    print()
    print(
        "| trained | parameters | step, median (best) s | ratio | optimizer | gradients | on disk |"
    )
    print("|---|---|---|---|---|---|---|")
    for name, subject in subjects.items():
        spent = seconds[name]
        ratio = statistics.median(a / b for a, b in zip(spent, seconds[every], strict=True))
        sizes = (subject.moments(), subject.gradients, subject.file())
        cells = " | ".join(f"{size / 2**20:,.2f} MiB" for size in sizes)
        number = sum(p.numel() for p in subject.trained.values())
        print(
            f"| {name} | {number:,} | {statistics.median(spent):.2f} ({min(spent):.2f}) | "
            f"{ratio:.2f} | {cells} |"
        )


if __name__ == "__main__":
    main()
