"""A part is checked by its contract when it is loaded, one from outside, too."""

import importlib
import sys
from pathlib import Path

import pytest

from nlpkit import recipe, registry
from nlpkit.attention.choice import load_kind
from nlpkit.contracts.objective import Objective
from nlpkit.errors import RecipeError, UsageError
from tests import _tiny

OBJECTIVE = '''
import numpy as np
from nlpkit.config import FrozenConfig
from nlpkit.contracts.batch import Field, Loss

class Config(FrozenConfig):
    """Nothing to set."""

class Objective:
    """An objective that builds on no base."""

    parts = ("own",)
    inputs = ("input_ids",)
    fields = {"input_ids": Field(np.int64)}

    def __init__(self, config, tokenizer, model_config):
        self.config = config

    def spans(self, lengths): ...
    def length(self, pieces): ...
    def example(self, ids, rng): ...
    def num_targets(self, batch): ...
    def loss(self, model, hidden, batch): ...
'''
READER = '''
ENDINGS = (".own",)

def rows(file, columns, counts):
    """Yield nothing."""
    yield from ()
'''
KIND = '''
from nlpkit.config import FrozenConfig

VISIBILITY = "causal"
FIELDS = ("position",)
KERNEL = "causal"

class Config(FrozenConfig):
    """No settings."""

def mask(config, q, k):
    return k["position"] <= q["position"]
'''
BACKEND = """
GROUPED = True

def refuses(request):
    return None

def prepare(request):
    return lambda q, k, v: v
"""


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Write a module of the package `mylab`, which is imported afresh."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for name in [name for name in sys.modules if name.partition(".")[0] == "mylab"]:
        del sys.modules[name]
    (tmp_path / "mylab").mkdir()
    importlib.invalidate_caches()

    def part(text: str) -> str:
        (tmp_path / "mylab" / "own.py").write_text(text)
        return "mylab.own"

    return part


def test_part_of_an_own_class_gets_the_defaults(write) -> None:
    made = registry.load("objectives", write(OBJECTIVE)).Objective({}, None, None)
    assert (made.max_shrink, made.unlearned_id, made.heads(), made.negatives) == (0, None, {}, 0)
    assert made.special_tokens(None, None) == ()
    assert type(made).at_progress is Objective.at_progress


def test_part_that_is_a_module_gets_the_defaults(write) -> None:
    assert registry.load("data/readers", write(READER)).INSIDE == ""


def test_kind_of_attention_gets_the_defaults(write) -> None:
    kind = load_kind(write(KIND))
    assert (kind.OPTIONAL, kind.attend, kind.ranges, kind.DROPOUT) == ((), None, None, False)
    config = kind.Config()
    assert kind.visibility(config) == "causal"
    assert kind.tensors(config, 2, 4) == kind.buffers(config) == {}


def test_kind_with_a_table_and_no_bias_index_is_refused_with_its_file(write) -> None:
    kind = load_kind(write(KIND))
    with pytest.raises(UsageError, match=r"mylab/own\.py: has a learned 'table', but no 'bias_in"):
        kind.bias_index(None, {}, None, None)


def test_backend_gets_the_defaults(write) -> None:
    backend = registry.load("attention/backends", write(BACKEND))
    assert (backend.GROUPED, backend.suits(None)) == (True, True)


@pytest.mark.parametrize(
    ("folder", "text", "old", "new", "what"),
    [
        ("objectives", OBJECTIVE, "num_targets", "num_target",
         "Objective has no 'num_targets'; it has 'num_target', which may be meant"),
        ("objectives", OBJECTIVE, "    parts = ", "    _ = ", "Objective has no 'parts'"),
        ("objectives", OBJECTIVE, "class Objective", "class Objectiv",
         "has no 'Objective'; it has 'Objectiv', which may be meant"),
        ("objectives", OBJECTIVE, "parts =", "unlearnt_id = 3\n    parts =",
         "Objective has 'unlearnt_id'; did you mean 'unlearned_id'?"),
        ("objectives", OBJECTIVE, "def length", "def token_read(self, batch): ...\n    def length",
         "Objective has 'token_read'; did you mean 'tokens_read'?"),
        ("data/readers", READER, "ENDINGS", "ENDING",
         "has no 'ENDINGS'; it has 'ENDING', which may be meant"),
        ("data/readers", READER, "def rows", "def row",
         "has no 'rows'; it has 'row', which may be meant"),
        ("attention/kinds", KIND, "def mask", "def masks",
         "has no 'mask' or 'attend'; it has 'masks', which may be meant"),
        ("attention/kinds", KIND, "def mask", "def atend",
         "has no 'mask' or 'attend'; it has 'atend', which may be meant"),
        ("attention/kinds", KIND, "KERNEL", "KERNELL", "has 'KERNELL'; did you mean 'KERNEL'?"),
        ("attention/kinds", KIND, "def mask", "def shares(config): ...\n\ndef mask",
         "has 'shares'; did you mean 'head_groups'?"),
        ("objectives", OBJECTIVE, "def length", "def alter(self, made): ...\n    def length",
         "Objective has 'alter'; did you mean 'transform'?"),
        ("attention/backends", BACKEND, "def refuses", "def refuse",
         "has no 'refuses'; it has 'refuse', which may be meant"),
        ("attention/backends", BACKEND, "GROUPED", "GROUPE",
         "has 'GROUPE'; did you mean 'GROUPED'?"),
    ],
)  # fmt: skip
def test_part_with_a_wrong_member_is_refused_with_its_file(
    folder: str, text: str, old: str, new: str, what: str, write, tmp_path: Path
) -> None:
    name = write(text.replace(old, new))
    with pytest.raises(UsageError) as error:
        registry.load(folder, name)
    assert str(error.value) == f"{tmp_path}/mylab/own.py: {what}"


def test_recipe_with_a_wrong_part_is_refused_at_its_line(write, tmp_path: Path) -> None:
    name = write(OBJECTIVE.replace("num_targets", "num_target"))
    path = _tiny.write(tmp_path, text=_tiny.RECIPE.replace("{name: cpm_ant,", f"{{name: {name},"))
    with pytest.raises(
        RecipeError, match=r"tiny.yaml:\d+:\d+: objective.name: .*own.py: Objective"
    ):
        recipe.load(path)


def test_reader_from_outside_of_rows_for_tasks_alone_is_refused_for_running_text(
    write, tmp_path: Path
) -> None:
    name = write(READER + '\nDOCUMENTS = ""\n')
    (tmp_path / "a.own").write_text("a\n")
    data = f"train: [{tmp_path}/a.own], format: {name}"
    text = _tiny.RECIPE.replace("train: [TRAIN], valid: [VALID]", data)
    found = _tiny.command("pretrain", _tiny.write(tmp_path, text=text), "--out", tmp_path / "run")
    assert found.returncode == 2
    assert f"a.own: {name} is read for the rows of a task" in found.stderr
