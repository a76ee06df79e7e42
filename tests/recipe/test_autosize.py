"""One dial: `model.size` and `model.depth`, the settings that they decide, and their origin."""

from pathlib import Path

import pytest
import torch

from nlpkit import recipe, registry
from nlpkit.checkpoints import changes
from nlpkit.checkpoints.run_directory import RunDirectory
from nlpkit.config import FrozenConfig
from nlpkit.errors import FileError, RecipeError
from nlpkit.models import families, meta, sizes
from nlpkit.recipe import training_defaults
from nlpkit.tokenizers.bpe import Config, Tokenizer
from nlpkit.train.optimizers import adamw, muon
from tests import _tiny
from tests._schema import validator

RECIPE = """\
name: dialed
model: {family: gpt2, size: 3M}
tokenizer: {kind: bpe, vocab_size: 2000}
data: {train: TRAIN}
objective: {name: clm, max_length: 256}
"""


@pytest.fixture
def short(tmp_path: Path) -> Path:
    """A recipe on 37,000 bytes of text, about 10,000 tokens."""
    return _written(tmp_path, 37_000)


def _written(folder: Path, size: int) -> Path:
    text = folder / "a.txt"
    with open(text, "w") as file:
        file.truncate(size)  # no disk is used; only the size is read
    (folder / "r.yaml").write_text(RECIPE.replace("TRAIN", str(text)))
    return folder / "r.yaml"


def _said(path: Path, *sets: str) -> list[str]:
    with pytest.raises(RecipeError) as caught:
        recipe.load(str(path), sets)
    return [problem.removeprefix(f"{path}:") for problem in caught.value.problems]


def _family(name: str, vocab_size: int = 2000, **given: object) -> sizes.Family:
    module = families.load(name)
    vocab_size = vocab_size if families.load(name).VOCABULARY else 0
    return sizes.Family(name, module.Config, given, {}, vocab_size)


# word2vec has no layers: a message says so.
SIZED = [name for name in registry.names("models") if name != "word2vec"]


def _count(config: FrozenConfig, family: str, vocab_size: int) -> int:
    model = meta.meta_model(families.load_model(family).Model, config, vocab_size)
    return sum(parameter.numel() for parameter in model.parameters())


FAST = ("albert", "cpm_ant", "electra", "gru", "llama", "seq2seq", "vit")


@pytest.mark.fast_cases(2)
@pytest.mark.parametrize(
    "name", [name if name in FAST else pytest.param(name, marks=pytest.mark.slow) for name in SIZED]
)
@pytest.mark.parametrize("size", [pytest.param(3_000_000, marks=pytest.mark.slow), 110_000_000])
def test_every_family_has_the_parameters_that_are_asked_for(name, size):
    settings = sizes.fit_to_size(_family(name), size)
    config = families.load(name).Config(**settings)
    with torch.device("meta"):
        vocab_size = 2000 if config.can("has_vocabulary") else 0
        model = families.load_model(name).Model(config, vocab_size, "auto")
    number = sum(parameter.numel() for parameter in model.parameters())
    assert number == pytest.approx(size, rel=0.04)


def test_usual_sizes_are_found():
    # GPT-2 (Radford et al. 2019), BERT base (Devlin et al. 2018): 12 layers of 768, 12 heads.
    usual = {"hidden_size": 768, "num_layers": 12, "num_heads": 12}
    assert sizes.fit_to_size(_family("gpt2", 50257), 124_000_000) == usual
    assert sizes.fit_to_depth(_family("gpt2"), 12) == usual
    assert sizes.fit_to_depth(_family("bert"), 12) == {**usual, "intermediate_size": 3072}
    # CPM-Ant's feed-forward layers are 2.5 times as wide, its heads 64 here.
    assert sizes.fit_to_depth(_family("cpm_ant"), 4)["intermediate_size"] == 640
    assert sizes.fit_to_depth(_family("lstm"), 2) == {"hidden_size": 640, "num_layers": 2}


@pytest.mark.fast_cases(8)
@pytest.mark.parametrize("name", SIZED)
def test_depth_is_the_number_of_layers(name):
    settings = sizes.fit_to_depth(_family(name), 13)
    assert settings["num_layers"] == 13
    families.load(name).Config(**settings)


def test_what_the_recipe_says_is_kept():
    assert sizes.fit_to_size(_family("gpt2", hidden_size=320), 10_000_000)["num_layers"] == 7
    wide = sizes.fit_to_size(_family("gpt2", num_layers=2, num_heads=5), 10_000_000)
    assert "num_layers" not in wide
    assert wide["hidden_size"] % 5 == 0
    assert sizes.fit_to_depth(_family("t5", head_dim=32), 2)["num_heads"] == 4


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("15M", 15_000_000),
        ("1.5B", 1_500_000_000),
        ("800k", 800_000),
        (70, 70),
        ("12 M", 12 * 10**6),
    ],
)
def test_size_is_a_number_with_a_unit(text, number):
    assert sizes.parse_size(text) == number


@pytest.mark.parametrize("text", ["", "M", "1.5", "1e6", "-3M", "0", "15MB", "١M", 0, True])
def test_size_that_is_none_is_refused(text):
    with pytest.raises(ValueError, match="is not a number of parameters such as 15M"):
        sizes.parse_size(text)


def test_everything_open_is_decided_and_its_origin_said(short):
    found = recipe.load(str(short), ["train.optimizer=muon"])
    assert {k: v for k, v in found.origin.items() if v == "from model.size"}.keys() == {
        "model.hidden_size",
        "model.num_layers",
        "model.num_heads",
        *(f"train.{n}" for n in ("epochs", "tokens_per_step", "lr", "schedule", "warmup_ratio")),
    }
    assert found.origin["model.size"] == f"{short}:2"
    train = found.recipe.train
    # 10,000 tokens, at most 4 times; 2 √40,000 = 400 tokens a step, and at least 512.
    assert (train.epochs, train.steps, train.tokens_per_step) == (4, None, 512)
    assert (train.schedule.name, train.warmup_ratio) == ("linear", 0.1)
    assert train.lr == float(f"{muon.RATE * 256 / 224:.2g}")
    validator().validate(found.dump())


def test_much_text_gives_twenty_tokens_for_each_parameter(tmp_path):
    path = _written(tmp_path, 10**9)
    found = recipe.load(str(path)).recipe
    count = _count(found.model.config, "gpt2", 2000)
    # 2 √(20 · 3.1 M) = 15,745
    assert found.train.tokens_per_step == 16384
    assert found.train.steps == round(20 * count / 16384)
    assert found.train.epochs is None
    rows = recipe.load(str(path), ["train.rows_per_step=8"]).recipe.train  # of the same tokens
    estimated = training_defaults.estimate_tokens(found, tmp_path)
    assert estimated is not None
    assert rows.epochs == pytest.approx(20 * count / estimated, rel=0.01)


def test_first_rows_alone_count_as_text(tmp_path):
    path = _written(tmp_path, 10**9)
    (tmp_path / "few.txt").write_text("some words\n" * 10**5)
    source = f"data.train=[{{files: {tmp_path}/few.txt, max_rows: 37}}]"
    found = recipe.load(str(path), [source]).recipe
    assert training_defaults.estimate_tokens(found, tmp_path) == pytest.approx(
        100
    )  # 10 bytes of 37 lines
    assert (found.train.epochs, found.train.steps) == (4, None)


@pytest.mark.fast_cases(5)
@pytest.mark.parametrize(
    ("sets", "expected"),
    [
        (["train.steps=100"], {"steps": 100, "epochs": None, "tokens_per_step": 512}),
        (["train.steps=4096"], {"tokens_per_step": 16384}),  # 4 times as many
        (["train.epochs=100"], {"epochs": 100, "tokens_per_step": 2048}),  # 2 √10⁶
        (["train.budget=1h"], {"steps": None, "epochs": None, "tokens_per_step": 512}),
        (["train.tokens_per_step=600"], {"epochs": 4, "tokens_per_step": 600}),
        (["train.tokens_per_batch=300"], {"tokens_per_step": 600}),
        (["train.rows_per_step=8"], {"epochs": 4, "tokens_per_step": None, "rows_per_step": 8}),
        (["train.rows_per_step=8", "train.steps=5"], {"steps": 5, "tokens_per_step": None}),
        (["train.rows_per_step=null"], {"epochs": 4, "tokens_per_step": 512}),
        (["objective.max_length=1000"], {"tokens_per_step": 1024}),
        (["train.lr=1e-4"], {"lr": 1e-4}),
        (["train.schedule=cosine"], {"schedule": "cosine", "warmup_ratio": 0.1}),
        (["train.warmup_steps=7"], {"schedule": "linear", "warmup_ratio": None, "warmup_steps": 7}),
        (["train.warmup_steps=0", "train.schedule=constant"], {"warmup_ratio": None}),
        (["train.lr=null", "train.steps=null"], {"epochs": 4}),
    ],
)
def test_settings_of_training_that_are_given_are_kept(short, sets, expected):
    train = recipe.load(str(short), sets).dump()["train"]
    assert {name: train[name] for name in expected} == expected


def test_command_line_takes_the_place_of_sizes_in_the_file(short):
    text = short.read_text().replace("size: 3M", "hidden_size: 128, num_layers: 9, num_heads: 1")
    short.write_text(text + "train: {steps: 5, warmup_steps: 1}\n")
    assert recipe.load(str(short), ["model.depth=3"]).recipe.model.config.hidden_size == 192
    short.write_text(text.replace("hidden_size", "depth: 7, hidden_size"))
    assert recipe.load(str(short), ["model.size=3M"]).recipe.model.config.hidden_size == 224


def test_file_takes_the_place_of_sizes_in_its_base(short):
    text = short.read_text().replace("size: 3M", "hidden_size: 128, num_layers: 9, num_heads: 1")
    short.write_text(text + "train: {steps: 5, warmup_steps: 1}\n")
    above = short.with_name("above.yaml")
    above.write_text("extends: r.yaml\nmodel: {size: 3M}\n")
    assert recipe.load(str(above)).recipe.model.config.hidden_size == 224
    validator().validate({"extends": "r.yaml", "model": {"size": "3M"}})
    above.write_text("extends: r.yaml\nmodel: {depth: 3, num_layers: 4}\n")
    assert "model.depth: 3, and num_layers is 4; remove one of them" in _said(above)[0]


def test_one_rate_serves_all_widths():
    for optimizer in (adamw, muon):
        config = optimizer.Config()
        assert optimizer.peak_lr(config, 512) / optimizer.peak_lr(config, 128) == 1 / 4
        # Narrower ones take that of 128, the narrowest that was measured (docs/dial.md).
        assert optimizer.peak_lr(config, 8) == optimizer.peak_lr(config, 128)
    assert muon.peak_lr(muon.Config(adjust_lr_fn="original"), 256) is None


@pytest.mark.fast_cases(1)
@pytest.mark.parametrize(("family", "rate"), [("gpt2", 0.0023), ("gpt", 0.00091), ("lstm", 0.0021)])
def test_rate_is_that_of_the_kind_of_family(short, family, rate):
    # 2e-3 at 256, by 1 / width: 224, 224 and 496 wide; 0.4 of it after norms, twice for cells.
    found = recipe.load(str(short), [f"model={{family: {family}, size: 3M}}"])
    assert found.recipe.train.lr == rate


MISTAKES = {
    "model.depth=4": "2:17: model.size: size and depth exclude each other; remove one",
    "model.hidden_size=512": "2:29: model.size: 3,000,000 parameters; the nearest gpt2, with "
    "hidden_size 512, num_layers 1, num_heads 8 and 2,000 tokens, has 4,701,696; remove "
    "hidden_size, or change the size",
    "model.size=1k": "--set model.size: 1,000 parameters; the nearest gpt2, with hidden_size 8, "
    "num_layers 1, num_heads 1 and 2,000 tokens, has 25,080; take another size",
    "model.size=big": "--set model.size: 'big' is not a number of parameters such as 15M, 1.5B or "
    "15000000",
    "train.optimizer=sgd": "--set train.optimizer: train.lr: missing: optimizer sgd has no rate "
    "for every size; set it",
    "data.train=[-]": "1:1: train.steps: missing: size needs the amount of text, and how much "
    "there is on stdin is not known; set train.steps, epochs, words or budget",
    "init_from=x": "2:29: model.size: with init_from the sizes are the checkpoint's; remove it",
    "train.stps=3": "--set train.stps: unknown setting, did you mean steps?",
    "model.num_heads=x": '--set model.num_heads: expected an integer, got the text "x"',
    "model.hiden_size=x": "--set model.hiden_size: unknown setting, did you mean hidden_size?",
    "attention={kind: full}": "--set attention: attention.kind: full is bidirectional, and clm "
    "needs causal (a state depends only on its own token and the tokens to its left); kinds that "
    "fit: block_local, causal, disentangled, fixed, hybrid, local_window, longformer, lsh, "
    "memory_compressed, relative_bias_causal, relative_keys, strided",
    "model={family: null, size: 3M}": "--set model: model.family: missing (model family: "
    f"{', '.join(registry.names('models'))})",
    "tokenizer=null": "1:1: tokenizer: missing (kind: NAME to train one, or path: DIR; or source "
    "and target, one for each)",
}


@pytest.mark.parametrize(("change", "said"), MISTAKES.items())
def test_mistakes_are_named_with_their_line(short, change, said):
    if change == "model.depth=4":  # on the command line it takes the place of size
        short.write_text(short.read_text().replace("size: 3M", "size: 3M, depth: 4"))
        change, said = "seed=2", said.replace("2:17", "2:29")
    assert _said(short, change) == [said]


@pytest.mark.slow
def test_heads_are_such_as_attention_takes(short):
    split = ["attention={kind: strided, pattern: split}", "model.size=5M"]
    assert recipe.load(str(short), split).recipe.model.config.num_heads % 2 == 0
    assert _said(short, *split, "model.num_heads=3") == [
        "--set attention: attention.kind: strided does not fit the model: it shares the heads "
        "among 2 kinds; the number of heads is 3"
    ]


def test_other_mistakes_of_the_file_are_named(short):
    text = short.read_text().replace("size: 3M", "size: 3M, num_layers: 3, depth: 4")
    short.write_text(text.replace(", depth: 4", "").replace("size: 3M", "depth: 4"))
    assert _said(short) == ["2:30: model.depth: 4, and num_layers is 3; remove one of them"]
    short.write_text(text.replace("gpt2, size: 3M, num_layers: 3, depth: 4", "vit, size: 3M"))
    assert "clm needs causal" in _said(short)[0]


def test_missing_text_is_said_as_ever(short):
    with pytest.raises(FileError, match=r"no such file: nothing\.txt; looked in"):
        recipe.load(str(short), ["data.train=nothing.txt"])


def test_family_from_outside_gets_a_size_too(short):
    found = recipe.load(str(short), ["model.family=tests.parts.recurrent"]).recipe.model.config
    assert _count(found, "tests.parts.recurrent", 2000) == pytest.approx(3_000_000, rel=0.04)


def test_size_of_the_vocabulary_counts(short):
    words = recipe.load(str(short), ["tokenizer.vocab_size=8000"]).recipe.model.config
    assert _count(words, "gpt2", 8000) == pytest.approx(3_000_000, rel=0.04)


def test_tokenizer_is_found_by_its_path_as_a_run_finds_it(short, tmp_path, monkeypatch):
    words = Tokenizer.train(["a b c"] * 9, Config(vocab_size=300))
    (tmp_path / "words").mkdir()
    words.save(tmp_path / "words")
    monkeypatch.setenv("HOME", str(tmp_path))
    found = []
    for path in (tmp_path / "words", "~/words", "$HOME/words", "${HOME}/words"):
        dump = recipe.load(str(short), [f"tokenizer={{path: '{path}'}}"]).dump()
        found.append(dump["model"]["hidden_size"])
    assert found == found[:1] * 4


def test_written_recipe_is_the_same_whatever_the_rules(short, monkeypatch):
    found = recipe.load(str(short))
    written = short.with_name("recipe.yaml")
    written.write_text(found.to_yaml())
    (short.parent / "a.txt").unlink()  # nothing is decided any more, so nothing is read
    monkeypatch.setattr(adamw, "RATE", 5.0)
    monkeypatch.setattr(sizes, "HEAD", 32)
    assert recipe.load(str(written)).recipe == found.recipe


TINY = (
    *(
        "model={family: gpt2, size: 12k, max_positions: 64}",
        "objective={name: clm, max_length: 32}",
    ),
    *("train={precision: fp32, save_every: 4, steps: 8}", "tokenizer.vocab_size=120"),
)


@pytest.mark.slow
def test_run_goes_on_as_it_was_decided(tmp_path, monkeypatch):
    path = _tiny.write(tmp_path, documents=40)
    _tiny.pretrain(path, tmp_path / "whole", *TINY)
    with pytest.raises(Exception, match="saved at step"):
        _tiny.pretrain(path, tmp_path / "on", *TINY, stop=_tiny.StopAtStep(tmp_path / "on", 4))
    before = recipe.load(str(tmp_path / "on/recipe.yaml")).recipe
    monkeypatch.setattr(adamw, "RATE", 0.5)
    monkeypatch.setattr(sizes, "_STEP", 4)
    monkeypatch.setattr(training_defaults, "SMALLEST_STEP", 64)
    rules = recipe.load(str(path), [*TINY, f"out={tmp_path / 'on'}"])
    assert rules.recipe.train.lr != before.train.lr
    begun = changes.as_begun(RunDirectory(tmp_path / "on"), rules)
    assert begun.recipe == before.model_copy(update={"out": str(tmp_path / "on")})
    load = recipe.load
    monkeypatch.setattr(recipe, "load", lambda n, *o: begun if n == str(path) else load(n, *o))
    _tiny.pretrain(path, tmp_path / "on", *TINY)
    name = "checkpoints/latest/model.safetensors"
    assert (tmp_path / "on" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


@pytest.mark.slow
def test_another_size_is_another_run(tmp_path):
    path = _tiny.write(tmp_path, documents=40)
    sets = [*TINY, "train.steps=1", f"out={tmp_path / 'run'}"]
    _tiny.pretrain(path, tmp_path / "run", *sets)
    directory = RunDirectory(tmp_path / "run")
    longer = recipe.load(str(path), [*sets, "train.steps=4000", f"out={tmp_path / 'new'}"])
    checkpoint = str(tmp_path / "run/checkpoints/latest")
    on = changes.as_begun(RunDirectory(tmp_path / "new"), longer, checkpoint)
    begun = recipe.load(str(tmp_path / "run/recipe.yaml")).recipe.train
    assert longer.recipe.train.tokens_per_step != begun.tokens_per_step
    assert (on.recipe.train.tokens_per_step, on.recipe.train.steps) == (begun.tokens_per_step, 4000)
    for other in ("model.size=20k", "train.lr=0.5"):
        now = changes.as_begun(directory, recipe.load(str(path), [*sets, other]))
        with pytest.raises(Exception, match=rf"{other.split('=')[0]}: .* then, .* now"):
            changes.check_changes(directory, now, False)


@pytest.mark.slow
def test_own_value_that_is_taken_away_is_a_change(tmp_path):
    path = _tiny.write(tmp_path, documents=40)
    sets = [*TINY, "train.steps=1", f"out={tmp_path / 'run'}"]
    _tiny.pretrain(path, tmp_path / "run", *sets, "train.lr=0.5")
    directory = RunDirectory(tmp_path / "run")
    now = changes.as_begun(directory, recipe.load(str(path), sets))
    with pytest.raises(Exception, match=r"train.lr: 0.5 then, .* now"):
        changes.check_changes(directory, now, False)
    directory.set_status(decided_by_size=None)  # a run of before: it keeps its rate
    kept = changes.as_begun(directory, recipe.load(str(path), sets))
    assert changes.check_changes(directory, kept, False) == []
