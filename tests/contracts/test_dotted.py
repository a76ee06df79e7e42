"""A dotted name in a recipe is any importable module with the same contents: no fork needed."""

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from nlpkit import cli, outside_parts, registry
from nlpkit.checkpoints import any_layout, hf_layout, integrity, tokenizer_files
from nlpkit.checkpoints.hf_model import find_family
from nlpkit.data import tokenize
from nlpkit.errors import FileError, UsageError
from nlpkit.models import families
from nlpkit.runs.convert import convert
from nlpkit.runs.open_checkpoint import open_checkpoint
from nlpkit.selftest import leaks
from tests import _dotted, _tiny

_OBJECTIVE = """
from nlpkit.objectives.cpm_ant import Config, Objective as Base

class Objective(Base):
    def example(self, ids, rng):
        return super().example(ids[::-1], rng)  # right to left
"""


def _forget() -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] in ("mylab", "ownlab")]:
        del sys.modules[name]


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing that one test imports, or puts in the path, is there for the next."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    _forget()
    yield
    _forget()


def test_family_and_objective_of_ones_own_train(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "ownlab"
    (package / "ant").mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "backwards.py").write_text(_OBJECTIVE, encoding="utf-8")
    (package / "ant" / "__init__.py").write_text(
        "from nlpkit.models.cpm_ant import Config, MODEL_TYPE\n", encoding="utf-8"
    )
    (package / "ant" / "model.py").write_text(
        "from nlpkit.models.cpm_ant.model import *\n", encoding="utf-8"
    )
    monkeypatch.syspath_prepend(tmp_path)
    text = _tiny.RECIPE.replace("family: cpm_ant", "family: ownlab.ant")
    path = _tiny.write(tmp_path, text=text.replace("name: cpm_ant", "name: ownlab.backwards"))
    place = _tiny.pretrain(path, tmp_path / "run", "train.steps=4")
    assert integrity.find_corruption(place) is None
    assert [r["step"] for r in _tiny.metrics(tmp_path / "run") if "loss" in r] == [1, 2, 3, 4]


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the package and a run of its family, stopped and gone on with."""
    folder = _dotted.package(tmp_path_factory.mktemp("own"))
    _tiny.write(folder, text=_dotted.recipe("mylab.own"))
    code, _, err = _dotted.script(folder, "pretrain", "tiny.yaml", "--out", "run")
    assert code == 0, err
    longer = ("--set", "train.steps=6", "--allow-change")
    code, _, err = _dotted.script(folder, "pretrain", "tiny.yaml", "--out", "run", *longer)
    assert code == 0, err
    assert "resuming from run/checkpoints/step-00000004 (step 4)" in err
    return folder


@pytest.mark.slow
def test_installed_script_trains_a_family_of_the_working_directory(tmp_path: Path) -> None:
    _dotted.package(tmp_path)
    _tiny.write(tmp_path, text=_dotted.recipe("mylab.own"))
    done = _dotted.installed_script(tmp_path, "pretrain", "tiny.yaml", "--out", "run")
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_installed_script_imports_a_family_of_the_working_directory(tmp_path: Path) -> None:
    _dotted.package(tmp_path)
    for family, code in (("mylab.own", 0), ("mylab.none", 2)):
        _tiny.write(tmp_path, text=_dotted.recipe(family))
        done = _dotted.installed_script(
            tmp_path, "pretrain", "tiny.yaml", "--grid", "seed=1,2", "--print"
        )
        assert done.returncode == code, done.stderr


@pytest.mark.parametrize("setting", ["objective.name", "model.family", "attention.backend"])
def test_module_that_ends_the_process_on_import_is_refused(
    own: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], setting: str
) -> None:
    (own / "mylab/ends.py").write_text("import sys\nsys.exit(0)\n", encoding="utf-8")
    monkeypatch.chdir(own)
    assert cli.run(["pretrain", "tiny.yaml", "--set", f"{setting}=mylab.ends"]) == 2
    assert "cannot import 'mylab.ends': SystemExit: 0" in capsys.readouterr().err


def _held_out(run: Path) -> float:
    """Return the loss of a run's last evaluation, of the model as it was in memory."""
    return [r["held_out"]["loss"] for r in _tiny.metrics(run) if "held_out" in r][-1]


@pytest.mark.slow
def test_script_evaluates_with_a_family_of_the_working_directory(own: Path) -> None:
    code, out, err = _dotted.script(own, "eval", "run/checkpoints/latest", "--json")
    assert code == 0, err
    assert json.loads(out)["loss"] == pytest.approx(_held_out(own / "run"), abs=1e-5)


def test_script_generates_with_a_family_of_the_working_directory(own: Path) -> None:
    (own / "texts").write_text("天地人\n山水\n", encoding="utf-8")
    code, out, err = _dotted.script(own, "generate", "run", "texts", "--max-new-tokens", "5")
    assert code == 0, err
    assert len(out.splitlines()) == 2


def test_script_converts_a_dotted_family_and_the_result_is_the_same_model(own: Path) -> None:
    code, out, err = _dotted.script(own, "convert", "run/checkpoints/latest", "made")
    assert code == 0, err
    settings = json.loads((own / out.strip() / "config.json").read_text(encoding="utf-8"))
    assert settings["nlpkit"] == {"family": "mylab.own"}
    assert settings["model_type"] == "mylab-own"
    assert settings["scale"] == {"start": 1.5, "places": ["end"]}
    before = load_file(own / "run/checkpoints/latest" / hf_layout.WEIGHTS)
    after = load_file(own / "made" / hf_layout.WEIGHTS)
    assert {"transformer.scale", "lm_head.bias", "lm_head.weight"} <= before.keys()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_script_tunes_a_dotted_family_with_adapters_that_open_again(
    own: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = _dotted.recipe("mylab.own").replace("name: tiny", "name: tune")
    lines = text.replace("TRAIN", "train.txt").replace("VALID", "valid.txt").splitlines()
    lines[1:3] = ["init_from: run/checkpoints/latest"]
    (own / "tune.yaml").write_text("\n".join(lines), encoding="utf-8")
    code, out, err = _dotted.script(own, "finetune", "tune.yaml", "--lora", "--out", "tuned")
    assert code == 0, err
    assert (own / out.strip() / "adapter_model.safetensors").is_file()
    monkeypatch.chdir(own)
    assert cli.run(["eval", "tuned/checkpoints/latest", "--json", "-q"]) == 0
    assert json.loads(capsys.readouterr().out)["loss"] == pytest.approx(
        _held_out(own / "tuned"), abs=1e-5
    )


@pytest.mark.slow
def test_script_proves_a_dotted_family(own: Path) -> None:
    code, out, err = _dotted.script(own, "selftest", "tiny.yaml")
    assert code == 0, out + err
    assert "saved = reopened" in out
    assert "FAIL" not in out


def test_checkpoint_of_a_dotted_family_that_is_not_there_is_refused_by_name(
    own: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    place = (own / "run/checkpoints/latest").resolve()
    expected = (
        f"{place}/config.json: names 'mylab.own', which is not in the working directory; run "
        "nlpkit where it lies, or, if you trust it, name it: --family mylab.own, "
        "or the section model of a recipe"
    )
    with pytest.raises(FileError) as caught:
        open_checkpoint(place)
    assert str(caught.value) == expected
    with pytest.raises(UsageError, match=r"cannot import 'mylab\.own': No module named 'mylab'"):
        open_checkpoint(place, family="mylab.own")
    # An installed package is no reason: a stranger could name any.
    monkeypatch.syspath_prepend(own)
    with pytest.raises(FileError, match="is not in the working directory"):
        open_checkpoint(place)
    assert open_checkpoint(place, family="mylab.own").part.family == "mylab.own"


def test_code_that_comes_with_a_checkpoint_is_never_run(
    own: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(own / "run", tmp_path / "run", symlinks=True)
    _dotted.package(tmp_path / "run")
    light = tmp_path / "run/mylab/own/__init__.py"
    light.write_text("raise SystemExit('run')", encoding="utf-8")
    monkeypatch.chdir(tmp_path / "run")
    for path in (Path("checkpoints/latest"), tmp_path / "run"):
        with pytest.raises(FileError, match="code that comes with a checkpoint is not run"):
            open_checkpoint(path)
    shutil.copytree(tmp_path / "run/checkpoints/latest", tmp_path / "alone")
    _dotted.package(tmp_path / "alone")
    monkeypatch.chdir(tmp_path / "alone")
    with pytest.raises(FileError, match="code that comes with a checkpoint is not run"):
        open_checkpoint(".")
    assert not [name for name in sys.modules if name.startswith("mylab")]


def test_broken_family_of_a_checkpoint_is_one_line(
    own: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = (own / "run/checkpoints/latest").resolve()
    model = _dotted.package(tmp_path) / "mylab/own/model.py"
    monkeypatch.chdir(tmp_path)
    model.write_text("from nlpkit.models.gpt.model import Model\n", encoding="utf-8")
    with pytest.raises(FileError) as caught:
        open_checkpoint(place)
    assert str(caught.value) == (
        f"{place}/config.json: made by family mylab.own: {model}: has no 'FORMAT'"
    )
    _forget()
    model.write_text("1 / 0\n", encoding="utf-8")
    with pytest.raises(
        FileError, match=r"'mylab\.own\.model': ZeroDivisionError: division by zero"
    ):
        open_checkpoint(place)


def test_family_with_a_shipped_model_type_is_opened_as_itself_and_as_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _dotted.package(tmp_path)
    monkeypatch.chdir(tmp_path)
    path = _tiny.write(tmp_path, text=_dotted.recipe("mylab.twin"))
    place = _tiny.pretrain(path, tmp_path / "run").resolve()
    assert json.loads((place / "config.json").read_text())["model_type"] == "openai-gpt"
    _forget()
    opened = open_checkpoint(place)
    assert (opened.part.family, type(opened.model).__module__) == ("mylab.twin", "mylab.twin.model")
    ids = torch.arange(11, 31)
    with torch.no_grad():
        hidden = opened.model((20,), ids)
        # The same weights in the shipped family, whose states are half of these.
        shipped = open_checkpoint(place, family="gpt").model((20,), ids)
    torch.testing.assert_close(hidden, shipped * 2, rtol=0, atol=0)
    convert(place, tmp_path / "made")
    assert open_checkpoint(tmp_path / "made").part.family == "mylab.twin"
    _forget()
    monkeypatch.chdir(tmp_path / "run")
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p != str(tmp_path)])
    with pytest.raises(FileError, match=r"names 'mylab\.twin', which is not in the working"):
        open_checkpoint(place)
    with pytest.raises(FileError, match=r"names 'mylab\.twin', which is not in the working"):
        convert(place, tmp_path / "again")


def test_recipe_names_the_family_that_reads_a_checkpoint_without_notes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _dotted.package(tmp_path)
    monkeypatch.chdir(tmp_path)
    place = _tiny.pretrain(
        _tiny.write(tmp_path, text=_dotted.recipe("gpt")), tmp_path / "shipped"
    ).resolve()
    text = f"init_from: {json.dumps(str(place))}\n" + _dotted.recipe("mylab.twin")
    lines = [line for line in text.splitlines() if not line.startswith("tokenizer")]
    made = _tiny.pretrain(_tiny.write(tmp_path, text="\n".join(lines)), tmp_path / "twin")
    assert json.loads((made / "config.json").read_text())["nlpkit"] == {"family": "mylab.twin"}
    other = [line.replace("mylab.twin", "mylab.own") for line in lines]
    with pytest.raises(UsageError, match="has model_type openai-gpt, and family mylab"):
        _tiny.pretrain(_tiny.write(tmp_path, text="\n".join(other)), tmp_path / "other")


@pytest.mark.slow
def test_finetune_takes_the_family_that_reads_a_checkpoint_without_notes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _dotted.package(tmp_path)
    monkeypatch.chdir(tmp_path)
    path = _tiny.write(tmp_path, text=_dotted.recipe("gpt"))
    _tiny.pretrain(path, tmp_path / "shipped")
    lines = path.read_text("utf-8").splitlines()
    text = [line for line in lines if not line.startswith(("tokenizer", "model"))]
    assert len(text) == len(lines) - 2
    Path("tune.yaml").write_text("\n".join(text), encoding="utf-8")
    arguments = ["finetune", "tune.yaml", "--from", "shipped", "--out", "twin", "--device", "cpu"]
    for _ in range(2):  # the second time, it is finished
        assert cli.run([*arguments, "--family", "mylab.twin"]) == 0, capsys.readouterr().err
        made = Path(capsys.readouterr().out.strip())
    assert json.loads((made / "config.json").read_text())["nlpkit"] == {"family": "mylab.twin"}
    assert cli.run([*arguments, "--out", "other", "--family", "mylab.own"]) == 2
    said = "has model_type openai-gpt, and family mylab.own of the section model"
    assert said in capsys.readouterr().err
    assert cli.run([*arguments, "--out", "other", "--family", "nothing"]) == 2
    assert "nothing" in capsys.readouterr().err
    assert cli.run([*arguments, "--out", "other", "--family", "cpm_ant"]) == 4
    assert "cannot be read as family cpm_ant: no '" in capsys.readouterr().err


def test_dotted_objective_of_a_checkpoint_is_imported_from_the_working_directory_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _dotted.package(tmp_path)
    monkeypatch.chdir(tmp_path)
    path = _tiny.write(tmp_path, text=_dotted.recipe("gpt", "mylab.backwards"))
    place = _tiny.pretrain(path, tmp_path / "run").resolve()
    _forget()
    assert type(open_checkpoint(place).objective).__module__ == "mylab.backwards"
    _forget()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    expected = (
        f"{place}/nlpkit.json: names 'mylab.backwards', which is not in the working directory"
    )
    with pytest.raises(FileError) as caught:
        open_checkpoint(place)
    assert str(caught.value) == f"{expected}; run nlpkit where it lies"


@pytest.mark.slow
def test_tokenizer_kind_of_ones_own_opens_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _dotted.package(tmp_path)
    monkeypatch.chdir(tmp_path)
    text = _dotted.recipe("gpt").replace(
        "{kind: cpm_ant, vocab_size: 120, min_frequency: 1}", "{kind: mylab.letters}"
    )
    path = _tiny.write(tmp_path, text=text)
    place = _tiny.pretrain(path, tmp_path / "run", "train.steps=2").resolve()
    _forget()
    opened = open_checkpoint(place)
    assert type(opened.tokenizer).__module__ == "mylab.letters"
    assert opened.tokenizer.decode(opened.tokenizer.encode("天地人")) == "天地人"
    for line in (
        f"pretrain {path} --out run --allow-change",
        "eval run --json",
        "tokenizer show run/tokenizer 天地 --json",
        "convert run made --json",
        "eval made --data valid.txt --json",
    ):
        code, _, err = _dotted.script(tmp_path, *line.split())
        assert code == 0, err
    tokens = json.loads(_dotted.script(tmp_path, "tokenizer", "show", "made", "天", "--json")[1])
    assert tokens["tokens"] == ["天"]
    # It is named by the checkpoint, so only what lies in the working directory is imported.
    _forget()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p != str(tmp_path)])
    expected = f"{place}/nlpkit_tokenizer.json: names 'mylab.letters', which is not in the working "
    with pytest.raises(FileError) as caught:
        open_checkpoint(place)
    assert str(caught.value) == f"{expected}directory; run nlpkit where it lies"


@pytest.mark.parametrize("where", ["run/tokenizer", "run/checkpoints/step-00000002", "alone"])
def test_tokenizer_kind_that_comes_with_a_checkpoint_is_never_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    home = tmp_path / (where.partition("/")[0])
    directory = tmp_path / where
    directory.mkdir(parents=True)
    (home / "run.json").write_text("{}", encoding="utf-8")
    (directory / "letters.json").write_text("[]", encoding="utf-8")
    notes = '{"kind": "mylab.letters"}'
    (directory / "nlpkit_tokenizer.json").write_text(notes, encoding="utf-8")
    (home / "mylab").mkdir()
    (home / "mylab/letters.py").write_text("raise SystemExit('run')", encoding="utf-8")
    monkeypatch.chdir(home)
    with pytest.raises(FileError, match="code that comes with a checkpoint is not run"):
        tokenizer_files.load(directory)


@pytest.mark.parametrize("text", ["", "[]", '{"kind": 3}', '{"kind": "cpm_ant"}'])
def test_damaged_kind_of_a_tokenizer_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "nlpkit_tokenizer.json").write_text(text, encoding="utf-8")
    with pytest.raises(FileError, match=r"nlpkit_tokenizer\.json: names no kind of tokenizer"):
        tokenizer_files.load(tmp_path)


def test_recipe_beside_a_checkpoint_imports_nothing_from_elsewhere(
    own: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    place = _tiny.pretrain(_tiny.write(tmp_path, text=_dotted.recipe("gpt")), tmp_path / "run")
    kept = tmp_path / "run" / "recipe.yaml"
    text = kept.read_text(encoding="utf-8")
    kept.write_text(text.replace("name: clm", "name: mylab.backwards"), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(own)
    assert cli.run(["eval", str(place), "--data", str(tmp_path / "valid.txt"), "-q"]) == 4
    said = f"{kept}: names 'mylab.backwards', which is not in the working directory"
    assert said in capsys.readouterr().err
    assert not [name for name in sys.modules if name.startswith("mylab")]


def test_family_that_lacks_what_its_contract_asks_for_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = _dotted.package(tmp_path) / "mylab/own"
    monkeypatch.chdir(tmp_path)
    (folder / "model.py").write_text("", encoding="utf-8")
    with pytest.raises(UsageError, match=r"mylab/own/model\.py: has no 'Model'"):
        families.load_model("mylab.own")
    _forget()
    (folder / "__init__.py").write_text("", encoding="utf-8")
    with pytest.raises(UsageError, match=r"mylab/own/__init__\.py: has no 'Config'"):
        families.load("mylab.own")


def test_name_of_a_family_that_is_neither_shipped_nor_dotted_is_refused(tmp_path: Path) -> None:
    for named, said in (("bert", "made by family 'bert'"), ("cpm_ant", "made by family 'cpm_ant'")):
        settings = {"model_type": "openai-gpt", "nlpkit": {"family": named}}
        with pytest.raises(FileError, match=f"{said}, and model_type openai-gpt is of gpt"):
            find_family(settings, tmp_path)
    assert any_layout.read_notes(tmp_path) == {}


_RAISES = """
import torch
from nlpkit.objectives.clm import Config, Objective as Base

class Objective(Base):
    def example(self, ids, rng):
        return super().example(ids, rng) | {}[WHERE]

    def loss(self, model, hidden, batch):
        if torch.is_grad_enabled():
            hidden @ hidden
        return super().loss(model, hidden, batch)
"""


def _broken(folder: Path, monkeypatch: pytest.MonkeyPatch, source: str) -> tuple[str, Path]:
    """Write an objective, and its recipe; return the path of its file, and of the recipe."""
    _dotted.package(folder)
    file = folder / "mylab/broken.py"
    file.write_text(source, encoding="utf-8")
    monkeypatch.chdir(folder)
    return str(file), _tiny.write(folder, text=_dotted.recipe("gpt", "mylab.broken"))


@pytest.mark.parametrize("workers", [0, 1])
def test_error_of_a_part_is_one_line_with_its_file_and_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    workers: int,
) -> None:
    # In a worker only: the first batch is made in this process, before the training.
    late = "'x' if __import__('multiprocessing').parent_process() else 'y'"
    source = _RAISES.replace("{}[WHERE]", "{'y': {}}[" + (late if workers else "'x'") + "]")
    file, path = _broken(tmp_path, monkeypatch, source)
    arguments = ["pretrain", str(path), "--out", "run", "-q", "--device", "cpu"]
    assert cli.run([*arguments, "--set", f"train.workers={workers}"]) == 2
    out, err = capsys.readouterr()
    said = f"nlpkit: {file}:7: this part raised KeyError: 'x'"
    assert (out, err.rstrip("\n").removesuffix("; --traceback shows the calls")) == ("", said)
    if not workers:
        assert cli.run([*arguments, "--traceback"]) == 2
        assert "Traceback (most recent call last)" in capsys.readouterr().err


def test_part_of_nlpkit_by_its_dotted_name_is_not_from_outside() -> None:
    made = registry.load("objectives", "nlpkit.objectives.clm").Objective
    with pytest.raises(AttributeError) as error:
        made(None, None, None)
    assert outside_parts.error_of_part(error.value) is None


@pytest.mark.fast_cases(1)
@pytest.mark.parametrize("always", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_error_of_a_part_is_a_failed_proof_and_the_others_go_on(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    always: bool,
) -> None:
    monkeypatch.setattr(leaks, "SHORT", 4)
    source = _RAISES.replace(" | {}[WHERE]", "")
    source = source.replace("if torch.is_grad_enabled():", "if True:") if always else source
    file, path = _broken(tmp_path, monkeypatch, source)
    assert cli.run(["selftest", str(path), "--device", "cpu", "-q", "--json"]) == 1
    out, err = capsys.readouterr()
    proofs = {proof["name"]: proof for proof in json.loads(out)["proofs"]}
    failed = {name for name, proof in proofs.items() if not proof["passed"]}
    assert {"noise floor", "accumulated = one", "resumed = whole"} <= failed
    assert all(f"{file}:11: this part raised " in proofs[name]["figure"] for name in failed)
    holds = {"batches"} if always else {"no leak", "batches", "saved = reopened"}
    assert holds <= proofs.keys() - failed
    assert "Traceback" not in err


@pytest.mark.slow
def test_error_of_a_part_in_a_worker_that_is_spawned_is_the_same_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file, path = _broken(tmp_path, monkeypatch, _dotted.TOKENIZER)
    text = path.read_text("utf-8").replace("mylab.broken", "clm")
    text = text.replace(
        "{kind: cpm_ant, vocab_size: 120, min_frequency: 1}", "{kind: mylab.broken}"
    )
    monkeypatch.setattr(tokenize, "RANGE_BYTES", 5000)  # so that a small file is divided
    source = Path(file).read_text("utf-8")
    late = "1 / (__import__('multiprocessing').parent_process() is None)"
    body = "return [self.encode(text) for text in texts]"
    Path(file).write_text(source.replace(body, f"{late}; {body}"), "utf-8")
    path.write_text(text, "utf-8")
    arguments = ["pretrain", str(path), "--out", "run", "-q", "--device", "cpu"]
    assert cli.run([*arguments, "--set", "data.workers=2"]) == 2
    line = source[: source.index(body)].count("\n") + 1
    said = f"nlpkit: {file}:{line}: this part raised ZeroDivisionError: division by zero"
    assert capsys.readouterr().err.strip() == said
