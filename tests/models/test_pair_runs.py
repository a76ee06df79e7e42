"""Families with an encoder and a decoder: runs, adapters, evaluation, files, transformers."""

import json
import re
from pathlib import Path

import pytest
import torch
import transformers
from peft import PeftModel
from safetensors.torch import load_file, save_file

from nlpkit import recipe as recipes
from nlpkit.errors import RecipeError
from nlpkit.generate.settings import Settings
from nlpkit.generate.texts import Writer
from nlpkit.runs.convert import convert
from nlpkit.runs.open_checkpoint import open_checkpoint
from tests import _tiny
from tests.models import test_translation_outside as test_parts_translation

SIZES = "hidden_size: 32, num_layers: 2, num_heads: 4, intermediate_size: 48, dropout: 0.1"
FAMILIES = {
    "transformer": (f"{SIZES}, max_positions: 64", "{name: seq2seq, max_length: 32}",
                    "MarianMTModel"),
    "t5": (f"{SIZES}, head_dim: 8, attention_dropout: 0.0",
           "{name: span_corruption, max_length: 32}", "T5ForConditionalGeneration"),
    "bart": (f"{SIZES}, max_positions: 64", "{name: denoising, max_length: 32}",
             "BartForConditionalGeneration"),
}  # fmt: skip
TRAIN = """\
train: {steps: 4, tokens_per_step: 512, tokens_per_batch: 256, lr: 1.0e-2, warmup_steps: 1,
  precision: fp32, eval_every: 2, save_every: 2}
"""
PAIRS = """\
data: {train: {files: [FOLDER/a.en, FOLDER/a.up]}, valid: {files: [FOLDER/b.en, FOLDER/b.up]},
  format: parallel}
"""
TEXT = "data: {train: [FOLDER/a.en], valid: [FOLDER/b.en], format: text}\n"
TUNED = f"""\
name: tuned
init_from: FOLDER/whole/checkpoints/latest
{PAIRS}objective: {{name: seq2seq, max_length: 32, prefix: "up: "}}
{TRAIN}eval: {{metrics: [bleu, exact_match], beam: 2, length_penalty: 0.6}}
"""


@pytest.fixture(scope="module", params=FAMILIES)
def family(request) -> str:
    return request.param


@pytest.fixture(scope="module")
def run(family: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with pairs, a recipe, its run (`whole`) and a recipe for tuning it."""
    folder = tmp_path_factory.mktemp(family)
    test_parts_translation._write(folder)
    sizes, objective, _ = FAMILIES[family]
    data = PAIRS if family == "transformer" else TEXT
    text = f"name: tiny\nmodel: {{family: {family}, {sizes}}}\n"
    text += "tokenizer: {kind: bpe, vocab_size: 258}\n"
    text += f"{data}objective: {objective}\n{TRAIN}"
    for name, content in (("tiny.yaml", text), ("tuned.yaml", TUNED)):
        (folder / name).write_text(content.replace("FOLDER", str(folder)))
    _tiny.pretrain(folder / "tiny.yaml", folder / "whole")
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(
    "family",
    ["transformer", *(pytest.param(name, marks=pytest.mark.slow) for name in ("t5", "bart"))],
    indirect=True,
)
def test_run_stopped_and_resumed_is_the_whole_one(run: Path) -> None:
    last = _tiny.pretrain_with_stops(run / "tiny.yaml", run / "broken", [3])
    assert _tiny.metrics(run / "broken") == _tiny.metrics(run / "whole")
    ours, theirs = (load_file(path / "model.safetensors") for path in
                    (last, run / "whole/checkpoints/latest"))  # fmt: skip
    assert all(torch.equal(value, theirs[name]) for name, value in ours.items())


@pytest.mark.fast_cases(1)
def test_text_in_is_the_same_text_out_as_in_transformers(run: Path, family: str) -> None:
    saved = run / "whole/checkpoints/latest"
    theirs, report = transformers.AutoModelForSeq2SeqLM.from_pretrained(
        saved, output_loading_info=True
    )
    assert type(theirs).__name__ == FAMILIES[family][2]
    assert {n for n in report["missing_keys"] if "embed_positions" not in n} == set()
    tokenizer = transformers.AutoTokenizer.from_pretrained(saved)
    opened = open_checkpoint(saved, device="cpu")
    texts = {"transformer": "a be cat", "t5": "a<extra_id_0> cat", "bart": "a<mask> cat"}
    text = texts[family]
    given = tokenizer(text, return_tensors="pt")
    ids = opened.objective.encode_input(text)
    assert given["input_ids"][0].tolist() == [*ids, opened.objective.end]
    settings = Settings(beam=3, length_penalty=0.6, max_new_tokens=8)
    writer = Writer(opened.model, opened.tokenizer, opened.objective, settings)
    (written,) = writer.write([text])
    # The ids of begin, end and padding are in its config.json.
    found = theirs.eval().generate(
        input_ids=given["input_ids"], attention_mask=given["attention_mask"], num_beams=3,
        length_penalty=0.6, max_new_tokens=8, do_sample=False,
        bad_words_ids=[[token] for token in opened.objective.suppress_tokens],
    )  # fmt: skip
    right = [
        i for i in found[0].tolist() if i not in (opened.objective.begin, opened.objective.end)
    ]
    decode = getattr(opened.objective, "decode_output", opened.tokenizer.decode)
    assert written.outputs[0].text == decode(right)


@pytest.mark.fast_cases(1)
@pytest.mark.parametrize(
    "family", ["transformer", pytest.param("t5", marks=pytest.mark.slow)], indirect=True
)
def test_tuned_with_adapters_is_evaluated_and_opens_in_peft(run: Path, family: str) -> None:
    tuned = _tiny.pretrain(run / "tuned.yaml", run / "lora", "lora={rank: 2}")
    assert (tuned / "adapter_model.safetensors").is_file()
    base = FAMILIES[family][2]
    theirs = getattr(transformers, base).from_pretrained(run / "whole/checkpoints/latest")
    theirs = PeftModel.from_pretrained(theirs, tuned).eval()
    opened = open_checkpoint(tuned, device="cpu")
    ids = torch.tensor([*opened.objective.encode_input("a be"), opened.objective.end])
    target = torch.tensor([opened.objective.begin, 70, 71])
    with torch.no_grad():
        ours = opened.model.logits(opened.model((3,), target, ids, (len(ids),)))
        logits = theirs(input_ids=ids[None], decoder_input_ids=target[None]).logits[0]
    torch.testing.assert_close(ours, logits, atol=1e-5, rtol=1e-5)
    assert opened.tokenizer.decode(ids[:-1].tolist()) == "up: a be"
    done = _tiny.command("eval", tuned, "--json")
    assert re.search(r"held-out data: \S+/b\.en, \S+/b\.up\n", done.stderr)
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    assert figures["metrics"].keys() == {"bleu", "exact_match"}
    assert figures["signatures"]["bleu"].startswith("nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp")
    assert figures["signatures"]["generation"] == "beam:2|length_penalty:0.6"


@pytest.mark.parametrize(
    "family", ["bart", pytest.param("t5", marks=pytest.mark.slow)], indirect=True
)
def test_tuned_with_a_soft_prompt_is_evaluated(run: Path, family: str) -> None:
    tune = ("train.tune=prompt", "prompt={tokens: 3}")
    tuned = _tiny.pretrain(run / "tuned.yaml", run / "prompt", *tune)
    opened = open_checkpoint(tuned, device="cpu")
    assert opened.model.soft_prompt.shape == (3, 32)
    done = _tiny.command("eval", tuned, "--json")
    assert done.returncode == 0, done.stderr


def test_converted_checkpoint_is_the_same_model(run: Path, tmp_path: Path) -> None:
    convert(run / "whole", tmp_path / "out")
    ours, again = (
        open_checkpoint(path, device="cpu") for path in (run / "whole", tmp_path / "out")
    )
    state = again.model.state_dict()
    assert all(torch.equal(value, state[name]) for name, value in ours.model.state_dict().items())
    settings = json.loads((tmp_path / "out/config.json").read_text())
    begin, end = ours.objective.begin, ours.objective.end
    assert (settings["decoder_start_token_id"], settings["eos_token_id"]) == (begin, end)
    assert settings["pad_token_id"] == ours.tokenizer.pad_id


def test_rows_after_the_last_token_are_cut_in_t5_alone(run: Path, family: str) -> None:
    """Released T5 has 32,128 rows for 32,100 tokens."""
    convert(run / "whole", run / "padded")
    tensors = load_file(run / "padded/model.safetensors")
    old = open_checkpoint(run / "padded", device="cpu")
    size = old.tokenizer.vocab_size
    for name, tensor in tensors.items():
        if size in tensor.shape:
            more = torch.zeros(*tensor.shape[:-1], 9) if "bias" in name else torch.ones(9, 32)
            tensors[name] = torch.cat([tensor, more], dim=-1 if "bias" in name else 0)
    save_file(tensors, run / "padded/model.safetensors", metadata={"format": "pt"})
    if family != "t5":
        with pytest.raises(Exception, match="tokens and its tokenizer has"):
            open_checkpoint(run / "padded", device="cpu")
        return
    opened = open_checkpoint(run / "padded", device="cpu")
    assert torch.equal(opened.model.token_embedding, old.model.token_embedding)
    facts = convert(run / "padded", run / "cut")
    assert facts["parameters"] == sum(p.numel() for p in old.model.parameters())
    start = f"init_from={run}/padded"
    last = _tiny.pretrain(run / "tuned.yaml", run / "from padded", start, "train.steps=1")
    assert len(load_file(last / "model.safetensors")["shared.weight"]) == size


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("objective={name: clm}",), "clm does not give source_ids, source_lengths, and family"),
        (("attention={kind: full}",), "full does not fit the model: the decoder needs a kind"),
        # Such as causal; relative_bias, full and group see to the right.
        (
            ("attention={kind: relative_bias}",),
            "nothing to the right; kinds that fit: (?!.*(full|group|relative_bias,)).*causal, ",
        ),
        (("objective={name: mlm}",), "mlm needs bidirectional"),
    ],
)
def test_what_does_not_fit_is_refused_with_its_line(run: Path, change, said: str) -> None:
    with pytest.raises(RecipeError, match=said):
        recipes.load(str(run / "tiny.yaml"), list(change))
