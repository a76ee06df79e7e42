"""Time and memory of every kind of attention against the number of tokens, beside torch's own.

    python bench/attention.py [--quick] [--tokens 256 … 16384] [--kinds strided fixed …]

One sequence, one layer, forward and backward, with all that a step prepares. Beside each kind runs
`scaled_dot_product_attention` of torch with the same numbers, causal or not as the kind is. Every
subject has a process of its own, so that peak memory is its own; they take turns, round by round.
Strides are near the square root of the tokens, as Child et al. 2019 recommend; other settings are
the defaults.

Prints a table of times and one of memory, and draws both as a picture, with the length from which
on a kind is faster than torch's attention. Figures are kept below --out as they are measured: the
same command goes on where it was stopped. Run it on a quiet machine.
"""

import argparse
import json
import math
import shlex
import sys
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from _attention_tables import CAUSAL, FULL, draw, table
from _turns import Turns, Worker, machine

from nlpkit import attention, registry
from nlpkit.attention.choice import AttentionChoice, load_kind
from nlpkit.contracts.kind import LAYOUT_FIELDS
from nlpkit.contracts.request import Heads, Layout
from nlpkit.train import memory
from nlpkit.train.machine import configure_allocator

ROOT = Path(__file__).parent.parent
TOKENS = (256, 512, 1024, 2048, 4096, 8192, 16384)
# More than one form of a kind, or settings that grow with the tokens: s is a power of 2 near
# their square root.
FORMS: dict[str, dict[str, dict[str, Any]]] = {
    "strided": {
        "strided sa1": {"stride": "s", "pattern": "sa1"},
        "strided sa2": {"stride": "s", "pattern": "sa2"},
        "strided both": {"stride": "s"},
        "strided split": {"stride": "s", "pattern": "split"},
    },
    "fixed": {"fixed": {"stride": "s", "summary": "s/8"}},
    "block_local": {"block_local": {"causal": True}, "block_local, both sides": {"causal": False}},
}


def main() -> None:
    arguments = _arguments()
    torch.set_num_threads(arguments.threads)
    about = machine(arguments.threads)
    kept = _Kept(arguments, about)
    for tokens in arguments.tokens:
        _measure(arguments, tokens, kept)
    print(f"`{shlex.join(['python', 'bench/attention.py', *sys.argv[1:]])}`: {about};")
    print(
        f"{arguments.heads} heads x {arguments.width}, {arguments.dtype}, forward and backward, "
        f"medians of {arguments.rounds} rounds ({arguments.clock} time)\n"
    )
    figures = kept.figures()
    print(table(figures, arguments.tokens, "seconds"), "\n", sep="\n")
    print(table(figures, arguments.tokens, "memory"))
    draw(figures, arguments.plot, about)
    print(f"\n{arguments.plot}")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="to 4,096 tokens, 2 rounds")
    parser.add_argument("--tokens", type=int, nargs="+")
    parser.add_argument("--kinds", nargs="+", metavar="KIND")
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--width", type=int, default=64, help="of a head")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--clock", choices=["wall", "cpu"], default="wall")
    parser.add_argument("--rounds", type=int, help="after one that is not counted")
    parser.add_argument("--longest", type=float, default=60, help="seconds of a round, at most")
    parser.add_argument("--out", type=Path, default=ROOT / "runs/bench_attention")
    parser.add_argument("--plot", type=Path, help="the picture")
    given = parser.parse_args()
    given.tokens = sorted(given.tokens or [n for n in TOKENS if n <= 4096 or not given.quick])
    given.rounds = given.rounds or (2 if given.quick else 5)
    # Only what was measured in full is for the documents.
    given.plot = given.plot or (given.out if given.quick else ROOT / "docs/lab") / "attention.png"
    return given


def subjects(tokens: int, wanted: list[str] | None) -> dict[str, AttentionChoice]:
    """Return the kinds with their settings, by the names in the tables.

    Without those that read what only an objective gives, such as the context of CPM-Ant.
    """
    sizes = {"s": 2 ** round(math.log2(tokens) / 2)}
    sizes["s/8"] = max(1, sizes["s"] // 8)
    found = {}
    for name in registry.names("attention/kinds") if wanted is None else wanted:
        kind = load_kind(name)
        if {*kind.FIELDS} - {*kind.OPTIONAL} - {*LAYOUT_FIELDS}:
            continue
        for label, settings in FORMS.get(name, {name: {}}).items():
            given = {k: sizes.get(v, v) for k, v in settings.items()}
            found[label] = AttentionChoice.of(name, **given).with_defaults("causal", tokens)
    return found


class _Kept:
    """The figures of each subject and number of tokens, in a file that grows line by line."""

    def __init__(self, arguments: argparse.Namespace, about: str):
        names = ("heads", "width", "dtype", "threads", "rounds", "clock")
        self._same = {name: getattr(arguments, name) for name in names} | {"machine": about[12:]}
        self._wanted = arguments.tokens, arguments.kinds
        self._file = arguments.out / "figures.jsonl"
        arguments.out.mkdir(parents=True, exist_ok=True)
        text = self._file.read_text(encoding="utf-8") if self._file.exists() else ""
        lines = [json.loads(line) for line in text.splitlines()]
        self._lines = [line for line in lines if line["with"] == self._same]

    def add(self, **figures: Any) -> None:
        """Keep the figures of a subject."""
        line = figures | {"with": self._same}
        self._lines.append(line)
        with open(self._file, "a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def get(self, subject: str, tokens: int) -> dict[str, Any] | None:
        """Return the figures of a subject, or None."""
        found = (x for x in self._lines if (x["subject"], x["tokens"]) == (subject, tokens))
        return next(found, None)

    def figures(self) -> dict[str, dict[int, dict[str, Any]]]:
        """Return the figures by subject and tokens; torch's are those beside the first subject."""
        tokens, kinds = self._wanted
        made: dict[str, dict[int, dict[str, Any]]] = {CAUSAL: {}, FULL: {}}
        for n in tokens:
            for name in subjects(n, kinds):
                if line := self.get(name, n):
                    made.setdefault(name, {})[n] = line
                    own = {"seconds": line["base_seconds"], "memory": line["base_memory"]}
                    made[line["base"]].setdefault(n, own | {"base_seconds": line["base_seconds"]})
        return {name: lines for name, lines in made.items() if lines}


def _measure(arguments: argparse.Namespace, tokens: int, kept: _Kept) -> None:
    """Measure the kinds that are not measured with this number of tokens, three in turns."""
    todo: dict[str, list[str]] = {CAUSAL: [], FULL: []}
    for name, choice in subjects(tokens, arguments.kinds).items():
        if kept.get(name, tokens) is None and _affordable(arguments, name, tokens, kept):
            todo[FULL if choice.visibility == "bidirectional" else CAUSAL].append(name)
    for base, names in todo.items():
        for first in range(0, len(names), 3):
            group = [base, *names[first : first + 3]]
            print(f"{tokens:,} tokens: {'; '.join(group)}", file=sys.stderr)
            workers = {
                name: Worker(_Subject, arguments.threads, name, tokens, arguments) for name in group
            }
            try:
                spent, peaks = _turns(arguments, workers)
            except EOFError:  # a process has died; its error is on stderr
                for worker in workers.values():
                    worker.stop()
                raise SystemExit(1) from None
            for name in group[1:]:
                kept.add(
                    subject=name, tokens=tokens, base=base, seconds=spent[name][1:],
                    base_seconds=spent[base][1:], memory=peaks[name], base_memory=peaks[base],
                )  # fmt: skip


def _turns(
    arguments: argparse.Namespace, workers: dict[str, Worker]
) -> tuple[dict[str, list[float]], dict[str, int]]:
    """Return the seconds of each round, the first one too, and the peak memory, by the names."""
    group = list(workers)
    spent: dict[str, list[float]] = {name: [] for name in group}
    for number in range(arguments.rounds + 1):
        first = number % len(group)
        for name in group[first:] + group[:first]:
            spent[name].append(getattr(workers[name].train(number), arguments.clock))
    return spent, {name: worker.finish() for name, worker in workers.items()}


def _affordable(arguments: argparse.Namespace, name: str, tokens: int, kept: _Kept) -> bool:
    """Return whether a subject that grows with the square of the tokens would be affordable.

    By its figures with fewer tokens.
    """
    earlier = [kept.get(name, n) for n in arguments.tokens if n < tokens]
    if not earlier:
        return True
    if earlier[-1] is None:
        return False
    growth = (tokens / earlier[-1]["tokens"]) ** 2
    seconds = min(earlier[-1]["seconds"]) * growth
    fits = earlier[-1]["memory"] * growth < 0.6 * memory.available()
    return fits and seconds < arguments.longest


class _Subject:
    """One layer of a kind, or of torch's attention."""

    def __init__(self, name: str, tokens: int, arguments: argparse.Namespace):
        configure_allocator()  # as in a run of nlpkit
        self.name, self.arguments = name, arguments
        self.layout = Layout([tokens])
        self.dtype = getattr(torch, arguments.dtype)
        shape = tokens, arguments.heads, arguments.width
        self.q, self.k, self.v = (
            torch.randn(shape).to(self.dtype).requires_grad_() for _ in range(3)
        )
        self.grad = torch.randn(shape).to(self.dtype)
        self.choice = subjects(tokens, None).get(name)
        self.tensors: dict[bool, dict[str, torch.Tensor]] = {True: {}, False: {}}
        if self.choice is not None:
            learned = self.choice.module.tensors(self.choice.config, *shape[1:])
            for each, about in learned.items():
                values = (torch.randn(about.shape) * about.std).requires_grad_()
                self.tensors[about.shared][each] = values

    def run(self, turns: Turns) -> None:
        """Do a step in each turn."""
        for _ in turns:
            out = self._out()
            learned = [*self.tensors[True].values(), *self.tensors[False].values()]
            torch.autograd.grad(
                out, [self.q, self.k, self.v, *learned], self.grad, allow_unused=True
            )

    def _out(self) -> torch.Tensor:
        if self.choice is None:
            q, k, v = (x.transpose(0, 1)[None] for x in (self.q, self.k, self.v))
            causal = self.name == CAUSAL
            return F.scaled_dot_product_attention(q, k, v, is_causal=causal)[0].transpose(0, 1)
        attend = attention.prepare(
            self.choice,
            Heads(self.arguments.heads, self.arguments.width, self.dtype, training=True),
            self.layout,
            tensors=self.tensors[True],
        )
        return attend(self.q, self.k, self.v, self.tensors[False])


if __name__ == "__main__":
    main()
