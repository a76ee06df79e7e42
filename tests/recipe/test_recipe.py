"""Recipes: mistakes word for word, YAML, overrides, origins, round trip, comparison, schema.

Messages and places were worked out by hand from the text of each case (line and column from 1).
"""

import json
import json.tool
import re
import subprocess
import sys
import time
from pathlib import Path

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nlpkit import recipe, registry
from nlpkit.data.settings import Config as DataConfig
from nlpkit.errors import FileError, NlpkitError, RecipeError, UsageError
from nlpkit.recipe import Recipe, load, packaged, parse, yaml
from nlpkit.recipe.known import find_changes
from nlpkit.recipe.places import flatten
from nlpkit.recipe.yaml import MAX_DEPTH
from tests._schema import validator

SECTIONS = {
    "name": "name: x",
    "seed": "seed: 1",
    "model": "model: {family: cpm_ant}",
    "tokenizer": "tokenizer: {kind: cpm_ant, vocab_size: 8000}",
    "data": "data: {train: a.txt}",
    "objective": "objective: {name: cpm_ant}",
    "train": "train: {steps: 300, warmup_steps: 50}",
}
GOOD = "\n".join(SECTIONS.values()) + "\n"


def resolve(text, *overrides):
    return parse(text.encode(), "r.yaml", Path("."), overrides)


def problems(text, *overrides):
    with pytest.raises(RecipeError) as caught:
        resolve(text, *overrides)
    return [problem.removeprefix("r.yaml:") for problem in caught.value.problems]


def mistakes():
    text = (Path(__file__).parents[1] / "recipe_mistakes.txt").read_text(encoding="utf-8")
    for case in text.split("\n\n")[1:]:
        head, *lines = case.splitlines()
        name, section = re.fullmatch(r"# (\w+) @(\w+)", head).groups()
        said = [line[2:] for line in lines if line.startswith("! ")]
        written = "\n".join(line for line in lines if not line.startswith("! "))
        yield pytest.param(section, written, said, id=name)


def names(match):
    if match[1] == "sections":
        return ", ".join(Recipe.model_fields)
    if match[1] == "json.tool":
        return json.tool.__file__
    automatic = ["auto"] if match[1] == "attention/backends" else []
    folder = "score/metrics" if match[1] == "score" else match[1]
    return ", ".join(automatic + registry.names(folder))


@pytest.mark.parametrize(("section", "written", "said"), list(mistakes()))
def test_recipe_with_a_mistake_says_where_and_what_would_be_right(section, written, said):
    text = "\n".join((SECTIONS | {section: written}).values()) + "\n"
    known = "models|tokenizers|objectives|attention/backends|train/optimizers|train/schedules|score"
    known += "|sections|json.tool"
    assert problems(text) == [re.sub(f"<({known})>", names, line) for line in said]


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("best_by: acuracy", "best_by: objective cpm_ant_nlu has no acuracy during training, did "
         "you mean accuracy?"),
        ("z_loss: 0.1", "z_loss: objective cpm_ant_nlu predicts no tokens; remove the setting"),
    ],
)  # fmt: skip
def test_setting_of_train_that_a_task_cannot_have_is_told_with_its_place(setting, said):
    train = {"train": f"train: {{steps: 300, warmup_steps: 1, {setting}}}"}
    text = "\n".join((SECTIONS | {"objective": "objective: {name: cpm_ant_nlu}"} | train).values())
    (found,) = problems(text)
    assert re.fullmatch(r"7:\d+: train\." + re.escape(said), found)


def test_recipe_with_many_mistakes_lists_all_in_the_order_of_lines():
    text = (
        GOOD.replace("seed: 1", "seed: x").replace("steps: 300", "step: 3").replace("x\n", "x/\n")
    )
    found = problems(text, "train.lr=0", "model.hiden_size=3")
    assert [line.split(": ")[0] for line in found[:-2]] == ["1:7", "2:7", "7:1", "7:9"]
    assert found[-2:] == [
        "--set train.lr: must be greater than 0, got 0",
        "--set model.hiden_size: unknown setting, did you mean hidden_size?",
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "r.yaml: an empty file: settings are lines like `key: value`"),
        ("# nothing\n", "r.yaml: an empty file: settings are lines like `key: value`"),
        ("- a\n- b\n", "1:1: expected settings (`key: value`), got a list"),
        ("hello\n", "1:1: expected settings (`key: value`), got a single value"),
        ("name: x\n\tseed: 1\n", "2:1: not YAML: a tab: indent with spaces"),
        ("name: [a\nseed: 1\n", "2:5: not YAML: expected `,` or `]`"),
        ("name: 'a\n", "1:7: not YAML: a quote is opened and never closed"),
        ("name: @a\n", "1:7: not YAML: text that begins with @ needs quotes"),
        ("name: *.txt\n", "1:7: not YAML: text that begins with * or & needs quotes"),
        ("name: *a\n", "1:7: not YAML: text that begins with * or & needs quotes"),
        ("a: &a [*a]\n", "1:4: nested deeper than 32 levels"),
        ("name: x\nseed\n", "2:1: not YAML: expected `key: value`"),
        ("a:\n  b: 1\n c: 1\n", "3:2: not YAML: does not line up with the lines above"),
        ("a: !!python/name:os.system\n", "1:4: the tag !!python/name:os.system is not allowed"),
        ("a: !x {b: 1}\n", "1:4: the tag !x is not allowed"),
        ("? [a]\n: b\n", "1:3: the name of a setting must be a word"),
        ("name: x\n---\nname: y\n", "2:1: not YAML: a second document: a recipe is one document"),
        ("name: \x00\n", "1:1: the character U+0000 is not allowed in YAML"),
        ("a: " + "[" * 40 + "]" * 40, "1:35: nested deeper than 32 levels"),
    ],
)
def test_yaml_that_cannot_be_read_says_where(text, said):
    [found] = problems(text)
    assert found.removesuffix(": a recipe is plain data") == said.removeprefix("r.yaml:")


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        ("name: 中文\n".encode("gb18030"), "r.yaml:1: not UTF-8 (byte 0xd6)"),
        ("name: x\n".encode("utf-16"), "r.yaml:1: not UTF-8 (byte 0xff)"),
        ("a: 1\nb: é \xff\n".encode("latin-1"), "r.yaml:2: not UTF-8 (byte 0xe9)"),
    ],
)
def test_recipe_in_another_encoding_is_named(raw, said):
    with pytest.raises(RecipeError) as caught:
        parse(raw, "r.yaml", Path("."))
    assert str(caught.value) == f"{said}: save the file as UTF-8"


def bombs():
    laughs = "a0: &a0 [x]\n" + "".join(
        f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 30)
    )
    # A chain of aliases: small, but every step is one level deeper.
    chain = "a0: &a0 [x]\n" + "".join(f"a{i}: &a{i} [*a{i - 1}]\n" for i in range(1, 99))
    yield pytest.param(laughs, "more than 10,000 values", id="billion_laughs")
    yield pytest.param(chain, f"nested deeper than {MAX_DEPTH} levels", id="alias_chain")
    yield pytest.param("a: " + "[" * 20_000, "nested deeper", id="brackets")
    yield pytest.param("[" + "1," * 15_000 + "1]", "more than 10,000 values", id="many_values")
    yield pytest.param("a: " + "x" * 1_000_000, "longer than 200,000 bytes", id="long_file")


@pytest.mark.fast_cases(1)
@pytest.mark.parametrize(("text", "said"), list(bombs()))
def test_yaml_bomb_is_refused_before_it_is_unfolded(text, said):
    start = time.process_time()  # which others on the machine hardly lengthen
    with pytest.raises(RecipeError, match=said):
        parse(text.encode(), "r.yaml", Path("."))
    assert time.process_time() - start < 10


# YAML 1.2.2, section 10.3 (core schema), without octal and hexadecimal numbers.
@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("1e-4", 1e-4),
        ("1e-04", 1e-4),
        ("1E5", 1e5),
        ("1.0e+3", 1e3),
        (".5", 0.5),
        ("5.", 5.0),
        ("-1.5", -1.5),
        ("-17", -17),
        ("+3", 3),
        ("0", 0),
        ("true", True),
        ("False", False),
        ("null", None),
        ("~", None),
        ("", None),
        ("-.inf", float("-inf")),
        *[
            (text, text)
            for text in (
                *("yes", "no", "on", "off", "y", "010", "0o7", "0x1F", "1_000", "1:30", "12:30:45"),
                *("2024-01-01", "1e", "e5", ".", "-", "1.2.3", "tRue", "nan", "=", "+-1"),
            )
        ],
    ],
)
def test_yaml_scalar_is_read_as_yaml_1_2_has_it(written, value):
    found = yaml.read(f"a: {written}" if written != "-" else "a: '-'", "x").data["a"]
    assert found == value
    assert type(found) is type(value)


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=10,
)


@pytest.mark.slow
@given(plain)
@settings(max_examples=100, deadline=None)
def test_yaml_written_is_read_back_equal(data):
    data = {"a": data}
    assert yaml.read(yaml.write(data), "x").data == data


@given(st.text(alphabet=":-[]{}&*!|>'\"#%@,? \n\tab1.~<=", max_size=60))
@settings(max_examples=300, deadline=None)
def test_recipe_of_random_text_gives_a_clear_error(text):
    with pytest.raises(NlpkitError):
        parse(text.encode(), "r.yaml", Path("."))


@pytest.mark.slow
@given(st.text(alphabet="modeltrain.=:[]{}'\"0123-~ \n", max_size=40))
@settings(max_examples=300, deadline=None)
def test_override_of_random_text_works_or_gives_a_clear_error(text):
    said = "--set "
    try:
        resolve(GOOD, text)
    except NlpkitError as error:
        said = str(error)
    assert said.startswith("--set ")


def test_recipe_gives_the_typed_config_of_each_part():
    found = resolve(GOOD, "objective.weight=2", "train.lr=1e-4").recipe
    assert (found.name, found.seed, found.out) == ("x", 1, "runs/x")
    assert found.model.family == "cpm_ant"
    assert found.model.config == registry.load("models", "cpm_ant").Config()
    assert found.tokenizer.kind == "cpm_ant"
    assert found.tokenizer.config.vocab_size == 8000
    [objective] = found.objective
    assert (objective.name, objective.weight) == ("cpm_ant", 2.0)
    assert isinstance(objective.config, registry.load("objectives", "cpm_ant").Config)
    assert isinstance(found.data, DataConfig)
    assert found.attention.backend == "auto"
    assert found.train.lr == 1e-4


def test_recipe_from_a_checkpoint_needs_no_model_and_no_tokenizer():
    text = GOOD.replace(SECTIONS["model"], "init_from: runs/y").replace(SECTIONS["tokenizer"], "")
    found = resolve(text).recipe
    assert (found.model, found.tokenizer, found.init_from) == (None, None, "runs/y")


def test_recipe_with_a_tokenizer_path_has_no_kind():
    found = resolve(GOOD, "tokenizer={path: dir}").recipe.tokenizer
    assert (found.path, found.kind, found.config) == ("dir", None, None)


def test_recipe_accepts_a_byte_order_mark_crlf_and_aliases():
    text = "\ufeff" + GOOD.replace("seed: 1", "seed: &s 7").replace("steps: 300", "steps: *s")
    found = parse(text.replace("50", "1").replace("\n", "\r\n").encode(), "r.yaml", Path("."))
    assert (found.recipe.seed, found.recipe.train.steps) == (7, 7)


def test_recipe_takes_a_module_of_the_users(tmp_path, monkeypatch):
    module = tmp_path / "mylab" / "rwkv.py"
    module.parent.mkdir()
    module.write_text(
        "from nlpkit.models.config import ModelConfig\n"
        "class Config(ModelConfig):\n    depth: int = 2\n"
        "    prompt_length: int = 1\n    prompts: int = 1\n"
        "MODEL_TYPE, DEFAULT_OBJECTIVE, VOCABULARY = 'rwkv', 'clm', ('bpe',)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    text = GOOD.replace("{family: cpm_ant}", "{family: mylab.rwkv, depth: 3}")
    found = resolve(text)
    assert found.recipe.model.config.depth == 3
    assert validator().is_valid(found.dump())
    assert problems(text.replace("depth", "deph")) == [
        "3:29: model.deph: unknown setting, did you mean depth?"
    ]


@pytest.mark.parametrize(
    ("overrides", "path", "value"),
    [
        (["train.steps=70"], "train.steps", 70),
        (["train.steps=70", "train.steps=80"], "train.steps", 80),
        (["train={steps: 9, warmup_steps: 1}"], "train.steps", 9),
        (["data.train=[a.txt, b.jsonl]"], "data.train.1.files.0", "b.jsonl"),
        (["data.train=[a.txt, b.jsonl]", "data.train.1=c.txt"], "data.train.1.files.0", "c.txt"),
        (["model.prompts.infilling=3"], "model.prompts.infilling", 3),
        (["train.clip=null"], "train.clip", None),
        (["train={budget: 20.5, warmup_ratio: 0.1}"], "train.budget", "20.5s"),
        (["name='2024'"], "name", "2024"),
        (["out=a=b"], "out", "a=b"),
        (["attention.backend=reference"], "attention.backend", "reference"),
        (["train.optimizer=muon"], "train.optimizer.name", "muon"),
        (["train.optimizer=sgd", "train.optimizer.momentum=0.5"], "train.optimizer.momentum", 0.5),
        (["train.optimizer=sgd", "train.optimizer.momentum=0.5"], "train.optimizer.name", "sgd"),
    ],
)
def test_override_changes_the_setting_and_its_origin(overrides, path, value):
    found = resolve(GOOD, *overrides)
    here = found.dump()
    for step in path.split("."):
        here = here[int(step)] if isinstance(here, list) else here[step]
    assert here == value
    assert found.origin[path] == "command line"


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("train.steps", "--set train.steps: expected section.key=value, such as train.steps=100"),
        ("=3", "--set =3: expected section.key=value, such as train.steps=100"),
        ("a..b=3", "--set a..b=3: expected section.key=value, such as train.steps=100"),
        ("train.lr=[1", "--set train.lr: not YAML: expected `,` or `]`"),
        (
            "data.train=*.txt",
            "--set data.train: not YAML: text that begins with * or & needs quotes",
        ),
        ("trian.lr=1", "--set trian.lr: trian: unknown setting, did you mean train?"),
        (
            "model={family:gpt2, hidden_size:64}",
            "--set model: model.family:gpt2: a space is missing after the colon",
        ),
        ("seed.x=1", "--set seed.x: seed is a single value, not a section"),
        ("train.steps.x=1", "--set train.steps.x: train.steps is a single value, not a section"),
        ("train.lr=fast", '--set train.lr: expected a number, got the text "fast"'),
        ("train.lr='1'", '--set train.lr: expected a number, got the text "1": remove the quotes'),
        ("train.lr=", "--set train.lr: expected a number, got nothing"),
        (
            "model={family: cpm_ant, hiden_size: 1}",
            "--set model: model.hiden_size: unknown setting",
        ),
        (
            "model={family: cpm_ant, family: b}",
            "--set model: model.family: given twice, first in line 1",
        ),
        (
            "objective=clm",
            '--set objective: expected settings (`key: value`), got the text "clm": '
            "write {name: clm}, or objective.name=clm to keep its other settings",
        ),
        (
            "tokenizer=runs/x",
            '--set tokenizer: expected settings (`key: value`), got the text "runs/x": '
            "write {path: runs/x}, or tokenizer.path=runs/x to keep its other settings",
        ),
    ],
)
def test_override_with_a_mistake_says_which(override, said):
    assert problems(GOOD, override)[0].removesuffix(", did you mean hidden_size?") == said


def test_dropout_of_a_checkpoint_is_set_without_its_family():
    given = GOOD.replace(SECTIONS["model"], "init_from: base")
    found = resolve(given, "model.dropout=0.2")
    assert found.recipe.model.family is None
    assert found.dump()["model"] == {"dropout": 0.2}
    assert found.origin["model.dropout"] == "command line"
    assert resolve(found.to_yaml()).recipe == found.recipe
    validator().validate(found.dump())
    assert problems(given, "model.hidden_size=8") == [
        "--set model.hidden_size: with init_from the family and sizes are the checkpoint's; "
        "only dropout rates can be set"
    ]
    families = ", ".join(registry.names("models"))
    assert problems(given.replace("init_from: base", ""), "model.dropout=0.2") == [
        f"--set model.dropout: model.family: missing (model family: {families})"
    ]


def test_override_of_a_hyphen_is_a_name_and_no_list():
    assert resolve(GOOD, "data.train=-").dump()["data"]["train"][0]["files"] == ["-"]


def test_override_of_null_takes_back_what_does_not_go_with_a_path():
    sets = [f"tokenizer.{each}" for each in ("path=x", "kind=null", "vocab_size=null")]
    found = resolve(GOOD, *sets)
    assert found.dump()["tokenizer"] == {"path": "x"}
    assert found.recipe == resolve(GOOD, "tokenizer={path: x}").recipe
    said = "cannot be set with path, whose tokenizer is already trained"
    assert problems(GOOD, *sets[:2]) == [f"4:40: tokenizer.vocab_size: {said}"]


def test_override_with_epochs_takes_the_place_of_steps():
    assert problems(GOOD, "train.epochs=3", "train.steps=300") == [
        "--set train.epochs: 3 and train.steps: 300 exclude each other; remove one of them"
    ]
    found = resolve(GOOD, "train.epochs=3")
    assert (found.recipe.train.steps, found.recipe.train.epochs) == (None, 3.0)
    assert found.origin["train.epochs"] == "command line"
    assert found.origin["train.steps"] == "default"
    assert found.recipe == resolve(GOOD, "train.steps=null", "train.epochs=3").recipe
    again = resolve(found.to_yaml())
    assert again.recipe == found.recipe
    assert find_changes(found.dump(), again.dump()) == []
    validator().validate(found.dump())
    fewer = resolve(GOOD, "train.steps=null", "train.epochs=2").dump()
    assert find_changes(found.dump(), fewer) == ["train.epochs"]


def test_override_of_a_list_entry_that_is_not_there_says_what_is():
    text = GOOD.replace("a.txt", "[a.txt, b.txt]")
    assert problems(text, "data.train.2=c.txt") == [
        "--set data.train.2: data.train is a list with the entries 0 to 1"
    ]
    assert problems(GOOD.replace("a.txt", "[]"), "data.train.0=c.txt")[-1] == (
        "--set data.train.0: data.train is an empty list"
    )


def test_origin_names_default_line_and_command_line():
    text = GOOD.replace("a.txt", "\n  - a.txt\n  - {files: b.txt, weight: 2.0}")
    found = resolve(text.replace("}\nobjective", "\nobjective").replace("data: {", "data:\n  "))
    assert found.origin["seed"] == "r.yaml:2"
    assert found.origin["out"] == "default"
    assert found.origin["model.family"] == "r.yaml:3"
    assert found.origin["model.prompts.infilling"] == "default"
    assert found.origin["data.train.0.files.0"] == "r.yaml:7"
    assert found.origin["data.train.0.weight"] == "default"
    assert found.origin["data.train.1.weight"] == "r.yaml:8"
    assert found.origin["objective.name"] == "r.yaml:9"
    assert found.origin["train.steps"] == "r.yaml:10"
    assert set(found.origin) == {".".join(map(str, p)) for p, _ in flatten(found.dump())}


def test_objective_that_follows_another_has_its_length_unless_it_names_one():
    bert = GOOD.replace("{family: cpm_ant}", "{family: bert, max_positions: 64}")
    bert = bert.replace("{kind: cpm_ant, vocab_size: 8000}", "{kind: wordpiece}")
    said = "[{name: nsp, max_length: 48}, {name: mlm}]"
    found = resolve(bert.replace("{name: cpm_ant}", said))
    assert [each.config.max_length for each in found.recipe.objective] == [48, 48]
    assert [each["max_length"] for each in found.dump()["objective"]] == [48, 48]
    assert found.origin["objective.1.max_length"] == "default"
    other = resolve(bert.replace("{name: cpm_ant}", said.replace("mlm", "mlm, max_length: 32")))
    assert [each.config.max_length for each in other.recipe.objective] == [48, 32]
    idle = "r.yaml:6:66: objective.1.max_length: has no effect behind nsp, which cuts the text"
    assert (found.warnings, other.warnings) == ((), (idle,))
    stream = resolve(bert.replace("{name: cpm_ant}", said.replace("mlm", "mlm, contiguous: true")))
    assert "objective.1.contiguous: has no effect behind nsp" in stream.warnings[0]


def test_origin_of_a_list_of_one_objective_is_its_line():
    found = resolve(GOOD.replace("{name: cpm_ant}", "\n  - name: cpm_ant\n    max_length: 99"))
    assert found.origin["objective.max_length"] == "r.yaml:8"
    assert found.origin["objective.weight"] == "default"


@pytest.mark.parametrize(
    "overrides",
    [
        [],
        ["tokenizer={path: '~/x y: #z'}", "name=雪", "out='010'"],
        ["objective=[{name: cpm_ant, weight: 0.5}]", "train.lr=1e-12"],
        ["model=null", "init_from=1e4.ckpt", "tokenizer=null", "train.clip=null"],
        ["data.train=['yes', 'null', '1e5', '- a', \"tab\\there\"]"],
        ["train.optimizer=muon", "train.beta2=0.95"],
        ["train.optimizer={name: sgd, momentum: 0.5}"],
    ],
)
def test_resolved_recipe_written_out_loads_to_an_equal_one(overrides):
    found = resolve(GOOD, *overrides)
    again = resolve(found.to_yaml())
    assert again.recipe == found.recipe
    assert again.to_yaml() == found.to_yaml()
    assert find_changes(found.dump(), again.dump()) == []


def test_changed_names_what_differs_and_leaves_free_settings_out():
    before = resolve(GOOD).dump()
    after = resolve(
        GOOD, "train.lr=0.5", "model.prompts.infilling=2", "data.train=[a.txt, b.txt]"
    ).dump()
    assert sorted(find_changes(before, after)) == [
        "data.train.1.files.0",
        "data.train.1.format",
        "data.train.1.hf",
        "data.train.1.max_rows",
        "data.train.1.split",
        "data.train.1.text_key",
        "data.train.1.weight",
        "model.prompts.infilling",
        "train.lr",
    ]
    free = resolve(GOOD, "train.save_every=7", "train.keep=9", "name=y", "out=z").dump()
    assert find_changes(before, free) == []


@pytest.mark.parametrize("name", packaged())
def test_packaged_recipe_loads_and_fits_the_schema(name):
    found = load(name)
    validator().validate(yaml.read(packaged()[name].read_text("utf-8"), name).data)
    validator().validate(found.dump())


def test_schema_is_valid_and_refuses_what_loading_refuses():
    jsonschema.Draft202012Validator.check_schema(validator().schema)
    good = yaml.read(GOOD, "x").data
    assert validator().is_valid(good)
    for section, wrong in [
        ("model", {"family": "cpm_amt"}),
        ("model", {"family": "cpm_ant", "hiden_size": 3}),
        ("model", {"hidden_size": 3}),
        ("tokenizer", {"kind": "cpm_ant", "path": "x"}),
        ("tokenizer", {}),
        ("objective", []),
        ("objective", [{"name": "cpm_ant", "weight": 0}]),
        ("attention", {"backend": "refrence"}),
        ("train", {"steps": 0}),
        ("train", {}),
        ("train", {"warmup_steps": 1}),
        ("train", {"epochs": 0}),
        ("train", {"steps": 9, "optimizer": "muonn"}),
        ("train", {"steps": 9, "optimizer": {"name": "muon", "beta2": 0.9}}),
        ("train", {"steps": 9, "optimizer": {"momentum": 0.9}}),
        ("sed", 1),
    ]:
        assert not validator().is_valid(good | {section: wrong}), (section, wrong)


@pytest.mark.parametrize(
    ("section", "wrong", "path", "key"),
    [
        ("objective", [{"name": "nsp"}, {"name": "mlm", "maxlength": 3}], [1], "maxlength"),
        (
            "objective",
            {"name": "mixture", "of": [{"name": "mlm"}, {"name": "sop", "segmets": 3}]},
            ["of", 1],
            "segmets",
        ),
        ("attention", {"layers": [{"kind": "causal"}, {"kind": "local_window", "wndow": 3}]},
         ["layers", 1], "wndow"),
        ("tokenizer", {"source": {"kind": "bpe"}, "target": {"kind": "bpe", "vocabsize": 3}},
         ["target"], "vocabsize"),
        ("tokenizer", {"source": {"kind": "bpe"}}, [], "source"),
    ],
    ids=["list", "mixture", "layers", "tokenizers", "one side"],
)  # fmt: skip
def test_schema_marks_a_mistake_inside_a_list_at_its_entry(section, wrong, path, key):
    recipe = yaml.read(GOOD, "x").data | {section: wrong}
    found = jsonschema.exceptions.best_match(validator().iter_errors(recipe))
    assert list(found.absolute_path) == [section, *path]
    assert key in found.message


def test_schema_takes_members_of_the_users_own_and_what_loading_writes(tmp_path):
    mixed = {"name": "mixture", "of": [{"name": "mlm", "weight": 2.0}, {"name": "my.own", "x": 3}]}
    sides = {"source": {"kind": "bpe", "vocab_size": 300}, "target": {"path": "x"}}
    good = yaml.read(GOOD, "x").data
    assert validator().is_valid(good | {"objective": mixed, "tokenizer": sides})
    text = "name: x\nmodel: {family: seq2seq}\nobjective: {name: seq2seq}\n"
    text += "train: {steps: 9, warmup_steps: 1}\n"
    text += "data: {train: [a.jsonl]}\ntokenizer: {source: {kind: bpe}, target: {path: x}}\n"
    (tmp_path / "two.yaml").write_text(text)
    found = load(str(tmp_path / "two.yaml"))
    validator().validate(found.dump())
    assert found.origin["tokenizer.source.kind"].endswith("two.yaml:6")


def test_optimizer_is_a_name_or_settings_in_loading_and_schema():
    short, full = (GOOD.replace("50}", f"50, optimizer: {text}}}") for text in
                   ("muon", "{name: muon, ns_steps: 5}"))  # fmt: skip
    assert resolve(short).recipe == resolve(full).recipe
    assert resolve(short).origin["train.optimizer.name"] == "r.yaml:7"
    assert resolve(short).origin["train.optimizer.ns_steps"] == "default"
    assert resolve(GOOD).dump()["train"]["optimizer"] == {"name": "adamw"}
    assert find_changes(resolve(GOOD).dump(), resolve(short).dump())[0] == "train.optimizer.name"
    one = resolve(short, "train.optimizer.momentum=0.5")
    assert one.dump()["train"]["optimizer"]["momentum"] == 0.5
    assert one.origin["train.optimizer.name"] == "r.yaml:7"
    for text in (short, full, GOOD):
        validator().validate(yaml.read(text, "x").data)
        validator().validate(resolve(text).dump())
    own = {"name": "mylab.shampoo", "blocks": 3}
    good = yaml.read(GOOD, "x").data
    assert validator().is_valid(good | {"train": {"steps": 9, "optimizer": own}})
    assert validator().is_valid(good | {"train": {"steps": 9, "optimizer": "mylab.shampoo"}})


def test_schema_describes_every_setting():
    def settings_of(node):
        if isinstance(node, dict):
            yield from node.get("properties", {}).items()
            for inner in node.values():
                yield from settings_of(inner)
        elif isinstance(node, list):
            for inner in node:
                yield from settings_of(inner)

    # Bare `{const: ...}` is the condition of an if.
    found = settings_of(validator().schema)
    bare = [n for n, s in found if "description" not in s and "const" not in s]
    assert bare == []


def test_load_finds_files_before_packaged_names(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cpm_ant").mkdir()
    assert load("cpm_ant").recipe.name == "cpm_ant"
    (tmp_path / "mine.yaml").write_text(GOOD)
    found = load("mine.yaml")
    assert found.origin["seed"] == "mine.yaml:2"
    assert found.base.resolve() == tmp_path


def test_packaged_recipes_of_a_wheel_are_those_inside_the_package(tmp_path, monkeypatch):
    folder = tmp_path / "_shipped" / "recipes"
    (folder / "claims").mkdir(parents=True)
    (folder / "mine.yaml").write_text(GOOD)
    (folder / "claims" / "sop.yaml").write_text(GOOD)
    monkeypatch.setattr(recipe, "_PACKAGE", tmp_path)
    assert list(packaged()) == ["claims/sop", "mine"]
    assert load("claims/sop").base == folder / "claims"


def test_load_of_an_empty_name_is_a_wrong_command_line():
    with pytest.raises(UsageError, match="RECIPE is empty; give a file, or the name of a pack"):
        load("")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("cpm_amt", "cpm_amt: no such recipe, did you mean the packaged recipe cpm_ant?"),
        (
            "r/cpm_ant.yml",
            "r/cpm_ant.yml: no such recipe, did you mean the packaged recipe cpm_ant?",
        ),
        ("boook.yaml", "boook.yaml: no such recipe, did you mean book.yaml?"),
        ("mine/boook.yml", "mine/boook.yml: no such recipe, did you mean mine/book.yaml?"),
        ("zzz.yaml", "zzz.yaml: no such recipe; the packaged ones: nlpkit recipes"),
        ("folder", "folder: is a directory, not a recipe"),
        ("locked.yaml", "locked.yaml: permission denied"),
        ("dangling.yaml", "dangling.yaml: no such file or directory"),
        ("loop.yaml", "loop.yaml: too many levels of symbolic links"),
    ],
)
def test_load_of_a_missing_file_says_what_there_is(name, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "mine").mkdir()
    (tmp_path / "dangling.yaml").symlink_to("gone.yaml")
    (tmp_path / "loop.yaml").symlink_to("loop.yaml")
    for file in ("book.yaml", "mine/book.yaml"):
        (tmp_path / file).write_text("name: book\n", encoding="utf-8")
    real_open = open

    def refuse(path, *rest, **more):
        if str(path) == "locked.yaml":
            raise PermissionError(13, "Permission denied", str(path))
        return real_open(path, *rest, **more)

    (tmp_path / "locked.yaml").touch()
    monkeypatch.setattr("builtins.open", refuse)
    with pytest.raises(FileError) as caught:
        load(name)
    assert str(caught.value) == said


def test_path_is_looked_for_here_then_beside_the_recipe(tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    (tmp_path / "recipes" / "near").mkdir(parents=True)
    (tmp_path / "recipes" / "r.yaml").write_text(GOOD)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    found = load("recipes/r.yaml")
    assert found.path("here") == Path("here")
    assert found.path("near").resolve() == tmp_path / "recipes" / "near"
    assert found.path("nowhere") == Path("nowhere")
    assert found.path("$HOME/here") == found.path("~/here") == tmp_path / "here"


def test_recipe_is_checked_without_torch(tmp_path):
    (tmp_path / "r.yaml").write_text(GOOD.replace("steps", "stepz"))
    program = (
        "import sys\n"
        "from nlpkit import recipe\n"
        "try: recipe.load(sys.argv[1])\n"
        "except recipe.RecipeError: print(sorted({'torch', 'transformers'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "r.yaml")], capture_output=True, text=True
    )
    assert done.stdout == "[]\n", done.stderr


@pytest.mark.parametrize("text", ["{text}", "{text} It is {label}.", "{text}: 好"])
def test_template_on_the_command_line_is_text_and_no_mapping(text: str) -> None:
    resolved = recipe.load("gpt1_classify", [f"eval.prompt.template={text}"])
    assert resolved.recipe.eval.prompt.template == text


def test_template_without_quotes_in_a_file_is_told_to_have_them(tmp_path: Path) -> None:
    text = recipe.find("gpt1_classify").read_text(encoding="utf-8")
    path = tmp_path / "r.yaml"
    path.write_text(f"{text}\neval: {{prompt: {{template: {{text}}}}}}\n", encoding="utf-8")
    with pytest.raises(RecipeError, match=r"eval\.prompt\.template: .*put `\{…\}` in quotes"):
        recipe.load(str(path))


def test_characters_that_json_escapes_in_two_halves_are_whole():
    for value in ("r😀", "𠮷野家"):
        read = yaml.read(json.dumps({"out": value}).encode(), "x")
        assert read.data == {"out": value}
        assert load("gpt2", [f"out={json.dumps(value)}"]).recipe.out == value
