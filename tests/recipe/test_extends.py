"""`extends`: what a recipe takes from another one, and where mistakes and origins are.

Expected values and places were worked out by hand from the text of the files.
"""

import json
from pathlib import Path
from types import SimpleNamespace

import jsonschema
import pytest

from nlpkit import cli, completion, recipe
from nlpkit.checkpoints import changes
from nlpkit.checkpoints.run_directory import RunDirectory
from nlpkit.data.files import find_inputs
from nlpkit.errors import FileError, RecipeError, UsageError
from nlpkit.recipe import load, yaml
from nlpkit.recipe.known import find_changes
from tests import _tiny
from tests._schema import validator

BASE = """\
name: base
out: elsewhere
seed: 3
model: {family: cpm_ant, hidden_size: 32, num_heads: 4}
tokenizer: {kind: cpm_ant, vocab_size: 200}
data: {train: [a.txt, b.txt], valid: [c.txt]}
objective: {name: cpm_ant, max_length: 64}
train: {steps: 12, lr: 1.0e-2, warmup_steps: 4, optimizer: muon}
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write("base.yaml", BASE)
    return tmp_path


def write(name: str, text: str) -> str:
    path = Path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return name


def problems(*arguments) -> list[str]:
    with pytest.raises(RecipeError) as caught:
        load(*arguments)
    return caught.value.problems


def dump_of(text: str, *sets: str) -> dict:
    return load(write("child.yaml", "extends: base.yaml\n" + text), sets).dump()


def test_child_has_the_settings_of_its_base_but_for_its_own():
    # Mappings merge, the list replaces; name and out are never the base's.
    found = dump_of("train: {lr: 1.0e-3}\ndata: {train: [d.txt]}\n")
    alone = write("alone.yaml", BASE.replace("1.0e-2", "1.0e-3").replace("a.txt, b.txt", "d.txt"))
    expected = load(alone).dump() | {"name": "child", "out": "runs/child"}
    assert found == expected
    assert "extends" not in found


def test_chain_of_three_files_gives_each_value_the_file_and_line_that_says_it():
    write("middle.yaml", "extends: base.yaml\nname: m\nseed: 5\ntrain: {lr: 2.0e-2,\n  decay: 0}\n"
          .replace(",\n  decay: 0", ""))  # fmt: skip
    path = write("sub/child.yaml", "# what differs\nextends: ../middle.yaml\ntrain:\n  clip: 0.5\n")
    found = load(path, ["train.optimizer.momentum=0.5"])
    assert found.recipe.name == "child"
    assert {key: found.origin[key] for key in found.origin if found.origin[key] != "default"} == {
        "name": "sub/child.yaml:2",
        "seed": "middle.yaml:3",
        **dict.fromkeys(("model.family", "model.hidden_size", "model.num_heads"), "base.yaml:4"),
        **dict.fromkeys(("tokenizer.kind", "tokenizer.vocab_size"), "base.yaml:5"),
        **{f"data.train.{n}.files.0": "base.yaml:6" for n in (0, 1)},
        "data.valid.0.files.0": "base.yaml:6",
        **dict.fromkeys(("objective.name", "objective.max_length"), "base.yaml:7"),
        **dict.fromkeys(("train.steps", "train.warmup_steps"), "base.yaml:8"),
        "train.optimizer.name": "base.yaml:8",
        "train.optimizer.momentum": "command line",
        "train.lr": "middle.yaml:4",
        "train.clip": "sub/child.yaml:4",
    }


@pytest.mark.parametrize(
    ("text", "section", "expected"),
    [
        # The same part: its settings merge, also where it is named again.
        ("model: {num_heads: 2}", "model", {"hidden_size": 32, "num_heads": 2}),
        ("model: {family: cpm_ant, num_heads: 2}", "model", {"hidden_size": 32, "num_heads": 2}),
        ("train: {optimizer: {momentum: 0.5}}", "train.optimizer",
         {"name": "muon", "momentum": 0.5}),
        # Another part: nothing of the base's is left; 30,522 is BERT's size, the default.
        ("tokenizer: {kind: wordpiece}", "tokenizer", {"vocab_size": 30522}),
        ("tokenizer: {path: there}", "tokenizer", {"path": "there"}),
        ("train: {optimizer: adamw}", "train.optimizer", {"name": "adamw"}),
        # The other one of two that exclude each other.
        ("train: {epochs: 2}", "train", {"epochs": 2.0, "steps": None}),
        ("train: {warmup_ratio: 0.1}", "train", {"warmup_ratio": 0.1, "warmup_steps": 0}),
        ("train: {warmup_ratio: 0.1, steps: null, budget: 1h}", "train", {"budget": "1h"}),
        ("data: {valid_fraction: 0.1}", "data", {"valid": []}),
    ],
)  # fmt: skip
def test_part_of_another_name_replaces_all_settings_of_the_old_one(text, section, expected):
    found = dump_of(text + "\n")
    for key in section.split("."):
        found = found[key]
    assert {key: found[key] for key in expected} == expected


def test_settings_of_another_family_do_not_leak():
    # cpm_ant has 32 position buckets here; gpt2 would refuse the setting.
    write("base.yaml", BASE.replace("num_heads: 4", "num_heads: 4, num_buckets: 32"))
    text = "model: {family: gpt2, num_layers: 1}\nobjective: {name: clm}\ntokenizer: {kind: bpe}\n"
    found = dump_of(text)
    assert "num_buckets" not in found["model"]
    assert found["model"]["hidden_size"] == 768  # GPT-2's own
    assert found["objective"]["max_length"] != 64


def test_mistakes_are_named_by_the_file_that_says_them():
    write("base.yaml", BASE.replace("num_heads: 4", "num_haeds: 4").replace("1.0e-2", "-1"))
    child = write("child.yaml", "extends: base.yaml\nsed: 1\ntrain: {clip: no}\n")
    assert problems(child, ["train.stepps=3"]) == [
        "base.yaml:4:43: model.num_haeds: unknown setting, did you mean num_heads?",
        "base.yaml:8:24: train.lr: must be greater than 0, got -1",
        "child.yaml:2:1: sed: unknown setting, did you mean seed?",
        'child.yaml:3:15: train.clip: expected a number, got the text "no"',
        "--set train.stepps: unknown setting, did you mean steps?",
    ]


def test_setting_given_twice_in_a_base_is_named_there():
    write("base.yaml", BASE + "seed: 4\n")
    assert problems(write("child.yaml", "extends: base.yaml\n")) == [
        "base.yaml:9:1: seed: given twice, first in line 3"
    ]


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"a.yaml": "b.yaml", "b.yaml": "a.yaml"},
         "b.yaml:1:10: extends: a circle: a.yaml → b.yaml → a.yaml"),
        ({"a.yaml": "a.yaml"}, "a.yaml:1:10: extends: a circle: a.yaml → a.yaml"),
        ({"a.yaml": "x/b.yaml", "x/b.yaml": "../y/c.yaml", "y/c.yaml": "../x/b.yaml"},
         "y/c.yaml:1:10: extends: a circle: x/b.yaml → y/c.yaml → x/b.yaml"),
        ({"a.yaml": "bse.yaml"},
         "a.yaml:1:10: extends: no file bse.yaml, and no packaged recipe bse.yaml, "
         "did you mean base.yaml?"),
        ({"a.yaml": "cpm_amt"},
         "a.yaml:1:10: extends: no file cpm_amt, and no packaged recipe cpm_amt, "
         "did you mean cpm_ant?"),
        ({"a.yaml": "b.yaml", "b.yaml": "c/nothing"},
         "b.yaml:1:10: extends: no file c/nothing, and no packaged recipe c/nothing"),
        ({"a.yaml": "."}, "a.yaml:1:10: extends: . is a directory, not a recipe"),
        ({"a.yaml": "[b.yaml]", "b.yaml": "x"},
         "a.yaml:1:10: extends: expected a file, or the name of a packaged recipe"),
        ({"a.yaml": "empty.yaml"},
         "a.yaml:1:10: extends: empty.yaml has no settings (`key: value`)"),
        ({"a.yaml": "b.yaml", "b.yaml": "c.yaml\n\tx: 1"},
         "b.yaml:2:1: not YAML: a tab: indent with spaces"),
    ],
)  # fmt: skip
def test_base_that_cannot_be_had_is_one_line(files, said):
    write("empty.yaml", "# nothing\n")
    for name, base in files.items():
        write(name, f"extends: {base}\n")
    assert problems("a.yaml") == [said]


def test_base_without_permission_is_an_error_of_the_disk(monkeypatch):
    def refuse(path, name):
        raise FileError(f"{name}: permission denied")

    child = write("child.yaml", "extends: base.yaml\n")
    monkeypatch.setattr(recipe.yaml, "read_file", refuse)
    with pytest.raises(FileError, match=r"^child\.yaml: permission denied"):
        load(child)


def test_packaged_recipe_is_a_base_and_a_file_of_the_folder_comes_first():
    child = write("mine.yaml", "extends: cpm_ant\n")
    found, base = load(child).dump(), load("cpm_ant").dump()
    assert find_changes(base, found) == []
    assert (found["name"], found["out"]) == ("mine", "runs/mine")
    write("cpm_ant", BASE)
    assert load(child).dump()["seed"] == 3


def test_name_of_a_file_that_is_no_directory_name_is_named():
    [found] = problems(write("my recipe.yaml", "extends: base.yaml\n"))
    assert found.startswith('my recipe.yaml:1:10: name: "my recipe" is not a safe directory name')


def test_set_extends_takes_another_base_from_the_working_directory():
    write("other.yaml", BASE.replace("seed: 3", "seed: 8"))
    child = write("sub/child.yaml", "extends: ../base.yaml\ntrain: {lr: 5.0e-1}\n")
    found = load(child, ["train.clip=2", "extends=other.yaml"])
    assert (found.recipe.seed, found.recipe.train.lr, found.recipe.train.clip) == (8, 0.5, 2)
    assert found.origin["seed"] == "other.yaml:3"
    assert problems(child, ["extends=othr.yaml"]) == [
        "--set extends: no file othr.yaml, and no packaged recipe othr.yaml, "
        "did you mean other.yaml?"
    ]
    bare = write("bare.yaml", BASE.replace("seed: 3\n", ""))
    assert load(bare, ["extends=other.yaml"]).recipe.seed == 8


def test_data_of_a_base_are_found_as_if_it_were_read_alone(folder):
    """The rule of `data/files.roots`: the working directory, then the folder of the recipe."""
    for name in ("lib/a.txt", "lib/b.txt", "lib/c.txt", "b.txt", "kid/c.txt"):
        write(name, "x\n")
    write("lib/base.yaml", BASE)
    child = write("kid/child.yaml", "extends: ../lib/base.yaml\n")
    found = {}
    for path in ("lib/base.yaml", child):
        one = load(path)
        sources = find_inputs(one.recipe.data, one.base, folder)
        found[path] = [file.path for part in sources for each in part for file in each.files]
    assert found[child] == found["lib/base.yaml"]
    assert found[child] == [str(folder / name) for name in ("lib/a.txt", "b.txt", "lib/c.txt")]


def test_globs_and_checkpoints_of_a_base_in_another_folder_are_found(folder):
    for name in ("l[i]b/t/a.txt", "l[i]b/t/b.txt", "l[i]b/ckpt/config.json", "l[i]b/tok/x"):
        write(name, "x\n")
    text = BASE.replace("[a.txt, b.txt]", "[{files: t/*.txt}]").replace("valid: [c.txt]", "")
    text = text.replace("kind: cpm_ant, vocab_size: 200", "path: tok").replace("seed: 3", "")
    write("l[i]b/base.yaml", text.replace("model: {family: cpm_ant, hidden_size: 32, num_heads: 4}",
                                          "init_from: ckpt"))  # fmt: skip
    one = load(write("child.yaml", "extends: l[i]b/base.yaml\n"))
    [[source], _] = find_inputs(one.recipe.data, one.base, folder)
    assert [file.path for file in source.files] == [str(folder / f"l[i]b/t/{n}.txt") for n in "ab"]
    assert one.path(one.recipe.init_from).is_dir()
    assert one.path(one.recipe.tokenizer.path).is_dir()


@pytest.mark.parametrize(
    ("objective", "evaluation"),
    [
        ("{name: dpo, reference: old}", "{}"),
        ("[{name: clm}, {name: distillation, teacher: old}]", "{pairs: [pairs.jsonl]}"),
    ],
)
def test_pairs_and_frozen_models_of_a_base_in_another_folder_are_found(objective, evaluation):
    for name in ("lib/pairs.jsonl", "lib/old/config.json"):
        write(name, "x\n")
    text = BASE.replace("family: cpm_ant", "family: gpt2").replace("cpm_ant, vo", "wordpiece, vo")
    text = text.replace("{name: cpm_ant, max_length: 64}", objective)
    write("lib/base.yaml", f"{text}eval: {evaluation}\n")
    recipe = load(write("child.yaml", "extends: lib/base.yaml\n")).recipe
    assert recipe.eval.pairs in (None, ["lib/pairs.jsonl"])
    config = recipe.objective[-1].config.model_dump()
    assert config.get("reference", config.get("teacher")) == "lib/old"


def test_schema_takes_what_differs_and_refuses_mistakes_in_it():
    def is_valid(**settings):
        return validator().is_valid({"extends": "cpm_ant"} | settings)

    for good in [
        {},
        {"model": {"hidden_size": 8}},
        {"model": {"family": "gpt2"}},
        {"model": None, "init_from": "x"},
        {"tokenizer": {"kind": "bpe"}},
        {"tokenizer": {"source": {"vocab_size": 99}}},
        {"objective": {"max_length": 8}},
        {"attention": {"backend": "auto"}},
        {"train": {"optimizer": {"momentum": 0.5}}},
        {"data": {"text_key": "x"}},
        {"lora": {"rank": 2}},
        {"lora": None},
    ]:
        assert is_valid(**good), good
    for wrong in [
        {"train": {"lrr": 1}},
        {"data": {"train": "a.txt", "text_kee": "x"}},
        {"sed": 1},
        {"extends": 3},
    ]:
        assert not is_valid(**wrong), wrong
    # Without a base everything has to be there, also if `extends` is written and empty.
    assert not validator().is_valid({"extends": None, "model": {"family": "gpt2"}})
    found = jsonschema.exceptions.best_match(
        validator().iter_errors({"extends": "x", "train": {"lrr": 1}})
    )
    assert list(found.absolute_path) == ["train"]
    assert "lrr" in found.message


def test_whole_prints_a_recipe_without_its_base(capsys):
    write("middle.yaml", "extends: base.yaml\ntrain: {epochs: 2}\n")
    child = write("child.yaml", "extends: middle.yaml\ntrain: {clip: 0.5}\n")
    assert cli.run(["recipes", "--whole", child]) == 0
    text = capsys.readouterr().out
    assert "extends" not in text
    assert load(write("flat.yaml", text)).dump() == load(child).dump()
    assert cli.run(["recipes", "--whole", child, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"name": child, "text": text}
    assert cli.run(["recipes", "--whole"]) == 2
    capsys.readouterr()
    write("child.yaml", "extends: middle.yaml\nsed: 1\n")
    assert cli.run(["recipes", "--whole", child]) == 2
    assert capsys.readouterr().err == "child.yaml:2:1: sed: unknown setting, did you mean seed?\n"


def test_recipes_lists_what_a_recipe_builds_on(capsys, monkeypatch):
    child = Path(write("child.yaml", "# mine\nextends: cpm_ant  # the small one\n"))
    monkeypatch.setattr(recipe, "packaged", lambda: {"child": child})
    assert cli.run(["recipes", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == [
        {"name": "child", "about": "mine", "takes": "", "extends": "cpm_ant"}
    ]


def test_recipes_are_listed_in_groups_of_short_lines(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert cli.run(["recipes"]) == 0
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 80
    pretraining, tuning, rest = text.split("\n\n")
    assert pretraining.startswith("Pretraining: nlpkit pretrain NAME\n  albert  ")
    assert tuning.startswith("Tuning, from the run of another recipe: nlpkit finetune NAME\n")
    of_papers = sum(name.startswith("papers/") for name in recipe.packaged())
    assert rest.startswith(f"Papers, {of_papers} recipes: nlpkit recipes papers\n")
    tuned = {line.split()[0] for line in tuning.splitlines()[1:]}
    begun = {name for name in recipe.packaged() if load(name).recipe.init_from is not None}
    assert tuned == begun
    listed = tuned | {line.split()[0] for line in pretraining.splitlines()[1:]}
    assert listed == {name for name in recipe.packaged() if "/" not in name}
    assert cli.run(["recipes", "papers"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == sorted(
        name for name in recipe.packaged() if name.startswith("papers/")
    )
    assert max(map(len, lines)) <= 80


def test_recipes_group_goes_by_the_base_of_a_recipe(capsys, monkeypatch):
    tuned = Path(write("tuned.yaml", "# a task\ninit_from: runs/x\n"))
    child = Path(write("child.yaml", "# another\nextends: tuned\n"))
    circle = Path(write("circle.yaml", "# wrong\nextends: circle\n"))
    packaged = {"child": child, "circle": circle, "tuned": tuned}
    monkeypatch.setattr(recipe, "packaged", lambda: packaged)
    assert cli.run(["recipes"]) == 0
    pretraining, tuning, _ = capsys.readouterr().out.split("\n\n")
    assert pretraining.splitlines()[1:] == ["  circle  wrong"]
    assert tuning.splitlines()[1:] == ["  child  another", "  tuned  a task"]


def test_completion_knows_the_settings_of_the_base_and_the_bases():
    child = SimpleNamespace(params={"recipe": write("child.yaml", "extends: base.yaml\n")})
    assert "model.num_buckets=" in dict(completion.list_settings(child, "model."))
    assert "train.optimizer.ns_steps=" in dict(completion.list_settings(child, "train.optimizer."))
    write("base.yaml", "extends: child.yaml\n")  # a circle: nothing is known, nothing is said
    assert "model.num_buckets=" not in dict(completion.list_settings(child, "model."))


def test_run_has_a_recipe_of_its_own_and_resumes_after_the_base_has_changed(tmp_path):
    base = _tiny.write(tmp_path / "input")
    text = "extends: input/tiny.yaml\ntrain: {steps: 2, save_every: 1, eval_every: null}\n"
    child = Path(write("child.yaml", text))
    out = tmp_path / "run"
    _tiny.pretrain(child, out)
    kept = (out / "recipe.yaml").read_text("utf-8")
    assert "extends" not in kept
    assert yaml.read(kept, "x").data["model"]["hidden_size"] == 32
    base.write_text(base.read_text("utf-8").replace("lr: 1.0e-2", "lr: 5.0e-2"), encoding="utf-8")
    directory = RunDirectory(out)
    with pytest.raises(UsageError, match=r"train\.lr: 0\.01 then, 0\.05 now"):
        changes.check_changes(directory, load(str(child), [f"out={out}"]), False)
    # The run's own recipe goes on as it began.
    assert changes.check_changes(directory, load(str(out / "recipe.yaml")), False) == []
    assert find_changes(load(str(out / "recipe.yaml")).dump(), yaml.read(kept, "x").data) == []


def test_recipe_that_extends_is_checked_without_torch():
    import subprocess
    import sys

    write("child.yaml", "extends: cpm_ant\n")
    code = "import sys; from nlpkit import recipe; recipe.load('child.yaml'); "
    code += "assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
