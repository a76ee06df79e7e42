"""A run continued with more tokens: old rows bit for bit, new ones drawn like them, on disk too."""

import json
import math
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from nlpkit import cli, recipe
from nlpkit.checkpoints import integrity
from nlpkit.commands.finetune import build_section
from nlpkit.contracts.reader import Counts
from nlpkit.data.files import find_inputs
from nlpkit.data.items import read_rows
from nlpkit.data.store import Callbacks
from nlpkit.errors import FileError, NlpkitError, UsageError
from nlpkit.models.formats.rows import resize_embeddings
from nlpkit.runs.vocabulary import TrainingText
from nlpkit.tokenizers.cpm_ant import Tokenizer
from nlpkit.train.log import NORMAL
from tests import _tiny
from tests._formats import from_hf

OLD = 60  # tokens to begin with: 10 special, 44 characters, some words
NEW = 90
STILL = ("train.lr=1.0e-30", "train.weight_decay=0.0", "train.steps=1", "train.warmup_steps=1")
TABLE = "cpmant.input_embedding.weight"
PROMPTS = 4 * 4  # prompt_types * prompt_length


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The last checkpoint of a run with `OLD` tokens."""
    folder = tmp_path_factory.mktemp("old")
    path = _tiny.write(folder)
    _tiny.pretrain(path, folder / "run", f"tokenizer.vocab_size={OLD}", "train.steps=4")
    return folder / "run" / "checkpoints" / "latest"


def _recipe(folder: Path, start: Path, tokenizer: str | None) -> Path:
    """Write a recipe that goes on from `start`; the text has words that are new to it."""
    text = _tiny.RECIPE
    head, _, tail = text.partition("model: {")
    tail = tail[tail.index("data:") :]
    section = f"tokenizer: {tokenizer}\n" if tokenizer else ""
    path = _tiny.write(folder, text=f"{head}init_from: {json.dumps(str(start))}\n{section}{tail}")
    with open(folder / "train.txt", "a", encoding="utf-8") as file:
        file.write("我们学习机器翻译和自然语言处理的方法和技术\n" * 40)
    return path


def _config_and_state(directory: Path):
    return from_hf("cpm_ant", directory)


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view(torch.int32)


@pytest.fixture(scope="module")
def grown(old: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A run that grew the vocabulary to `NEW` and whose steps move nothing: recipe, run."""
    folder = tmp_path_factory.mktemp("grown")
    path = _recipe(folder, old, f"{{kind: cpm_ant, vocab_size: {NEW}, min_frequency: 1}}")
    _tiny.pretrain(path, folder / "run", *STILL)
    return path, folder / "run"


def test_grown_vocabulary_keeps_every_old_tensor_bit_for_bit(old: Path, grown) -> None:
    before = load_file(old / "model.safetensors")
    after = load_file(grown[1] / "checkpoints" / "latest" / "model.safetensors")
    assert before.keys() == after.keys()
    for name in before.keys() - {TABLE, "lm_head.weight"}:
        assert torch.equal(_bits(before[name]), _bits(after[name])), name
    assert after[TABLE].shape == (NEW + PROMPTS, 32)
    assert after["lm_head.weight"].shape == (NEW, 32)
    assert torch.equal(_bits(before[TABLE][:OLD]), _bits(after[TABLE][:OLD]))
    assert torch.equal(_bits(before["lm_head.weight"]), _bits(after["lm_head.weight"][:OLD]))
    # prompts have moved behind the new words
    assert torch.equal(_bits(before[TABLE][OLD:]), _bits(after[TABLE][NEW:]))


def test_grown_vocabulary_has_the_old_tokens_first_and_new_words_behind(old: Path, grown) -> None:
    before = (old / "vocab.txt").read_text(encoding="utf-8").splitlines()
    after = (grown[1] / "checkpoints/latest/vocab.txt").read_text(encoding="utf-8").splitlines()
    assert len(before) == OLD
    assert len(after) == NEW
    assert after[:OLD] == before
    assert {"我", "器", "翻", "译"} <= set(after[OLD:])


def test_old_text_has_the_old_ids_where_no_new_token_occurs(old: Path, grown) -> None:
    before, after = Tokenizer.load(old), Tokenizer.load(grown[1] / "tokenizer")
    new = [after.token(i) for i in range(OLD, NEW)]
    lines = (grown[0].parent / "train.txt").read_text(encoding="utf-8").splitlines()
    untouched = [line for line in lines if not any(token in line for token in new)]
    assert len(untouched) > 10
    assert [after.encode(line) for line in untouched] == [before.encode(line) for line in untouched]
    assert any(after.encode(line) != before.encode(line) for line in lines)


def test_grown_checkpoint_opens_in_transformers_with_equal_logits(old: Path, grown) -> None:
    place = grown[1] / "checkpoints" / "latest"
    first = AutoModelForCausalLM.from_pretrained(old).eval()
    second = AutoModelForCausalLM.from_pretrained(place).eval()
    tokenizer = AutoTokenizer.from_pretrained(place)
    assert len(tokenizer) == second.config.vocab_size == NEW
    ids = torch.tensor([[6, 20, 31, 12, 40, 7]])
    with torch.no_grad():
        ours, theirs = first(ids).logits, second(ids).logits
    assert theirs.shape == (1, 6, NEW)
    torch.testing.assert_close(theirs[..., :OLD], ours, rtol=0, atol=1e-6)


def test_new_rows_are_drawn_again_the_same_by_seed_and_otherwise_by_another(
    grown, tmp_path: Path
) -> None:
    path, run = grown
    before = load_file(run / "checkpoints/latest/model.safetensors")[TABLE]
    again = _tiny.pretrain(path, tmp_path / "same", *STILL)
    assert torch.equal(before, load_file(again / "model.safetensors")[TABLE])
    other = _tiny.pretrain(path, tmp_path / "other", *STILL, "seed=2")
    table = load_file(other / "model.safetensors")[TABLE]
    assert torch.equal(before[:OLD], table[:OLD])
    assert not torch.isclose(before[OLD:NEW], table[OLD:NEW]).all(1).any()


def test_new_rows_have_mean_and_deviation_of_each_old_column() -> None:
    torch.manual_seed(0)
    old = torch.randn(50, 8) * torch.arange(1.0, 9.0) + torch.arange(8.0)
    table = resize_embeddings({"table": old}, ["table"], 50 + 20000)["table"]
    assert torch.equal(table[:50], old)
    new = table[50:]
    mean, deviation = old.mean(0), old.std(0, correction=0)
    # 5 standard errors: of the mean sigma/sqrt(n), of the deviation sigma/sqrt(2n)
    assert ((new.mean(0) - mean).abs() < 5 * deviation / math.sqrt(20000)).all()
    assert ((new.std(0) - deviation).abs() < 5 * deviation / math.sqrt(40000)).all()


def test_new_rows_of_a_half_precision_table_keep_the_old_values() -> None:
    old = torch.randn(5, 4).half()
    new = resize_embeddings({"table": old}, ["table"], 9)["table"]
    assert torch.equal(new[:5], old.float())


def test_no_tokenizer_section_takes_the_checkpoints(old: Path, tmp_path: Path) -> None:
    place = _tiny.pretrain(_recipe(tmp_path, old, None), tmp_path / "run", *STILL)
    assert (place / "vocab.txt").read_bytes() == (old / "vocab.txt").read_bytes()
    after = load_file(place / "model.safetensors")
    assert torch.equal(after[TABLE], load_file(old / "model.safetensors")[TABLE])


def test_path_of_a_longer_vocabulary_adds_its_rows(old: Path, tmp_path: Path) -> None:
    tokens = (old / "vocab.txt").read_text(encoding="utf-8").splitlines()
    Tokenizer([*tokens, "新的", "词"]).save(tmp_path / "longer")
    path = _recipe(tmp_path, old, f"{{path: {tmp_path / 'longer'}}}")
    place = _tiny.pretrain(path, tmp_path / "run", *STILL)
    before, after = (_config_and_state(p)[1] for p in (old, place))
    assert len(after["token_embedding"]) == OLD + 2
    assert torch.equal(after["token_embedding"][:OLD], before["token_embedding"])
    assert torch.equal(after["prompt_embedding"], before["prompt_embedding"])


def test_optimizer_starts_fresh(old: Path, grown) -> None:
    place = grown[1] / "checkpoints" / "latest"
    state = json.loads((place / "training.json").read_text(encoding="utf-8"))["state"]
    assert state["step"] == 1
    moments = load_file(place / "optimizer.safetensors")
    assert moments["exp_avg:token_embedding"].shape == (NEW, 32)
    # after one step from nothing m = (1 - beta1) g and v = (1 - beta2) g^2
    for name in (n.removeprefix("step:") for n in moments if n.startswith("step:")):
        assert float(moments[f"step:{name}"]) == 1
        gradient = moments[f"exp_avg:{name}"] / 0.1
        torch.testing.assert_close(moments[f"exp_avg_sq:{name}"], 0.001 * gradient**2)


def _other_vocabulary(old: Path, folder: Path, change) -> Path:
    tokens = (old / "vocab.txt").read_text(encoding="utf-8").splitlines()
    Tokenizer(change(tokens)).save(folder)
    return folder


def test_shrunk_vocabulary_is_refused_naming_the_first_lost_token(old: Path, tmp_path: Path):
    last = (old / "vocab.txt").read_text(encoding="utf-8").splitlines()[-1]
    shorter = _other_vocabulary(old, tmp_path / "shorter", lambda tokens: tokens[:-1])
    path = _recipe(tmp_path, old, f"{{path: {shorter}}}")
    with pytest.raises(UsageError) as error:
        _tiny.pretrain(path, tmp_path / "run", *STILL)
    assert f"token {OLD - 1} is missing, in init_from it is {last!r}" in str(error.value)
    assert f"({OLD - 1} tokens; {OLD} in {old.resolve()})" in str(error.value)


def test_vocabulary_in_another_order_is_refused_naming_the_first_difference(
    old: Path, tmp_path: Path
) -> None:
    def swap(tokens: list[str]) -> list[str]:
        return [*tokens[:20], tokens[21], tokens[20], *tokens[22:], "新"]

    tokens = (old / "vocab.txt").read_text(encoding="utf-8").splitlines()
    path = _recipe(tmp_path, old, f"{{path: {_other_vocabulary(old, tmp_path / 'v', swap)}}}")
    with pytest.raises(UsageError) as error:
        _tiny.pretrain(path, tmp_path / "run", *STILL)
    expected = f"tokenizer: token 20 is {tokens[21]!r}, in init_from it is {tokens[20]!r}"
    assert str(error.value).startswith(expected)
    assert f"({OLD + 1} tokens; {OLD} in " in str(error.value)


@pytest.mark.parametrize(
    ("section", "said"),
    [
        (
            f"{{kind: cpm_ant, vocab_size: {OLD - 1}}}",
            rf"vocab_size: 59 is less than the {OLD} tokens of init_from; token 59, '.+', and all",
        ),
        ("{kind: bpe, vocab_size: 300}", "bpe, and init_from has a tokenizer of kind cpm_ant"),
    ],
)
def test_growth_that_cannot_be_is_refused(
    old: Path, tmp_path: Path, section: str, said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        _tiny.pretrain(_recipe(tmp_path, old, section), tmp_path / "run", *STILL)


def test_checkpoint_without_tokenizer_cannot_grow(old: Path, tmp_path: Path) -> None:
    shutil.copytree(old, tmp_path / "bare")
    for name in ("vocab.txt", "manifest.json"):
        (tmp_path / "bare" / name).unlink()
    path = _recipe(tmp_path, tmp_path / "bare", "{kind: cpm_ant, vocab_size: 90}")
    with pytest.raises(UsageError, match="has no tokenizer to grow; give a path"):
        _tiny.pretrain(path, tmp_path / "run", *STILL)
    longer = _other_vocabulary(old, tmp_path / "longer", lambda tokens: [*tokens, "新"])
    path = _recipe(tmp_path, tmp_path / "bare", f"{{path: {longer}}}")
    with pytest.raises(UsageError, match=f"has {OLD} tokens and the recipe's tokenizer has 61"):
        _tiny.pretrain(path, tmp_path / "run", *STILL)


@pytest.mark.slow
def test_resumed_run_does_not_need_init_from_again(old: Path, tmp_path: Path) -> None:
    start = tmp_path / "start"
    shutil.copytree(old, start)
    section = f"{{kind: cpm_ant, vocab_size: {NEW}, min_frequency: 1}}"
    path = _recipe(tmp_path, start, section)
    whole = _tiny.pretrain(path, tmp_path / "whole", "train.steps=8")
    with pytest.raises(NlpkitError, match="saved at step"):
        _tiny.pretrain(path, tmp_path / "run", "train.steps=8", stop=_tiny.StopAfter(12))
    shutil.rmtree(start)
    place = _tiny.pretrain(path, tmp_path / "run", "train.steps=8")
    assert _tiny.metrics(tmp_path / "run") == _tiny.metrics(tmp_path / "whole")
    ours, theirs = (load_file(p / "model.safetensors") for p in (place, whole))
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    assert integrity.find_corruption(place) is None
    with pytest.raises(FileError, match=r"start: no such checkpoint to start from"):
        _tiny.pretrain(path, tmp_path / "fresh", "train.steps=8")


def test_tokenizer_command_grows_the_checkpoints(old: Path, grown, tmp_path: Path) -> None:
    result = _tiny.command("tokenizer", "train", grown[0], "--out", tmp_path / "made")
    assert result.returncode == 0, result.stderr
    made = (tmp_path / "made" / "vocab.txt").read_bytes()
    assert made == (grown[1] / "tokenizer" / "vocab.txt").read_bytes()


def test_checkpoint_is_found_by_the_name_that_its_run_gives_it(
    old, grown, tmp_path, capsys
) -> None:
    named = old.parent.parent / "latest"
    assert build_section(named, "cpm_ant") == build_section(old, "cpm_ant")
    sets = ["--set", f"init_from={named}", "--out", str(tmp_path / "made")]
    assert cli.run(["tokenizer", "train", str(grown[0]), *sets]) == 0, capsys.readouterr().err
    made = (tmp_path / "made" / "vocab.txt").read_bytes()
    assert made == (grown[1] / "tokenizer" / "vocab.txt").read_bytes()
    assert cli.run(["tokenizer", "show", str(named)]) == 0, capsys.readouterr().err


@pytest.mark.slow
def test_command_line_grows_the_vocabulary(old: Path, tmp_path: Path) -> None:
    section = f"{{kind: cpm_ant, vocab_size: {NEW}, min_frequency: 1}}"
    path = _recipe(tmp_path, old, section)
    environment = {"NLPKIT_CACHE": str(tmp_path / "cache")}
    result = _tiny.command("pretrain", path, "--out", tmp_path / "run", env=environment)
    assert result.returncode == 0, result.stderr
    assert (
        f"tokenizer: cpm_ant, {NEW} tokens, {NEW - OLD} of them new, grown on 160" in result.stderr
    )
    assert f"vocabulary {NEW}" in result.stderr
    refused = _tiny.command(
        "pretrain", path, "--out", tmp_path / "small", "--set", "tokenizer.vocab_size=20"
    )
    assert refused.returncode == 2
    assert refused.stderr.splitlines()[-1].startswith(
        "nlpkit: --set tokenizer.vocab_size: 20 is less"
    )


def test_tokenizer_of_rows_is_not_taken_for_that_of_documents(tmp_path: Path) -> None:
    rows = [{"text": f"A {n}", "source": f"B {n}", "target": "C"} for n in range(9)]
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    keys, read = [], []
    for objective in ("{name: clm}", "{name: generation}"):
        sets = [f"data.train=[{file}]", "data.valid=[]", f"objective={objective}"]
        resolved = recipe.load("gpt2", sets)
        inputs, _ = find_inputs(resolved.recipe.data, None, tmp_path)
        text = TrainingText(resolved, inputs, "all", tmp_path, Callbacks())
        keys.append(text.key())
        read.append(next(text.texts(Counts())))
    assert read == ["A 0", "A 0"]
    assert keys[0] != keys[1]
    assert {*keys[0]} < {*keys[1]}  # those of running text are as before


@pytest.mark.parametrize("key", ["text", "source"])
def test_tokenizer_of_a_task_reads_no_row_that_it_holds_out(tmp_path: Path, key: str) -> None:
    rows = [{"text": f"A {n}", "source": f"B {n}", "target": "C"} for n in range(60)]
    (tmp_path / "r.jsonl").write_text("\n".join(map(json.dumps, rows)) + '\n{"text": "no text"}')
    (tmp_path / "r.en").write_text("\n".join(f"B {n}" for n in range(60)))
    (tmp_path / "r.de").write_text("C\n" * 60)
    pair = f"{{files: [{tmp_path}/r.en, {tmp_path}/r.de], format: parallel}}"
    for train, found in ((f"{tmp_path}/r.jsonl", key), (pair, "source")):
        sets = [f"data.train=[{train}]", "data.valid=[]", "data.valid_fraction=0.3"]
        sets += [f"data.text_key={key}", f"objective={{name: generation, source: {key}}}"]
        sets += ["data.on_error=skip"]
        resolved = recipe.load("gpt2", sets)
        data = resolved.recipe.data
        inputs, _ = find_inputs(data, None, tmp_path)
        text, counts = TrainingText(resolved, inputs, "train", tmp_path, Callbacks()), Counts()
        read = [each for each in text.texts(counts) if each not in ("C", "no text")]
        trained = read_rows(inputs, data, ("source", "target"), Counts(), "train")
        assert read == [row.text(found) for row in trained if "source" in row.values]
        assert len(read) + counts.held_out in (60, 61)
        assert counts.held_out > 5


def test_key_of_a_source_is_what_the_tokenizer_of_a_task_reads(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.jsonl").write_text('{"label": "no", "q": "who"}\n' * 2)
    (tmp_path / "c.csv").write_text("label,q\nno,who\n")
    (tmp_path / "d.json").write_text('{"of": [{"label": "no", "q": "who"}]}')
    one, two = (f"files: {tmp_path}/{name}.jsonl" for name in ("a", "b"))
    for train, sets, expected in (
        (f"[{{{one}, text_key: q}}, {{{two}, text_key: q}}]", [], ["who"] * 4),
        # Each source is asked for its own key; one without has its rows' texts.
        (f"[{{{one}, text_key: q}}, {{{two}}}]", [], ["who"] * 2 + ["no", "who"] * 2),
        (f"[{tmp_path}/c.csv]", ["data.text_key=q"], ["who"]),
        (f"[{{files: {tmp_path}/c.csv, text_key: q}}, {{{two}}}]", [], ["who", *["no", "who"] * 2]),
        (f"[{tmp_path}/d.json]", ["data.format=json", "data.rows=of"], ["no", "who"]),
        (f"[{tmp_path}/d.json]", ["data.format=json", "data.rows=of", "data.text_key=q"], ["who"]),
    ):
        sets = [*sets, f"data.train={train}", "data.valid=[]", "objective.text=q"]
        resolved = recipe.load("gpt1_classify", sets)
        inputs, _ = find_inputs(resolved.recipe.data, None, tmp_path)
        text = TrainingText(resolved, inputs, "all", tmp_path, Callbacks())
        assert [*text.texts(Counts())] == expected


@pytest.mark.parametrize(
    ("damage", "what"),
    [
        (lambda file: file.write_bytes(file.read_bytes().replace("天".encode(), "夭".encode())),
         "damaged, its hash differs from the one in sha256.json"),
        pytest.param(
            *(lambda file: file.unlink(), "cannot be read: No such file or directory"),
            marks=pytest.mark.slow,
        ),
        pytest.param(
            *(lambda file: (file.parent / "sha256.json").unlink(), "cannot be read"),
            marks=pytest.mark.slow,
        ),
    ],
    ids=["changed", "missing", "without hashes"],
)  # fmt: skip
def test_damaged_tokenizer_of_the_cache_is_trained_again_and_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage, what: str, capfd
) -> None:
    monkeypatch.setenv("NLPKIT_CACHE", str(tmp_path / "cache"))
    path = _tiny.write(tmp_path)
    one, two, three = (tmp_path / name for name in ("one", "two", "three"))
    _tiny.pretrain(path, one, "train.steps=1")
    (kept,) = (tmp_path / "cache" / "tokenizers").iterdir()
    damage(kept / "vocab.txt")
    capfd.readouterr()
    _tiny.pretrain(path, two, "train.steps=1", verbosity=NORMAL)
    said = [line for line in capfd.readouterr().err.splitlines() if "training it again" in line]
    assert len(said) == 1
    assert "tokenizer: " in said[0]
    assert what in said[0]
    _tiny.pretrain(path, three, "train.steps=1", verbosity=NORMAL)  # now sound
    assert "training it again" not in capfd.readouterr().err
    texts = [(run / "tokenizer" / "vocab.txt").read_bytes() for run in (one, two, three)]
    assert texts == [(kept / "vocab.txt").read_bytes()] * 3
