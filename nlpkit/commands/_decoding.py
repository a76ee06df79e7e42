"""The settings of decoding, from options of the command line."""

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from nlpkit.commands._options import option
from nlpkit.errors import UsageError

if TYPE_CHECKING:
    from nlpkit.generate.settings import Settings


@dataclass(frozen=True)
class Decoding:
    """The options of `generate.settings.Settings`, which checks them."""

    max_new_tokens: int | None = option(
        "--max-new-tokens N", "default: 128, or half of what the model takes if less"
    )
    min_new_tokens: int = option("--min-new-tokens N", "an output has at least N tokens", default=0)
    beam: int = option("--beam N", "beam search with N beams", default=1)
    nbest: int = option(
        "--nbest N", "N outputs for each input, the best first, with tabs between", default=1
    )
    length_penalty: float = option(
        "--length-penalty X", "rank beams by log-probability / length ** X", default=1.0
    )
    temperature: float | None = option("--temperature X", "sample, with the logits divided by X")
    top_k: int | None = option("--top-k K", "sample from the K likeliest tokens")
    top_p: float | None = option(
        "--top-p P", "sample from the likeliest tokens whose probabilities sum to P"
    )
    repetition_penalty: float = option(
        "--repetition-penalty X", "above 1: repeat less, as in CTRL", default=1.0
    )
    repetition_window: int | None = option(
        "--repetition-window N", "the penalty counts the last N tokens; default all"
    )
    seed: int = option("--seed N", "seed of sampling", default=0)
    stop: list[str] | None = option("--stop TEXT", "an output ends before TEXT; repeatable")
    blank: str = option(
        "--blank TEXT",
        "CPM-Ant, XLNet: marks a token to fill in; <blank:5> marks five",
        default="<blank>",
    )

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
