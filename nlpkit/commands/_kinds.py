"""The table of attention kinds of `nlpkit recipes parts`, from the kinds themselves."""

import re

from nlpkit import registry
from nlpkit.attention.choice import AttentionChoice

_TOKENS = 8192
_HEAD = (
    "kind",
    "who sees whom",
    "cost of N tokens",
    "sees",
    "learned",
    "source",
)
_PAPER = re.compile(r"((?:\w+ and )?[A-Z][\w-]+(?: et al\.)? \d{4})")
_ARXIV = re.compile(r"arXiv:(\d{4}\.\d{5})")
_SEES = {
    "causal": "the left",
    "prefix": "the context, and the left",
    "bidirectional": "both sides",
}


def describe_kinds() -> list[dict[str, str]]:
    """Return what the table says of each kind, by the names of its columns."""
    return [
        dict(zip(_HEAD, _describe(name), strict=True)) for name in registry.names("attention/kinds")
    ]


def format_table() -> str:
    """Return the table in Markdown."""
    cells = [_HEAD, ["---"] * len(_HEAD), *(row.values() for row in describe_kinds())]
    return "\n".join(f"| {' | '.join(row)} |" for row in cells)


def _describe(name: str) -> tuple[str, ...]:
    # Settings that the model decides.
    choice = AttentionChoice.of(name).with_defaults("causal", _TOKENS)
    kind, config = choice.module, choice.config
    text = " ".join((getattr(kind, "__doc__", None) or "").split())
    paper, number = _PAPER.search(text), _ARXIV.search(text)
    link = f"[{number[1]}](https://arxiv.org/abs/{number[1]})" if number else ""
    source = ", ".join(filter(None, [paper[1] if paper else "", link]))
    # Without the source, which has a column of its own.
    about = re.sub(r" \([^()]*\d{4}[^()]*\)", "", registry.about("attention/kinds", name))
    learned = [
        f"`{tensor}`{', one for all layers' if one.shared else ''}"
        for tensor, one in kind.tensors(config, 8, 64).items()
    ]
    sees = _SEES[choice.visibility]
    if "causal" in kind.Config.model_fields:
        sees = "the left or both sides (`causal`)"
    cost = kind.COST.replace("^2", "²").replace(" * ", " · ")
    return (
        f"`{name}`", about.rstrip("."), cost, sees,
        "; ".join(learned) or "nothing", source or "no paper",
    )  # fmt: skip
