"""Pictures of lessons 2 and 4, which show the runs of these lessons in the working directory."""

from pathlib import Path

import numpy as np
import torch
from card import BLUE, GREEN, ORANGE, RED, card, label_powers, matrix
from matplotlib.figure import Figure
from torch import Tensor, nn

from nlpkit.runs.open_checkpoint import Opened, open_checkpoint

TEXT = (
    "Anton lived by the river. One day in November he could not find his lantern. The hen followed "
    "him from room to room, as if it wanted to help. Under the old pear tree he found the lantern "
    "again, and in the evening he told his neighbour about it."
)
SENTENCES = "Jack is proud because Peter has come back.", "因为彼得回来了，所以杰克很自豪。"
CELLS = {"rnn": (nn.RNN, RED), "lstm": (nn.LSTM, ORANGE), "gru": (nn.GRU, GREEN)}


class MissingRun(Exception):
    """A picture shows a run that is not there."""


def _open(run: str) -> Opened:
    if not Path(run).exists():
        raise MissingRun(f"needs {run} of the lesson in this directory; not drawn")
    return open_checkpoint(run, device="cpu")


def recurrent() -> Figure:
    """How much the state after a text depends on the token k tokens back, in the lesson's runs."""
    figure, ((axes,),) = card(6.4, 3.4)
    for family, (cells, colour) in CELLS.items():
        opened = _open(f"runs/lstm/model-{family}")
        weights = opened.model.state_dict()
        table = weights.pop("token_embedding")
        net = cells(table.shape[1], weights["cells.weight_hh_l0"].shape[1], 2)
        net.load_state_dict({k[6:]: v for k, v in weights.items() if k.startswith("cells.")})
        ids = torch.tensor(opened.tokenizer.encode(TEXT))[:48]
        given = table[ids].requires_grad_()
        states, _ = net(given)
        sizes = _sensitivity(states[-1], given).flip(0)
        axes.plot(range(len(sizes)), sizes / sizes[0], color=colour, label=family)
    axes.set(yscale="log", xlabel="tokens back", ylabel="size of ∂ last state / ∂ token,\nrelative")
    label_powers(axes, range(0, -8, -1))
    axes.legend(fontsize=9, frameon=False)
    return figure


def _sensitivity(state: Tensor, given: Tensor) -> Tensor:
    """Return the size of d state / d token for each token, by 16 random directions; (T,)."""
    draw = torch.Generator().manual_seed(0)
    squares = torch.zeros(len(given))
    for _ in range(16):
        direction = torch.randn(state.shape, generator=draw)
        (found,) = torch.autograd.grad(state @ direction, given, retain_graph=True)
        squares += found.pow(2).sum(-1)
    return squares.sqrt()


@torch.no_grad()
def alignment() -> Figure:
    """The weights of attention while a translation is written."""
    opened = _open("runs/seq2seq")
    source = opened.objective.encode_input(SENTENCES[0])
    target = opened.tokenizer.encode(SENTENCES[1])
    given = opened.objective.continue_text(source, len(target)).given["input_ids"]
    ids = torch.tensor([*given.tolist(), *target])
    sizes = {"source_ids": torch.tensor(source), "source_lengths": (len(source),)}
    (weights,) = opened.model.alignments((len(ids),), ids, **sizes)
    words = [opened.tokenizer.decode([token]).strip() for token in source]
    written = [*(opened.tokenizer.decode([token]) for token in target), "end"]
    figure, ((axes,),) = card(5.6, 4.4)
    matrix(axes, np.asarray(weights), "", written, words, BLUE)
    axes.set(xlabel="source", ylabel="written, from top to bottom")
    return figure
