"""Pictures of lessons 5 to 10: what families read, hide and predict."""

import numpy as np
from card import BLUE, GREEN, GREY, INK, ORANGE, RED, arrow, box, card, matrix, note, row, sheet
from matplotlib.figure import Figure


def transformer() -> Figure:
    """The encoder and the decoder, one layer of each."""
    figure, ((axes,),) = card(7.2, 5.0)
    sheet(axes, 12, 8.3)
    left = [("self-attention:\nsees the whole source", BLUE), ("add, norm", GREY),
            ("feed-forward", GREEN), ("add, norm", GREY)]  # fmt: skip
    right = [("self-attention:\nsees what is written", ORANGE), ("add, norm", GREY),
             ("cross-attention:\nK, V of the encoder", RED), ("add, norm", GREY),
             ("feed-forward", GREEN), ("add, norm", GREY)]  # fmt: skip
    for x, parts, name, times in (
        (0.4, left, "source", "encoder × 6"),
        (7.0, right, "target", "decoder × 6"),
    ):
        y = 1.5
        box(axes, x, 0.3, 4.2, 0.6, f"{name}: embeddings + positions")
        arrow(axes, (x + 2.1, 0.9), (x + 2.1, y))
        for text, colour in parts:
            tall = 0.85 if "\n" in text else 0.5
            box(axes, x, y, 4.2, tall, text, colour)
            y += tall + 0.22
            if (text, colour) != parts[-1]:
                arrow(axes, (x + 2.1, y - 0.22), (x + 2.1, y))
        note(axes, x + 2.1, y + 0.16, times, size=11, ha="center", weight="bold")
        if name == "source":
            arrow(axes, (x + 4.2, y - 0.45), (7.0, 3.7), RED, -0.15)
            note(axes, 5.0, 5.05, "C: all states\nof the encoder", RED)
    arrow(axes, (9.1, 6.9), (9.1, 7.5))
    box(axes, 7.0, 7.5, 4.2, 0.6, "linear, softmax: next token", GREY)
    return figure


def gpt() -> Figure:
    """The two losses of tuning."""
    figure, ((axes,),) = card(7.6, 3.1)
    sheet(axes, 13, 5.0)
    words = ["start", "we", "liked", "the", "soup", "extract"]
    colours = [ORANGE, GREY, GREY, GREY, GREY, ORANGE]
    row(axes, 0.3, 0.5, words, colours, 1.8)
    box(
        axes,
        0.34,
        1.7,
        10.72,
        0.7,
        "Transformer decoder: a state sees the tokens to its left",
        BLUE,
    )
    for place, target in enumerate([*words[1:5], "extract", ""]):
        x = 0.3 + 1.8 * place + 0.9
        arrow(axes, (x, 1.1), (x, 1.7))
        if 0 < place < 5:
            arrow(axes, (x, 2.4), (x, 3.0))
            box(axes, x - 0.86, 3.0, 1.72, 0.6, target, GREEN)
    arrow(axes, (0.3 + 0.9, 2.4), (0.3 + 0.9, 3.0))
    box(axes, 0.34, 3.0, 1.72, 0.6, "we", GREEN)
    arrow(axes, (10.2, 2.4), (10.2, 3.0))
    box(axes, 9.34, 3.0, 1.72, 0.6, "praise", RED)
    note(axes, 4.6, 4.2, "L1: next tokens", GREEN, size=11, ha="center")
    note(axes, 10.2, 4.2, "L2: the label", RED, size=11, ha="center")
    note(axes, 11.3, 3.3, "L3 =\nL2 + λ L1", size=11)
    return figure


def bert() -> Figure:
    """What happens to 15 % of the tokens; tokens of the first batch of recipe bert."""
    figure, ((axes,),) = card(7.8, 3.0)
    sheet(axes, 13.4, 4.6)
    text = ["find", "his", "lantern", ".", "the", "hen", "followed", "him", "from", "room"]
    shown = ["find", "sm", "lantern", ".", "the", "hen", "followed", "[MASK]", "from", "room"]
    hidden = {1: RED, 7: ORANGE}
    for y, words, name in ((3.4, text, "text"), (2.0, shown, "input")):
        colours = [hidden.get(n, GREY) if name == "input" else GREY for n in range(len(words))]
        row(axes, 1.4, y, words, colours, 1.18, 8.5)
        note(axes, 0.1, y + 0.3, name)
    for place, colour in hidden.items():
        x = 1.4 + 1.18 * (place + 0.5)
        arrow(axes, (x, 3.4), (x, 2.6), colour)
        arrow(axes, (x, 2.0), (x, 1.2), colour)
        box(axes, x - 0.55, 0.6, 1.1, 0.6, text[place], GREEN)
    note(axes, 0.1, 0.9, "target")
    note(axes, 3.9, 0.9, "of the 15 %: 80 % [MASK],\n10 % another token, 10 % as it was", GREY)
    return figure


def others() -> Figure:
    """Four changes of BERT."""
    figure, ((electra, albert), (xlnet, unilm)) = card(7.8, 6.2, (2, 2))
    sheet(electra, 8, 6)
    for axes, name in ((electra, "ELECTRA: a label for every token"),
                       (albert, "ALBERT: one layer, used again")):  # fmt: skip
        axes.set_title(name, size=10, color=INK)
    row(electra, 1.5, 4.6, ["the", "chef", "[MASK]", "it"], [GREY, GREY, ORANGE, GREY], 1.6)
    box(electra, 1.5, 3.4, 6.4, 0.6, "generator (small): masked tokens", ORANGE)
    row(electra, 1.5, 2.2, ["the", "chef", "ate", "it"], [GREY, GREY, RED, GREY], 1.6)
    box(electra, 1.5, 1.1, 6.4, 0.6, "discriminator (kept): replaced?", BLUE)
    row(electra, 1.5, 0.0, ["no", "no", "yes", "no"], [GREEN] * 4, 1.6)
    for y in (4.6, 3.4, 2.2, 1.1):
        arrow(electra, (4.7, y), (4.7, y - 0.5))
    sheet(albert, 8, 6)
    for n in range(4):
        box(albert, 0.3, 1.2 + 1.1 * n, 3.0, 0.7, f"layer {n + 1}", (BLUE, ORANGE, GREEN, RED)[n])
        box(albert, 4.6, 1.2 + 1.1 * n, 3.0, 0.7, "layer 1", BLUE)
    note(albert, 1.8, 0.5, "BERT base: 110 million", ha="center")
    note(albert, 6.1, 0.5, "ALBERT base: 12 million", ha="center")
    order = np.array([3, 1, 4, 2])  # the place of tokens 1 … 4 in the order 2, 4, 1, 3
    sees = (order[None, :] < order[:, None]) * 1.0
    matrix(xlnet, sees, "XLNet: order 2, 4, 1, 3\ntoken (row) is predicted from (column)",
           [f"token {n}" for n in (1, 2, 3, 4)], [f"{n}" for n in (1, 2, 3, 4)])  # fmt: skip
    places = np.arange(8)
    source = (places[None, :] < 4) | (places[None, :] <= places[:, None])
    matrix(unilm, source * 1.0, "UniLM: text 1 both ways,\ntext 2 to the left",
           ["text 1"] * 4 + ["text 2"] * 4)  # fmt: skip
    return figure


def t5() -> Figure:
    """Span corruption."""
    figure, ((axes,),) = card(7.8, 3.3)
    sheet(axes, 13.4, 5.0)
    words = ["the", "gardener", "sailed", "over", "once", "a", "month", "with", "flour"]
    colours = [GREY, GREY, ORANGE, ORANGE, GREY, GREY, RED, GREY, GREY]
    row(axes, 1.6, 4.1, words, colours, 1.3)
    source = ["the", "gardener", "<X>", "once", "a", "<Y>", "with", "flour"]
    row(axes, 1.6, 2.8, source, [GREY, GREY, ORANGE, GREY, GREY, RED, GREY, GREY], 1.3)
    box(axes, 1.64, 1.6, 4.9, 0.6, "encoder: sees all of it", BLUE)
    box(axes, 7.4, 1.6, 5.2, 0.6, "decoder: left to right", BLUE)
    arrow(axes, (6.54, 1.9), (7.4, 1.9), BLUE)
    arrow(axes, (4.1, 2.8), (4.1, 2.2))
    target = ["<X>", "sailed", "over", "<Y>", "month", "</s>"]
    row(axes, 4.2, 0.3, target, [ORANGE, ORANGE, ORANGE, RED, RED, GREY], 1.4)
    arrow(axes, (10, 1.6), (10, 0.9))
    for y, name in ((4.4, "text"), (3.1, "source"), (0.6, "target")):
        note(axes, 0.2, y, name)
    return figure


def cpm_ant() -> Figure:
    """Who sees whom, and an adapter."""
    figure, ((left, right),) = card(7.8, 3.9, (1, 2))
    words = ["prompt", "prompt", "<s>", "he", "put", "the", "book", "on", "the", "desk"]
    context = np.array([True] * 5 + [False, False] + [True] * 3)
    places = np.arange(len(words))
    sees = context[None, :] | (~context[:, None] & (places[None, :] <= places[:, None]))
    matrix(left, sees * 1.0, "CPM-Ant, infilling: “the book” is the target", words, words)
    for n in np.flatnonzero(~context):
        for labels in (left.get_xticklabels(), left.get_yticklabels()):
            labels[n].set_color(RED)
    sheet(right, 8, 8)
    right.set_title("LoRA: h = (W + B A) x", size=9.5, color=INK)
    box(right, 0.3, 2.6, 3.0, 3.0, "W\nd × d\nfrozen", GREY, 11)
    note(right, 3.65, 4.1, "+", size=14)
    box(right, 4.2, 2.6, 1.0, 3.0, "B\nd × r", ORANGE)
    box(right, 5.4, 4.6, 2.5, 1.0, "A, r × d", ORANGE)
    note(right, 5.4, 3.4, "trained,\nB from zeros", ORANGE)
    return figure
