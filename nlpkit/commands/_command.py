"""Classes for the verbs of the typer application, which print the help page of nlpkit."""

from typing import Any

from typer.core import TyperCommand, TyperGroup

from nlpkit.help_page import HELP_ROW, format_page


class Verb(TyperCommand):
    """One verb."""

    # The class of `ctx` is typer's or click's, which depends on the version of typer.
    def get_help(self, ctx: Any) -> str:
        """Return the page of help."""
        return _page(self, ctx, {})


class Verbs(TyperGroup):
    """A group of verbs."""

    def get_help(self, ctx: Any) -> str:
        """Return the page of help, with a line for each verb."""
        rows = [(name, _first_line(verb.help)) for name, verb in self.commands.items()]
        return _page(self, ctx, {"Commands": rows})


def _first_line(text: str | None) -> str:
    return (text or "").partition("\n\n")[0].replace("\n", " ").removesuffix(".")


def _page(command: TyperCommand | TyperGroup, ctx: Any, more: dict[str, Any]) -> str:
    usage = [ctx.command_path, "[OPTIONS]", *(["COMMAND", "..."] if more else [])]
    rows: dict[str, list[tuple[str, str]]] = {"argument": [], "option": []}
    for parameter in command.get_params(ctx):
        record = parameter.get_help_record(ctx)
        if record is None:  # hidden
            continue
        name, text = record
        if parameter.param_type_name == "argument":
            # typer's own text differs between versions.
            name = str(parameter.metavar)
            usage.append(name if parameter.required else f"[{name}]")
            text = text.removesuffix("[required]").rstrip()
        rows[parameter.param_type_name].append((name, text))
    options = [row for row in rows["option"] if "--help" not in row[0]]
    sections = {"Arguments": rows["argument"], **more, "Options": [*options, HELP_ROW]}
    return format_page([" ".join(usage)], command.help or "", sections).rstrip("\n")
