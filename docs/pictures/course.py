"""Draws the pictures of docs/course: python docs/pictures/course.py [NAME …].

Lessons 2 and 4 show runs, those that the lessons make: run it in the directory that has their
`runs`, with the folder for the pictures as `--to`. Without the runs, these two are left out.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import families
import numpy as np
import trained
from card import (
    BLUE,
    GREEN,
    GREY,
    INK,
    ORANGE,
    RED,
    arrow,
    box,
    card,
    label_powers,
    matrix,
    note,
    save,
    sheet,
)
from matplotlib.figure import Figure

from nlpkit.attention.choice import AttentionChoice
from nlpkit.attention.masks import dense_mask
from nlpkit.contracts.request import Layout

FOLDER = Path(__file__).resolve().parents[1] / "course" / "pictures"


def ngrams() -> Figure:
    """Held-out perplexity of n-grams, as `nlpkit plan gpt1 --baseline N` has it.

    That of one token alone is the entropy of the held-out text's own frequencies.
    """
    orders, losses = range(1, 6), []
    for order in orders[1:]:
        command = [sys.executable, "-m", "nlpkit", "plan", "gpt1", "--no-probe", "--json", "-q"]
        out = subprocess.check_output([*command, "--baseline", str(order)])
        held_out = json.loads(out)["data"]["held_out"]
        losses.append(held_out["ngram_loss"])
    losses.insert(0, held_out["unigram_entropy"])
    figure, ((axes,),) = card(6.4, 3.4)
    found = np.exp(losses)
    axes.plot(orders, found, "o-", color=BLUE)
    for order, perplexity in zip(orders, found, strict=True):
        axes.annotate(f"{perplexity:.1f}", (order, perplexity), (4, 7), textcoords="offset points",
                      color=INK, size=9)  # fmt: skip
    axes.axhline(np.exp(0.86), color=ORANGE, ls="--", lw=1)
    note(axes, 3.1, 1.9, "recipe gpt1, 600 steps: 2.4", ORANGE)
    axes.set(yscale="log", ylim=(1.5, 900), xlabel="n: a token is predicted from n − 1 tokens",
             ylabel="held-out perplexity", xticks=orders)  # fmt: skip
    axes.set_yticks([2, 5, 10, 100, 500], ["2", "5", "10", "100", "500"])
    axes.minorticks_off()
    return figure


def seq2seq() -> Figure:
    """Beam search with two beams, and what greedy decoding misses."""
    figure, ((axes,),) = card(7.4, 3.5)
    sheet(axes, 13, 5.6)
    box(axes, 0.2, 2.4, 1.3, 0.7, "start")
    first = [("a", 0.5, 4.2, BLUE), ("the", 0.4, 2.4, BLUE), ("one", 0.1, 0.8, GREY)]
    second = [("dog", 0.4, 4.8, 4.2), ("cat", 0.3, 3.8, 4.2), ("cat", 0.9, 2.4, 2.4),
              ("dog", 0.05, 1.4, 2.4)]  # fmt: skip
    for word, p, y, colour in first:
        arrow(axes, (1.5, 2.75), (3.2, y + 0.35), colour)
        box(axes, 3.2, y, 2.2, 0.7, f"{word}  {p:g}", colour)
    for word, p, y, before in second:
        prior = {4.2: 0.5, 2.4: 0.4}[before]
        best = word == "cat" and before == 2.4
        kept = best or y == 4.8
        colour = ORANGE if best else BLUE if kept else GREY
        arrow(axes, (5.4, before + 0.35), (7.2, y + 0.35), colour)
        box(axes, 7.2, y, 3.3, 0.7, f"{word}  {prior:g} × {p:g} = {prior * p:.2g}", colour)
    note(axes, 10.7, 5.15, "greedy ends here", BLUE)
    note(axes, 10.7, 2.75, "the best of both", ORANGE)
    note(axes, 3.2, 0.4, "blue: the two beams that are kept", BLUE)
    return figure


def attention_kinds() -> Figure:
    """Masks of five kinds from the code, and their pairs against the length."""
    figure, grid = card(7.8, 5.2, (2, 3))
    shown = [
        ("causal", {}, "causal"),
        ("local_window", {"window": 4}, "local_window 4"),
        ("strided", {"stride": 4}, "strided 4"),
        ("fixed", {"stride": 4, "summary": 1}, "fixed 4"),
        ("block_local", {"block": 4}, "block_local 4"),
    ]
    for axes, (kind, settings, title) in zip(grid.flat, shown, strict=False):
        seen = dense_mask(AttentionChoice.of(kind, **settings), Layout((16,))).numpy()
        matrix(axes, seen.reshape(-1, 16, 16)[0] * 1.0, title)
    axes = grid[1, 2]
    lengths = np.array([1024, 2048, 4096, 8192, 16384])
    for values, name, colour in (
        (lengths**2 / 2, "causal: N²/2", BLUE),
        (lengths * np.sqrt(lengths) * 1.5, "strided, √N: 1.5 N√N", GREEN),
        (lengths * 128, "window 128: 128 N", ORANGE),
    ):
        axes.plot(lengths, values / 1e6, "o-", ms=3, color=colour, label=name)
    axes.set(xscale="log", yscale="log", xlabel="tokens N", ylim=(0.05, 2000),
             title="pairs of tokens, millions")  # fmt: skip
    label_powers(axes, range(-1, 4))
    axes.title.set(size=9.5, color=INK)
    axes.set_xticks(lengths, ["1k", "2k", "4k", "8k", "16k"])
    axes.minorticks_off()
    axes.legend(fontsize=7.5, frameon=False, labelcolor=INK)
    return figure


def scores() -> Figure:
    """The part of BM25 that counts a word, against TF-IDF's."""
    figure, ((axes,),) = card(6.4, 3.4)
    count = np.linspace(0, 12, 100)
    for length, colour in ((0.5, GREEN), (1.0, BLUE), (2.0, ORANGE)):
        k1, b = 1.5, 0.75
        part = (k1 + 1) * count / (k1 * (1 - b + b * length) + count)
        axes.plot(count, part, color=colour, label=f"BM25, document {length:g} × the mean length")
    axes.plot(count, count / 3, color=RED, ls="--", label="TF-IDF: as steep for ever")
    axes.axhline(2.5, color=GREY, lw=0.8, ls=":")
    note(axes, 0.2, 2.6, "k₁ + 1 = 2.5", GREY)
    axes.set(xlabel="times that the word is in the document", ylabel="weight of the word / idf",
             xlim=(0, 12), ylim=(0, 3.4))  # fmt: skip
    axes.legend(fontsize=8, frameon=False, loc="lower right", labelcolor=INK)
    return figure


PICTURES: dict[str, Callable[[], Figure]] = {
    "01_ngrams": ngrams,
    "02_recurrent": trained.recurrent,
    "03_seq2seq": seq2seq,
    "04_attention": trained.alignment,
    "05_transformer": families.transformer,
    "06_gpt": families.gpt,
    "07_bert": families.bert,
    "08_others": families.others,
    "09_t5": families.t5,
    "10_cpm_ant": families.cpm_ant,
    "11_attention": attention_kinds,
    "12_scores": scores,
}


def main() -> None:
    """Draw the pictures that are named, or all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", choices=[*PICTURES, []], metavar="NAME")
    parser.add_argument("--to", type=Path, default=FOLDER)
    given = parser.parse_args()
    for name in given.names or PICTURES:
        try:
            save(PICTURES[name](), given.to / f"{name}.svg")
        except trained.MissingRun as missing:
            print(f"{name}: {missing}", file=sys.stderr)


if __name__ == "__main__":
    main()
