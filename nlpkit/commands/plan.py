"""Show what RECIPE would do, without training: data, packing, size, memory, time."""

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from nlpkit.commands import _cards
from nlpkit.commands._checkpoint import check_picture
from nlpkit.commands._options import Common, RecipeName, option, shared
from nlpkit.contracts.optimizer import describe
from nlpkit.disk import user_path
from nlpkit.errors import FileError, UsageError
from nlpkit.json_types import JsonObject

if TYPE_CHECKING:
    from nlpkit.recipe import Resolved
    from nlpkit.runs.planned import Planned
    from nlpkit.train.log import Log

_SECTIONS = ("data", "packing", "model", "card", "estimate")
_KEYS = 31  # columns; a longer key shifts its own line only


@dataclass(frozen=True)
class Shown:
    """What is measured, and shown."""

    batch: bool = option("--batch", "print the first batch instead, one token per line")
    mask: str | None = option(
        "--mask FILE.png",
        "draw which tokens attend to which in the first batch",
        callback=lambda file: check_picture(file),
    )
    no_probe: bool = option("--no-probe", "measure nothing; the plan has no estimate then")
    no_data: bool = option(
        "--no-data",
        "read no data and measure nothing: made-up text stands in for it, the longest that the "
        "recipe allows, with all tokens of tokenizer.vocab_size",
    )
    card: str | None = option(
        "--card NAME",
        "how long the run takes on one card, such as h100, at 40 % of its peak, and how many cards "
        "hold weights, gradients and the optimizer's state",
        autocompletion=lambda: list(_cards.CARDS),
    )
    baseline: int | None = option(
        "--baseline N", "add the held-out loss of N-grams, as --set eval.baseline=N"
    )

    def __post_init__(self) -> None:
        shows_data = self.batch or self.mask is not None or self.baseline is not None
        if self.no_data and shows_data:
            raise UsageError("--no-data: no text is read; remove --batch, --mask and --baseline")
        if self.card is not None:
            _cards.find(self.card)  # before anything is read


@shared("overrides", "budget", "device")
def command(recipe: RecipeName, common: Common, shown: Shown) -> None:
    """Show what RECIPE would do, without training: data, packing, size, memory, time.

    Memory is checked on the longest batch. If this does not fit, the plan is still printed, with a
    setting that would fit, and the exit code is 2.

    With --json the keys are sorted. data, packing, model, settings and origin are the same at every
    call, and estimate is measured. docs/reference/json.md lists the keys.
    """
    resolved = common.load(
        recipe, [] if shown.baseline is None else [f"eval.baseline={shown.baseline}"]
    )
    log = common.open_log()
    log.warn_all(resolved.warnings)
    if shown.no_data:
        from nlpkit.plan import without_data

        described = without_data.describe(without_data.make(resolved))
        for section in resolved.recipe.objective:
            named = section.objective.frozen
            for name in named(section.config) if named else ():
                log.warn(f"--no-data: FLOPs and memory are without the frozen model {name}")
    else:
        plan = _make(resolved, common, shown, log)
        if shown.batch:
            return
        from nlpkit import plan as planning

        described = planning.describe(plan)
        if not shown.no_probe:
            from nlpkit.plan.probe import probe
            from nlpkit.train.progress import follow

            with follow(log) as show:
                described["estimate"] = probe(plan, show)
    if shown.card is not None:
        model = described["model"]
        sizes = model["flops_per_run"], model["state_bytes"]
        described["card"] = _cards.describe(shown.card, *sizes)
    if common.json:
        described["origin"] = resolved.origin
        common.print_result("", **json.loads(json.dumps(described, sort_keys=True)))
    else:
        _print(described, resolved.origin)
    estimate = described.get("estimate", {})
    if not estimate.get("fits", True):
        raise UsageError(f"{recipe}: {estimate['advice']}")
    if estimate.get("advice"):
        log.warn(f"{estimate['memory_share']:.0%} of the memory: {estimate['advice']}")


def _make(resolved: "Resolved", common: Common, shown: Shown, log: "Log") -> "Planned":
    """Return the plan, and draw or print its first batch if this is asked for."""
    from nlpkit.runs import columns

    try:
        log.warn_all(columns.check(resolved))  # before torch is loaded
    except FileError as error:
        raise FileError(f"{error}; without data: --no-data") from error
    from nlpkit import plan as planning
    from nlpkit.checkpoints import changes
    from nlpkit.checkpoints.run_directory import RunDirectory
    from nlpkit.data.lines import name_first

    out = user_path(resolved.recipe.out)
    directory = RunDirectory(out)
    if changed := changes.list_changes(directory, changes.as_begun(directory, resolved)):
        names = name_first([*changed])
        log.warn(f"{out} was started with other settings, and training refuses these: {names}")
    plan = planning.make(resolved, out, common.device, log, measure=not shown.no_probe)
    if shown.mask is not None:
        planning.draw_mask(plan, Path(shown.mask))
        log.info(f"drawn: {shown.mask}")
    if shown.batch:
        lines = list(planning.format_batch(plan))
        common.print_result("\n".join(lines), batch=lines)
    return plan


def _print(described: JsonObject, origin: dict[str, str]) -> None:
    for section in _SECTIONS:
        if section in described:
            figures = _flatten({section: {**described[section], "optimizer": {}}}).items()
            rows = [(key, value, "") for key, value in figures if key not in origin]
            _print_block(section, [row for row in rows if row[0] != f"{section}.optimizer"])
        if section == "model":
            groups = enumerate(map(describe, described["model"]["optimizer"]))
            rows = [(f"optimizer.{number}", said, "") for number, said in groups]
            _print_block("optimizer", rows)
    settings = _flatten(described["settings"])
    _print_block("settings", [(key, settings.get(key, ""), origin[key]) for key in origin])
    sys.stdout.flush()


def _print_block(title: str, rows: list[tuple[str, object, str]]) -> None:
    """Print rows of key, value and origin under a title, with numbers aligned at the right."""
    shown = [(key, *_format_value(key, value), where) for key, value, where in rows]
    width = min(_KEYS, max(len(key) for key, *_ in shown))
    digits = max([len(text) for _, text, unit, _ in shown if unit is not None], default=0)
    cells = [
        (key, text if unit is None else f"{text:>{digits}} {unit}".rstrip(), where)
        for key, text, unit, where in shown
    ]
    # One long file name must not push every origin to the right.
    values = min(24, max(len(text) for _, text, _ in cells))
    print(f"{'' if title == _SECTIONS[0] else chr(10)}# {title}")
    for key, text, where in cells:
        figure = f"{key:<{width}}  {text}"
        print(f"{figure:<{width + 2 + values}}  {where}".rstrip())


def _flatten(data: object) -> dict[str, object]:
    from nlpkit.recipe.places import dotted, flatten

    return {dotted(path): value for path, value in flatten(data)}


def _format_value(key: str, value: object) -> tuple[str, str | None]:
    """Return a readable value and its unit; the unit is None if the value is not a number."""
    if value is None or value == [] or value == {}:
        return "none", None
    if isinstance(value, bool):
        return ("yes" if value else "no"), None
    if not isinstance(value, int | float):
        return str(value), None
    if key.endswith("_bytes"):
        gib = value >= 2**30
        return f"{value / 2 ** (30 if gib else 20):,.1f}", "GiB" if gib else "MiB"
    if key.endswith("flops_per_step"):
        return f"{value / 1e9:,.1f}", "GFLOP"
    if key.endswith("flops_per_run"):
        return f"{value:.3g}", "FLOP"
    if key.endswith("flops_per_second"):
        return f"{value / 1e12:,.0f}", "TFLOP/s"
    if key.endswith(("fill", "_with_loss", "_share", "utilization")):
        return f"{value:.1%}", ""
    if key.startswith("estimate.seconds_per"):
        return f"{value:.3f}", "s"
    if key.endswith("_seconds"):
        return _format_duration(value)
    if key.endswith("tokens_per_second"):
        return f"{value:,.0f}", "tokens/s"
    return (f"{value:,}" if isinstance(value, int) else f"{value:,.6g}"), ""


def _format_duration(seconds: float) -> tuple[str, str]:
    for size, unit in ((86400, "days"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.1f}", unit
    return f"{seconds:.1f}", "s"
