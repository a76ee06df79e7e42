"""Writes docs/gallery: the mask of every attention kind, the curve of every packaged recipe.

`python docs/gallery.py` writes pages and pictures; tests/docs/test_gallery.py compares them. The
curves are those of bench/results/gallery.json, which `python bench/gallery.py FOLDER` makes.
"""

import argparse
import json
import re
from pathlib import Path
from typing import Any

import gallery_curves as curves
import gallery_masks as masks

from nlpkit import recipe
from nlpkit.attention.choice import load_kind
from nlpkit.commands._parts import describe_kinds

DOCS = Path(__file__).resolve().parent
RESULT = DOCS.parent / "bench" / "results" / "gallery.json"
_MADE = "<!-- made by `python docs/gallery.py` -->\n"
# The papers of families, and of recipes that follow another one.
_FAMILIES = {
    "albert": "Lan et al. 2020, 1909.11942",
    "bart": "Lewis et al. 2020, 1910.13461",
    "bert": "Devlin et al. 2018, 1810.04805",
    "cpm_ant": "OpenBMB 2022, CPM-Live",
    "deberta_v2": "He et al. 2021, 2111.09543",
    "distilbert": "Sanh et al. 2019, 1910.01108",
    "electra": "Clark et al. 2020, 2003.10555",
    "gpt": "Radford et al. 2018",
    "gpt2": "Radford et al. 2019",
    "gpt_neo": "Black et al. 2021",
    "gpt_neox": "Black et al. 2022, 2204.06745",
    "llama": "Touvron et al. 2023, 2302.13971",
    "longformer": "Beltagy et al. 2020, 2004.05150",
    "lstm": "Hochreiter and Schmidhuber 1997",
    "modernbert": "Warner et al. 2024, 2412.13663",
    "modernbert_decoder": "Weller et al. 2025, 2507.11412",
    "roberta": "Liu et al. 2019, 1907.11692",
    "seq2seq": "Luong et al. 2015, 1508.04025",
    "t5": "Raffel et al. 2020, 1910.10683",
    "transformer": "Vaswani et al. 2017, 1706.03762",
    "vit": "Dosovitskiy et al. 2020, 2010.11929",
    "word2vec": "Mikolov et al. 2013, 1310.4546",
    "xlm": "Lample and Conneau 2019, 1901.07291",
    "xlnet": "Yang et al. 2019, 1906.08237",
}
_RECIPES = {
    "babylm": "Warstadt et al. 2023, 2504.08165",
    "bert_wwm_zh": "Cui et al. 2019, 1906.08101",
    "glm": "Du et al. 2022, 2103.10360",
    "gpt2_distilled": "Hinton et al. 2015, 1503.02531",
    "gpt2_dpo": "Rafailov et al. 2023, 2305.18290",
    "gpt3_small": "Brown et al. 2020, 2005.14165",
    "hybrid": "Charpentier and Samuel 2024, 2410.24159",
    "reformer": "Kitaev et al. 2020, 2001.04451",
    "shaw": "Shaw et al. 2018, 1803.02155",
    "spanbert": "Joshi et al. 2020, 1907.10529",
    "unilm": "Dong et al. 2019, 1905.03197",
}


def _link(paper: str) -> str:
    return re.sub(r"(\d{4}\.\d{4,5})", r"[\1](https://arxiv.org/abs/\1)", paper)


def _settings(kind: str) -> str:
    """Return a table of a kind's settings, or that it has none."""
    fields = load_kind(kind).Config.model_fields
    if not fields:
        return "No settings."
    rows = [
        f"| `{name}` | `{json.dumps(field.default)}` | {field.description} |"
        for name, field in fields.items()
    ]
    return "\n".join(["| setting | default | |", "|---|---|---|", *rows])


def write_masks() -> dict[str, str]:
    """Return the page of masks and its pictures, by their paths in docs/gallery."""
    text = [
        f"{_MADE}# Masks: who sees whom",
        f"Each picture is one sequence of {masks.TOKENS} tokens, or several with other settings. A "
        "row is a query, a column a key: what a token sees is blue. The pictures come from the "
        "code of the kinds.",
        "`attention: {kind: strided, stride: 64}` in a recipe chooses a kind "
        "([attention](../attention.md)), and `nlpkit plan RECIPE --mask FILE.png` draws the mask "
        "of your own batch.",
    ]
    made = {}
    for row in describe_kinds():
        name = row["kind"].strip("`")
        made[f"masks/{name}.svg"] = masks.draw(name)
        made[f"masks/{name}_small.svg"] = masks.draw_small(name)
        text += [
            f"## {name}",
            f"{row['who sees whom']}. It sees: {row['sees']}. "
            f"Cost of N tokens: {row['cost of N tokens']}. Learned: {row['learned']}. "
            f"Source: {row['source']}.",
            f"![mask of {name}](masks/{name}.svg)",
            *([masks.NOTES[name]] if name in masks.NOTES else []),
            _settings(name),
        ]
    return {"masks.md": "\n\n".join(text) + "\n", **made}


def _family(name: str) -> str | None:
    """Return the family of a recipe, or that of the run that it begins with; None: unknown."""
    text = _text(name)
    if own := re.search(r"^model:(?: \{|\n  )family: (\w+)", text, re.MULTILINE):
        return own[1]
    above = re.search(r"^(?:extends: |init_from: runs/)(\w+)", text, re.MULTILINE)
    return _family(above[1]) if above else None


def _paper(name: str) -> str:
    return _link(_RECIPES.get(name) or _FAMILIES[_family(name) or ""])


def _held_out(result: dict[str, Any]) -> str:
    """Return the figures of the last evaluation."""
    figures = [f"loss {result['held_out'][-1][1]:.3f}"]
    if len(result["losses"]) > 1:
        figures += [f"{part} {loss:.3f}" for part, loss in result["losses"].items()]
    if result["bits_per_character"]:
        figures.append(f"{result['bits_per_character']:.3f} bits a character")
    for score, value in result["scores"].items():
        if value is not None:
            figures.append(f"{score.partition(':')[0]} {value:.3f}")
    return "<br>".join(figures)


def _text(name: str) -> str:
    return recipe.packaged()[name].read_text(encoding="utf-8")


def _about(name: str) -> str:
    return f"`{name}`<br>{_text(name).splitlines()[0].lstrip('# ')}"


def _needs_own_text(name: str) -> bool:
    """Return whether a recipe, or one that it builds on or begins with, asks for own text."""
    above = re.findall(r"^(?:extends: |init_from: runs/)(\w+)", _text(name), re.MULTILINE)
    return "name your own text" in _text(name) or any(map(_needs_own_text, above))


def _row(name: str, result: dict[str, Any]) -> str:
    minutes = result["cpu_minutes"]
    part = f" of {result['own_steps']:,}" if result["steps"] != result["own_steps"] else ""
    # In a table, a picture would shrink to its column.
    picture = (
        f'<img src="recipes/{name}.svg" alt="curve of {name}" width="{curves.WIDTH}" '
        f'style="min-width: {curves.WIDTH}px">'
    )
    took = f"{result['steps']:,}{part} steps" + (f"<br>{minutes:.1f} minutes" if minutes else "")
    cells = [f"{_about(name)}<br>{_paper(name)}", picture, f"{took}<br>{_held_out(result)}"]
    return f"| {' | '.join(cells)} |"


def _list_missing(names: list[str]) -> str:
    """Return a table of recipes without a result, and what they say they take."""
    rows = ["| recipe | takes | paper |", "|---|---|---|"]
    for name in names:
        takes = re.search(r"^# takes: (.*)", _text(name), re.MULTILINE)
        rows.append(f"| {_about(name)} | {takes[1] if takes else ''} | {_paper(name)} |")
    return "\n".join(rows)


def _machines(results: dict[str, dict[str, Any]]) -> str:
    """Return machine, precision, date and commit of the runs, those that are alike together."""
    alike: dict[str, list[str]] = {}
    for name, result in results.items():
        words = (
            f"{result['machine']}, {result['threads']} thread{'s'[: result['threads'] - 1]}, "
            f"{result['precision']}, torch {result['torch']}, {result['date']}, "
            f"commit {result['commit']}"
        )
        alike.setdefault(words, []).append(f"`{name}`")
    return "\n".join(f"- {words}: {', '.join(names)}." for words, names in sorted(alike.items()))


def write_recipes(results: dict[str, dict[str, Any]]) -> dict[str, str]:
    """Return the page of recipes and its pictures, by their paths in docs/gallery."""
    names = [name for name in recipe.packaged() if "/" not in name]
    missing = [name for name in names if name not in results]
    untried = [name for name in missing if not _needs_own_text(name)]
    made = {
        f"recipes/{name}.svg": curves.draw(name, result["steps"], result["train"],
                                           result["held_out"])
        for name, result in results.items()
    }  # fmt: skip
    head = ["| recipe | curve | steps, minutes, held out |", "|---|---|---|"]
    text = [
        f"{_MADE}# Recipes and their curves",
        f"Every packaged recipe, small, on the text that comes with nlpkit; {len(results)} of "
        f"{len(names)} have a result. The grey line is the loss in training, the orange one is "
        "held out. Minutes are of processor time, beside other programs; figures are of one seed, "
        "after the last step.",
        "`python bench/gallery.py FOLDER` trains what is missing, `python docs/gallery.py` makes "
        "this page from `bench/results/gallery.json`. The sizes of the papers are on "
        "[a page of their own](../papers.md).",
        "\n".join([*head, *(_row(name, results[name]) for name in names if name in results)]),
        "Machine, precision, date and commit of nlpkit:",
        _machines(results),
        *(["## Not run yet", _list_missing(untried)] if untried else []),
        "## With text of your own",
        "These are not run here: they need text that does not come with nlpkit.",
        _list_missing([name for name in missing if name not in untried]),
    ]
    return {"recipes.md": "\n\n".join(text) + "\n", **made}


def write_pages() -> dict[str, str]:
    """Return every file of docs/gallery by its path there."""
    results = json.loads(RESULT.read_text(encoding="utf-8")) if RESULT.exists() else {}
    return write_masks() | write_recipes(results)


def main() -> None:
    """Write the files; pictures that belong to no page any more are removed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--to", type=Path, default=DOCS / "gallery", metavar="FOLDER")
    folder = parser.parse_args().to
    written = write_pages()
    for old in folder.rglob("*.svg"):
        if old.relative_to(folder).as_posix() not in written:
            old.unlink()
    for name, page in written.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
