"""Time and memory of training attention: 12 layers, forward and backward, on ragged packs.

    python bench/attention_backends.py [--threads 2] [--rounds 10] [--tokens 4096] [--layers 12]
        [--length 512 | --length 30 2048] [--dropout 0.1]

Prints a table: for each kind and dtype every backend that trains here, the rounds interleaved so
that a busy machine disturbs all alike. Median and best in ms of one step (prepare, 12 forward, 12
backward); memory is what one step adds to the peak of a fresh process. On one thread the time is
that of the processor, which other programs disturb less than the clock on the wall. With --length,
all sequences have it, or a length from one to the other; else lengths are lognormal. Lengths are
drawn anew in each round.
"""

import argparse
import statistics
import subprocess
import sys
import time
from pathlib import Path

import torch

from nlpkit import attention
from nlpkit.attention.choice import AttentionChoice
from nlpkit.attention.kinds import cpm_ant
from nlpkit.contracts.request import Heads, Layout

HEADS, WIDTH, PROMPT = 8, 32, 8
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
BACKENDS = ("sdpa", "cpu_flash")  # the reference and flex are for checking, not for work


def draw_lengths(tokens, seed, fixed):
    """Return lognormal lengths from 30 to 512 that add up to `tokens`, or those of `--length`."""
    if len(fixed) == 1:
        return fixed * (tokens // fixed[0])
    rng = torch.Generator().manual_seed(seed)
    lengths = []
    while (left := tokens - sum(lengths)) > 0:
        if fixed:
            length = int(torch.randint(fixed[0], fixed[1] + 1, (), generator=rng))
        else:
            length = int((torch.randn((), generator=rng) * 0.8 + 4.8).exp().clamp(30, 512))
        lengths.append(min(length, left))
    return lengths


def draw_fields(lengths, seed):
    """Return CPM-Ant's fields: a prompt, then infilling and generation in turn."""
    rng = torch.Generator().manual_seed(seed)
    parts = {"context": [], "segment": [], "position": []}
    for i, length in enumerate(lengths):
        position = torch.arange(length)
        context = torch.ones(length, dtype=torch.bool)
        text = max(length - PROMPT, 1)
        targets = int(torch.randint(1, text + 1, (), generator=rng))
        hidden = torch.randperm(text, generator=rng)[:targets] if i % 2 else torch.arange(targets)
        context[length - 1 - hidden] = False
        parts["context"].append(context)
        parts["segment"].append(torch.where(position < PROMPT, 0, 1 + i % 2))
        parts["position"].append(position)
    return {name: torch.cat(values) for name, values in parts.items()}


def make_step(kind, backend, dtype, tokens, length, dropout, layers):
    """Return a function of the round's number that does one training step of attention."""
    torch.manual_seed(0)
    qkv = [torch.randn(tokens, HEADS, WIDTH).to(dtype).requires_grad_() for _ in range(3)]
    grad = torch.randn(tokens, HEADS, WIDTH).to(dtype)
    biased = kind == "cpm_ant"
    shape = cpm_ant.tensors(cpm_ant.Config(), HEADS, WIDTH)["table"].shape
    table = (torch.randn(shape) * 0.1).requires_grad_()

    def step(number):
        lengths = draw_lengths(tokens, number, length)
        attend = attention.prepare(
            AttentionChoice.of(kind),
            Heads(HEADS, WIDTH, dtype, training=True, dropout=dropout, backend=backend),
            Layout(lengths).with_fields(draw_fields(lengths, number) if biased else {}),
            tensors={"table": table} if biased else {},
        )
        # Each layer has its own q, k, v, as in a model.
        outs = [attend(*(x + 0 for x in qkv)) for _ in range(layers)]
        torch.autograd.backward(outs, [grad] * layers)

    return step


def resident(name):
    """Return this process's resident memory now (VmRSS) or at its peak (VmHWM), in MB; Linux.

    Not `ru_maxrss`, which a child inherits from its parent.
    """
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name)) / 1024


def peak_memory(kind, backend, name, tokens, length, dropout, layers):
    """Return what one step adds to the peak of a fresh process, in MB."""
    code = [sys.executable, __file__, "--memory", f"{kind},{backend},{name}", "--tokens", tokens]
    code += ["--length", *length, "--dropout", dropout, "--layers", layers]
    return float(subprocess.run(list(map(str, code)), check=True, capture_output=True).stdout)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--length", type=int, nargs="*", default=[], help="one, or two: from, to")
    parser.add_argument("--dropout", type=float, default=0.0, help="of the probabilities")
    parser.add_argument("--kinds", nargs="+", default=["cpm_ant", "causal", "full"])
    parser.add_argument("--memory", help="KIND,BACKEND,DTYPE: print the memory of one step in MB")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    given = options.tokens, options.length, options.dropout, options.layers
    if options.memory:
        kind, backend, name = options.memory.split(",")
        make_step(kind, backend, DTYPES[name], 64, [], options.dropout, 1)(0)
        step = make_step(kind, backend, DTYPES[name], *given)
        before = resident("VmRSS")
        step(0)
        print(resident("VmHWM") - before)
        return
    clock = time.process_time if options.threads == 1 else time.perf_counter
    print(f"torch {torch.__version__}, {options.threads} thread(s), {options.tokens} tokens")
    print(f"{'kind':9}{'dtype':10}{'backend':11}{'median ms':>10}{'best ms':>9}{'MB':>7}")
    for kind in options.kinds:
        for name, dtype in DTYPES.items():
            steps = {b: make_step(kind, b, dtype, *given) for b in BACKENDS}
            times = {backend: [] for backend in BACKENDS}
            for number in range(options.rounds + 1):
                for backend, step in steps.items():
                    start = clock()
                    step(number)
                    times[backend].append(1000 * (clock() - start))
            for backend, spent in times.items():
                middle, best = statistics.median(spent[1:]), min(spent[1:])
                memory = peak_memory(kind, backend, name, *given)
                row = f"{kind:9}{name:10}{backend:11}{middle:10.0f}{best:9.0f}{memory:7.0f}"
                print(row, flush=True)


if __name__ == "__main__":
    main()
