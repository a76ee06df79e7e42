"""Defines the options that verbs share. A verb gets their values as a `Common`:

@shared("overrides", "out", "json")
def command(recipe: RecipeName, common: Common) -> None:
"""

import dataclasses
import inspect
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nlpkit.durations import seconds
from nlpkit.errors import UsageError

if TYPE_CHECKING:
    from nlpkit.recipe import Resolved


def _device(name: str) -> str:
    if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", name):
        raise typer.BadParameter(f"{name!r} is none of auto, cpu, cuda, cuda:1")
    return name


def _precision(name: str) -> str:
    if name not in ("auto", "fp32", "bf16"):
        raise typer.BadParameter(f"{name!r} is none of auto, fp32, bf16")
    return name


def _time(duration: str | None) -> str | None:
    if duration is not None:
        try:
            seconds(duration)
        except ValueError as error:
            raise typer.BadParameter(str(error)) from error
    return duration


RecipeName = Annotated[
    str, typer.Argument(metavar="RECIPE", help="a file, or the name of a packaged recipe")
]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="change a setting, such as train.lr=1e-4; repeatable"
    ),
]
Budget = Annotated[
    str | None,
    typer.Option(
        "--budget",
        metavar="TIME",
        callback=_time,
        help="train for TIME (30m, 8h) in place of the recipe's length, as --set train.budget=TIME",
    ),
]
Out = Annotated[str | None, typer.Option("--out", metavar="DIR", help="directory of the result")]
Device = Annotated[
    str,
    typer.Option("--device", metavar="NAME", callback=_device, help="auto, cpu, cuda or cuda:1"),
]
Precision = Annotated[
    str,
    typer.Option("--precision", metavar="NAME", callback=_precision, help="auto, fp32 or bf16"),
]
Resume = Annotated[
    str,
    typer.Option(
        "--resume",
        metavar="WHAT",
        help="auto (from the newest checkpoint, if there is one), never, or a checkpoint's path",
    ),
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="check everything and build one batch, but do not train")
]
Json = Annotated[bool, typer.Option("--json", help="print JSON instead of text")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="only warnings and errors on stderr")]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="more on stderr")]
# `cli.run` reads it; it is declared here so that every verb accepts it.
Traceback = Annotated[bool, typer.Option("--traceback", help="show where an error was raised")]
MaxTime = Annotated[
    str | None,
    typer.Option(
        "--max-time",
        metavar="TIME",
        callback=_time,
        help="save and stop after TIME (90s, 50m, 1h30m), with exit code 75; the same command "
        "resumes the run",
    ),
]
Family = Annotated[
    str | None,
    typer.Option(
        "--family",
        metavar="NAME",
        help="the model family that reads CKPT, such as mylab.bert; default: the one it names",
    ),
]
SmokeTest = Annotated[
    bool,
    typer.Option(
        "--smoke-test",
        help="train, save, evaluate and generate in seconds, on a few rows; keeps nothing",
    ),
]
AllowChange = Annotated[
    bool, typer.Option("--allow-change", help="resume the run although the recipe has changed")
]
Grid = Annotated[
    list[str] | None,
    typer.Option(
        "--grid",
        metavar="KEY=V1,V2",
        help="train with each of these values, one run after the other; repeatable: every "
        "combination, such as --grid train.lr=1e-3,2e-3 --grid seed=1..3",
    ),
]
Seeds = Annotated[
    int | None,
    typer.Option(
        "--seeds",
        metavar="N",
        min=2,
        help="train with N seeds, from the recipe's; print mean, median and deviation",
    ),
]
PrintRuns = Annotated[
    bool,
    typer.Option("--print", help="print the command of each run of the grid, but train nothing"),
]

# Name in `Common` -> type and default of the parameter.
_OPTIONS: dict[str, tuple[Any, Any]] = {
    "overrides": (Set, None),
    "budget": (Budget, None),
    "out": (Out, None),
    "device": (Device, "auto"),
    "resume": (Resume, "auto"),
    "dry_run": (DryRun, False),
    "json": (Json, False),
    "quiet": (Quiet, False),
    "verbose": (Verbose, False),
}


@dataclass(frozen=True)
class Common:
    """The shared options of one call; an option that the verb does not have has its default."""

    overrides: list[str] | None = None
    budget: str | None = None
    out: str | None = None
    device: str = "auto"
    resume: str = "auto"
    dry_run: bool = False
    json: bool = False
    quiet: bool = False
    verbose: bool = False

    @property
    def verbosity(self) -> int:
        """Return 0 for `-q`, 2 for `-v`, else 1, as in `train.log`."""
        return 1 + int(self.verbose) - int(self.quiet)

    def changes(self) -> list[str]:
        """Return the changes of `--set` and `--budget`."""
        of_budget = [] if self.budget is None else [f"train.budget={self.budget}"]
        return [*(self.overrides or ()), *of_budget]

    def load(self, recipe: str, more: Sequence[str] = ()) -> "Resolved":
        """Return the recipe with the changes of `--set`, `--budget` and `--out`, and `more`."""
        from nlpkit.recipe import load

        overrides = self.changes()
        if self.out is not None:
            overrides.append(f"out={json.dumps(self.out)}")
        return load(recipe, [*overrides, *more])

    def result(self, text: str, /, **values: Any) -> None:
        """Print the result on stdout: `text`, or `values` as one JSON object with `--json`."""
        print(json.dumps(values, ensure_ascii=False) if self.json else text, flush=True)


def shared(*names: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a verb the shared options of these names (default: all), as its argument `common`."""
    chosen = names or tuple(field.name for field in dataclasses.fields(Common))

    def decorate(verb: Callable[..., None]) -> Callable[..., None]:
        def command(**given: Any) -> None:
            given.pop("traceback")
            common = Common(**{name: given.pop(name) for name in chosen})
            if common.quiet and common.verbose:
                raise UsageError("-q and -v exclude each other")
            verb(**given, common=common)

        own = inspect.signature(verb, eval_str=True).parameters.values()
        parameters = [parameter for parameter in own if parameter.name != "common"]
        options = [(name, *_OPTIONS[name]) for name in chosen]
        options.append(("traceback", Traceback, False))
        for name, annotation, default in options:
            kind = inspect.Parameter.KEYWORD_ONLY
            parameters.append(inspect.Parameter(name, kind, default=default, annotation=annotation))
        command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        command.__annotations__ = {each.name: each.annotation for each in parameters}
        command.__doc__ = verb.__doc__
        command.__name__ = verb.__name__
        return command

    return decorate
