"""T5 against transformers' T5ForConditionalGeneration, in the forms of versions 1.0 and 1.1."""

import json
from pathlib import Path

import pytest
import torch
import transformers
from torch import nn

from nlpkit.checkpoints import hf_writing
from nlpkit.checkpoints.hf_writing import TokenIds
from nlpkit.errors import FileError
from nlpkit.models.t5 import Config
from nlpkit.models.t5.model import Model
from nlpkit.runs.open_checkpoint import open_checkpoint
from nlpkit.tokenizers import bpe
from tests._families import oracle, pairs
from tests._families.oracle import CLOSE, LENGTHS, VOCAB

SIZES = {"hidden_size": 32, "num_layers": 2, "num_heads": 4, "head_dim": 6,
         "intermediate_size": 48, "num_buckets": 8, "max_distance": 10}  # fmt: skip
V1_1 = {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}


def _theirs(**settings) -> nn.Module:
    sizes = {
        "vocab_size": VOCAB, "d_model": 32, "d_kv": 6, "d_ff": 48, "num_layers": 2, "num_heads": 4,
        "relative_attention_num_buckets": 8, "relative_attention_max_distance": 10,
        "dropout_rate": 0.0, "decoder_start_token_id": 0,
    }  # fmt: skip
    model = oracle.drawn("T5ForConditionalGeneration", transformers.T5Config(**sizes | settings))
    if "tie_word_embeddings" in settings:
        # transformers 5 makes every T5 tied, and unties one whose file has two tables.
        model.lm_head.weight = nn.Parameter(0.2 * torch.randn(VOCAB, 32))
        model.config.tie_word_embeddings = False
    return model


@pytest.mark.parametrize(
    "settings",
    [{}, V1_1, {"num_layers": 3, "num_decoder_layers": 2, "feed_forward_proj": "gated-relu"}],
    ids=["1.0", "1.1", "deep encoder"],
)
def test_states_loss_gradients_and_beams_equal_transformers(tmp_path: Path, settings) -> None:
    theirs = _theirs(**settings)
    model = pairs.assert_equal("t5", theirs, tmp_path)
    pairs.assert_alignments_equal(model, theirs)
    pairs.assert_cached_is_whole(model)
    pairs.assert_computes_in_bfloat16(model)
    pairs.assert_beams_equal(model, theirs, beams=3, penalty=0.6)


@pytest.mark.parametrize(
    "more",
    [
        {}, {"gated": True, "hidden_act": "gelu_new", "tie": False},
        {"encoder_layers": 1, "gated": True, "hidden_act": "silu", "dropout": 0.2},
    ],
    ids=["1.0", "1.1", "short encoder"],
)  # fmt: skip
def test_checkpoint_opens_in_transformers_and_comes_back_exactly(tmp_path: Path, more) -> None:
    config = Config(**SIZES, attention_dropout=0.0, **more)
    torch.manual_seed(0)
    model = Model(config, VOCAB).eval()
    folders = hf_writing.to_hf(
        "t5", config, model.state_dict(), TokenIds(0, target_start=0, target_end=1)
    )
    hf_writing.write_folders(tmp_path, folders)
    theirs, report = transformers.AutoModelForSeq2SeqLM.from_pretrained(
        tmp_path, output_loading_info=True
    )
    assert not any(report.values()), report
    with torch.no_grad():
        logits = model.logits(model(LENGTHS, oracle.tokens(), pairs.sources(), pairs.SOURCES))
        expected = oracle.seen(theirs.eval()(**pairs.given()).logits)
    torch.testing.assert_close(logits, expected, **CLOSE)
    again, loaded = oracle.ours("t5", tmp_path)
    assert loaded.config == config.model_copy(update={"encoder_layers": config.encoder_depth})
    state = again.state_dict()
    assert state.keys() == model.state_dict().keys()
    assert all(torch.equal(each, state[name]) for name, each in model.state_dict().items())
    # And through a file that transformers writes, without our notes.
    theirs.save_pretrained(tmp_path / "theirs")
    again, loaded = oracle.ours("t5", tmp_path / "theirs")
    assert (loaded.missing, loaded.unexpected) == ((), ())
    assert loaded.config.attention_dropout == config.attention_dropout
    assert all(torch.equal(each, state[n]) for n, each in again.state_dict().items())


def test_untied_model_that_was_never_trained_has_equal_tables(tmp_path: Path) -> None:
    config = transformers.T5Config(
        vocab_size=VOCAB, d_model=32, d_kv=6, d_ff=48, num_layers=1, num_heads=4, **V1_1
    )
    transformers.T5ForConditionalGeneration(config).save_pretrained(tmp_path)
    model, loaded = oracle.ours("t5", tmp_path)
    assert (loaded.missing, loaded.unexpected, loaded.config.tie) == ((), (), False)
    assert torch.equal(model.output_embedding, model.token_embedding)


@pytest.mark.parametrize("kind", ["tanh", "gated-gelu-relu", "double-relu"])
def test_other_feed_forward_layers_are_refused(tmp_path: Path, kind: str) -> None:
    _theirs().save_pretrained(tmp_path)
    settings = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(settings | {"feed_forward_proj": kind}))
    with pytest.raises(FileError, match=f"feed_forward_proj is '{kind}'; this family has NAME"):
        oracle.ours("t5", tmp_path)


@pytest.mark.parametrize(
    ("tokens", "said"),
    [([], "</s>, <extra_id_99>, <extra_id_98> and 98 more"), (["</s>"], "<extra_id_99>, ")],
)
def test_model_of_others_whose_tokenizer_lacks_tokens_is_refused_in_one_line(
    tmp_path: Path, tokens, said
) -> None:
    plain = bpe.Tokenizer.train(["a b"], bpe.Config(vocab_size=258))
    tokenizer = plain.extended(tokens) if tokens else plain
    config = transformers.T5Config(
        vocab_size=tokenizer.vocab_size, d_model=32, d_kv=6, d_ff=48, num_layers=1, num_heads=4
    )
    transformers.T5ForConditionalGeneration(config).save_pretrained(tmp_path)
    tokenizer.save(tmp_path)
    with pytest.raises(FileError, match=f"span_corruption needs the special tokens {said}"):
        open_checkpoint(tmp_path, device="cpu")


def test_gate_that_transformers_has_no_name_for_is_refused() -> None:
    # There, `gated-gelu` is the tanh form: transformers.T5Config(feed_forward_proj="gated-gelu").
    with pytest.raises(ValueError, match=r"hidden_act: gelu with gated .* set gelu_new"):
        Config(gated=True, hidden_act="gelu")


def test_initial_weights_have_the_deviations_of_transformers() -> None:
    config = Config(hidden_size=64, num_layers=1, num_heads=4, head_dim=16, gated=True)
    torch.manual_seed(0)
    ours = hf_writing.to_hf("t5", config, Model(config, 300).state_dict())[""][1]
    theirs = transformers.T5ForConditionalGeneration(
        transformers.T5Config(
            vocab_size=300, d_model=64, d_kv=16, num_layers=1, num_heads=4,
            feed_forward_proj="gated-relu",
        )
    ).state_dict()  # fmt: skip
    assert {*ours} == {*theirs}
    for name, tensor in ours.items():
        assert tensor.shape == theirs[name].shape
        if "norm" not in name:
            found, expected = tensor.std().item(), theirs[name].std().item()
            tolerance = 0.3 if "relative" in name else 0.1  # few values
            assert found == pytest.approx(expected, rel=tolerance), name


def test_distance_that_the_decoder_alone_refuses_is_named() -> None:
    with pytest.raises(ValueError, match="max_distance: 12 must be larger than num_buckets"):
        Config(max_distance=12)  # the encoder's limit is 8, the decoder's 16
