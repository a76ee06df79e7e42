"""Say what RECIPE would do: data, packing, size, memory, time; trains nothing."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from nlpkit.commands._options import Common, RecipeName, shared

BatchOption = Annotated[
    bool, typer.Option("--batch", help="print the first batch instead, a token a line")
]
Mask = Annotated[
    str | None,
    typer.Option("--mask", metavar="FILE.png", help="draw who attends to whom in the first batch"),
]
NoProbe = Annotated[
    bool, typer.Option("--no-probe", help="skip the timing of a few steps (and its figures)")
]


@shared("overrides", "device", "json", "quiet", "verbose")
def command(
    recipe: RecipeName,
    common: Common,
    batch: BatchOption = False,
    mask: Mask = None,
    no_probe: NoProbe = False,
) -> None:
    """Say what RECIPE would do: data, packing, size, memory, time; trains nothing.

    With --json the keys data, packing, model and settings are the same at every call; estimate is
    measured.
    """
    from nlpkit.train.log import Log

    resolved = common.load(recipe)
    from nlpkit import planning

    log = Log(common.verbosity)
    plan = planning.make(resolved, Path(resolved.recipe.out).expanduser(), common.device, log)
    if mask is not None:
        planning.draw_mask(plan, Path(mask))
        log.say(f"drawn: {mask}")
    if batch:
        for line in planning.table_of_batch(plan):
            print(line)
        return
    described = planning.describe(plan)
    if not no_probe:
        described["estimate"] = planning.probe(plan)
    if common.json:
        described["origin"] = resolved.origin
        common.result("", **described)
    else:
        _print(described, resolved.origin)


def _print(described: dict[str, Any], origin: dict[str, str]) -> None:
    lines: list[tuple[str, str, str]] = []
    for section in ("data", "packing", "model", "estimate"):
        lines += [(f"{section}.{key}", value, "") for key, value in _flat(described.get(section))]
    settings = dict(_flat(described["settings"]))
    lines += [(key, settings.get(key, ""), origin.get(key, "")) for key in origin]
    width = max(len(key) for key, _, _ in lines)
    values = min(44, max(len(value) for _, value, _ in lines))
    for number, (key, value, where) in enumerate(lines):
        section = key.partition(".")[0]
        if number and section != lines[number - 1][0].partition(".")[0] and "." in key:
            print()
        print(f"{key:<{width}}  {value:<{values}}  {where}".rstrip())
    sys.stdout.flush()


def _flat(data: Any, prefix: str = "") -> list[tuple[str, str]]:
    if isinstance(data, dict):
        items = list(data.items())
    elif isinstance(data, list) and data:
        items = list(enumerate(data))
    else:
        return [(prefix, _human(prefix, data))]
    found = []
    for key, value in items:
        found += _flat(value, f"{prefix}.{key}" if prefix else str(key))
    return found


def _human(key: str, value: Any) -> str:
    """Return a value as people read it."""
    if value is None:
        return "none"
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if key.endswith("_bytes"):
        return f"{value / 2**20:,.0f} MiB"
    if key.endswith("flops_per_step"):
        return f"{value / 1e9:,.1f} GFLOP"
    if key.endswith(("fill", "_with_loss")):
        return f"{value:.2%}"
    if key == "hours":
        return (
            f"{int(value)} h {round(value % 1 * 60):02} min"
            if value >= 1
            else f"{value * 60:.1f} min"
        )
    return f"{value:,}" if isinstance(value, int) else f"{value:,.6g}"
