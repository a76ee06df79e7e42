"""Defines options, the groups in which verbs take them, and the group of those that verbs share.

A verb gets each group of options as its dataclass; of the shared ones it names its own:

@shared("overrides", "out")
def command(recipe: RecipeName, common: Common, runs: RunOptions) -> None:
"""

import dataclasses
import inspect
import json
import re
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_type_hints

import typer

from nlpkit import completion
from nlpkit.cli import exit_now
from nlpkit.errors import UsageError
from nlpkit.units import parse_duration

if TYPE_CHECKING:
    from nlpkit.recipe import Resolved
    from nlpkit.train.log import Log
    from nlpkit.train.signals import StopFlag

_ALWAYS = ("json", "quiet", "verbose", "traceback")


def option(names: str, about: str, **more: Any) -> Any:
    """Declare an option as a field of a group: `--seeds N` has a value, `--quiet -q` is a flag.

    `more` is the default (else None, of a flag False), and what `typer.Option` takes.
    """
    flags = [word for word in names.split() if word.startswith("-")]
    metavar = names.split()[len(flags) :]
    default = more.pop("default", None if metavar else False)
    declared = typer.Option(default, *flags, metavar="".join(metavar) or None, help=about, **more)
    return dataclasses.field(default=default, metadata={"option": declared})


def argument(metavar: str, about: str, **more: Any) -> Any:
    """Declare an argument, within `Annotated`."""
    return typer.Argument(metavar=metavar, help=about, **more)


def _check_device(name: str) -> str:
    if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", name):
        raise typer.BadParameter(f"{name!r} is none of auto, cpu, cuda, cuda:1")
    return name


def parse_by(read: Callable[[str], float]) -> Callable[[str], float]:
    """Return `read` as the parser of an option: its `ValueError` is a wrong command line."""

    def parse(text: str) -> float:
        try:
            return read(text)
        except ValueError as error:
            raise typer.BadParameter(str(error)) from error

    return parse


RecipeName = Annotated[
    str,
    argument(
        "RECIPE", "a file, or the name of a packaged recipe", autocompletion=completion.list_recipes
    ),
]
Checkpoint = Annotated[
    str,
    argument("CKPT", "a run (its best checkpoint), a checkpoint, or a directory of transformers"),
]


@dataclass(frozen=True)
class Common:
    """The shared options of one call; an option that the verb does not have has its default."""

    overrides: list[str] | None = option(
        "--set KEY=VALUE",
        "change a setting, such as train.lr=1e-4; repeatable",
        autocompletion=completion.list_settings,
    )
    budget: str | None = option(
        "--budget TIME",
        "train for TIME (30m, 8h) in place of the recipe's length, as --set train.budget=TIME",
    )
    out: str | None = option("--out DIR", "directory of the result")
    device: str = option(
        "--device NAME",
        "auto, cpu, cuda or cuda:1",
        default="auto",
        callback=_check_device,
        autocompletion=lambda: ["auto", "cpu", "cuda"],
    )
    precision: Literal["auto", "fp32", "bf16"] = option(
        "--precision NAME", "auto, fp32 or bf16", default="auto"
    )
    family: str | None = option(
        "--family NAME",
        "the model family that reads CKPT, such as mylab.bert; default: the one it names",
    )
    method: str | None = option(
        "--method NAME",
        "how a text is scored; masked models: pll (default), pll-word-l2r; hybrid: log-probability "
        "(default), mntp; CPM-Ant: infilling (default), infilling-word, generation",
    )
    tokens_per_batch: int = option(
        "--tokens-per-batch N", "changes only the speed", default=4096, min=1
    )
    data: list[str] | None = option(
        "--data FILE",
        "data, or - for stdin (rows of a task as jsonl); repeatable; default: the held-out data of "
        "the recipe",
    )
    metrics: list[str] | None = option(
        "--metrics NAMES",
        "scores of nlpkit score, such as accuracy,f1:average=micro; repeatable; default: "
        "eval.metrics of the recipe, or the task's own",
        autocompletion=completion.list_scores,
    )
    predictions: str | None = option(
        "--predictions FILE", "write predictions to FILE, one row per line"
    )
    text_key: str | None = option("--text-key KEY", "as data.text_key in a recipe")
    resume: str = option(
        "--resume WHAT",
        "auto (from the newest checkpoint, if there is one), never, or a checkpoint's path",
        default="auto",
        autocompletion=lambda: ["auto", "never"],
    )
    dry_run: bool = option("--dry-run", "check everything and build one batch, but do not train")
    json: bool = option("--json", "print JSON instead of text")
    quiet: bool = option("--quiet -q", "only warnings and errors on stderr")
    verbose: bool = option("--verbose -v", "more on stderr")
    traceback: bool = option("--traceback", "show where an error was raised")  # `cli.run` reads it

    def __post_init__(self) -> None:
        if self.quiet and self.verbose:
            raise UsageError("-q and -v exclude each other")

    @property
    def verbosity(self) -> int:
        """Return 0 for `-q`, 2 for `-v`, else 1, as in `train.log`."""
        return 1 + int(self.verbose) - int(self.quiet)

    def open_log(self) -> "Log":
        """Return the log of this call, on stderr."""
        from nlpkit.train.log import Log

        return Log(self.verbosity)

    def catch_signals(self, seconds: float | None = None) -> "AbstractContextManager[StopFlag]":
        """Return a context whose flag signals set, and the end of so many seconds."""
        from nlpkit.train.signals import catch_signals

        return catch_signals(exit_now, seconds)

    def list_changes(self) -> list[str]:
        """Return the changes of `--set` and `--budget`."""
        of_budget = [] if self.budget is None else [f"train.budget={self.budget}"]
        return [*(self.overrides or ()), *of_budget]

    def load(self, recipe: str, more: Sequence[str] = ()) -> "Resolved":
        """Return the recipe with the changes of `--set`, `--budget` and `--out`, and `more`."""
        from nlpkit.recipe import load

        out = [] if self.out is None else [f"out={json.dumps(self.out)}"]
        return load(recipe, [*self.list_changes(), *out, *more])

    def print_result(self, text: str, /, **values: object) -> None:
        """Print the result on stdout: `text`, or `values` as one JSON object with `--json`."""
        print(json.dumps(values, ensure_ascii=False) if self.json else text, flush=True)


@dataclass(frozen=True)
class RunOptions:
    """How the runs of a recipe are made: `pretrain` and `finetune`."""

    grid: list[str] | None = option(
        "--grid KEY=V1,V2",
        "train with each of these values, one run after the other; repeatable: every combination, "
        "such as --grid train.lr=1e-3,2e-3 --grid seed=1..3",
        autocompletion=completion.list_settings,
    )
    seeds: int | None = option(
        "--seeds N",
        "train with N seeds, from the recipe's; print mean, median and deviation",
        min=2,
    )
    print_runs: bool = option(
        "--print", "print the command of each run of the grid, but train nothing"
    )
    max_time: float | None = option(
        "--max-time TIME",
        "save and stop after TIME (90s, 50m, 1h30m), with exit code 75; the same command resumes "
        "the run",
        parser=parse_by(parse_duration),
    )
    allow_change: bool = option("--allow-change", "resume the run although the recipe has changed")
    smoke_test: bool = option(
        "--smoke-test",
        "train, save, evaluate and generate in seconds, on a few rows; keeps nothing",
    )


@dataclass(frozen=True)
class Limits:
    """Where the data are, and how much is done now: `suite` and `compare`."""

    folder: str | None = option("--folder DIR", "folder of the data; default: that of the file")
    max_time: float | None = option(
        "--max-time TIME",
        "save and stop after TIME, with exit code 75; the same command goes on",
        parser=parse_by(parse_duration),
    )


def shared(*names: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a verb the options of its groups; of `Common` those of these names."""
    return partial(_give_options, names=(*names, *_ALWAYS))


def _give_options(verb: Callable[..., None], names: Sequence[str]) -> Callable[..., None]:
    own = inspect.signature(verb, eval_str=True).parameters.values()
    parameters = [each for each in own if not dataclasses.is_dataclass(each.annotation)]
    groups: dict[str, tuple[Any, list[str]]] = {}
    # The options of `Common` come last in the help.
    for each in sorted(own, key=lambda each: each.annotation is Common):
        if dataclasses.is_dataclass(each.annotation):
            options = _list_options(each.annotation, names if each.annotation is Common else ())
            groups[each.name] = each.annotation, [option.name for option in options]
            parameters += options

    def command(**given: Any) -> None:
        made = {
            name: group(**{option: given.pop(option) for option in options})
            for name, (group, options) in groups.items()
        }
        verb(**given, **made)

    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {each.name: each.annotation for each in parameters}
    command.__doc__, command.__name__ = verb.__doc__, verb.__name__
    return command


def _list_options(group: Any, names: Sequence[str]) -> list[inspect.Parameter]:
    """Return the options of a group of these names (default: all), as typer takes them."""
    types, by_name = get_type_hints(group), inspect.Parameter.KEYWORD_ONLY
    chosen = [each for each in dataclasses.fields(group) if not names or each.name in names]
    options = [(each.name, each.metadata["option"]) for each in chosen]
    return [
        inspect.Parameter(name, by_name, default=declared, annotation=types[name])
        for name, declared in options
    ]
