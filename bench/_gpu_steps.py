"""Training steps of `bench/gpu.py`: packed here, padded in transformers' own models.

An example is a dictionary of arrays, as an objective makes them; ids are random. Both have the same
sizes and the same documents, AdamW and a clipped gradient; both are in bf16 by autocast. Ours has
logits of the targets alone, transformers' loss those of all positions, as one would use it.
"""

import argparse
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from _gpu_clock import Measured, measure
from attention_backends import draw_fields
from transformers import (
    BertConfig,
    BertForMaskedLM,
    CpmAntConfig,
    CpmAntForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    OpenAIGPTConfig,
    OpenAIGPTLMHeadModel,
    PreTrainedModel,
)

from nlpkit.models import families
from nlpkit.train.optim import optimizers
from nlpkit.train.settings import Config as TrainConfig

FAMILIES = ("gpt", "gpt2", "bert", "cpm_ant")
VOCABULARY, LONGEST = 8192, 512
TRAIN = TrainConfig(steps=1000, lr=1e-4, warmup_steps=10)
Examples = list[dict[str, np.ndarray]]
Step = Callable[[int], None]


def training_steps(arguments: argparse.Namespace, device: torch.device) -> None:
    """Print a table of the steps of each family."""
    print(
        f"Training steps in bf16, {arguments.layers} layers x {arguments.hidden}, vocabulary "
        f"{VOCABULARY:,}, {arguments.documents} documents of 30 to {LONGEST} tokens\n"
    )
    print("| family | whose step | attention | real tokens/s | ratio | MiB | ratio |")
    print("|---|---|---|---|---|---|---|", flush=True)
    run = partial(measure, device=device, rounds=arguments.rounds, warm_up=arguments.warm_up)
    for family in arguments.steps:
        batches = [
            _examples(family, arguments.documents, number)
            for number in range(arguments.warm_up + arguments.rounds)
        ]
        steps = {"transformers, padded": _theirs, "nlpkit, packed": _ours}
        base: Measured | None = None
        for name, make in steps.items():
            used: list[str] = []  # its attention, once known
            found = run(partial(make, family, arguments, device, batches, used))
            tokens = [_tokens(batch) for batch in batches[arguments.warm_up :]]
            print(_row(family, name, "".join(used), found, base, tokens), flush=True)
            base = base or found


def _row(
    family: str, name: str, used: str, found: Measured, base: Measured | None, tokens: list[int]
) -> str:
    if found.problem:
        return f"| {family} | {name} | {used} | {found.problem} | | | |"
    rate = sum(tokens) / sum(found.seconds)
    cells = [family, name, used, f"{rate:,.0f}", "1.00", f"{found.peak / 2**20:,.0f}", "1.00"]
    if base is not None:
        compared = not base.problem and base.peak > 0
        cells[4] = f"{sum(base.seconds) / sum(found.seconds):.2f}" if compared else ""
        cells[6] = f"{found.peak / base.peak:.2f}" if compared else ""
    return f"| {' | '.join(cells)} |"


def _tokens(batch: Examples) -> int:
    return sum(len(example["input_ids"]) for example in batch)


def _examples(family: str, documents: int, seed: int) -> Examples:
    """Return random documents with lengths and targets as in training."""
    rng = np.random.default_rng(seed)
    lengths = np.exp(rng.normal(4.8, 0.8, documents)).clip(30, LONGEST).astype(int)
    made = []
    for length in lengths:
        ids = rng.integers(10, VOCABULARY, length)
        example = {"input_ids": ids}
        if family == "cpm_ant":
            fields = {k: v.numpy() for k, v in draw_fields([int(length)], seed).items()}
            example |= fields | {"labels": np.where(fields["context"], -100, ids)}
        elif family == "bert":
            example["token_type_ids"] = np.zeros_like(ids)
            example["labels"] = np.where(rng.random(length) < 0.15, ids, -100)
            example["labels"][0] = ids[0]  # at least one
        else:
            example["labels"] = np.append(ids[1:], -100)
        made.append(example)
    return made


def _update(model: torch.nn.Module, optimizer: torch.optim.Optimizer, loss: torch.Tensor) -> None:
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()


_INPUTS = {
    "gpt": ("input_ids",), "gpt2": ("input_ids",), "bert": ("input_ids", "token_type_ids"),
    "cpm_ant": ("input_ids", "segment", "position", "context"),
}  # fmt: skip


def _ours(
    family: str, arguments: argparse.Namespace, device: torch.device, batches: list[Examples],
    used: list[str],
) -> Step:  # fmt: skip
    sizes: dict[str, Any] = {
        "hidden_size": arguments.hidden, "num_layers": arguments.layers,
        "num_heads": max(1, arguments.hidden // 64),
    }  # fmt: skip
    known = families.load(family).Config
    # Without dropout of probabilities, as in the recipes; so have transformers' models.
    more = {
        "intermediate_size": 4 * arguments.hidden, "head_dim": 64, "max_positions": LONGEST,
        "attention_dropout": 0.0, "residual_dropout": 0.0, "embedding_dropout": 0.0, "dropout": 0.0,
    }  # fmt: skip
    sizes |= {name: value for name, value in more.items() if name in known.model_fields}
    model = families.load_model(family).Model(known(**sizes), VOCABULARY).to(device).train()
    (optimizer,) = optimizers(model, TRAIN)

    def step(number: int) -> None:
        batch = batches[number]
        packed = {n: torch.from_numpy(np.concatenate([e[n] for e in batch])) for n in batch[0]}
        rows = (packed["labels"] >= 0).nonzero().squeeze(1)
        targets = packed["labels"][rows].to(device, non_blocking=True)
        given = {n: packed[n].to(device, non_blocking=True) for n in _INPUTS[family]}
        with torch.autocast(device.type, torch.bfloat16):
            hidden = model([len(e["input_ids"]) for e in batch], **given)
            total, _ = model.token_loss(hidden, rows.to(device, non_blocking=True), targets)
        _update(model, optimizer, total / len(targets))
        if not number:
            used.append(model.attention_choice.split()[0])

    return step


def _theirs(
    family: str, arguments: argparse.Namespace, device: torch.device, batches: list[Examples],
    used: list[str],
) -> Step:  # fmt: skip
    model = _their_model(family, arguments).to(device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    used.append(str(model.config._attn_implementation))

    def step(number: int) -> None:
        batch = batches[number]
        if family == "cpm_ant":
            _update(model, optimizer, _plain_loss(model, batch, True, device.type))
            return
        fill = {"input_ids": 0, "labels": -100, "real": 0}
        batch = [e | {"real": np.ones_like(e["input_ids"])} for e in batch]
        ids, labels, real = (
            _padded(batch, name, value, device.type) for name, value in fill.items()
        )
        with torch.autocast(device.type, torch.bfloat16):
            logits = model(input_ids=ids, attention_mask=real).logits
        loss = F.cross_entropy(logits.float().flatten(0, 1), labels.flatten(), ignore_index=-100)
        _update(model, optimizer, loss)

    return step


def _their_model(family: str, arguments: argparse.Namespace) -> PreTrainedModel:
    """Return transformers' model; with `scaled_dot_product_attention` where it has that."""
    width, layers, heads = arguments.hidden, arguments.layers, max(1, arguments.hidden // 64)
    if family == "bert":
        return BertForMaskedLM(
            BertConfig(
                vocab_size=VOCABULARY, hidden_size=width, num_hidden_layers=layers,
                num_attention_heads=heads, intermediate_size=4 * width,
                max_position_embeddings=LONGEST, hidden_dropout_prob=0.0,
                attention_probs_dropout_prob=0.0,
            )
        )  # fmt: skip
    if family == "cpm_ant":
        return CpmAntForCausalLM(
            CpmAntConfig(
                vocab_size=VOCABULARY, hidden_size=width, num_attention_heads=heads, dim_head=64,
                dim_ff=4 * width, num_hidden_layers=layers, dropout_p=0.0,
            )
        )  # fmt: skip
    config, model = {
        "gpt": (OpenAIGPTConfig, OpenAIGPTLMHeadModel), "gpt2": (GPT2Config, GPT2LMHeadModel),
    }[family]  # fmt: skip
    return model(
        config(
            vocab_size=VOCABULARY, n_embd=width, n_layer=layers, n_head=heads, n_positions=LONGEST,
            attn_pdrop=0.0, resid_pdrop=0.0, embd_pdrop=0.0,
        )
    )  # fmt: skip


def _plain_loss(
    model: CpmAntForCausalLM, examples: list[dict[str, np.ndarray]], bf16: bool, device: str = "cpu"
) -> torch.Tensor:
    """Return the mean loss of the targets of a padded batch, with all its logits."""
    ids, segment, context, labels = (
        _padded(examples, name, value, device)
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


def _padded(
    examples: list[dict[str, np.ndarray]], name: str, value: int, device: str
) -> torch.Tensor:
    """Return a field of the examples as (B, T), `value` where an example has ended."""
    longest = max(len(example["input_ids"]) for example in examples)
    rows = [np.pad(e[name], (0, longest - len(e[name])), constant_values=value) for e in examples]
    return torch.from_numpy(np.stack(rows)).to(device)
