"""The settings of decoding, from options of the command line."""

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nlpkit.errors import UsageError

if TYPE_CHECKING:
    from nlpkit.generate.settings import Settings


@dataclass(frozen=True)
class Decoding:
    """The options of `generate.settings.Settings`, which checks them."""

    max_new_tokens: Annotated[
        int | None,
        typer.Option(
            "--max-new-tokens",
            metavar="N",
            help="default: 128, or half of what the model takes if less",
        ),
    ] = None
    min_new_tokens: Annotated[
        int, typer.Option("--min-new-tokens", metavar="N", help="an output has at least N tokens")
    ] = 0
    beam: Annotated[int, typer.Option("--beam", metavar="N", help="beam search with N beams")] = 1
    nbest: Annotated[
        int,
        typer.Option(
            "--nbest",
            metavar="N",
            help="N outputs for each input, the best first, with tabs between",
        ),
    ] = 1
    length_penalty: Annotated[
        float,
        typer.Option(
            "--length-penalty", metavar="X", help="rank beams by log-probability / length ** X"
        ),
    ] = 1.0
    temperature: Annotated[
        float | None,
        typer.Option("--temperature", metavar="X", help="sample, with the logits divided by X"),
    ] = None
    top_k: Annotated[
        int | None, typer.Option("--top-k", metavar="K", help="sample from the K likeliest tokens")
    ] = None
    top_p: Annotated[
        float | None,
        typer.Option(
            "--top-p",
            metavar="P",
            help="sample from the likeliest tokens whose probabilities sum to P",
        ),
    ] = None
    repetition_penalty: Annotated[
        float,
        typer.Option("--repetition-penalty", metavar="X", help="above 1: repeat less, as in CTRL"),
    ] = 1.0
    repetition_window: Annotated[
        int | None,
        typer.Option(
            "--repetition-window",
            metavar="N",
            help="the penalty counts the last N tokens; default all",
        ),
    ] = None
    seed: Annotated[int, typer.Option("--seed", metavar="N", help="seed of sampling")] = 0
    stop: Annotated[
        list[str] | None,
        typer.Option("--stop", metavar="TEXT", help="an output ends before TEXT; repeatable"),
    ] = None
    blank: Annotated[
        str,
        typer.Option(
            "--blank",
            metavar="TEXT",
            help="CPM-Ant, XLNet: marks a token to fill in; <blank:5> marks five",
        ),
    ] = "<blank>"

    def settings(self) -> "Settings":
        """Return the settings; raise `UsageError` with the names of wrong options."""
        return decoding_settings(**asdict(self) | {"stop": self.stop or []})


def decoding_settings(**values: Any) -> "Settings":
    """Return the decoding settings; raise `UsageError` with the names of wrong options."""
    from pydantic import ValidationError

    from nlpkit.generate.settings import Settings
    from nlpkit.recipe.problems import describe_error

    try:
        return Settings(**values)
    except ValidationError as error:
        problems = []
        for each in error.errors():
            what = describe_error(each)
            option = str(each["loc"][0]) if each["loc"] else what.partition(":")[0]
            given = f" {each['input']}" if each["loc"] else ""
            what = what.removeprefix(f"{option}: ")
            problems.append(f"--{option.replace('_', '-')}{given}: {what}")
        raise UsageError("; ".join(problems)) from error
