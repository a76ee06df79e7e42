"""Makes the HTML of the report: facts, charts, tables. All text from files is escaped.

`page.css` is its style sheet, `page.js` its script.
"""

import base64
import hashlib
import json
import math
from collections.abc import Sequence
from html import escape
from pathlib import Path

import numpy as np

from nlpkit import __version__
from nlpkit.durations import written
from nlpkit.plural import all_of, number_of
from nlpkit.report import svg
from nlpkit.report.curves import BUCKETS, LIMIT, Chart
from nlpkit.report.history import ORDER, RESULT, History, Record, find_first_difference
from nlpkit.train.state import LOSS

_LAST = 20  # evaluations in a table; the chart has all
_NONE = "–"
_SHOWN = 16  # hexadecimal digits of a hash: 64 bits
# Of run.json, in rows of their own or in no row.
_NO_ROW = {
    "budget_seconds", "steps", "finished", "step", "data", "finite", "diverged",
    "held_out_unigram_entropy",
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
    colours = f"{svg.make_style(False)}\n@media screen and (prefers-color-scheme:dark){{"
    sections = [_facts(histories), _figures(histories, charts), _evaluations(histories)]
    sections += [_recipe(histories), _receipt(histories)]
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width,initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{title}</title>\n<style>{css}{svg.SHAPES}{colours}{svg.make_style(True)}}}"
        f"</style>\n</head>\n<body>\n<main>\n<h1>{title}</h1>\n"
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


def _facts(histories: Sequence[History]) -> str:
    columns = [_collect_facts(history) for history in histories]
    names = dict.fromkeys(name for facts in columns for name in facts)
    rows = [[name, *[facts.get(name, _NONE) for facts in columns]] for name in names]
    caption = "Facts from run.json, recipe.yaml and metrics.jsonl"
    table = _table(caption, ["", *[history.label for history in histories]], rows)
    return _section("The runs" if len(histories) > 1 else "The run", table)


def _collect_facts(history: History) -> dict[str, str]:
    columns, status = history.columns, history.status
    # Recipes with a length in epochs have null; older runs have `steps` only in the recipe.
    planned = status.get("steps") or history.settings.get("train.steps", "?")
    facts = {
        "directory": str(history.path),
        "state": history.state,
        "steps": f"{history.last_step:,} of {planned} planned",
    }
    budget = status.get("budget_seconds")
    if isinstance(budget, int | float):
        used = f"{written(history.spent)} of " if history.spent else ""
        facts |= {"steps": f"{history.last_step:,}", "budget": f"{used}{written(budget)}"}
    if len(columns["step"]):
        speed, memory = columns["tokens_per_second"], columns["memory_bytes"]
        facts["tokens"] = f"{columns['tokens'][-1]:,.0f}"
        facts["last training loss"] = f"{_format_figure(columns['loss'][-1])} {history.loss_unit}"
        if np.isfinite(speed).any():
            facts["median speed"] = f"{np.nanmedian(speed):,.0f} tokens/s"
        if np.isfinite(memory).any():
            facts["peak memory"] = f"{np.nanmax(memory) / 2**20:,.0f} MiB"
    if history.best:
        step, best = history.best
        unit = f" {history.loss_unit}" if history.best_by == LOSS else ""
        facts[f"best held-out {history.best_by}"] = f"{_format_figure(best)}{unit} at step {step:,}"
    if history.entropy is not None:
        facts["unigram entropy of the held-out text"] = (
            f"{_format_figure(history.entropy)} nats/token"
        )
    for key, value in status.items():
        if key not in _NO_ROW:
            facts[key] = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    if history.half_lines:
        facts["left out"] = f"{history.half_lines} incomplete line at the end of metrics.jsonl"
    return facts


def _figures(histories: Sequence[History], charts: Sequence[Chart]) -> str:
    legend = "".join(
        f'<li><svg class="chart" viewBox="0 0 28 8" width="28" height="8" aria-hidden="true">'
        f'<path class="strong {svg.get_classes(number)}" d="M0 4H28"/></svg>{escape(h.label)}</li>'
        for number, h in enumerate(histories)
    )
    note = "Thin: training. Thick: held out."
    if any(chart.levels for chart in charts):
        note += " Dotted: the unigram entropy of the held-out text, which is the loss of a model that knows only the frequency of each token."  # noqa: E501
    if any(line.low is not None for chart in charts for line in chart.lines):
        note += (
            f" Curves of more than {LIMIT:,} points are the means of {BUCKETS} equal "
            "intervals; the band shows their smallest and largest values."
        )
    figures = [
        f"<figure>\n<figcaption>{escape(chart.title)} <span>{escape(chart.unit)}</span>"
        f'</figcaption>\n{_drawing(chart)}\n<p class="read"></p>\n</figure>'
        for chart in charts
        if chart.lines
    ]
    missing = [chart.title for chart in charts if not chart.lines]
    remarks = [f"<p>Not recorded: {escape(', '.join(missing))}.</p>"] if missing else []
    return _section(
        "Curves", f'<ul class="legend">{legend}</ul>', f"<p>{note}</p>",
        '<div class="charts">', *figures, "</div>", *remarks,
    )  # fmt: skip


def _drawing(chart: Chart) -> str:
    x0, x1, *_ = svg.find_limits(chart)
    return svg.draw(chart, f' data-key="{escape(chart.key)}" data-x0="{x0:g}" data-x1="{x1:g}"')


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


def _evaluations(histories: Sequence[History]) -> str:
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
            cells = _make_evaluation_row(figures[step], parts, history.scores)
            mark = " (best)" if step == best else ""
            rows.append([f"{step:,}{mark}", *[(c, "best") if mark else c for c in cells]])
        head = ["step", f"loss ({history.loss_unit})", *parts, *history.scores]
        tables.append(_table(caption, [*head, "perplexity", "bits/character"], rows))
    return _section("Held-out evaluation", *tables)


def _make_evaluation_row(figures: Record, parts: Sequence[str], scores: Sequence[str]) -> list[str]:
    values = [figures["loss"], *map(figures["losses"].get, parts)]
    values += map(figures["metrics"].get, scores)
    cells = [_format_figure(value) for value in values]
    return [*cells, _format_figure(figures.get("perplexity"), 2),
            _format_figure(figures.get("bits_per_character"), 3)]  # fmt: skip


def _recipe(histories: Sequence[History]) -> str:
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


def _receipt(histories: Sequence[History]) -> str:
    """Return a table of hashes to compare runs, also runs in different reports."""
    steps = {10**n for n in range(9)}
    steps |= {step for h in histories for step in h.weights}
    steps |= {int(step) for h in histories for step in h.columns["step"][-1:]}
    rows: list[list[Cell]] = [
        _make_hash_row("settings except name and out", [h.settings_hash() for h in histories]),
        _make_hash_row("text and tokenizer", [str(h.status.get("data") or "") for h in histories]),
    ]
    for name, columns in (("data order", ORDER), ("results", RESULT)):
        steps_of = [_first_difference(histories[0], h, columns) for h in histories[1:]]
        if steps_of:
            rows.append([f"{name}, beside {histories[0].label}", "", *steps_of])
    orders, results = ([h.hashes(c, steps) for h in histories] for c in (ORDER, RESULT))
    weights = [h.weights for h in histories]
    for step in sorted(steps):
        for name, of_runs in (
            (f"data order to step {step:,}", orders),
            (f"results to step {step:,}", results),
            (f"weights at step {step:,}", weights),
        ):
            if any(step in of_run for of_run in of_runs):
                rows.append(_make_hash_row(name, [of_run.get(step, "") for of_run in of_runs]))
    note = (
        f"The first {_SHOWN} digits of SHA-256. Two runs that are equal bit for bit have the same "
        "hashes; the first hash that differs shows where the runs differ. Data order: step, tokens "
        "and targets of each recorded step; results: its loss, learning rate and gradient norm; "
        "weights: those of the model, or of the adapters, in each existing checkpoint."
    )
    if len(histories) > 1:
        note += " ≠: differs from the first run that has it."
    table = _table("Determinism receipt", ["of", *[h.label for h in histories]], rows)
    return _section("Determinism receipt", f"<p>{note}</p>", table)


def _first_difference(one: History, other: History, columns: tuple[str, ...]) -> str:
    step, common = find_first_difference(one, other, columns)
    if not common:
        return "no step in common"
    if step is None:
        return f"equal in {all_of(common, 'common steps')}"
    return f"first differs at step {step:,}"


def _make_hash_row(name: str, hashes: Sequence[str]) -> list[Cell]:
    first = next(filter(None, hashes), "")
    cells: list[Cell] = []
    for value in hashes:
        text = value[:_SHOWN] or _NONE
        cells.append((f"≠ {text}", "hash differs") if value not in ("", first) else (text, "hash"))
    return [name, *cells]
