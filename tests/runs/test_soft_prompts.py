"""Runs with `train.tune: prompt` in families without soft prompts of their own."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from peft import PeftModel, PromptTuningConfig, get_peft_model
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

from nlpkit import cli
from nlpkit.checkpoints import hf_layout, peft_layout, prompt_layout
from nlpkit.errors import DataError, FileError, UsageError
from nlpkit.models import families, soft_prompt, word2vec
from nlpkit.runs import adapters, soft_prompts
from nlpkit.runs.likelihood import Likelihood
from nlpkit.runs.open_checkpoint import open_checkpoint
from nlpkit.runs.run import ModelPart
from nlpkit.train.log import NORMAL
from tests import _adapters, _processes, _tiny, _tiny_tasks
from tests._formats import to_hf

TUNE = ("train.tune=prompt", "prompt.tokens=6", "train.weight_decay=0.5")
LM = _tiny_tasks.HEAD.replace(".jsonl", ".txt") + (
    "objective: {name: clm, max_length: 32}\n" + _tiny_tasks.TRAIN
)


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return a folder with a small GPT's text, and the GPT."""
    folder = tmp_path_factory.mktemp("prompts")
    return folder, (_tiny_tasks.start(folder, "gpt") / "checkpoints/latest").resolve()


def _text(folder: Path, base: Path) -> Path:
    """Return the recipe of a language model with a soft prompt on the text of its base."""
    text = LM.replace("FOLDER/NAME", f"{folder}/gpt/NAME").replace("START", str(base))
    text = text.replace("NAME.train", "train").replace("NAME.valid", "valid")
    path = folder / "text.yaml"
    path.write_text(text.replace("NAME", "text").replace("FOLDER", str(folder)), encoding="utf-8")
    return path


def _classes(folder: Path, base: Path) -> Path:
    return _tiny_tasks.task(folder, "classes", _tiny_tasks.CLASSES, base.parents[1])


def test_soft_prompt_of_a_language_model_opens_in_peft(start, tmp_path: Path) -> None:
    folder, base = start
    last = _tiny.pretrain(_text(folder, base), tmp_path / "run", *TUNE)
    assert sorted(load_file(last / peft_layout.WEIGHTS)) == ["prompt_embeddings"]
    assert not (last / hf_layout.WEIGHTS).exists()
    losses = [r["held_out"]["loss"] for r in _tiny.metrics(tmp_path / "run") if "held_out" in r]
    assert losses[-1] < losses[0]
    opened = open_checkpoint(last)
    theirs = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), last).eval()
    ids = torch.arange(5, 25)
    with torch.no_grad():
        expected = theirs(input_ids=ids[None]).logits[0, 6:]
    torch.testing.assert_close(_adapters.logits(opened.model, ids), expected, atol=1e-5, rtol=1e-5)
    assert _tiny.command("eval", last).returncode == 0
    written = _tiny.command("generate", last, "-", stdin="花天地\n")
    assert written.returncode == 0, written.stderr


def test_pair_for_which_virtual_tokens_leave_no_room_is_named(start, tmp_path: Path) -> None:
    folder, base = start
    longest = {"sentence_good": "花" * 60, "sentence_bad": "花" * 59 + "天"}
    (tmp_path / "pairs.jsonl").write_text(json.dumps(longest), encoding="utf-8")
    pairs = f"eval.pairs=[{tmp_path / 'pairs.jsonl'}]"
    with pytest.raises(DataError, match=r"pairs.jsonl:1:good: 60 tokens; the model takes 58"):
        _tiny.pretrain(_text(folder, base), tmp_path / "run", *TUNE, pairs)


def test_tables_in_the_file_of_a_soft_prompt_are_read_again(tmp_path: Path) -> None:
    # LLaMA's own names begin with `model.`, as what peft puts before all names of adapters ends.
    config = _adapters.CONFIGS["llama"]
    model = families.load_model("llama").Model(config, 12, "auto")
    prompt = soft_prompts.VirtualTokens(count=2)
    part = ModelPart("llama", config, None, tmp_path, rows=10, prompt=prompt)
    tensors = to_hf("llama", config, model.state_dict())[1]
    adapters.write(tmp_path, part, {soft_prompt.NAME: torch.ones(2, 32)}, tensors, 12)
    found = prompt_layout.read_state(tmp_path, "llama")
    assert torch.equal(found["token_embedding"], model.token_embedding)


@pytest.mark.slow
def test_soft_prompt_of_a_classifier_opens_in_peft(start, tmp_path: Path) -> None:
    folder, base = start
    last = _tiny.pretrain(_classes(folder, base), tmp_path / "run", *TUNE)
    opened = open_checkpoint(last)
    theirs: Any = AutoModelForSequenceClassification.from_pretrained(
        base, num_labels=3, pad_token_id=opened.tokenizer.pad_id
    )
    theirs.resize_token_embeddings(opened.tokenizer.vocab_size)
    theirs = PeftModel.from_pretrained(theirs, last).eval()
    ids = torch.arange(len(opened.model.token_embedding) - 20, len(opened.model.token_embedding))
    with torch.no_grad():
        hidden = opened.model((20,), ids)
        ours = opened.model.head(opened.model.summary(hidden, (20,)))
        expected = theirs(input_ids=ids[None]).logits
    torch.testing.assert_close(ours, expected, atol=1e-5, rtol=1e-5)
    table = load_file(base / hf_layout.WEIGHTS)["transformer.tokens_embed.weight"]
    assert torch.equal(opened.model.token_embedding[: len(table)], table)
    told = _tiny.command("eval", last)
    assert (told.returncode, "unexpected" in told.stderr) == (0, False), told.stderr


def test_soft_prompt_of_peft_opens_in_ours_and_is_trained_on(start, tmp_path: Path) -> None:
    folder, base = start
    for kind, model_class in (
        ("CAUSAL_LM", AutoModelForCausalLM),
        ("SEQ_CLS", AutoModelForSequenceClassification),
    ):
        path = tmp_path / kind
        plain = model_class.from_pretrained(base, pad_token_id=0)
        settings = PromptTuningConfig(task_type=kind, num_virtual_tokens=4)
        theirs = get_peft_model(plain, settings).eval()
        theirs.save_pretrained(path)
        model = open_checkpoint(path).model
        ids = torch.arange(5, 25)
        with torch.no_grad():
            hidden, expected = model((20,), ids), theirs(input_ids=ids[None]).logits
            if kind == "CAUSAL_LM":
                ours, expected = model.logits(hidden), expected[0, 4:]
            else:
                ours = model.head(model.summary(hidden, (20,)))
        torch.testing.assert_close(ours, expected, atol=1e-5, rtol=1e-5)
    sets = ("train.tune=prompt", f"init_from={tmp_path / 'CAUSAL_LM'}", "train.steps=3")
    last = _tiny.pretrain(_text(folder, base), tmp_path / "run", *sets)
    assert open_checkpoint(last).model.soft_prompt.shape == (4, 32)


def test_soft_prompt_of_peft_scores_texts_and_has_room_and_labels(start, tmp_path: Path) -> None:
    _, base = start
    prompt = PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=4)
    plain = AutoModelForCausalLM.from_pretrained(base)
    theirs: Any = get_peft_model(plain, prompt).eval()
    theirs.save_pretrained(tmp_path / "soft")
    opened, positions = open_checkpoint(tmp_path / "soft"), plain.config.n_positions
    scorer = Likelihood(opened)
    assert (opened.objective.config.max_length, scorer.max_text) == (positions - 4, positions - 4)
    # They share their beginning.
    texts = scorer.encode([_tiny.WORDS[:12], _tiny.WORDS[:11] + "天", _tiny.WORDS * 2])
    texts[2] = replace(texts[2], ids=texts[2].ids[: positions - 4], words=texts[2].words[:60])
    found = scorer.compute_log_probs(texts)
    for text, log_probs in zip(texts, found, strict=True):
        ids = [*opened.objective.context, *text.ids.tolist()]
        with torch.no_grad():
            logits = theirs(input_ids=torch.tensor([ids[:-1]])).logits[0, 4:]
        expected = logits.log_softmax(-1)[range(len(logits)), ids[1:]]
        np.testing.assert_allclose(log_probs[-len(expected) :], expected, atol=1e-4)
    long = tmp_path / "long.txt"
    long.write_text(_tiny.WORDS * 9 + "\n", encoding="utf-8")
    asked = ["eval", str(tmp_path / "soft"), "--data", str(long), "--device", "cpu", "-q"]
    assert cli.run(asked) == 0
    page = tmp_path / "page.html"
    assert cli.run([*asked, "--attention", str(page), "--sentence", _tiny.WORDS[:3]]) == 0
    layer = json.loads(page.read_text("utf-8").split("const layers = ")[1].split(";\n")[0])[0]
    shown = [f"[prompt {n}]" for n in range(1, 5)]
    assert layer["queries"][:4] == layer["keys"][:4] == shown
    assert np.shape(layer["weights"][0]) == (len(layer["queries"]), len(layer["keys"]))


@pytest.mark.slow
@pytest.mark.parametrize("recipe", [pytest.param(_text, marks=pytest.mark.slow), _classes])
def test_soft_prompt_run_resumed_equals_an_uninterrupted_one_bit_for_bit(
    recipe, start, tmp_path: Path
) -> None:
    path, sets = recipe(*start), (*TUNE, "prompt.text=花天")
    whole = _tiny.pretrain(path, tmp_path / "whole", *sets)
    parts = _tiny.pretrain_with_stops(path, tmp_path / "parts", [22], *sets)
    assert len(list((tmp_path / "parts/checkpoints").glob("step-*"))) > 2
    assert _tiny.metrics(tmp_path / "parts") == _tiny.metrics(tmp_path / "whole")
    for name in (peft_layout.WEIGHTS, "optimizer.safetensors"):
        assert (parts / name).read_bytes() == (whole / name).read_bytes()


def test_soft_prompt_begins_with_the_words_of_a_text_or_with_another_prompt(
    start, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, base = start
    still = ("train.lr=1.0e-30", "train.steps=3", "train.tune=prompt")
    words = (*still, "prompt={tokens: 5, text: 花天}")
    last = _tiny.pretrain(_text(folder, base), tmp_path / "words", *words)
    settings = json.loads((last / peft_layout.SETTINGS).read_text(encoding="utf-8"))
    assert (settings["prompt_tuning_init"], settings["prompt_tuning_init_text"]) == ("TEXT", "花天")
    opened = open_checkpoint(last)
    ids = (opened.tokenizer.encode("花天") * 5)[:5]
    rows = opened.model.soft_prompt
    assert torch.equal(rows, opened.model.token_embedding[ids])
    sets = (f"init_from={last}", *still)
    then = _tiny.pretrain(_classes(folder, last), tmp_path / "then", *sets, verbosity=NORMAL)
    # No adapter could train them: `lora` is refused here.
    assert "with new embeddings; they are not trained: _start_" in capsys.readouterr().err
    assert torch.equal(open_checkpoint(then).model.soft_prompt, rows)
    settings = json.loads((then / peft_layout.SETTINGS).read_text(encoding="utf-8"))
    assert settings["base_model_name_or_path"] == str(base)


def test_soft_prompt_is_refused_where_it_cannot_be(start, tmp_path: Path) -> None:
    folder, base = start
    path = _text(folder, base)
    for sets, error, message in [
        (("prompt={tokns: 3}",), UsageError, "tokns"),
        (("prompt.tokens=40",), UsageError, "40 virtual tokens are more than the 64 positions"),
        (("lora={}",), UsageError, "lora excludes it"),
    ]:
        with pytest.raises(error, match=message):
            _tiny.pretrain(path, tmp_path / "run", "train.tune=prompt", *sets)
    last = _tiny.pretrain(path, tmp_path / "made", *TUNE, "train.steps=3")
    for sets, error, message in [
        ((f"init_from={last}",), UsageError, "holds a soft prompt"),
        ((f"init_from={last}", *TUNE[:1], "prompt.tokens=9"), UsageError, "has its 6 virtual"),
    ]:
        with pytest.raises(error, match=message):
            _tiny.pretrain(path, tmp_path / "run", *sets)
    assert (
        f"merged into weights: name its base {base}"
        in _tiny.command("convert", last, tmp_path / "x").stderr
    )
    (last / peft_layout.WEIGHTS).unlink()
    with pytest.raises(FileError):
        open_checkpoint(last)


def test_soft_prompt_is_refused_by_a_family_without_context() -> None:
    config = word2vec.Config(hidden_size=8)
    recipe = SimpleNamespace(objective=[SimpleNamespace(name="any")], lora=None, prompt=None)
    part = ModelPart("word2vec", config, None)
    for members, said in (((), "do not see each other"), ((1,), "not with a mixture")):
        objective = SimpleNamespace(prompt=None, inputs=("input_ids",), members=members)
        with pytest.raises(UsageError, match=said):
            soft_prompts.find(SimpleNamespace(recipe=recipe), objective, part)


@pytest.mark.slow
@pytest.mark.parametrize("environment", [{}, _processes.FSDP], ids=["ddp", "fsdp"])
def test_soft_prompt_two_processes_give_the_losses_of_one(
    environment: dict[str, str], start, tmp_path: Path
) -> None:
    without = "model={embedding_dropout: 0, attention_dropout: 0, residual_dropout: 0}"
    sets = [word for each in (*TUNE, without) for word in ("--set", each)]
    path = _text(*start)
    one = _tiny.command("finetune", path, "--out", tmp_path / "one", *sets)
    assert one.returncode == 0, one.stderr
    two = _processes.launched(2, "finetune", path, "--out", tmp_path / "two", *sets, **environment)
    assert two.returncode == 0, two.stderr
    assert (_processes.SHARDED in two.stderr) == bool(environment)
    for ours, theirs in _tiny.figures_of_both(tmp_path / "one", tmp_path / "two"):
        assert theirs["loss"] == pytest.approx(ours["loss"], abs=1e-4)


def test_soft_prompt_of_a_task_that_writes_answers(start, tmp_path: Path) -> None:
    folder, base = start
    text = _tiny_tasks.NLG.replace("cpm_ant_nlg", "generation, source: input")
    path = _tiny_tasks.task(folder, "nlg", text, base.parents[1])
    last = _tiny.pretrain(path, tmp_path / "run", *TUNE, "train.steps=3")
    written = _tiny.command("generate", last, "-", stdin="花天地\n")
    assert written.returncode == 0, written.stderr
    assert _tiny.command("eval", last).returncode == 0
