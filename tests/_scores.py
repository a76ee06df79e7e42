"""A folder with files and scores of one's own (`mylab`), and ways to call `nlpkit score` in it."""

import os
import subprocess
import sys
from pathlib import Path

from nlpkit import cli

# The share of lines that are equal to a reference; a line `bad` cannot be read.
METRIC = '''\
"""Lines that are equal, in per cent.

Of the tests."""
from nlpkit.contracts.metric import BadLine, Option, Score
OPTIONS = (
    Option("fold", False, "100 % without case", ("-lc",), type=bool),
    Option("level", 1.0, "what a line counts", type=float),
)
REFERENCES = (1, 2)

def score(hypotheses, references, *, fold, level):
    kinds = list(zip(hypotheses, *references))
    for index, lines in enumerate(kinds):
        for file, line in enumerate(lines):
            if line == "bad":
                raise BadLine(file, index, "is bad")
    if not any(hypotheses):
        return Score("equal", float("nan"), "", percent=False)
    if fold:
        kinds = [[line.lower() for line in lines] for lines in kinds]
    value = 100 * level * sum(a in more for a, *more in kinds) / len(kinds)
    ratio = sum(map(len, hypotheses)) / max(1, sum(map(len, references[0])))
    return Score("equal", value, f"nrefs:{len(references)}|fold:{fold}", "of all",
                 {"ratio": ratio, "warnings": ["mind the gap"], "odd": float("inf")})
'''
# Takes no references, and is alone in its `lines`.
COUNT = '''\
"""Number of lines."""
from nlpkit.contracts.metric import Score
OPTIONS = ()
REFERENCES = (0, 0)
LOWER_IS_BETTER = True

def score(hypotheses, references):
    assert references == []
    return Score("lines", len(hypotheses), "", percent=False)
'''
TOOL = '''\
"""Sums numbers."""
def add_arguments(parser):
    parser.add_argument("numbers", nargs="+", type=float)
    parser.add_argument("--none", action="store_true")
    parser.add_argument("-m", nargs="+", default=[])

def run(arguments):
    print(sum(arguments.numbers), *arguments.m)
    return None if arguments.none else sum(arguments.numbers)
'''
HALF = f"{COUNT}\ndef from_sums(sums):\n    return sums[0]\n"
# A misspelt member, and none at all.
MISSPELT = f"{COUNT}LOWER_IS_BETER = True\n"
NOTHING = '"""Nothing."""\ndef scores(hypotheses, references): ...\n'
HYP = "The cat is on the desk.\nIt is a dog\nhello\n"
REF = "The cat is on the desk.\nit is a dog\nhullo\n"


def make_folder(tmp_path, monkeypatch):
    """Make the folder, and go there."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    package = tmp_path / "mylab"
    package.mkdir()
    parts = {"equal": METRIC, "count": COUNT, "total": TOOL, "half": HALF}
    parts |= {"misspelt": MISSPELT.replace("LOWER_IS_BETTER = True\n", ""), "nothing": NOTHING}
    for name, text in parts.items():
        (package / f"{name}.py").write_text(text)
    for name in [name for name in sys.modules if name.startswith("mylab")]:
        del sys.modules[name]
    Path("hyp").write_text(HYP)
    Path("ref").write_text(REF)
    for name in ("SACREBLEU_FORMAT", "SACREBLEU_SEED"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def score(capsys, line):
    """Return exit code, stdout and stderr of `nlpkit score LINE` in this process."""
    capsys.readouterr()
    code = cli.run(["score", *line.split()])
    return code, *capsys.readouterr()


def process(*arguments, **more):
    """Run `nlpkit score` as a process of its own."""
    given = {"capture_output": True, "text": True, "encoding": "utf-8", **more}
    folders = filter(None, (os.getcwd(), os.environ.get("PYTHONPATH")))
    path = os.pathsep.join(folders)
    given["env"] = {**os.environ, "PYTHONPATH": path, **given.get("env", {})}
    return subprocess.run([sys.executable, "-m", "nlpkit", "score", *arguments], **given)
