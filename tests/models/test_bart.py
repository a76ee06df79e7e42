"""BART against transformers' BartForConditionalGeneration."""

import json
from pathlib import Path

import pytest
import torch
import transformers
from tokenizers import Tokenizer as Library
from tokenizers import processors
from torch import nn

from nlpkit.checkpoints import hf_writing
from nlpkit.checkpoints.hf_writing import TokenIds
from nlpkit.errors import FileError
from nlpkit.models.bart import Config
from nlpkit.models.bart.model import Model
from nlpkit.runs.open_checkpoint import open_checkpoint
from nlpkit.tokenizers import bpe
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


@pytest.mark.parametrize("front", ["<s> ", ""])
def test_begin_of_published_texts_that_is_left_out_is_told(tmp_path: Path, front: str) -> None:
    tokenizer = bpe.Tokenizer.train(["the cat sat"], bpe.Config(vocab_size=270))
    tokenizer.extended(["</s>", "<mask>"]).save(tmp_path)
    file = tmp_path / "tokenizer.json"
    library = Library.from_str(file.read_text("utf-8").replace("<|endoftext|>", "<s>"))
    ids = [(token, library.token_to_id(token)) for token in ("<s>", "</s>")]
    library.post_processor = processors.TemplateProcessing(
        single=f"{front}$A </s>", special_tokens=ids
    )
    library.save(str(file))
    settings = {"bos_token": "<s>", "eos_token": "</s>", "mask_token": "<mask>"}
    settings["tokenizer_class"] = "PreTrainedTokenizerFast"
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    with torch.no_grad():
        _theirs(vocab_size=library.get_vocab_size()).save_pretrained(tmp_path)
    said: list[str] = []
    open_checkpoint(tmp_path, device="cpu", warn=said.append)
    what = "transformers puts <s> in front of its sources and targets, nlpkit does not"
    assert said == ([f"{tmp_path}: {what}; tune it before it writes text"] if front else [])


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
