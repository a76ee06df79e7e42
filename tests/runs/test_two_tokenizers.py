"""A tokenizer for sources and one for targets: recipes, runs, checkpoints, every verb."""

import json
import shutil
from pathlib import Path

import pytest
import torch
import transformers

from nlpkit import cli, recipe
from nlpkit.checkpoints import tokenizer_files
from nlpkit.errors import FileError, RecipeError, TryAgain, UsageError
from nlpkit.runs.open_checkpoint import Opened, open_checkpoint
from tests import _tiny

TRANSFORMER = """{family: transformer, hidden_size: 24, num_layers: 2, num_heads: 4,
  intermediate_size: 32, max_positions: 32, dropout: 0.0}"""
RECURRENT = "{family: seq2seq, cell: gru, hidden_size: 24, num_layers: 1, dropout: 0.0}"
SIDES = """{source: {kind: bpe, vocab_size: 290, min_frequency: 1},
  target: {kind: wordpiece, vocab_size: 60, min_frequency: 1}}"""
RECIPE = """\
name: tiny
model: MODEL
tokenizer: TOKENIZER
data: {train: [{files: [A, B]}], valid: [{files: [A, B]}], format: parallel}
objective: {name: seq2seq, max_length: 30}
train: {steps: 8, tokens_per_step: 256, tokens_per_batch: 256, lr: 1.0e-2, warmup_steps: 2,
  eval_every: 4, save_every: 4, precision: fp32}
eval: {metrics: [chrf]}
"""
TEXTS = ["天地人", "水", "鸟鱼花山"]


def _recipe(folder: Path, model: str = TRANSFORMER, tokenizer: str = SIDES) -> Path:
    """Write a recipe whose sources have other characters than their targets."""
    folder.mkdir(exist_ok=True)
    texts = [
        "".join("天地人山水花鸟鱼"[(i * k) % 8] for k in range(1, i % 5 + 2)) for i in range(60)
    ]
    letters = str.maketrans("天地人山水花鸟鱼", "abcdefgh")
    for name, lines in (("a", texts), ("b", [text.translate(letters) for text in texts])):
        (folder / f"{name}.txt").write_text("".join(f"{line}\n" for line in lines), "utf-8")
    text = RECIPE.replace("MODEL", model).replace("TOKENIZER", tokenizer)
    text = text.replace("A, B]", f"{folder}/a.txt, {folder}/b.txt]")
    (folder / "r.yaml").write_text(text, "utf-8")
    return folder / "r.yaml"


@pytest.fixture(scope="module", params=[TRANSFORMER, RECURRENT], ids=["transformer", "seq2seq"])
def run(request, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("two")
    _tiny.pretrain(_recipe(folder, request.param), folder / "run")
    return folder / "run"


@pytest.fixture(scope="module")
def opened(run: Path) -> Opened:
    return open_checkpoint(run, device="cpu")


def test_each_text_has_the_ids_of_its_own_tokenizer(opened: Opened) -> None:
    tokenizer, objective = opened.tokenizer, opened.objective
    source, target = tokenizer.source, tokenizer.target
    assert (source.vocab_size, target.vocab_size) == (
        opened.model.source_embedding.shape[0], opened.model.token_embedding.shape[0],
    )  # fmt: skip
    ids = objective.encode(["天地", "ab", "人", "c"])
    assert ids == [source.encode("天地"), target.encode("ab"), source.encode("人"),
                   target.encode("c")]  # fmt: skip
    example = objective.made(*map(torch.tensor, ids[:2]))
    assert example["source_ids"].tolist() == [*ids[0], source.special_id("</s>")]
    assert example["labels"].tolist() == [*ids[1], target.special_id("</s>")]
    assert "".join(source.decode(ids[0])) == "天地"


def test_run_learns_and_evaluates(run: Path, capsys) -> None:
    records = _tiny.metrics(run)
    assert records[-1]["held_out"]["loss"] < records[0]["loss"]
    assert cli.run(["eval", str(run), "--json", "--beam", "2"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["loss"] == pytest.approx(records[-1]["held_out"]["loss"], rel=1e-5)
    # By hand: the targets have as many characters as the file, and each row has an end token.
    letters = (run.parent / "b.txt").read_text("utf-8")
    assert figures["targets"] >= letters.count("\n")
    nats = figures["loss"] * figures["targets"]
    characters = len(letters) - letters.count("\n")
    expected = nats / torch.log(torch.tensor(2.0)).item() / characters
    assert figures["bits_per_character"] == pytest.approx(expected, rel=1e-4)


def test_texts_are_generated_alone_as_in_a_batch(run: Path, tmp_path: Path, capsys) -> None:
    file = tmp_path / "in.txt"
    file.write_text("".join(f"{text}\n" for text in TEXTS), "utf-8")
    written = []
    for batch in ("1", "3"):
        command = ["generate", str(run), str(file), "--max-new-tokens", "5", "--min-new-tokens"]
        assert cli.run([*command, "3", "--batch", batch, "--quiet"]) == 0
        written.append(capsys.readouterr().out)
    assert written[0] == written[1]
    assert len(written[0].splitlines()) == 3


@pytest.mark.fast_cases(1)
def test_resumed_is_whole(run: Path, tmp_path: Path) -> None:
    path = run.parent / "r.yaml"
    with pytest.raises(TryAgain, match="saved at step 5"):
        _tiny.pretrain(path, tmp_path / "resumed", stop=_tiny.StopAtStep(tmp_path / "resumed", 5))
    _tiny.pretrain(path, tmp_path / "resumed")
    ends = [
        each / "checkpoints/step-00000008/model.safetensors" for each in (run, tmp_path / "resumed")
    ]
    assert ends[0].read_bytes() == ends[1].read_bytes()


def test_converted_checkpoint_computes_the_same(run: Path, opened: Opened, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert cli.run(["convert", str(run), str(out), "--quiet"]) == 0
    again = open_checkpoint(out, device="cpu")
    assert again.tokenizer.fingerprint() == opened.tokenizer.fingerprint()
    for name, tensor in opened.model.state_dict().items():
        assert torch.equal(tensor, again.model.state_dict()[name])
    settings = json.loads((out / "config.json").read_text())
    sizes = (settings["vocab_size"], settings["decoder_vocab_size"])
    assert sizes == (opened.tokenizer.source.vocab_size, opened.tokenizer.vocab_size)


def test_transformers_opens_the_model_and_both_tokenizers(run: Path, opened: Opened) -> None:
    if opened.part.family != "transformer":
        pytest.skip("transformers has no such family")
    theirs, report = transformers.AutoModelForSeq2SeqLM.from_pretrained(
        opened.path, output_loading_info=True
    )
    assert not report["unexpected_keys"]
    assert not {name for name in report["missing_keys"] if "embed_positions" not in name}
    tokenizers = [
        transformers.AutoTokenizer.from_pretrained(opened.path / f"{side}_tokenizer")
        for side in ("source", "target")
    ]
    for text in TEXTS:
        ids = tokenizers[0](text, return_tensors="pt").input_ids
        ours = [*opened.objective.encode_input(text), opened.objective.source_end]
        assert ids[0].tolist() == ours
        written = torch.tensor([opened.objective.begin, *tokenizers[1]("abc").input_ids])
        with torch.no_grad():
            expected = theirs.eval()(input_ids=ids, decoder_input_ids=written[None]).logits[0]
            hidden = opened.model((len(written),), written, ids[0], (len(ids[0]),))
        torch.testing.assert_close(opened.model.logits(hidden), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.slow
def test_transformers_writes_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # A model that has learned to write: one that has not is near ties.
    path = _recipe(tmp_path)
    sets = [f"train.{each}=60" for each in ("steps", "eval_every", "save_every")]
    place = _tiny.pretrain(path, tmp_path / "run", *sets)
    theirs = transformers.AutoModelForSeq2SeqLM.from_pretrained(place).eval()
    source, target = (
        transformers.AutoTokenizer.from_pretrained(place / f"{side}_tokenizer")
        for side in ("source", "target")
    )
    texts = [*dict.fromkeys((tmp_path / "a.txt").read_text("utf-8").splitlines())]
    (tmp_path / "in.txt").write_text("".join(f"{text}\n" for text in texts), "utf-8")
    command = ["generate", str(place), str(tmp_path / "in.txt"), "--max-new-tokens", "12", "-q"]
    assert cli.run(command) == 0
    written = [
        target.decode(
            theirs.generate(input_ids=source(text, return_tensors="pt").input_ids)[0],
            skip_special_tokens=True,
        )
        for text in texts
    ]
    assert len({*written}) > 10
    assert capsys.readouterr().out.splitlines() == written


def test_adapters_are_tuned_on_both_vocabularies(run: Path, tmp_path: Path, opened: Opened) -> None:
    if opened.part.family != "transformer":
        pytest.skip("recurrent layers take no adapters")
    text = (run.parent / "r.yaml").read_text("utf-8")
    kept = [line for line in text.splitlines() if not line.startswith(("  target:", "  interm"))]
    lines = [line for line in kept if not line.startswith(("model:", "tokenizer:"))]
    path = tmp_path / "lora.yaml"
    path.write_text("\n".join([f"init_from: {run}", "lora: {rank: 2}", *lines]) + "\n", "utf-8")
    tuned = open_checkpoint(_tiny.pretrain(path, tmp_path / "lora"), device="cpu")
    assert torch.equal(tuned.model.source_embedding, opened.model.source_embedding)
    assert tuned.tokenizer.fingerprint() == opened.tokenizer.fingerprint()


@pytest.mark.fast_cases(1)
def test_finished_tokenizers_are_taken_by_path(run: Path, opened: Opened, tmp_path: Path) -> None:
    home = run / "tokenizer"
    model = TRANSFORMER if opened.part.family == "transformer" else RECURRENT
    sides = f"{{source: {{path: {home}/source_tokenizer}}, target: {{kind: bpe, vocab_size: 300}}}}"
    made = open_checkpoint(
        _tiny.pretrain(_recipe(tmp_path, model, sides), tmp_path / "run"), device="cpu"
    )
    assert made.tokenizer.source.fingerprint() == opened.tokenizer.source.fingerprint()
    both = open_checkpoint(
        _tiny.pretrain(_recipe(tmp_path, model, f"{{path: {home}}}"), tmp_path / "both"),
        device="cpu",
    )
    assert both.tokenizer.fingerprint() == opened.tokenizer.fingerprint()


def test_tokenizers_that_do_not_belong_to_the_model_are_refused(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    shutil.copytree(run / "checkpoints" / "step-00000008", out)
    (out / "manifest.json").unlink()
    single = tokenizer_files.load(out)[1].target
    shutil.rmtree(out / "source_tokenizer")
    shutil.rmtree(out / "target_tokenizer")
    tokenizer_files.save(single, out)
    with pytest.raises(FileError, match=r"tokens for sources alone, .* one vocabulary for both"):
        open_checkpoint(out, device="cpu")


T5 = "{family: t5, hidden_size: 24, num_layers: 1, num_heads: 2, intermediate_size: 32}"
BPE = "{kind: bpe, vocab_size: 300}"


@pytest.mark.parametrize(
    ("model", "tokenizer", "said"),
    [
        (TRANSFORMER, f"{{source: {BPE}}}", "r.yaml:4:12: tokenizer.target: missing; sources and"),
        (
            TRANSFORMER,
            f"{{source: {BPE}, target: {{kind: bpe, vocabsize: 3}}}}",
            "tokenizer.target.vocabsize: unknown setting, did you mean vocab_size?",
        ),
        (
            TRANSFORMER,
            f"{{kind: bpe, source: {BPE}, target: {BPE}}}",
            "r.yaml:4:19: tokenizer.kind: kind and source exclude each other",
        ),
        (
            TRANSFORMER,
            f"{{source: {BPE}, target: {BPE}, vocab_size: 3}}",
            "tokenizer.vocab_size: cannot be set with source and target; set it in each",
        ),
        (
            T5,
            f"{{source: {BPE}, target: {BPE}}}",
            "tokenizer.source: family t5 has one vocabulary for sources and targets; families "
            "with two: seq2seq, transformer",
        ),
    ],
    ids=["one side", "unknown setting", "kind, too", "beside", "family"],
)
def test_mistakes_are_named_with_their_line(tmp_path: Path, model, tokenizer, said) -> None:
    with pytest.raises(RecipeError) as caught:
        recipe.load(str(_recipe(tmp_path, model, tokenizer)))
    assert said in str(caught.value), str(caught.value)


def test_objective_with_one_vocabulary_is_refused(run: Path, tmp_path: Path) -> None:
    path = _recipe(tmp_path)
    text = path.read_text("utf-8").replace("seq2seq, max_length: 30", "span_corruption")
    path.write_text(text, "utf-8")
    said = (
        "objective span_corruption takes one tokenizer; these take two: scheduled_sampling, seq2seq"
    )
    with pytest.raises(RecipeError, match=said):
        recipe.load(str(path))
    # Of a path it is known when its files are read.
    path = _recipe(tmp_path, T5, f"{{path: {run}/tokenizer}}")
    with pytest.raises(UsageError, match="tokenizer: family t5 has one vocabulary"):
        _tiny.pretrain(path, tmp_path / "run")
