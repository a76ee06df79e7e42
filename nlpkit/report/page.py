"""Makes the HTML of the report: facts, charts, tables. All text from files is escaped.

`page.css` is its style sheet, `page.js` its script.
"""

import base64
import hashlib
import json
import math
import re
from collections.abc import Sequence
from html import escape
from pathlib import Path

import numpy as np

from nlpkit import __version__
from nlpkit.plural import all_of, number_of
from nlpkit.report import svg
from nlpkit.report.curves import BUCKETS, LIMIT, Chart
from nlpkit.report.history import History
from nlpkit.train.state import LOSS
from nlpkit.units import format_duration

_LAST = 20  # evaluations in a table; the chart has all
_NONE = "–"
_SHA256 = re.compile("[0-9a-f]{64}")
# Of run.json, in rows of their own or in no row.
_NO_ROW = {
    "budget_seconds", "steps", "finished", "step", "finite", "diverged", "held_out_unigram_entropy",
    "held_out_ngram",
}  # fmt: skip
Cell = str | tuple[str, str]  # text, or text and its class


def make_heading(histories: Sequence[History]) -> str:
    """Return the report's title."""
    names = ", ".join(history.label for history in histories)
    return f"Run {names}" if len(histories) == 1 else f"{len(histories)} runs: {names}"


def render(histories: Sequence[History], charts: Sequence[Chart]) -> str:
    """Return the HTML page."""
    title = escape(make_heading(histories))
    css, js = (Path(__file__).with_name(f"page.{x}").read_text("utf-8") for x in ("css", "js"))
    script = f"const WIDTH = {svg.WIDTH}, LEFT = {svg.LEFT}, RIGHT = {svg.RIGHT};\n{js}"
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    # The page loads nothing and runs only this script, even if some text is not escaped.
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    dark = f"@media screen and (prefers-color-scheme:dark){{{svg.make_style(True)}}}"
    sections = [_write_facts(histories), _write_charts(histories, charts)]
    sections += [_write_evaluations(histories), _write_recipe(histories)]
    if len(histories) > 1:
        sections.append(_write_differences(histories))
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width,initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{title}</title>\n<style>{css}{svg.make_style(False)}\n{dark}</style>\n"
        f"</head>\n<body>\n<main>\n<h1>{title}</h1>\n"
        + "\n".join(sections)
        + f"\n</main>\n<footer>nlpkit {__version__}</footer>\n"
        f'<script type="application/json" id="curves">{_write_data(charts)}</script>\n'
        f"<script>{script}</script>\n</body>\n</html>\n"
    )


def _section(name: str, *content: str) -> str:
    return f"<section>\n<h2>{escape(name)}</h2>\n" + "\n".join(content) + "\n</section>"


def _table(caption: str, head: Sequence[str], rows: Sequence[Sequence[Cell]]) -> str:
    """Return a table whose first column has the names of the rows; it scrolls horizontally."""

    def cell(content: Cell, tag: str) -> str:
        text, kind = (content, "") if isinstance(content, str) else content
        scope = ' scope="row"' if tag == "th" else ""
        look = f' class="{kind}"' if kind else ""
        return f"<{tag}{scope}{look}>{escape(text)}</{tag}>"

    columns = "".join(f'<th scope="col">{escape(name)}</th>' for name in head)
    body = "\n".join(
        "<tr>" + cell(row[0], "th") + "".join(cell(c, "td") for c in row[1:]) + "</tr>"
        for row in rows
    )
    return (
        f'<div class="scroll" role="region" tabindex="0" aria-label="{escape(caption)}"><table>'
        f"<caption>{escape(caption)}</caption>\n<thead><tr>{columns}</tr></thead>\n"
        f"<tbody>\n{body}\n</tbody></table></div>"
    )


def _format_figure(value: float | None, digits: int = 4) -> str:
    return _NONE if value is None or math.isnan(value) else f"{value:,.{digits}f}"


def _write_facts(histories: Sequence[History]) -> str:
    columns = [_collect_facts(history) for history in histories]
    names = dict.fromkeys(name for facts in columns for name in facts)
    rows = [[name, *[facts.get(name, _NONE) for facts in columns]] for name in names]
    caption = "Facts from run.json, recipe.yaml and metrics.jsonl"
    table = _table(caption, ["", *[history.label for history in histories]], rows)
    return _section("The runs" if len(histories) > 1 else "The run", table)


def _collect_facts(history: History) -> dict[str, str]:
    status = history.status
    # Recipes with a length in epochs have null; older runs have `steps` only in the recipe.
    planned = status.get("steps") or history.settings.get("train.steps", "?")
    facts = {
        "directory": str(history.path),
        "state": history.state,
        "steps": f"{history.last_step:,} of {planned} planned",
    }
    budget = status.get("budget_seconds")
    if budget is not None:
        facts["steps"] = f"{history.last_step:,}"
        used = f"{format_duration(history.spent)} of " if history.spent else ""
        facts["budget"] = used + format_duration(budget)
    if history.steps:
        speed, memory = history.column("tokens_per_second"), history.column("memory_bytes")
        facts["tokens"] = f"{history.column('tokens')[-1]:,.0f}"
        loss = _format_figure(history.column("loss")[-1])
        facts["last training loss"] = f"{loss} {history.loss_unit}"
        if np.isfinite(speed).any():
            facts["median speed"] = f"{np.nanmedian(speed):,.0f} tokens/s"
        if np.isfinite(memory).any():
            facts["peak memory"] = f"{np.nanmax(memory) / 2**20:,.0f} MiB"
    if history.best:
        step, best = history.best
        unit = f" {history.loss_unit}" if history.best_by == LOSS else ""
        facts[f"best held-out {history.best_by}"] = f"{_format_figure(best)}{unit} at step {step:,}"
    for name, value in history.baselines.items():
        facts[f"{name} of the held-out text"] = f"{_format_figure(value)} nats/token"
    for key, value in status.items():
        if key not in _NO_ROW and value is not None:
            facts[key] = _format_fact(value)
    return facts


def _format_fact(value: object) -> str:
    """Return a value of `run.json` in words; of a SHA-256 the first 12 digits."""
    if isinstance(value, dict):
        return ", ".join(f"{key} {_format_fact(each)}" for key, each in value.items())
    if isinstance(value, str):
        return value[:12] if _SHA256.fullmatch(value) else value
    return json.dumps(value, ensure_ascii=False)


def _write_charts(histories: Sequence[History], charts: Sequence[Chart]) -> str:
    legend = "".join(
        f'<li><svg class="chart" viewBox="0 0 28 8" width="28" height="8" aria-hidden="true">'
        f'<path class="strong {svg.get_classes(number)}" d="M0 4H28"/></svg>{escape(h.label)}</li>'
        for number, h in enumerate(histories)
    )
    note = "Thin: training. Thick: held out."
    if any(chart.levels for chart in charts):
        note += (
            " Dotted: the unigram entropy of the held-out text, which is the loss of a model that "
            "knows only the frequency of each token, and with eval.baseline the loss of n-grams."
        )
    if any(line.low is not None for chart in charts for line in chart.lines):
        note += (
            f" Curves of more than {LIMIT:,} points are the means of {BUCKETS} equal "
            "intervals; the band shows their smallest and largest values."
        )
    figures = [
        f"<figure>\n<figcaption>{escape(chart.title)} <span>{escape(chart.unit)}</span>"
        f'</figcaption>\n{svg.draw(chart)}\n<p class="read"></p>\n</figure>'
        for chart in charts
        if chart.lines
    ]
    missing = [chart.title for chart in charts if not chart.lines]
    remarks = [f"<p>Not recorded: {escape(', '.join(missing))}.</p>"] if missing else []
    return _section(
        "Curves", f'<ul class="legend">{legend}</ul>', f"<p>{note}</p>",
        '<div class="charts">', *figures, "</div>", *remarks,
    )  # fmt: skip


def _write_data(charts: Sequence[Chart]) -> str:
    """Return the curves as JSON, escaped for a script element."""

    def plain(values: np.ndarray) -> list[float | None]:
        return [float(f"{v:.6g}") if math.isfinite(v) else None for v in values.tolist()]

    content = {
        chart.key: [
            {"name": line.name, "x": line.x.astype(int).tolist(), "y": plain(line.y)}
            for line in chart.lines
        ]
        for chart in charts
    }
    text = json.dumps(content, ensure_ascii=False, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _write_evaluations(histories: Sequence[History]) -> str:
    tables = []
    for history in histories:
        figures = history.evaluations
        if not figures:
            tables.append(f"<p>{escape(history.label)}: no held-out evaluation yet.</p>")
            continue
        parts = sorted({name for each in figures.values() for name in each["losses"]})
        best = history.best[0] if history.best else None
        shown = sorted({*list(figures)[-_LAST:], *([] if best is None else [best])})
        caption = f"{history.label}: {number_of(len(figures), 'evaluations')}"
        if len(shown) < len(figures):
            caption += f"; the table has the last {_LAST} and the best, the chart has all"
        rows: list[list[Cell]] = []
        for step in shown:
            each = figures[step]
            values = [each["loss"], *map(each["losses"].get, parts)]
            values += map(each["metrics"].get, history.scores)
            cells = [*map(_format_figure, values), _format_figure(each.get("perplexity"), 2)]
            cells.append(_format_figure(each.get("bits_per_character"), 3))
            mark = " (best)" if step == best else ""
            rows.append([f"{step:,}{mark}", *[(c, "best") if mark else c for c in cells]])
        head = ["step", f"loss ({history.loss_unit})", *parts, *history.scores]
        tables.append(_table(caption, [*head, "perplexity", "bits/character"], rows))
    return _section("Held-out evaluation", *tables)


def _write_recipe(histories: Sequence[History]) -> str:
    """Return the table of all settings; those that differ between the runs are first, marked."""
    labels = [history.label for history in histories]
    keys = dict.fromkeys(key for history in histories for key in history.settings)
    equal: list[list[Cell]] = []
    different: list[list[Cell]] = []
    for key in keys:
        values = [history.settings.get(key, "not set") for history in histories]
        if len(set(values)) > 1:
            different.append([key, *[(value, "differs") for value in values]])
        else:
            equal.append([key, *values])
    caption = "Every setting, defaults written out"
    if different:
        count = number_of(len(different), "settings differ")
        caption += f"; {count}, at the top (name and out change no result)"
    elif len(histories) > 1:
        caption += "; none differs"
    return _section("Recipe", _table(caption, ["setting", *labels], [*different, *equal]))


def _write_differences(histories: Sequence[History]) -> str:
    first, *others = histories
    rows = [
        [name, *(_find_first_difference(first, other, columns) for other in others)]
        for name, columns in (
            ("data order: tokens and targets", ("tokens", "targets")),
            ("results: loss, rate, gradient norm", ("loss", "lr", "grad_norm")),
        )
    ]
    caption = f"Recorded steps beside those of {first.label}, bit for bit"
    table = _table(caption, ["", *(history.label for history in others)], rows)
    return _section("Where the runs part", table)


def _find_first_difference(one: History, other: History, columns: Sequence[str]) -> str:
    """Return at which recorded step the values of the columns first differ, in words."""
    records = {record["step"]: [record.get(name) for name in columns] for record in one.steps}
    common = 0
    for record in other.steps:
        if record["step"] in records:
            common += 1
            if records[record["step"]] != [record.get(name) for name in columns]:
                return f"first differs at step {record['step']:,}"
    return f"equal in {all_of(common, 'common steps')}" if common else "no step in common"
