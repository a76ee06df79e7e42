"""What a command enters: each file of nlpkit in which a function is, in order.

`python -m tests._path` prints the table of docs/design_path.md, that of `nlpkit pretrain cpm_ant`;
`python -m tests._path VERB …` that of another command. The sentence is the first of the file's
docstring. Bodies of modules and classes do not count.
"""

import ast
import importlib
import inspect
import json
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

ROOT = Path(__file__).parent.parent / "nlpkit"
# Sizes that are fast; what is entered does not depend on them, nor on the machine.
SMALL = (
    *("train.steps=2", "train.warmup_steps=1", "train.warmup_ratio=null", "train.precision=fp32"),
    *("model.hidden_size=32", "model.num_layers=1", "model.num_heads=2"),
    *("model.intermediate_size=32", "tokenizer.vocab_size=2000", "objective.max_length=64"),
)


@dataclass
class Trace:
    """The files entered, by name, with the lines of their functions that were; modules imported."""

    files: dict[str, int]
    modules: int

    @property
    def lines(self) -> int:
        """The lines of these files."""
        return sum(len((ROOT / file).read_text("utf-8").splitlines()) for file in self.files)


def trace(*arguments: str | Path) -> Trace:
    """Run `nlpkit ARGUMENTS` in a process of its own; return what it enters."""
    command = [sys.executable, "-m", "tests._path", "--trace", *map(str, arguments)]
    with tempfile.TemporaryDirectory() as cache:  # so that a tokenizer is trained
        fixed = {"OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0", "NLPKIT_CACHE": cache}
        surroundings = os.environ | fixed
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, cwd=ROOT.parent, env=surroundings
        )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    files = {file: _lines(file, {tuple(each) for each in of}) for file, of in found["in"].items()}
    return Trace(files, found["modules"])


def trace_pretrain(out: Path) -> Trace:
    """Return what `nlpkit pretrain cpm_ant` enters, with small sizes, in a new directory."""
    sets = (word for each in SMALL for word in ("--set", each))
    return trace("pretrain", "cpm_ant", *sets, "--out", out, "-q")


def table(found: Trace) -> list[str]:
    """Return the rows of the table in docs/design_path.md."""
    return [f"| `{file.removesuffix('.py')}` | {_about(file)} |" for file in found.files]


def _about(file: str) -> str:
    text = ast.get_docstring(ast.parse((ROOT / file).read_text("utf-8"))) or ""
    first = re.split(r"(?<!et al)\.\s", text.replace("\n\n", ". "))[0]
    return " ".join(first.split()).rstrip(".").replace("|", "\\|")


def _lines(file: str, entered: set[tuple[str, int]]) -> int:
    """Return the lines of the functions entered, by name and first line; an inner one's once."""
    inside: set[int] = set()
    for node in ast.walk(ast.parse((ROOT / file).read_text("utf-8"))):
        if isinstance(node, ast.FunctionDef):
            starts = {node.lineno, *(each.lineno for each in node.decorator_list)}
            if any((node.name, start) in entered for start in starts):
                inside |= {*range(node.lineno, (node.end_lineno or 0) + 1)}
    return len(inside)


def _run(arguments: list[str]) -> None:
    """Run a command line in this process; print what it enters, as JSON."""
    # Before it is watched, which takes longer: what the command imports of others.
    for name in ("accelerate", "torch.distributed.checkpoint.state_dict", "safetensors.torch"):
        importlib.import_module(name)
    from nlpkit import cli

    entered: dict[str, set[tuple[str, int]]] = {}

    def enter(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(f"{ROOT}/"):
            return
        if code.co_flags & inspect.CO_OPTIMIZED and code.co_name[0] != "<":
            file = code.co_filename[len(f"{ROOT}/") :]
            entered.setdefault(file, set()).add((code.co_name, code.co_firstlineno))

    sys.setprofile(enter)
    try:
        code = cli.run(arguments)
    finally:
        sys.setprofile(None)
    modules = sum(name.partition(".")[0] == "nlpkit" for name in sys.modules)
    print(
        json.dumps({"in": {file: sorted(of) for file, of in entered.items()}, "modules": modules})
    )
    sys.exit(code)


def main() -> None:
    """Print the table for the command line."""
    if sys.argv[1:2] == ["--trace"]:
        _run(sys.argv[2:])
    with tempfile.TemporaryDirectory() as folder:
        found = trace(*sys.argv[1:]) if sys.argv[1:] else trace_pretrain(Path(folder) / "run")
    print("\n".join(table(found)))
    entered = sum(found.files.values())
    print(f"{len(found.files)} files, {found.lines} lines, {entered} of functions entered, "
          f"{found.modules} modules", file=sys.stderr)  # fmt: skip


if __name__ == "__main__":
    main()
