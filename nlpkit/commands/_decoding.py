"""The settings of decoding, from options of the command line."""

from typing import TYPE_CHECKING, Any

from nlpkit.errors import UsageError

if TYPE_CHECKING:
    from nlpkit.generate.settings import Settings


def decoding_settings(**values: Any) -> "Settings":
    """Return the decoding settings; raise `UsageError` with the names of wrong options."""
    from pydantic import ValidationError

    from nlpkit.generate.settings import Settings
    from nlpkit.recipe.problems import sentence

    try:
        return Settings(**values)
    except ValidationError as error:
        problems = []
        for each in error.errors():
            what = sentence(each)
            option = str(each["loc"][0]) if each["loc"] else what.partition(":")[0]
            given = f" {each['input']}" if each["loc"] else ""
            what = what.removeprefix(f"{option}: ")
            problems.append(f"--{option.replace('_', '-')}{given}: {what}")
        raise UsageError("; ".join(problems)) from error
