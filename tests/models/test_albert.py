"""ALBERT against transformers: shared layers, states, losses, gradients, files."""

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
import transformers
from pydantic import ValidationError
from torch import nn

from nlpkit.checkpoints import hf_layout, hf_model
from nlpkit.contracts.batch import IGNORE
from nlpkit.models import families
from nlpkit.models.albert import Config
from nlpkit.models.albert.model import Model
from tests._families import oracle
from tests._families.oracle import CLOSE, LENGTHS, VOCAB

SIZES = {
    "hidden_size": 32, "num_layers": 3, "num_heads": 4, "intermediate_size": 48,
    "max_positions": 64, "embedding_size": 12,
}  # fmt: skip


def _theirs(architecture: str = "AlbertForPreTraining", **settings) -> torch.nn.Module:
    sizes = {
        "vocab_size": VOCAB, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4,
        "intermediate_size": 48, "max_position_embeddings": 64, "embedding_size": 12,
    }  # fmt: skip
    return oracle.drawn(architecture, transformers.AlbertConfig(**sizes | settings))


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"num_hidden_groups": 2, "inner_group_num": 2},
        {"tie_word_embeddings": False, "hidden_act": "gelu", "num_hidden_groups": 3},
    ],
    ids=["albert", "groups", "untied"],
)
def test_states_losses_and_gradients_equal_transformers(tmp_path: Path, settings) -> None:
    theirs = _theirs(**settings)
    theirs.save_pretrained(tmp_path)
    model, loaded = oracle.ours("albert", tmp_path)
    assert (loaded.missing, loaded.unexpected) == ((), ())
    ids, types = oracle.tokens(), oracle.types()
    labels, pairs = oracle.masked_labels(ids), torch.tensor([0, 1, 1])
    expected = theirs(
        **oracle.inputs(ids, token_types=types), labels=oracle.padded(labels, IGNORE),
        sentence_order_label=pairs, output_hidden_states=True,
    )  # fmt: skip
    hidden = model(LENGTHS, input_ids=ids, token_type_ids=types)
    torch.testing.assert_close(hidden, oracle.seen(expected.hidden_states[-1]), **CLOSE)
    logits = model.logits(hidden)
    torch.testing.assert_close(logits, oracle.seen(expected.prediction_logits), **CLOSE)
    scores = model.pair_logits(hidden, LENGTHS)
    torch.testing.assert_close(scores, expected.sop_logits, **CLOSE)
    index = (labels != IGNORE).nonzero().squeeze(1)
    total, _ = model.token_loss(hidden, index, labels[index])
    loss = total / len(index) + F.cross_entropy(scores, pairs)
    torch.testing.assert_close(loss, expected.loss, **CLOSE)
    expected.loss.backward()
    loss.backward()
    oracle.assert_gradients_equal("albert", loaded, model, theirs)


@pytest.mark.parametrize("family", ["albert", "electra", "bert"])
def test_states_between_layers_are_float32_with_autocast(family: str) -> None:
    config = families.load(family).Config
    sizes = {name: size for name, size in SIZES.items() if name in config.model_fields}
    model = families.load_model(family).Model(config(**sizes), VOCAB).eval()
    with torch.autocast("cpu", torch.bfloat16):
        hidden = model(LENGTHS, input_ids=oracle.tokens(), token_type_ids=oracle.types())
    assert hidden.dtype == torch.float32


def test_dropout_is_where_transformers_has_it(tmp_path: Path) -> None:
    # Attention adds nothing here, so its dropout is not seen; feed-forward layers have none.
    theirs = _theirs(hidden_dropout_prob=0.5)
    (their_layer,) = theirs.albert.encoder.albert_layer_groups[0].albert_layers
    for parameter in their_layer.attention.dense.parameters():
        nn.init.zeros_(parameter)
    theirs.save_pretrained(tmp_path)
    model, _ = oracle.ours("albert", tmp_path)
    layer = model.train().layers.order[0]
    assert (layer.dropout, theirs.train().config.hidden_dropout_prob) == (0.5, 0.5)
    x = torch.randn(6, 32)
    found = layer(x, lambda q, k, v: v)
    torch.testing.assert_close(found, their_layer(x[None])[0], **CLOSE)


@pytest.mark.parametrize(
    "more", [{}, {"num_groups": 2, "inner_layers": 2, "tie": False, "dropout": 0.1}]
)
def test_checkpoint_opens_in_transformers_and_comes_back_exactly(tmp_path: Path, more) -> None:
    config = Config(**SIZES, **more)
    oracle.assert_opens_both_ways("albert", config, "AlbertForPreTraining", tmp_path)


def test_masked_model_without_pooler_loads_with_a_report(tmp_path: Path) -> None:
    theirs = _theirs("AlbertForMaskedLM")
    theirs.save_pretrained(tmp_path)
    model, loaded = oracle.ours("albert", tmp_path)
    assert sorted(loaded.missing) == [
        "albert.pooler.bias", "albert.pooler.weight",
        "sop_classifier.classifier.bias", "sop_classifier.classifier.weight",
    ]  # fmt: skip
    ids, types = oracle.tokens(), oracle.types()
    expected = theirs(**oracle.inputs(ids, token_types=types)).logits
    found = model.logits(model(LENGTHS, input_ids=ids, token_type_ids=types))
    torch.testing.assert_close(found, oracle.seen(expected), **CLOSE)


def test_classifier_of_transformers_loads(tmp_path: Path) -> None:
    theirs = _theirs("AlbertForSequenceClassification", num_labels=3)
    theirs.save_pretrained(tmp_path)
    settings, tensors = hf_layout.read(tmp_path)
    allowed = ("predictions",)
    loaded = hf_model.from_hf("albert", tmp_path, settings, tensors, allow_missing=allowed)
    assert not loaded.unexpected
    assert torch.equal(loaded.state["head.weight"], theirs.classifier.weight)
    assert torch.equal(loaded.state["head.bias"], theirs.classifier.bias)


def test_default_sizes_give_the_parameters_of_the_base_model() -> None:
    with torch.device("meta"):
        model = Model(Config(), 30000)
        theirs = transformers.AlbertForPreTraining(
            transformers.AlbertConfig(hidden_size=768, num_attention_heads=12,
                                      intermediate_size=3072)
        )  # fmt: skip
    assert sum(p.numel() for p in model.parameters()) == theirs.num_parameters()
    # Lan et al. 2019, table 1: base has 12 M parameters.
    assert round(theirs.num_parameters() / 1e6) == 12


def test_more_groups_than_layers_are_refused() -> None:
    with pytest.raises(ValidationError, match="num_groups: 4 is more than num_layers 3"):
        Config(**SIZES, num_groups=4)
