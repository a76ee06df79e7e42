"""The Transformer against torch.nn.Transformer and transformers' MarianMTModel."""

import json
from pathlib import Path

import pytest
import torch
import transformers
from torch import nn

from nlpkit.checkpoints import hf_writing
from nlpkit.checkpoints.hf_writing import TokenIds
from nlpkit.errors import FileError
from nlpkit.models.layers.embeddings import sinusoids
from nlpkit.models.transformer import Config
from nlpkit.models.transformer.model import Model
from tests._families import oracle, pairs
from tests._families.oracle import CLOSE, LENGTHS, VOCAB
from tests._families.pairs import SOURCES

SIZES = {"hidden_size": 32, "num_layers": 2, "num_heads": 4, "intermediate_size": 48,
         "max_positions": 64}  # fmt: skip


def _theirs(**settings) -> nn.Module:
    sizes = {
        "vocab_size": VOCAB, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2,
        "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 48,
        "decoder_ffn_dim": 48, "max_position_embeddings": 64, "activation_function": "relu",
        "scale_embedding": True, "dropout": 0.0, "pad_token_id": 0, "eos_token_id": 1,
        "decoder_start_token_id": 0, "forced_eos_token_id": None,
    }  # fmt: skip
    config = transformers.MarianConfig(**sizes | settings)
    model = oracle.drawn("MarianMTModel", config)
    for side in (model.model.encoder, model.model.decoder):  # `drawn` has drawn these, too
        side.embed_positions.weight.copy_(side.embed_positions.create_weight())
    # Where it is not 0, as in Marian's own checkpoints.
    model.final_logits_bias.normal_(generator=torch.Generator().manual_seed(3))
    return model


@pytest.mark.parametrize(
    "settings",
    [
        {},
        pytest.param(
            {"encoder_layers": 3, "activation_function": "swish", "scale_embedding": False},
            marks=pytest.mark.slow,
        ),
        pytest.param(
            {
                "share_encoder_decoder_embeddings": False,
                "vocab_size": VOCAB + 20,
                "decoder_vocab_size": VOCAB,
            },
            marks=pytest.mark.slow,
        ),
    ],
    ids=["base", "deep encoder", "two vocabularies"],
)
def test_states_loss_gradients_and_beams_equal_marian(tmp_path: Path, settings) -> None:
    with torch.no_grad():
        theirs = _theirs(**settings)
    model = pairs.assert_equal("transformer", theirs, tmp_path)
    pairs.assert_alignments_equal(model, theirs)
    pairs.assert_cached_is_whole(model)
    pairs.assert_computes_in_bfloat16(model)
    for beams, penalty in ((3, 0.6), (4, 1.0), (2, 2.0)):
        pairs.assert_beams_equal(model, theirs, beams=beams, penalty=penalty)


def _torchs(model: Model) -> nn.Transformer:
    """Return torch's Transformer with the model's weights, without the norms after its stacks."""
    config = model.config
    options = {"dropout": 0.0, "batch_first": True}
    sizes = (config.hidden_size, config.num_heads, config.intermediate_size)
    coder = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(*sizes, **options), 2, enable_nested_tensor=False
    )
    decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(*sizes, **options), 2)
    made = nn.Transformer(  # this draws the weights of its parts
        *sizes[:2], custom_encoder=coder, custom_decoder=decoder, batch_first=True
    )
    names = {
        "attention": "self_attn", "cross": "multihead_attn", "attention_norm": "norm1",
        "cross_norm": "norm2", "up": "linear1", "down": "linear2",
    }  # fmt: skip
    with torch.no_grad():
        for theirs, ours in ((coder, model.encoder), (decoder, model.decoder)):
            for layer, block in zip(theirs.layers, ours, strict=True):
                last = "norm3" if hasattr(block, "cross") else "norm2"
                for name, module in block.named_children():
                    if name == "drop":
                        continue
                    into = getattr(layer, names.get(name, last))
                    if isinstance(into, nn.MultiheadAttention):
                        parts = (module.query, module.key, module.value)
                        into.in_proj_weight.copy_(torch.cat([p.weight for p in parts]))
                        into.in_proj_bias.copy_(torch.cat([p.bias for p in parts]))
                        into.out_proj.load_state_dict(module.project.state_dict())
                    else:
                        into.load_state_dict(module.state_dict())
    return made


def test_states_and_gradients_equal_torchs_transformer() -> None:
    torch.manual_seed(0)
    model = Model(Config(**SIZES, dropout=0.0), VOCAB)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    theirs = _torchs(model)
    targets, sources = oracle.tokens(), pairs.sources()
    packed = model(LENGTHS, targets, sources, SOURCES)
    found = []
    for target, source in zip(targets.split(LENGTHS), sources.split(SOURCES), strict=True):
        # Vaswani et al. 2017, sec. 3.4 and 3.5.
        x, y = (
            model.token_embedding[ids] * 32**0.5 + sinusoids(64, 32)[: len(ids)]
            for ids in (source, target)
        )
        causal = nn.Transformer.generate_square_subsequent_mask(len(target))
        found.append(theirs(x[None], y[None], tgt_mask=causal)[0])
    expected = torch.cat(found)
    torch.testing.assert_close(packed, expected, **CLOSE)
    wanted = torch.randn(packed.shape, generator=torch.Generator().manual_seed(4))
    (packed * wanted).sum().backward()
    table = model.token_embedding.grad.clone()
    model.zero_grad()
    (expected * wanted).sum().backward()
    torch.testing.assert_close(table, model.token_embedding.grad, atol=1e-4, rtol=1e-4)


def test_sinusoids_are_those_of_the_paper_and_of_marian() -> None:
    table = sinusoids(20, 6)
    # By hand, sec. 3.5: position 3, i = 1: 3 / 10000^(2 / 6).
    angle = torch.tensor(3 / 10000 ** (2 / 6))
    torch.testing.assert_close(table[3, 1], angle.sin(), atol=1e-6, rtol=0)
    torch.testing.assert_close(table[3, 3 + 1], angle.cos(), atol=1e-6, rtol=0)
    marian = transformers.models.marian.modeling_marian.MarianSinusoidalPositionalEmbedding
    for width in (6, 7):
        theirs = marian(20, width).create_weight()
        torch.testing.assert_close(sinusoids(20, width), theirs, atol=1e-6, rtol=0)


@pytest.mark.parametrize(
    "more",
    [
        {}, {"positions": "learned", "encoder_layers": 1},
        {"tie": False, "output_bias": True, "hidden_act": "swish"},
        {"source_vocab_size": VOCAB + 9}, {"source_vocab_size": VOCAB - 1, "tie": False},
    ],
    ids=["base", "learned", "untied", "two vocabularies", "two, untied"],
)  # fmt: skip
def test_checkpoint_opens_in_transformers_and_comes_back_exactly(tmp_path: Path, more) -> None:
    config = Config(**SIZES, **more)
    torch.manual_seed(0)
    model = Model(config, VOCAB).eval()
    if config.output_bias:
        nn.init.normal_(model.token_bias)
    folders = hf_writing.to_hf(
        "transformer", config, model.state_dict(), TokenIds(0, target_start=0, target_end=1)
    )
    hf_writing.write_folders(tmp_path, folders)
    again, loaded = oracle.ours("transformer", tmp_path)
    assert (loaded.missing, loaded.unexpected) == ((), ())
    assert loaded.config == config.model_copy(update={"encoder_layers": config.encoder_depth})
    state = again.state_dict()
    assert state.keys() == model.state_dict().keys()
    assert all(torch.equal(each, state[name]) for name, each in model.state_dict().items())
    theirs, report = transformers.AutoModelForSeq2SeqLM.from_pretrained(
        tmp_path, output_loading_info=True
    )
    # The sines are made anew, as transformers' own warning-free loading does.
    assert {n for n in report["missing_keys"] if "embed_positions" not in n} == set()
    assert not report["unexpected_keys"]
    assert type(theirs).__name__ == "MarianMTModel"
    assert theirs.generation_config.decoder_start_token_id == 0
    with torch.no_grad():
        logits = model.logits(model(LENGTHS, oracle.tokens(), pairs.sources(), SOURCES))
        expected = oracle.seen(theirs.eval()(**pairs.given()).logits)
    torch.testing.assert_close(logits, expected, **CLOSE)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"decoder_ffn_dim": 64}, "encoder_ffn_dim is 48 and decoder_ffn_dim 64"),
        ({"normalize_before": True}, "normalize_before is True; this family has False only"),
        ({"activation_function": "tanh"}, "activation_function is 'tanh'; this family has relu"),
    ],
)
def test_marian_of_another_kind_is_refused(tmp_path: Path, change: dict, said: str) -> None:
    with torch.no_grad():
        _theirs().save_pretrained(tmp_path)
    settings = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(settings | change))
    with pytest.raises(FileError, match=said):
        oracle.ours("transformer", tmp_path)


def test_tables_that_are_not_tied_and_differ_are_refused(tmp_path: Path) -> None:
    with torch.no_grad():
        theirs = _theirs(tie_word_embeddings=False)
        theirs.save_pretrained(tmp_path / "other")
        for side in (theirs.model.encoder, theirs.model.decoder):
            side.embed_tokens.weight.copy_(theirs.model.shared.weight)
        theirs.save_pretrained(tmp_path / "same")
    said = r"model\.encoder\.embed_tokens\.weight is not model\.shared\.weight; this model has one"
    with pytest.raises(FileError, match=said):
        oracle.ours("transformer", tmp_path / "other")
    _, loaded = oracle.ours("transformer", tmp_path / "same")
    assert (loaded.missing, loaded.unexpected) == ((), ())


def test_source_longer_than_the_positions_is_refused() -> None:
    model = Model(Config(**SIZES | {"max_positions": 8}), VOCAB)
    with pytest.raises(ValueError, match="9 tokens; the model has 8 positions"):
        model((2,), torch.tensor([5, 6]), torch.arange(9), (9,))


def test_paper_model_has_the_papers_number_of_parameters() -> None:
    with torch.device("meta"):
        model = Model(Config(), 37000)
    # Table 3: 65 million.
    assert round(sum(p.numel() for p in model.parameters()) / 1e6) in (63, 64, 65)
