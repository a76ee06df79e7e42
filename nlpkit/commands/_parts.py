"""Lists the parts for `nlpkit recipes parts`, and which objective trains which family."""

import re
from collections.abc import Iterable

from nlpkit import registry
from nlpkit.attention.choice import AttentionChoice
from nlpkit.json_types import JsonObject
from nlpkit.text_table import markdown

# The name of a list, also with --json, and the folder of its parts.
_LISTS = {
    "attention_kinds": "attention/kinds",
    "attention_backends": "attention/backends",
    "tokenizers": "tokenizers",
    "optimizers": "train/optimizers",
    "schedules": "train/schedules",
    "scores": "score/metrics",
}

_TOKENS = 8192
_HEAD = ("kind", "who sees whom", "cost of N tokens", "sees", "learned", "source")
_PAPER = re.compile(r"((?:\w+ and )?[A-Z][\w-]+(?: et al\.)? \d{4})")
_ARXIV = re.compile(r"arXiv:(\d{4}\.\d{5})")
_SEES = {
    "causal": "the left",
    "prefix": "the context, and the left",
    "bidirectional": "both sides",
}
MARKED = (
    "(yes): with another kind of attention than the family's own, `attention: {kind: …}`, "
    "or another setting"
)


def format_table(objectives: dict[str, list[str]], other: dict[str, dict[str, list[str]]]) -> str:
    """Return a table of objectives and families in Markdown, and what its mark means.

    `objectives` are the families of each, `other` those that need another setting.
    """
    families = registry.names("models")
    rows = []
    for objective, suited in objectives.items():
        marks = dict.fromkeys(other.get(objective, ()), "(yes)") | dict.fromkeys(suited, "yes")
        rows.append([f"`{objective}`", *(marks.get(name, "") for name in families)])
    head = ["objective", *(f"`{name}`" for name in families)]
    return f"{markdown(head, rows)}\n\n{_format_note(other)}"


def _format_note(other: dict[str, dict[str, list[str]]]) -> str:
    """Return which kinds of attention or settings the pairs with a mark need."""
    alike: dict[tuple[str, ...], dict[str, list[str]]] = {}  # settings -> families by objective
    for objective, families in other.items():
        for family, settings in families.items():
            kinds = (setting.removeprefix("attention.kind=") for setting in settings)
            alike.setdefault(tuple(kinds), {}).setdefault(objective, []).append(family)
    parts = []
    for group, pairs in alike.items():
        trained_by = dict.fromkeys(name for names in pairs.values() for name in names)
        parts.append(f"{_join(pairs)} × {_join(trained_by)}: {_join(group)}")
    return f"{MARKED}: {'; '.join(parts)}."


def _join(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def collect() -> JsonObject:
    """Return what `text` shows, by the names of `--json`.

    `objectives` are the families that each trains with their default settings; of those that it
    trains only with one other setting, `with_other_setting` has these settings, by family. Those
    that depend on others are left out: mixture, `adds_only`.
    """
    from nlpkit.recipe.alternatives import families_for, families_with_setting

    names = [name for name in registry.names("objectives") if name != "mixture"]
    made = {name: registry.load("objectives", name).Objective for name in names}
    made = {name: each for name, each in made.items() if not each.adds_only}
    others = {name: families_with_setting(each) for name, each in made.items()}
    return {
        "objectives": {name: families_for(each) for name, each in made.items()},
        "with_other_setting": {name: each for name, each in others.items() if each},
        "kinds": describe_kinds(),
        **{
            title: {name: registry.about(folder, name) for name in registry.names(folder)}
            for title, folder in _LISTS.items()
        },
    }


def format_text(found: JsonObject) -> str:
    """Return the table, the lists below it, and the table of attention kinds, in Markdown."""
    blocks = [format_table(found["objectives"], found["with_other_setting"])]
    for title in _LISTS:
        parts = found[title]
        rows = [f"- `{name}`: {about}" for name, about in parts.items()]
        blocks.append("\n".join([f"{title.capitalize().replace('_', ' ')}:", "", *rows]))
    kinds = (row.values() for row in found["kinds"])
    blocks += ["Attention, kind by kind:", markdown(_HEAD, kinds)]
    return "\n\n".join(blocks)


def describe_kinds() -> list[dict[str, str]]:
    """Return what the table says of each kind, by the names of its columns."""
    names = registry.names("attention/kinds")
    return [dict(zip(_HEAD, _describe_kind(name), strict=True)) for name in names]


def _describe_kind(name: str) -> tuple[str, ...]:
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
