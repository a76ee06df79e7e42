"""Defines the options that verbs share, and groups of options.

A verb gets the values of shared options as a `Common`, those of any other group as its dataclass:

@shared("overrides", "out", "json")
def command(recipe: RecipeName, common: Common, runs: RunOptions) -> None:
"""

import dataclasses
import inspect
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from nlpkit import completion
from nlpkit.durations import seconds
from nlpkit.errors import UsageError

if TYPE_CHECKING:
    from nlpkit.recipe import Resolved


def _check_device(name: str) -> str:
    if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", name):
        raise typer.BadParameter(f"{name!r} is none of auto, cpu, cuda, cuda:1")
    return name


def _check_precision(name: str) -> str:
    if name not in ("auto", "fp32", "bf16"):
        raise typer.BadParameter(f"{name!r} is none of auto, fp32, bf16")
    return name


def _check_time(duration: str | None) -> str | None:
    if duration is not None:
        try:
            seconds(duration)
        except ValueError as error:
            raise typer.BadParameter(str(error)) from error
    return duration


RecipeName = Annotated[
    str,
    typer.Argument(
        metavar="RECIPE",
        autocompletion=completion.list_recipes,
        help="a file, or the name of a packaged recipe",
    ),
]
Precision = Annotated[
    str,
    typer.Option(
        "--precision", metavar="NAME", callback=_check_precision, help="auto, fp32 or bf16"
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
# `cli.run` reads it; it is declared here so that every verb accepts it.
Traceback = Annotated[bool, typer.Option("--traceback", help="show where an error was raised")]


@dataclass(frozen=True)
class Common:
    """The shared options of one call; an option that the verb does not have has its default."""

    overrides: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            autocompletion=completion.list_settings,
            help="change a setting, such as train.lr=1e-4; repeatable",
        ),
    ] = None
    budget: Annotated[
        str | None,
        typer.Option(
            "--budget",
            metavar="TIME",
            callback=_check_time,
            help="train for TIME (30m, 8h) in place of the recipe's length, as --set "
            "train.budget=TIME",
        ),
    ] = None
    out: Annotated[
        str | None, typer.Option("--out", metavar="DIR", help="directory of the result")
    ] = None
    device: Annotated[
        str,
        typer.Option(
            "--device",
            metavar="NAME",
            callback=_check_device,
            autocompletion=lambda: ["auto", "cpu", "cuda"],
            help="auto, cpu, cuda or cuda:1",
        ),
    ] = "auto"
    resume: Annotated[
        str,
        typer.Option(
            "--resume",
            metavar="WHAT",
            autocompletion=lambda: ["auto", "never"],
            help="auto (from the newest checkpoint, if there is one), never, or a checkpoint's "
            "path",
        ),
    ] = "auto"
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="check everything and build one batch, but do not train"),
    ] = False
    json: Annotated[bool, typer.Option("--json", help="print JSON instead of text")] = False
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="only warnings and errors on stderr")
    ] = False
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="more on stderr")] = False

    def __post_init__(self) -> None:
        if self.quiet and self.verbose:
            raise UsageError("-q and -v exclude each other")

    @property
    def verbosity(self) -> int:
        """Return 0 for `-q`, 2 for `-v`, else 1, as in `train.log`."""
        return 1 + int(self.verbose) - int(self.quiet)

    def list_changes(self) -> list[str]:
        """Return the changes of `--set` and `--budget`."""
        of_budget = [] if self.budget is None else [f"train.budget={self.budget}"]
        return [*(self.overrides or ()), *of_budget]

    def load(self, recipe: str, more: Sequence[str] = ()) -> "Resolved":
        """Return the recipe with the changes of `--set`, `--budget` and `--out`, and `more`."""
        from nlpkit.recipe import load

        overrides = self.list_changes()
        if self.out is not None:
            overrides.append(f"out={json.dumps(self.out)}")
        return load(recipe, [*overrides, *more])

    def print_result(self, text: str, /, **values: Any) -> None:
        """Print the result on stdout: `text`, or `values` as one JSON object with `--json`."""
        print(json.dumps(values, ensure_ascii=False) if self.json else text, flush=True)


@dataclass(frozen=True)
class RunOptions:
    """How the runs of a recipe are made: `pretrain` and `finetune`."""

    grid: Annotated[
        list[str] | None,
        typer.Option(
            "--grid",
            metavar="KEY=V1,V2",
            autocompletion=completion.list_settings,
            help="train with each of these values, one run after the other; repeatable: every "
            "combination, such as --grid train.lr=1e-3,2e-3 --grid seed=1..3",
        ),
    ] = None
    seeds: Annotated[
        int | None,
        typer.Option(
            "--seeds",
            metavar="N",
            min=2,
            help="train with N seeds, from the recipe's; print mean, median and deviation",
        ),
    ] = None
    print_runs: Annotated[
        bool,
        typer.Option(
            "--print", help="print the command of each run of the grid, but train nothing"
        ),
    ] = False
    max_time: Annotated[
        str | None,
        typer.Option(
            "--max-time",
            metavar="TIME",
            callback=_check_time,
            help="save and stop after TIME (90s, 50m, 1h30m), with exit code 75; the same command "
            "resumes the run",
        ),
    ] = None
    allow_change: Annotated[
        bool,
        typer.Option("--allow-change", help="resume the run although the recipe has changed"),
    ] = False
    smoke_test: Annotated[
        bool,
        typer.Option(
            "--smoke-test",
            help="train, save, evaluate and generate in seconds, on a few rows; keeps nothing",
        ),
    ] = False


def shared(*names: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a verb the options of its groups; of `Common` those of these names (default: all)."""

    def decorate(verb: Callable[..., None]) -> Callable[..., None]:
        own = list(inspect.signature(verb, eval_str=True).parameters.values())
        is_group = dataclasses.is_dataclass
        parameters = [each for each in own if not is_group(each.annotation)]
        groups: dict[str, tuple[Any, list[str]]] = {}
        # The options of `Common` come last in the help.
        for each in sorted(own, key=lambda each: each.annotation is Common):
            if is_group(each.annotation):
                options = _expand(each.annotation, names if each.annotation is Common else ())
                groups[each.name] = each.annotation, [option.name for option in options]
                parameters += options
        parameters.append(_make_parameter("traceback", False, Traceback))

        def command(**given: Any) -> None:
            given.pop("traceback")
            made = {
                name: group(**{option: given.pop(option) for option in options})
                for name, (group, options) in groups.items()
            }
            verb(**given, **made)

        command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        command.__annotations__ = {each.name: each.annotation for each in parameters}
        command.__doc__ = verb.__doc__
        command.__name__ = verb.__name__
        return command

    return decorate


def _expand(group: Any, names: Sequence[str]) -> list[inspect.Parameter]:
    """Return the options of a group of these names (default: all)."""
    types = get_type_hints(group, include_extras=True)
    return [
        _make_parameter(field.name, field.default, types[field.name])
        for field in dataclasses.fields(group)
        if not names or field.name in names
    ]


def _make_parameter(name: str, default: object, annotation: Any) -> inspect.Parameter:
    kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, kind, default=default, annotation=annotation)
