"""Makes the HTML of the report: facts, charts, tables. All text from files is escaped."""

import base64
import hashlib
import json
import math
from collections.abc import Sequence
from html import escape
from typing import Any

import numpy as np

from nlpkit import __version__
from nlpkit.durations import written
from nlpkit.plural import all_of, number_of
from nlpkit.report import svg
from nlpkit.report.history import ORDER, RESULT, History, first_difference
from nlpkit.report.style import SCRIPT, STYLE
from nlpkit.report.svg import Chart
from nlpkit.train.state import LOSS

_LAST = 20  # evaluations in a table; the chart has all
_NONE = "–"
_SHOWN = 16  # hexadecimal digits of a hash: 64 bits
Cell = str | tuple[str, str]  # text, or text and its class


def heading(histories: Sequence[History]) -> str:
    """Return the report's title."""
    names = ", ".join(history.label for history in histories)
    return f"Run {names}" if len(histories) == 1 else f"{len(histories)} runs: {names}"


def render(histories: Sequence[History], charts: Sequence[Chart]) -> str:
    """Return the HTML page."""
    title = escape(heading(histories))
    digest = base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
    # The page loads nothing and runs only this script, even if some text is not escaped.
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    colours = f"{svg.style(False)}\n@media screen and (prefers-color-scheme:dark){{"
    sections = [_facts(histories), _figures(histories, charts), _evaluations(histories)]
    if len(histories) > 1:
        sections += [_differences(histories), _partings(histories)]
    sections += [_receipt(histories), _recipe(histories)]
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width,initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{title}</title>\n<style>{STYLE}{svg.SHAPES}{colours}{svg.style(True)}}}"
        f"</style>\n</head>\n<body>\n<main>\n<h1>{title}</h1>\n"
        + "\n".join(sections)
        + f"\n</main>\n<footer>nlpkit {__version__}</footer>\n"
        f'<script type="application/json" id="curves">{_data(charts)}</script>\n'
        f"<script>{SCRIPT}</script>\n</body>\n</html>\n"
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


def _loss(value: Any) -> str:
    return _NONE if value is None or math.isnan(value) else f"{value:.4f}"


def _facts(histories: Sequence[History]) -> str:
    columns = [_facts_of(history) for history in histories]
    names = dict.fromkeys(name for facts in columns for name in facts)
    rows = [[name, *[facts.get(name, _NONE) for facts in columns]] for name in names]
    return _section("The runs" if len(histories) > 1 else "The run", _table(
        "Facts from run.json, recipe.yaml and metrics.jsonl",
        ["", *[history.label for history in histories]], rows,
    ))  # fmt: skip


def _facts_of(history: History) -> dict[str, str]:
    columns, status = history.columns, dict(history.status)
    budget = status.pop("budget_seconds", None)
    # Recipes with a length in epochs have null; older runs have `steps` only in the recipe.
    planned = status.pop("steps", None) or history.settings.get("train.steps", "?")
    for shown_elsewhere in ("finished", "step", "data", "finite", "diverged"):
        status.pop(shown_elsewhere, None)
    entropy = status.pop("held_out_unigram_entropy", None)
    facts = {
        "directory": str(history.path),
        "state": history.state,
        "steps": f"{history.last_step:,} of {planned} planned",
    }
    if isinstance(budget, int | float):
        used = f"{written(history.spent)} of " if history.spent else ""
        facts |= {"steps": f"{history.last_step:,}", "budget": f"{used}{written(budget)}"}
    if len(columns["step"]):
        speed, memory = columns["tokens_per_second"], columns["memory_bytes"]
        facts["tokens"] = f"{columns['tokens'][-1]:,.0f}"
        facts["last training loss"] = f"{_loss(columns['loss'][-1])} {history.loss_unit}"
        if np.isfinite(speed).any():
            facts["median speed"] = f"{np.nanmedian(speed):,.0f} tokens/s"
        if np.isfinite(memory).any():
            facts["peak memory"] = f"{np.nanmax(memory) / 2**20:,.0f} MiB"
    if history.best:
        step, best = history.best
        unit = f" {history.loss_unit}" if history.best_by == LOSS else ""
        facts[f"best held-out {history.best_by}"] = f"{_loss(best)}{unit} at step {step:,}"
    if isinstance(entropy, int | float):
        facts["unigram entropy of the held-out text"] = f"{_loss(entropy)} nats/token"
    for key, value in status.items():
        facts[key] = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    if history.half_lines:
        facts["left out"] = f"{history.half_lines} incomplete line at the end of metrics.jsonl"
    return facts


def _figures(histories: Sequence[History], charts: Sequence[Chart]) -> str:
    legend = "".join(
        f'<li><svg class="chart" viewBox="0 0 28 8" width="28" height="8" aria-hidden="true">'
        f'<path class="strong {svg.classes(number)}" d="M0 4H28"/></svg>{escape(h.label)}</li>'
        for number, h in enumerate(histories)
    )
    note = "Thin: training. Thick: held out."
    if any(chart.levels for chart in charts):
        note += " Dotted: the unigram entropy of the held-out text, which is the loss of a model that knows only the frequency of each token."  # noqa: E501
    if any(line.low is not None for chart in charts for line in chart.lines):
        note += (
            f" Curves of more than {svg.LIMIT:,} points are the means of {svg.BUCKETS} equal "
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
    x0, x1, *_ = svg.span(chart)
    return svg.draw(chart, f' data-key="{escape(chart.key)}" data-x0="{x0:g}" data-x1="{x1:g}"')


def _data(charts: Sequence[Chart]) -> str:
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
        parts = sorted({name for f in figures.values() for name in (f.get("losses") or {})})
        best = history.best[0] if history.best else None
        shown = sorted({*list(figures)[-_LAST:], *([] if best is None else [best])})
        caption = f"{history.label}: {number_of(len(figures), 'evaluations')}"
        if len(shown) < len(figures):
            caption += f"; the table has the last {_LAST} and the best, the chart has all"
        rows: list[list[Cell]] = []
        for step in shown:
            f = figures[step]
            values = [f["loss"], *[(f.get("losses") or {}).get(name) for name in parts]]
            cells = [_loss(v) for v in values]
            cells += [_figure(f["metrics"].get(name), 4) for name in history.scores]
            cells += [_figure(f.get("perplexity"), 2), _figure(f.get("bits_per_character"), 3)]
            mark = " (best)" if step == best else ""
            rows.append([f"{step:,}{mark}", *[(c, "best") if mark else c for c in cells]])
        head = ["step", f"loss ({history.loss_unit})", *parts, *history.scores]
        head += ["perplexity", "bits/character"]
        tables.append(_table(caption, head, rows))
    return _section("Held-out evaluation", *tables)


def _figure(value: Any, digits: int) -> str:
    return _NONE if value is None else f"{value:,.{digits}f}"


def differing(histories: Sequence[History]) -> list[str]:
    """Return the settings that differ between the runs."""
    keys = dict.fromkeys(key for history in histories for key in history.settings)
    return [key for key in keys if len({history.settings.get(key) for history in histories}) > 1]


def _differences(histories: Sequence[History]) -> str:
    keys = differing(histories)
    rows = [[key, *[h.settings.get(key, "not set") for h in histories]] for key in keys]
    caption = f"{number_of(len(keys), 'settings differ')} (name and out change no result)"
    table = _table(caption, ["setting", *[h.label for h in histories]], rows)
    none = "<p>None: every setting is the same.</p>"
    return _section("Differences of the recipes", table if keys else none)


def _partings(histories: Sequence[History]) -> str:
    """Return the table of the first step in which each run differs from the first run."""
    rows = []
    for other in histories[1:]:
        row = [f"{histories[0].label} and {other.label}"]
        for columns in (ORDER, RESULT):
            step, common = first_difference(histories[0], other, columns)
            if not common:
                row.append("no step in common")
            elif step is None:
                row.append(f"equal in {all_of(common, 'common steps')}")
            else:
                row.append(f"first differ at step {step:,}")
        rows.append(row)
    caption = "The first step whose recorded numbers are not equal bit for bit"
    head = ["runs", "data (tokens, targets)", "results (loss, gradient norm, learning rate)"]
    return _section("First differences", _table(caption, head, rows))


def _receipt(histories: Sequence[History]) -> str:
    """Return a table of hashes to compare runs, also runs in different reports."""
    steps = {10**n for n in range(9)}
    steps |= {step for h in histories for step in h.weights}
    steps |= {int(step) for h in histories for step in h.columns["step"][-1:]}
    rows: list[list[Cell]] = [
        _row("settings except name and out", [h.settings_hash() for h in histories]),
        _row("text and tokenizer", [str(h.status.get("data") or "") for h in histories]),
    ]
    orders, results = ([h.hashes(c, steps) for h in histories] for c in (ORDER, RESULT))
    for step in sorted(steps):
        for name, of_runs in (
            ("data order", orders),
            ("results", results),
            ("weights", [h.weights for h in histories]),
        ):
            if any(step in of_run for of_run in of_runs):
                hashes = [of_run.get(step, "") for of_run in of_runs]
                rows.append(_row(f"{name} to step {step:,}" if name != "weights"
                                 else f"weights at step {step:,}", hashes))  # fmt: skip
    note = (
        f"The first {_SHOWN} digits of SHA-256. Two runs that are equal bit for bit have the same "
        "hashes; the first hash that differs shows where the runs differ. Data order: step, tokens "
        "and targets of each recorded step; results: its loss, learning rate and gradient norm; "
        "weights: those of the model, or of the adapters, in each existing checkpoint."
    )
    different = " ≠: differs from the first run that has it." if len(histories) > 1 else ""
    table = _table("Determinism receipt", ["of", *[h.label for h in histories]], rows)
    return _section("Determinism receipt", f"<p>{note}{different}</p>", table)


def _row(name: str, hashes: list[str]) -> list[Cell]:
    first = next(filter(None, hashes), "")
    cells: list[Cell] = []
    for value in hashes:
        text = value[:_SHOWN] or _NONE
        cells.append((f"≠ {text}", "hash differs") if value not in ("", first) else (text, "hash"))
    return [name, *cells]


def _recipe(histories: Sequence[History]) -> str:
    keys = dict.fromkeys(key for history in histories for key in history.settings)
    other = set(differing(histories))
    rows: list[list[Cell]] = []
    for key in keys:
        kind = "differs" if key in other else ""
        rows.append([key, *[(h.settings.get(key, "not set"), kind) for h in histories]])
    head = ["setting", *[h.label for h in histories]]
    return _section("Recipe", _table("Every setting, defaults written out", head, rows))
