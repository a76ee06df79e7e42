"""Attention and training steps on a GPU, beside torch's attention and transformers' padded step.

    python bench/gpu.py [--quick] [--tokens 1024 4096 16384] [--kinds causal cpm_ant …] [--steps …]

Attention: one sequence, one layer, forward and backward with all that a step prepares, each kind on
each backend; beside it `scaled_dot_product_attention` with the same numbers, causal or not as the
kind is. Training steps in bf16: packed here, padded in transformers' own model with its fastest
attention, the same random documents of 30 to 512 tokens.

Each row is printed when it is measured: medians of the rounds by CUDA events, and the peak of
memory. One GPU is used. Without one the command ends with a line that says so, exit code 2;
`--device cpu --quick --tokens 64` only shows that the command works.
"""

import argparse
import shlex
import sys
from collections.abc import Callable, Iterator
from functools import partial

import torch
import torch.nn.functional as F
from _gpu_clock import Measured, machine, measure
from _gpu_steps import FAMILIES, training_steps
from attention import subjects
from attention_backends import draw_fields

from nlpkit import attention
from nlpkit.attention.choice import AttentionChoice
from nlpkit.contracts.request import Heads, Layout
from nlpkit.errors import UsageError
from nlpkit.train.machine import find_device

TOKENS = (512, 1024, 2048, 4096, 8192, 16384)
BACKENDS = ("flash", "varlen", "flex", "sdpa")
Step = Callable[[int], None]


def main() -> None:
    arguments = _arguments()
    try:
        device = find_device(arguments.device)
    except UsageError as error:
        print(f"bench/gpu.py: {error}; it measures a GPU", file=sys.stderr)
        sys.exit(error.exit_code)
    torch.manual_seed(0)
    print(f"`{shlex.join(['python', 'bench/gpu.py', *sys.argv[1:]])}`: {machine(device)}\n")
    print(
        f"Attention, {arguments.heads} heads x {arguments.width}, {arguments.dtype}, forward and "
        f"backward, medians of {arguments.rounds} rounds after {arguments.warm_up}\n"
    )
    print("| kind | backend | tokens | ms | of torch's | MiB | of torch's |")
    print("|---|---|---|---|---|---|---|", flush=True)
    for tokens in arguments.tokens:
        for row in _attention(arguments, device, tokens):
            print(f"| {' | '.join(row)} |", flush=True)
    print(flush=True)
    training_steps(arguments, device)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="to 2,048 tokens, 3 rounds")
    parser.add_argument("--device", default="cuda", help="cpu: to try the command, nothing else")
    parser.add_argument("--tokens", type=int, nargs="+")
    parser.add_argument("--kinds", nargs="*", metavar="KIND")
    parser.add_argument("--backends", nargs="*", default=list(BACKENDS))
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--width", type=int, default=64, help="of a head")
    parser.add_argument("--dtype", choices=["bfloat16", "float16", "float32"], default="bfloat16")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--warm-up", type=int, default=5, help="rounds in which kernels compile")
    parser.add_argument("--steps", nargs="*", choices=FAMILIES, default=list(FAMILIES))
    parser.add_argument("--layers", type=int, default=12, help="of the training steps")
    parser.add_argument("--hidden", type=int, default=768)
    parser.add_argument("--documents", type=int, default=32, help="in a training step")
    given = parser.parse_args()
    given.tokens = given.tokens or [n for n in TOKENS if n <= 2048 or not given.quick]
    given.rounds = given.rounds or (3 if given.quick else 20)
    return given


def _attention(
    arguments: argparse.Namespace, device: torch.device, tokens: int
) -> Iterator[list[str]]:
    """Yield the rows of a number of tokens; torch's own attention first."""
    run = partial(measure, device=device, rounds=arguments.rounds, warm_up=arguments.warm_up)
    base = {}
    for causal in (True, False):
        base[causal] = run(partial(_torch_step, arguments, device, tokens, causal))
        name = "causal" if causal else "full"
        yield _row(f"torch, {name}", "sdpa, one call", tokens, base[causal], base[causal])
    for name, choice in _subjects(tokens, arguments.kinds).items():
        own = choice.is_custom
        for backend in ["auto"] if own else arguments.backends:
            found = run(partial(_kind_step, arguments, device, tokens, choice, backend))
            torchs = base[choice.visibility != "bidirectional"]
            yield _row(name, "own" if own else backend, tokens, found, torchs)


def _subjects(tokens: int, wanted: list[str] | None) -> dict[str, AttentionChoice]:
    """Return the kinds with their settings; CPM-Ant's with a context, as its objective draws it."""
    biased = "cpm_ant"
    names = None if wanted is None else [name for name in wanted if name != biased]
    found = subjects(tokens, names)
    if wanted is None or biased in wanted:
        found[biased] = AttentionChoice.of(biased)
    return found


def _row(name: str, backend: str, tokens: int, found: Measured, base: Measured) -> list[str]:
    row = [name, backend, f"{tokens:,}"]
    if found.problem:
        return [*row, found.problem, "", "", ""]
    cells = [f"{1000 * found.median:,.2f}", "", f"{found.peak / 2**20:,.0f}", ""]
    if not base.problem:
        cells[1] = f"{found.median / base.median:.2f}"
        cells[3] = f"{found.peak / base.peak:.2f}" if base.peak else ""
    return [*row, *cells]


def _inputs(
    arguments: argparse.Namespace, device: torch.device, tokens: int
) -> tuple[list[torch.Tensor], torch.Tensor]:
    """Return q, k and v (N, H, D), and the gradient of the output."""
    shape = tokens, arguments.heads, arguments.width
    draw = partial(torch.randn, shape, device=device, dtype=getattr(torch, arguments.dtype))
    return [draw().requires_grad_() for _ in "qkv"], draw()


def _torch_step(
    arguments: argparse.Namespace, device: torch.device, tokens: int, causal: bool
) -> Step:
    qkv, grad = _inputs(arguments, device, tokens)

    def step(number: int) -> None:
        q, k, v = (x.transpose(0, 1)[None] for x in qkv)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
        torch.autograd.grad(out[0].transpose(0, 1), qkv, grad)

    return step


def _kind_step(
    arguments: argparse.Namespace,
    device: torch.device,
    tokens: int,
    choice: AttentionChoice,
    backend: str,
) -> Step:
    qkv, grad = _inputs(arguments, device, tokens)
    learned: dict[bool, dict[str, torch.Tensor]] = {True: {}, False: {}}
    for name, about in choice.module.tensors(
        choice.config, arguments.heads, arguments.width
    ).items():
        values = torch.randn(about.shape, device=device) * about.std
        learned[about.shared][name] = values.requires_grad_()
    wanted = [*qkv, *learned[True].values(), *learned[False].values()]
    fields = draw_fields([tokens], 0) if choice.kind == "cpm_ant" else {}
    fields = {name: value.to(device) for name, value in fields.items()}

    def step(number: int) -> None:
        attend = attention.prepare(
            choice,
            Heads(arguments.heads, arguments.width, qkv[0].dtype, training=True, backend=backend),
            Layout([tokens], device).with_fields(fields),
            tensors=learned[True],
        )
        out = attend(*qkv, learned[False])
        torch.autograd.grad(out, wanted, grad, allow_unused=True)

    return step


if __name__ == "__main__":
    main()
