"""The verbs as one typer application: `nlpkit --help`, and every verb that has a `command`."""

import inspect
import os
import re
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from nlpkit import __version__, registry
from nlpkit.errors import UsageError
from nlpkit.help_page import HELP_ROW, format_page

_ABOUT = """Pretrain and fine-tune classic language models from one YAML recipe.

Results are on stdout, everything else on stderr. Exit codes:
    0  done
    1  a bug of nlpkit
    2  usage or recipe
    3  input data
    4  files and disk: missing, no permission, no space
    5  the training diverged
    6  a score fails --fail-under or --fail-over, or a run is not reproduced
    7  not enough memory
   75  try again: the run directory is in use, or the time limit is reached
  129, 130, 143  stopped by a signal, after saving
  141  the reader of stdout has gone
"""
# What `nlpkit` alone says.
_FIRST_STEPS = {
    "Try first": [
        ("nlpkit pretrain cpm_ant", "train a small model on Chinese text that is here"),
        ("nlpkit eval runs/cpm_ant", "its loss on text that it has not seen"),
        ("nlpkit generate runs/cpm_ant", "it continues each line that you type"),
    ],
    "Then": [
        ("nlpkit recipes", "other models; gpt2 is a small English one"),
        ("nlpkit plan RECIPE", "what a recipe would do, and how long it takes"),
        ("nlpkit --help", "all commands, and the exit codes"),
    ],
}
# What click raises for a wrong command line. Its home depends on typer's version.
WRONG_USAGE: Any = typer.BadParameter.__bases__[0]


def _version() -> None:
    typer.echo(f"nlpkit {__version__}")


def _install() -> None:
    from nlpkit.completion import scripts

    typer.echo(scripts.install(os.environ))
    typer.echo("completion starts with the next shell", err=True)


def _show() -> None:
    from nlpkit.completion import scripts

    typer.echo(scripts.get_script(os.environ), nl=False)


def _declare(name: str, act: Callable[[], None], about: str) -> Any:
    def callback(asked: bool) -> None:
        if asked:
            act()
            raise typer.Exit

    return typer.Option(name, callback=callback, is_eager=True, help=about)


Version = Annotated[bool, _declare("--version", _version, "print the version")]
_WHERE = "let the Tab key complete, in the shell that is $SHELL: bash, zsh or fish"
Install = Annotated[bool, _declare("--install-completion", _install, _WHERE)]
_SCRIPT = "print the script that --install-completion installs"
Show = Annotated[bool, _declare("--show-completion", _show, _SCRIPT)]


def _all_verbs(version: Version = False, install: Install = False, show: Show = False) -> None:
    pass


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


def build(names: Sequence[str] = ()) -> typer.Typer:
    """Return the command line with a command (or group of commands) for each verb, or for some."""
    app = typer.Typer(
        name="nlpkit",
        cls=Verbs,
        help=_ABOUT,
        rich_markup_mode=None,
        add_completion=False,
        pretty_exceptions_enable=False,
        no_args_is_help=True,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback(help=_ABOUT)(_all_verbs)
    for name in names or registry.names("commands"):
        verb = registry.load("commands", name)
        about = inspect.cleandoc(verb.__doc__ or "")
        if "main" in vars(verb):  # `cli` runs it; here it is listed
            app.command(name, cls=Verb, help=about)(lambda: None)
        elif isinstance(verb.command, typer.Typer):
            app.add_typer(verb.command, name=name, cls=Verbs, help=about)
        else:
            app.command(name, cls=Verb)(verb.command)
    return app


def _describe_error(error: Any) -> str:
    message = re.sub("Value error, |, unable to parse .*", "", error.format_message()).rstrip(".")
    message = message.replace("Input should be", "must be")
    context = error.ctx
    if context is None:
        return f"{message[:1].lower()}{message[1:]}"
    if message == context.get_help().rstrip("."):  # no arguments at all
        first = format_page(["nlpkit COMMAND ..."], _ABOUT.partition("\n")[0], _FIRST_STEPS)
        typer.echo(message if context.parent else first.rstrip("\n"), err=True)
        return "no COMMAND"
    # Not click's own words, which differ from version to version.
    if unknown := re.match(r"No such command '(.*?)'", message):
        near = registry.suggest(unknown[1], list(getattr(context.command, "commands", ())))
        message = f"no command {unknown[1]}{near}"
    if message.startswith("Missing argument"):  # of `CKPT… OUT`, click names CKPT alone
        rest = context.command.params[context.command.params.index(error.param) :]
        message = f"missing argument {' '.join(str(p.metavar) for p in rest if p.required)!r}"
    wrong = vars(error).get("option_name")
    if "possibilities" in vars(error):
        known = [name for each in context.command.params for name in each.opts]
        message = f"no option {wrong}{registry.suggest(wrong, [*known, '--help'])}"
    return f"{message[:1].lower()}{message[1:]} (see {context.command_path} --help)"


def run(arguments: list[str]) -> int:
    """Run one command line; return the exit code, mistakes in its options printed on stderr."""
    try:
        # Not `app()`: click's own `main` would swallow KeyboardInterrupt and a broken pipe.
        # The other verbs are needed for the list of all, and for the nearest name.
        asked = set(arguments[:1]) & set(registry.names("commands"))
        verbs = typer.main.get_command(build(sorted(asked)))
        with verbs.make_context("nlpkit", arguments) as context:
            verbs.invoke(context)
        return 0
    except typer.Exit as done:
        return done.exit_code
    except WRONG_USAGE as error:
        raise UsageError(_describe_error(error)) from error
    except typer.Abort:
        raise KeyboardInterrupt from None
