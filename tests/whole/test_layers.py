"""The architecture of docs/design.md: who imports whom, who needs torch, what parts offer."""

import ast
import inspect
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest

import nlpkit
from nlpkit import registry
from nlpkit.checkpoints import hf_writing
from nlpkit.config import FrozenConfig
from nlpkit.contracts import check, family_model
from nlpkit.contracts import model as family_contract
from nlpkit.contracts import objective as contract
from nlpkit.contracts.batch import SOURCE_LENGTHS, Field
from nlpkit.contracts.task import Task
from nlpkit.models import families, lora
from nlpkit.models.config import CAPABILITIES, ModelConfig
from nlpkit.models.formats import hf_format
from nlpkit.models.meta import meta_model
from nlpkit.recipe.schema import build_schema
from nlpkit.train import settings as train_settings

ROOT = Path(nlpkit.__file__).parent
DESIGN = ROOT.parent / "docs" / "design.md"
HEAVY = ("torch", "transformers", "accelerate")
# Settings that every family has; a test need not make a model of the paper's size.
SMALL_SIZES = {"hidden_size": 16, "num_layers": 2, "num_heads": 2}
CONFIGURED = (
    "objectives",
    "models",
    "tokenizers",
    "attention/kinds",
    "train/optimizers",
    "train/schedules",
)


def _sources() -> dict[str, str]:
    """Return the text of every module by its path without suffix, such as `data/pack`."""
    files = sorted(ROOT.rglob("*.py"))
    assert len(files) > 50
    return {
        str(f.relative_to(ROOT).with_suffix("").as_posix()): f.read_text("utf-8") for f in files
    }


SOURCES = _sources()


def _levels() -> dict[str, int]:
    """Return the level of each package, or module outside of packages, in docs/design.md."""
    found = {}
    for level, cell in re.findall(r"^\| (\d) \| (.+) \|$", DESIGN.read_text("utf-8"), re.M):
        # What stands in brackets is about packages, and no list of them.
        for package in re.findall(r"`([^`]+)`", re.sub(r"\(.*?\)", "", cell)):
            found[package] = int(level)
    return found


LEVELS = _levels()
# Where the registry finds parts: such a string in a source is an import by name.
FOLDERS = (*CONFIGURED, "attention/backends")


def _level(module: str) -> int:
    return LEVELS[module.split("/")[0]]


def _imports(module: str, text: str) -> Iterator[str]:
    """Yield the modules of nlpkit that are imported anywhere in a source, also by name."""
    for node in ast.walk(ast.parse(text)):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{module}: relative import"
            # `from nlpkit.data import formats` is of a module, `from nlpkit.data.pack import Bins`
            # is not.
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Constant) and node.value in FOLDERS:
            names = [f"nlpkit.{node.value.replace('/', '.')}"]
        elif isinstance(node, ast.Constant) and re.fullmatch(r"nlpkit(\.\w+)+", str(node.value)):
            names = [str(node.value)]
        for name in names:
            path = name.split(".")
            if path[0] == "nlpkit":
                yield _module_of("/".join(path[1:]))


def _module_of(path: str) -> str:
    """Return the module that a dotted name with slashes is, or is in."""
    while path:
        for module in (path, f"{path}/__init__"):
            if module in SOURCES:
                return module
        path = path.rpartition("/")[0]
    return "__init__"


def _wrong_imports(sources: dict[str, str]) -> list[str]:
    wrong = []
    for module, text in sources.items():
        for imported in _imports(module, text):
            here, there = _level(module), _level(imported)
            package, other = module.split("/")[0], imported.split("/")[0]
            across = here == there and "/" in module and "/" in imported and package != other
            if there > here or across:
                wrong.append(f"{module} ({here}) imports {imported} ({there})")
    return wrong


def test_layers_every_package_has_one_level() -> None:
    assert {module.split("/")[0] for module in SOURCES} == {*LEVELS}


def test_layers_imports_go_downwards() -> None:
    assert _wrong_imports(SOURCES) == []


@pytest.mark.parametrize(
    ("module", "line", "is_wrong"),
    [
        ("data/pack", "from nlpkit.train.loop import train", True),
        ("data/pack", "def f():\n    import nlpkit.runs.pretrain", True),
        ("data/pack", "from nlpkit import runs", True),
        ("config", "from nlpkit.recipe import load", True),
        ("objectives/cpm_ant", "from nlpkit.models.cpm_ant.model import Model", True),
        ("data/store", "from nlpkit import tokenizers", True),
        ("models/cpm_ant/model", "from nlpkit.attention.cache import Cache", False),
        ("data/store", "from nlpkit.data import formats", False),
        ("recipe/sections", "SECTION = ('train', 'nlpkit.train.settings')", False),
        ("data/store", "SECTION = 'nlpkit.train.settings'", True),
        ("data/store", "import x\nx.load('tokenizers', kind)", True),
        ("checkpoints/files", "from nlpkit import __version__", False),
    ],
)
def test_layers_check_tells_wrong_from_right(module: str, line: str, is_wrong: bool) -> None:
    assert bool(_wrong_imports({module: line})) == is_wrong


def _free_of_torch() -> list[str]:
    """Return the modules that docs/design.md lists as free of torch."""
    text = DESIGN.read_text("utf-8")
    (listed,) = re.findall(r"^Free of torch.*?: (.+?)\n\n", text, re.M | re.S)
    patterns = re.findall(r"`([^`]+)`", re.sub(r"\(.*?\)", "", listed))
    assert "data/*" in patterns
    assert "everything at level 0" in listed
    return [
        module
        for module in SOURCES
        if _level(module) == 0
        or any(fnmatch(module, pattern) for pattern in patterns if pattern != "__init__")
        or (module.startswith("models/") and module.endswith("/__init__"))
    ]


def test_layers_light_modules_import_nothing_heavy() -> None:
    modules = [
        f"nlpkit.{m.replace('/', '.')}".removesuffix(".__init__")
        for m in _free_of_torch()
        if not m.endswith("__main__")
    ]
    assert {"nlpkit", "nlpkit.recipe", "nlpkit.models.cpm_ant", "nlpkit.data.loader"} <= {*modules}
    assert "nlpkit.runs.pretrain" not in modules
    program = (
        "import importlib, sys\n"
        f"for name in {modules!r}:\n"
        "    importlib.import_module(name)\n"
        f"    heavy = [h for h in {HEAVY!r} if h in sys.modules]\n"
        "    assert not heavy, f'{name} imports {heavy}'\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "folder",
    [
        *CONFIGURED[:2],
        *(pytest.param(folder, marks=pytest.mark.slow) for folder in CONFIGURED[2:]),
    ],
)
def test_layers_each_light_part_alone_imports_nothing_heavy(folder: str) -> None:
    # As a recipe loads it: by the registry, with nothing imported before.
    program = (
        "import sys\n"
        "from nlpkit import registry\n"
        f"for name in registry.names({folder!r}):\n"
        f"    registry.load({folder!r}, name).Config\n"
        f"print([h for h in {HEAVY!r} if h in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "[]\n", done.stderr


def test_files_have_at_most_400_lines() -> None:
    assert {m: n for m, text in SOURCES.items() if (n := text.count("\n")) > 400} == {}


def test_only_the_command_line_and_the_log_print() -> None:
    speaks = ("cli", "commands/*", "train/log")
    found = [
        f"{module}:{node.lineno}"
        for module, text in SOURCES.items()
        if not any(fnmatch(module, pattern) for pattern in speaks)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "print"
    ]
    assert found == []


def _parts(*folders: str) -> list[tuple[str, str]]:
    found = [(folder, name) for folder in folders for name in registry.names(folder)]
    assert {folder for folder, _ in found} == {*folders}
    return found


def _public(cls: type) -> set[str]:
    """Return the attributes and methods that a protocol asks for."""
    methods = {n for n, v in vars(cls).items() if inspect.isfunction(v) and n[0] != "_"}
    return methods | set(cls.__annotations__)


def _assert_has(part: object, names: set[str]) -> None:
    missing = sorted(name for name in names if not hasattr(part, name))
    assert not missing, f"{part} has no {', '.join(missing)}"


@pytest.mark.parametrize(("folder", "name"), _parts(*CONFIGURED))
def test_config_of_every_part_is_strict_and_described(folder: str, name: str) -> None:
    config = registry.load(folder, name).Config
    assert issubclass(config, FrozenConfig)
    assert config.model_config["extra"] == "forbid"
    assert config.model_config["frozen"]
    assert config.model_config["strict"]
    undescribed = [n for n, field in config.model_fields.items() if not field.description]
    assert not undescribed


def test_every_number_of_a_recipe_has_an_upper_limit() -> None:
    found = [*_numbers(build_schema()["$defs"])]
    assert len(found) > 200
    assert not [each for each in found if not {*each} & {"maximum", "exclusiveMaximum", "enum"}]


def _numbers(part: Any) -> Iterator[dict[str, Any]]:
    """Yield each part of a JSON schema that is of a number."""
    if isinstance(part, dict) and part.get("type") in ("integer", "number"):
        yield part
    for each in part.values() if isinstance(part, dict) else part:
        if isinstance(each, (dict, list)):
            yield from _numbers(each)


@pytest.mark.parametrize(("folder", "name"), _parts("objectives"))
def test_objective_offers_its_contract(folder: str, name: str) -> None:
    objective = registry.load(folder, name).Objective
    assert issubclass(objective, contract.Objective)
    transforms = objective.transform is not contract.Objective.transform
    assert objective.composable == (transforms or objective.adds_only)
    assert list(inspect.signature(objective).parameters) == ["config", "tokenizer", "model_config"]
    assert all(isinstance(f, Field) for f in objective.fields.values())
    assert {f.per for f in objective.fields.values()} <= {"token", "sequence", "source"}
    assert {*objective.inputs} <= {*objective.fields, SOURCE_LENGTHS}
    # The targets of those that learn text are found there, for bits a character.
    assert "labels" in objective.fields or not objective.predicts_text
    is_task = issubclass(objective, Task)
    parameters = inspect.signature(objective.example).parameters.values()
    ours = [each.name for each in parameters if each.default is each.empty]
    negatives = ["negatives"] if objective.negatives else []
    assert ours == ["self", "item" if is_task else "ids", "rng", *negatives]
    if is_task:
        named = {name.partition(":")[0] for name in objective.metrics}
        assert named <= {*registry.names("score/metrics")}


@pytest.mark.parametrize(("folder", "name"), _parts("models"))
def test_model_offers_its_contract(folder: str, name: str) -> None:
    family = registry.load(folder, name)
    wanted = _public(family_contract.Family)
    assert {"Config", "MODEL_TYPE", "DEFAULT_OBJECTIVE", "VOCABULARY"} <= wanted
    _assert_has(family, wanted)
    assert family.DEFAULT_OBJECTIVE in registry.names("objectives")
    module = families.load_model(name)
    wanted = _public(family_model.FamilyModel)
    assert {"Model", "FORMAT"} <= wanted
    _assert_has(module, wanted)
    assert issubclass(family.Config, ModelConfig)
    assert {choice.kind for choice in family.Config().kinds} <= {*registry.names("attention/kinds")}
    _assert_has(module.Model, _public(family_model.Model))
    # Every parameter has a name there, the settings exist, the tables have the vocabulary first.
    sizes = {k: v for k, v in SMALL_SIZES.items() if k in family.Config.model_fields}
    config = family.Config(**sizes)
    model = meta_model(module.Model, config, 7)
    state = model.state_dict()
    drawn = module.Model(config, 7, "auto").state_dict()
    assert {n: t.shape for n, t in state.items()} == {n: t.shape for n, t in drawn.items()}
    hf_writing.to_hf(name, config, state)
    assert {*module.FORMAT.sizes} <= {*family.Config.model_fields}
    # An untied output table is only in models with other settings.
    assert {len(state[table]) for table in family.VOCABULARY if table in state} <= {7}
    assert all(hf_format.names_of(module.FORMAT, table) for table in family.VOCABULARY)
    assert {*family.VOCABULARY[:1]} <= {*state}
    linear = lora.linear_names(module.FORMAT, module.Model, config)
    assert bool(module.LORA_TARGETS) <= bool(linear)
    parameters = list(inspect.signature(module.Model).parameters)
    assert parameters == ["config", "vocab_size", "backend"]
    if not family.VOCABULARY:
        return
    _assert_has(module.Model, _public(family_model.LanguageModel))
    parameters = list(inspect.signature(module.Model.token_loss).parameters)
    asked = inspect.signature(family_model.LanguageModel.token_loss).parameters
    assert parameters == [*asked]


@pytest.mark.parametrize(("folder", "name"), _parts("train/optimizers", "train/schedules"))
def test_part_of_train_offers_its_contract(folder: str, name: str) -> None:
    part = registry.load(folder, name)
    # A recipe's default settings of it are enough, and it reads settings that there are.
    assert part.Config() == part.Config.model_validate({})
    assert {*part.READS} <= {*train_settings.Config.model_fields}


@pytest.mark.parametrize(("folder", "name"), _parts("tokenizers"))
def test_tokenizer_has_ids_of_special_tokens(folder: str, name: str) -> None:
    tokenizer = registry.load(folder, name).Tokenizer
    # Set by the class or by its constructor.
    source = "".join(
        inspect.getsource(c) for c in tokenizer.__mro__ if c.__module__[:6] == "nlpkit"
    )
    ids = ("bos_id", "eos_id", "unk_id", "pad_id")
    assert all(hasattr(tokenizer, n) or re.search(rf"self\.{n}\b", source) for n in ids)


@pytest.mark.parametrize(
    ("folder", "part_name"),
    _parts(
        "objectives",
        "tokenizers",
        "data/readers",
        "attention/kinds",
        "attention/backends",
        "train/optimizers",
        "train/schedules",
    ),
)
def test_part_keeps_its_contract(folder: str, part_name: str) -> None:
    part = registry.load(folder, part_name)  # raises if a required member is missing
    contract = registry.contract_of(folder)
    assert contract is not None
    for place, each, cls in check.contracts_of(part, contract):
        assert check.misspelt(each, cls) is None, place
        for name in (n for n in check.members(cls) if callable(getattr(cls, n, None))):
            ours, theirs = (_required_parameters(getattr(o, name)) for o in (each, cls))
            assert ours == theirs, (place, name)


def _required_parameters(function: Callable[..., object]) -> list[str]:
    parameters = inspect.signature(function).parameters.values()
    required = [each.name for each in parameters if each.default is each.empty]
    return [name for name in required if name != "self"]


@pytest.mark.parametrize(("folder", "name"), _parts("score/metrics"))
def test_score_takes_its_options(folder: str, name: str) -> None:
    score = registry.load(folder, name)
    contract = registry.contract_of(folder)
    assert contract is not None
    for place, each, cls in check.contracts_of(score, contract):
        assert check.misspelt(each, cls) is None, place
    assert score.__doc__
    if score.IS_TOOL:
        return
    options = {option.name for option in score.OPTIONS}
    assert (score.statistics is None) == (score.from_sums is None)
    for function, given in (
        (score.score, ["hypotheses", "references"]),
        (score.sentences, ["hypotheses", "references"]),
        (score.statistics, ["hypotheses", "references"]),
        (score.from_sums, ["sums"]),
    ):
        if function is not None:
            ours = inspect.signature(function).parameters
            assert list(ours)[: len(given)] == given
            takes_any = any(each.kind is each.VAR_KEYWORD for each in ours.values())
            assert takes_any or {*list(ours)[len(given) :]} == options, function


def test_capabilities_of_the_design_are_those_of_the_code() -> None:
    contracts = DESIGN.with_name("design_contracts.md").read_text("utf-8")
    table = contracts.partition("<!-- capabilities")[2].partition("\n\n")[0]
    assert dict(re.findall(r"^\| `(\w+)` \| (.+) \|$", table, re.M)) == CAPABILITIES


def test_table_of_places_names_what_is_there() -> None:
    text = DESIGN.read_text("utf-8")
    (table,) = re.findall(r"## Where is …\?\n\n(.*?)\n\n", text, re.DOTALL)
    rows = [row.split("|")[2:4] for row in table.splitlines()[2:]]
    assert len(rows) > 20
    for files, names in rows:
        patterns = [name.replace("NAME", "*") for name in re.findall(r"`(.+?)`", files)]
        texts = [text for path, text in SOURCES.items() if any(fnmatch(path, p) for p in patterns)]
        assert len(texts) >= len(patterns), files
        for name in re.findall(r"`(\w+)`", names):
            pattern = rf"^(def |class |){name}\b"
            assert any(re.search(pattern, text, re.MULTILINE) for text in texts), (files, name)
