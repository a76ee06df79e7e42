"""BART against transformers' BartForConditionalGeneration."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from tokenizers import Tokenizer as Library
from tokenizers import processors
from torch import nn

from nlpkit import registry
from nlpkit.checkpoints import hf_writing
from nlpkit.checkpoints.hf_writing import TokenIds
from nlpkit.data.items import Row
from nlpkit.errors import FileError
from nlpkit.generate.settings import Settings
from nlpkit.generate.texts import Writer
from nlpkit.models.bart import Config
from nlpkit.models.bart.model import Model
from nlpkit.runs.open_checkpoint import open_checkpoint
from nlpkit.tokenizers import bpe
from tests import _tiny
from tests._families import oracle, pairs
from tests._families.oracle import CLOSE, LENGTHS, VOCAB
from tests._families.pairs import SOURCES

SIZES = {"hidden_size": 32, "num_layers": 2, "num_heads": 4, "intermediate_size": 48,
         "max_positions": 64}  # fmt: skip


def _theirs(**settings) -> nn.Module:
    sizes = {
        "vocab_size": VOCAB, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2,
        "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 48,
        "decoder_ffn_dim": 48, "max_position_embeddings": 64, "dropout": 0.0, "pad_token_id": 0,
        "eos_token_id": 1, "decoder_start_token_id": 0, "forced_eos_token_id": None,
    }  # fmt: skip
    model = oracle.drawn(
        "BartForConditionalGeneration", transformers.BartConfig(**sizes | settings)
    )
    model.final_logits_bias.normal_(generator=torch.Generator().manual_seed(3))
    return model


@pytest.mark.parametrize(
    "settings",
    [
        {},
        pytest.param(
            {"encoder_layers": 3, "activation_function": "relu"},
            marks=pytest.mark.slow,
        ),
    ],
    ids=["base", "deep encoder"],
)
def test_states_loss_gradients_and_beams_equal_transformers(tmp_path: Path, settings) -> None:
    with torch.no_grad():
        theirs = _theirs(**settings)
    model = pairs.assert_equal("bart", theirs, tmp_path)
    pairs.assert_alignments_equal(model, theirs)
    pairs.assert_cached_is_whole(model)
    pairs.assert_computes_in_bfloat16(model)
    for beams, penalty in ((3, 0.6), (2, 2.0)):
        pairs.assert_beams_equal(model, theirs, beams=beams, penalty=penalty)


@pytest.mark.parametrize(
    "more",
    [{}, {"encoder_layers": 1, "hidden_act": "relu"}, {"tie": False, "output_bias": True}],
    ids=["base", "shallow encoder", "untied"],
)
def test_checkpoint_opens_in_transformers_and_comes_back_exactly(tmp_path: Path, more) -> None:
    config = Config(**SIZES, **more)
    torch.manual_seed(0)
    model = Model(config, VOCAB).eval()
    if config.output_bias:
        nn.init.normal_(model.token_bias)
    ids = TokenIds(0, target_start=1, target_end=1)
    folders = hf_writing.to_hf("bart", config, model.state_dict(), ids)
    hf_writing.write_folders(tmp_path, folders)
    again, loaded = oracle.ours("bart", tmp_path)
    assert (loaded.missing, loaded.unexpected) == ((), ())
    assert loaded.config == config.model_copy(update={"encoder_layers": config.encoder_depth})
    state = again.state_dict()
    assert state.keys() == model.state_dict().keys()
    assert all(torch.equal(each, state[name]) for name, each in model.state_dict().items())
    theirs, report = transformers.AutoModelForSeq2SeqLM.from_pretrained(
        tmp_path, output_loading_info=True
    )
    assert not any(report.values()), report
    assert type(theirs).__name__ == "BartForConditionalGeneration"
    assert theirs.generation_config.decoder_start_token_id == 1
    with torch.no_grad():
        logits = model.logits(model(LENGTHS, oracle.tokens(), pairs.sources(), SOURCES))
        expected = oracle.seen(theirs.eval()(**pairs.given()).logits)
    torch.testing.assert_close(logits, expected, **CLOSE)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"decoder_ffn_dim": 64}, "encoder_ffn_dim is 48 and decoder_ffn_dim 64"),
        ({"normalize_before": True}, "normalize_before is True; this family has False only"),
        ({"scale_embedding": True}, "scale_embedding is True; this family has False only"),
    ],
)
def test_bart_of_another_kind_is_refused(tmp_path: Path, change: dict, said: str) -> None:
    with torch.no_grad():
        _theirs().save_pretrained(tmp_path)
    settings = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(settings | change))
    with pytest.raises(FileError, match=said):
        oracle.ours("bart", tmp_path)


def test_published_settings_are_read(tmp_path: Path) -> None:
    with torch.no_grad():
        _theirs().save_pretrained(tmp_path)
    settings = json.loads((tmp_path / "config.json").read_text())
    # What config.json of facebook/bart-base has beside, of versions before transformers 5.
    settings |= {
        "add_bias_logits": False, "add_final_layer_norm": False, "classif_dropout": 0.1,
        "gradient_checkpointing": False, "normalize_before": False, "normalize_embedding": True,
        "no_repeat_ngram_size": 3, "early_stopping": True, "num_beams": 4, "num_hidden_layers": 2,
    }  # fmt: skip
    del settings["tie_word_embeddings"]
    (tmp_path / "config.json").write_text(json.dumps(settings))
    _, loaded = oracle.ours("bart", tmp_path)
    assert (loaded.missing, loaded.unexpected) == ((), ())
    assert loaded.config.tie


def _publish(folder: Path, front: str) -> nn.Module:
    """Write a model of transformers with a tokenizer that puts `front` before each text."""
    texts = ["the cat sat on the mat", "a dog ran to the cat"]
    tokenizer = bpe.Tokenizer.train(texts, bpe.Config(vocab_size=290))
    tokenizer.extended(["</s>", "<pad>", "<mask>"]).save(folder)
    file = folder / "tokenizer.json"
    library = Library.from_str(file.read_text("utf-8").replace("<|endoftext|>", "<s>"))
    ids = {token: library.token_to_id(token) for token in ("<s>", "</s>", "<pad>")}
    library.post_processor = processors.TemplateProcessing(
        single=f"{front}$A </s>", special_tokens=[*ids.items()]
    )
    library.save(str(file))
    settings = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}
    settings |= {"mask_token": "<mask>", "tokenizer_class": "PreTrainedTokenizerFast"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    sizes = {"vocab_size": library.get_vocab_size(), "pad_token_id": ids["<pad>"]}
    sizes |= {"decoder_start_token_id": ids["</s>"], "eos_token_id": ids["</s>"]}
    with torch.no_grad():
        theirs = _theirs(**sizes | {"bos_token_id": ids["<s>"]}).eval()
        theirs.final_logits_bias[:, ids["</s>"]] += 1  # else nothing ends
    theirs.save_pretrained(folder)
    return theirs


@pytest.mark.parametrize("front", ["<s> ", ""])
def test_texts_begin_as_the_published_tokenizer_says(tmp_path: Path, front: str) -> None:
    theirs = _publish(tmp_path, front)
    opened = open_checkpoint(tmp_path, device="cpu")
    objective, library = opened.objective, transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert objective.front == ((library.bos_token_id,) if front else ())
    forced = {"forced_bos_token_id": library.bos_token_id if front else None}
    for text in ("the cat<mask> mat", "a dog"):
        given = library(text, return_tensors="pt")
        prompt = objective.continue_text(objective.encode_input(text), 4)
        assert prompt.source["source_ids"].tolist() == given["input_ids"][0].tolist()
        more = {"suppress_tokens": list(objective.suppress_tokens), "do_sample": False} | forced
        written = theirs.generate(**given, max_new_tokens=12 + len(objective.front), **more)
        settings = Settings(max_new_tokens=12)
        (ours,) = Writer(opened.model, opened.tokenizer, objective, settings).write([text])
        assert ours.outputs[0].text == library.decode(written[0], skip_special_tokens=True)
        more |= {"num_beams": 3, "length_penalty": 1.5}
        written = theirs.generate(**given, max_new_tokens=12 + len(objective.front), **more)
        settings = Settings(max_new_tokens=12, beam=3, length_penalty=1.5)
        (ours,) = Writer(opened.model, opened.tokenizer, objective, settings).write([text])
        assert ours.outputs[0].text == library.decode(written[0], skip_special_tokens=True)


@pytest.mark.parametrize("name", ["seq2seq", "denoising", "span_corruption", "prefix_lm"])
def test_objectives_frame_both_texts_and_keep_to_the_longest(tmp_path: Path, name: str) -> None:
    _publish(tmp_path, "<s> ")
    opened = open_checkpoint(tmp_path, device="cpu")
    module = registry.load("objectives", name)
    config = module.Config(max_length=24)
    lacking = module.Objective.special_tokens(config, opened.part.config)
    tokenizer = opened.tokenizer.extended(
        [each for each in lacking if opened.tokenizer.special_id(each) is None]
    )
    objective = module.Objective(config, tokenizer, opened.part.config)
    begin, end = tokenizer.bos_id, tokenizer.special_id("</s>")
    text, rng = np.array(tokenizer.encode("the cat sat on the mat " * 9)), np.random.default_rng(3)
    if name == "seq2seq":
        row = Row({"source": "a dog " * 30, "target": "the cat " * 30}, "rows", 1)
        ids = tokenizer.encode_batch([row.values["source"], row.values["target"]])
        item = objective.item(row, ids)
        example, size = objective.example(item, rng), item.size
    else:
        example, size = objective.example(text[: objective.piece], rng), None
        (again,) = objective.restore(example)
        assert again.tolist() == text[: objective.piece].tolist()
        size = int(objective.length(np.array([objective.piece]))[0])
    source, target = example["source_ids"], example["labels"]
    assert [source[0], source[-1], target[0], target[-1]] == [begin, end, begin, end]
    assert example["input_ids"].tolist() == [end, *target[:-1]]
    assert max(len(source), len(target)) <= 24
    assert len(source) + len(target) == size or name == "denoising"
    if name == "denoising":  # infilled sources are shorter
        assert len(source) + len(target) <= size
        assert not objective.shown(example)[[0, -1]].any()


def test_tuned_published_checkpoint_opens_as_it_was_trained(tmp_path: Path) -> None:
    theirs = _publish(tmp_path, "<s> ")
    rows = [{"source": f"the cat {i % 3}", "target": "a dog ran"} for i in range(8)]
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    recipe = tmp_path / "tune.yaml"
    recipe.write_text(
        f"name: tune\ninit_from: {tmp_path}\nobjective: {{name: seq2seq, max_length: 32}}\n"
        f"data: {{train: {file}, valid: {file}}}\nmodel: {{dropout: 0.0}}\n"
        "train: {steps: 1, lr: 1e-12, schedule: constant, tokens_per_step: 4096, precision: fp32}\n"
    )
    saved = _tiny.pretrain(recipe, tmp_path / "run")
    before = transformers.AutoTokenizer.from_pretrained(tmp_path)
    after = transformers.AutoTokenizer.from_pretrained(saved)
    assert after("the cat")["input_ids"] == before("the cat")["input_ids"]
    generation = transformers.GenerationConfig.from_pretrained(saved)
    assert generation.forced_bos_token_id == before.bos_token_id
    opened = open_checkpoint(saved, device="cpu")
    assert opened.objective.front == (before.bos_token_id,)
    # The loss is that of transformers with its own labels.
    given = before([row["source"] for row in rows], return_tensors="pt", padding=True)
    labels = before([row["target"] for row in rows], return_tensors="pt", padding=True)
    labels = labels["input_ids"].masked_fill(labels["attention_mask"] == 0, -100)
    with torch.no_grad():
        expected = float(theirs(**given, labels=labels).loss)
    first = json.loads((tmp_path / "run/metrics.jsonl").read_text().splitlines()[0])
    assert first["loss"] == pytest.approx(expected, abs=2e-5)
    again = transformers.AutoModelForSeq2SeqLM.from_pretrained(saved).eval()
    text = before("the cat 1", return_tensors="pt")
    (ours,) = Writer(opened.model, opened.tokenizer, opened.objective, Settings()).write(
        ["the cat 1"]
    )
    assert ours.outputs[0].text == before.decode(
        again.generate(**text)[0], skip_special_tokens=True
    )


def test_source_longer_than_the_positions_is_refused() -> None:
    model = Model(Config(**SIZES | {"max_positions": 8}), VOCAB)
    with pytest.raises(ValueError, match="9 tokens; the model has 8 positions"):
        model((2,), torch.tensor([5, 6]), torch.arange(9), (9,))


@pytest.mark.parametrize(
    ("sizes", "count"),
    [
        # The parameters of facebook/bart-base and bart-large, by transformers.
        ({}, 139_420_416),
        ({"hidden_size": 1024, "num_layers": 12, "num_heads": 16, "intermediate_size": 4096},
         406_291_456),
    ],
    ids=["base", "large"],
)  # fmt: skip
def test_published_sizes_have_their_number_of_parameters(sizes: dict, count: int) -> None:
    config = Config(**sizes)
    with torch.device("meta"):
        model = Model(config, 50265)
        theirs = transformers.BartForConditionalGeneration(
            transformers.BartConfig(
                d_model=config.hidden_size, encoder_layers=config.num_layers,
                decoder_layers=config.num_layers, encoder_attention_heads=config.num_heads,
                decoder_attention_heads=config.num_heads,
                encoder_ffn_dim=config.intermediate_size, decoder_ffn_dim=config.intermediate_size,
            )
        )  # fmt: skip
    found = sum(parameter.numel() for parameter in model.parameters())
    assert found == sum(parameter.numel() for parameter in theirs.parameters()) == count
