"""Draws a run and a mistake in a recipe as they look in a terminal: docs/pictures/*.svg.

`python docs/pictures/terminal.py` runs both commands, with a small model, and writes what they
print; light and dark.
"""

import io
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.terminal_theme import DEFAULT_TERMINAL_THEME, DIMMED_MONOKAI
from rich.text import Text

HERE = Path(__file__).resolve().parent
WIDTH = 100
THEMES = {"light": DEFAULT_TERMINAL_THEME, "dark": DIMMED_MONOKAI}
# Without the fonts that rich would load from the net.
FORMAT = re.sub(r"@font-face \{\{.*?\}\}", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)
MISTAKE = "extends: cpm_ant\nmodel: {hiden_size: 64}\n"
SIZES = (
    "train.steps=3", "train.warmup_steps=1", "train.warmup_ratio=null", "train.eval_every=null",
    "train.tokens_per_step=1024", "model.hidden_size=32", "model.num_layers=1",
    "model.num_heads=2", "model.intermediate_size=32",
)  # fmt: skip
# What is shown is the whole command.
COMMANDS = {
    "terminal_run": ["pretrain", "cpm_ant", *(word for size in SIZES for word in ("--set", size))],
    "terminal_error": ["pretrain", "mine.yaml"],
}


def _print_of(command: list[str], folder: Path) -> str:
    """Return what a command prints in a folder, stderr and stdout in their order."""
    environment = os.environ | {"PYTHONPATH": str(HERE.parents[1]), "COLUMNS": str(WIDTH)}
    done = subprocess.run(
        [sys.executable, "-m", "nlpkit", *command],
        cwd=folder, env=environment, text=True, encoding="utf-8", check=False,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    return done.stdout.replace(f"{folder}/", "").replace(f"{HERE.parents[1]}/", "")


def draw(name: str, command: list[str], folder: Path) -> None:
    """Write NAME.light.svg and NAME.dark.svg."""
    printed = _print_of(command, folder)
    for theme, colours in THEMES.items():
        console = Console(record=True, width=WIDTH, file=io.StringIO())
        console.print(Text("$ nlpkit " + " ".join(command), style="bold"))
        console.print(Text.from_ansi(printed))
        console.save_svg(
            str(HERE / f"{name}.{theme}.svg"), title="nlpkit", theme=colours, code_format=FORMAT
        )


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        (Path(place) / "mine.yaml").write_text(MISTAKE, "utf-8")
        for name, command in COMMANDS.items():
            draw(name, command, Path(place))
