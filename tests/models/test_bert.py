"""BERT against transformers: states, losses, gradients, files, classifiers."""

import json
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
import transformers

from nlpkit.checkpoints import hf_layout, hf_model, hf_writing
from nlpkit.contracts.batch import IGNORE
from nlpkit.errors import FileError
from nlpkit.models.bert import Config
from nlpkit.models.bert.model import Model
from tests._families import oracle
from tests._families.oracle import CLOSE, LENGTHS, VOCAB

SIZES = {
    "hidden_size": 32, "num_layers": 2, "num_heads": 4, "intermediate_size": 48,
    "max_positions": 64,
}  # fmt: skip


def _theirs(architecture: str = "BertForPreTraining", **settings) -> torch.nn.Module:
    sizes = {
        "vocab_size": VOCAB, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
        "intermediate_size": 48, "max_position_embeddings": 64,
    }  # fmt: skip
    return oracle.drawn(architecture, transformers.BertConfig(**sizes | settings))


@pytest.mark.parametrize(
    "settings",
    [{}, {"hidden_act": "relu"}, {"hidden_act": "gelu_new"}, {"tie_word_embeddings": False}],
    ids=["bert", "relu", "gelu_new", "untied"],
)
def test_states_losses_and_gradients_equal_transformers(tmp_path: Path, settings) -> None:
    theirs = _theirs(**settings)
    theirs.save_pretrained(tmp_path)
    model, loaded = oracle.ours("bert", tmp_path)
    assert (loaded.missing, loaded.unexpected) == ((), ())
    ids, types = oracle.tokens(), oracle.types()
    labels, pairs = oracle.masked_labels(ids), torch.tensor([0, 1, 1])
    expected = theirs(
        **oracle.inputs(ids, token_types=types), labels=oracle.padded(labels, IGNORE),
        next_sentence_label=pairs, output_hidden_states=True,
    )  # fmt: skip
    hidden = model(LENGTHS, input_ids=ids, token_type_ids=types)
    torch.testing.assert_close(hidden, oracle.seen(expected.hidden_states[-1]), **CLOSE)
    logits = model.logits(hidden)
    torch.testing.assert_close(logits, oracle.seen(expected.prediction_logits), **CLOSE)
    scores = model.pair_logits(hidden, LENGTHS)
    torch.testing.assert_close(scores, expected.seq_relationship_logits, **CLOSE)
    index = (labels != IGNORE).nonzero().squeeze(1)
    total, _ = model.token_loss(hidden, index, labels[index])
    loss = total / len(index) + F.cross_entropy(scores, pairs)
    torch.testing.assert_close(loss, expected.loss, **CLOSE)
    expected.loss.backward()
    loss.backward()
    oracle.assert_gradients_equal("bert", loaded, model, theirs)


@pytest.mark.parametrize("more", [{}, {"tie": False, "hidden_act": "relu", "type_vocab_size": 3}])
def test_checkpoint_opens_in_transformers_and_comes_back_exactly(tmp_path: Path, more) -> None:
    config = Config(**SIZES, **more)
    oracle.assert_opens_both_ways("bert", config, "BertForPreTraining", tmp_path)
    for kind in ("BertForMaskedLM", "BertModel"):
        _, report = getattr(transformers, kind).from_pretrained(tmp_path, output_loading_info=True)
        # BertForMaskedLM is made without a pooler.
        assert not report["missing_keys"], kind


def test_types_of_a_model_that_has_a_single_one_are_all_the_same() -> None:
    # A teacher of a student that reads pairs gets the student's types.
    model = Model(Config(**SIZES, type_vocab_size=1), VOCAB).eval()
    ids, types = oracle.tokens(), oracle.types()
    assert types.any()
    assert torch.equal(model(LENGTHS, ids, types), model(LENGTHS, ids))


def test_masked_model_without_pooler_loads_with_a_report(tmp_path: Path) -> None:
    theirs = _theirs("BertForMaskedLM")
    theirs.save_pretrained(tmp_path)
    model, loaded = oracle.ours("bert", tmp_path)
    assert sorted(loaded.missing) == [
        "bert.pooler.dense.bias", "bert.pooler.dense.weight",
        "cls.seq_relationship.bias", "cls.seq_relationship.weight",
    ]  # fmt: skip
    ids, types = oracle.tokens(), oracle.types()
    expected = theirs(**oracle.inputs(ids, token_types=types)).logits
    found = model.logits(model(LENGTHS, input_ids=ids, token_type_ids=types))
    torch.testing.assert_close(found, oracle.seen(expected), **CLOSE)


def test_bare_model_without_prefix_loads_where_its_head_may_be_missing(tmp_path: Path) -> None:
    theirs = _theirs("BertModel")
    theirs.save_pretrained(tmp_path)
    with pytest.raises(FileError, match=r"5 tensors are missing: cls\.predictions"):
        oracle.ours("bert", tmp_path)
    model, loaded = oracle.ours("bert", tmp_path, allow_missing=("cls",))
    assert len(loaded.missing) == 7
    ids, types = oracle.tokens(), oracle.types()
    expected = theirs(**oracle.inputs(ids, token_types=types))
    found = model(LENGTHS, input_ids=ids, token_type_ids=types)
    torch.testing.assert_close(found, oracle.seen(expected.last_hidden_state), **CLOSE)
    torch.testing.assert_close(model.summary(found, LENGTHS), expected.pooler_output, **CLOSE)


def test_checkpoint_of_the_first_releases_is_read(tmp_path: Path) -> None:
    """google-bert's files: no setting for tied tables, no decoder, norms called gamma and beta."""
    _theirs().save_pretrained(tmp_path)
    settings, tensors = hf_layout.read(tmp_path)
    for name in ("tie_word_embeddings", "layer_norm_eps"):
        settings.pop(name)
    settings |= {"gradient_checkpointing": False, "position_embedding_type": "absolute"}
    plain = {name: value for name, value in tensors.items() if ".decoder." not in name}
    old = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace(
            "LayerNorm.bias", "LayerNorm.beta"
        ): value
        for name, value in plain.items()
    }
    assert len(old.keys() - plain.keys()) == 12  # 5 norms and the head's, two tensors each
    hf_writing.write(tmp_path, settings, old)
    model, loaded = oracle.ours("bert", tmp_path)
    assert (loaded.missing, loaded.unexpected) == ((), ())
    assert loaded.config == Config(**SIZES)
    theirs = _theirs()
    assert torch.equal(model.output_norm.weight, theirs.cls.predictions.transform.LayerNorm.weight)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"hidden_act": "silu"}, "hidden_act is 'silu'; this family has gelu, relu, gelu_new"),
        ({"position_embedding_type": "relative_key"}, "position_embedding_type is 'relative_key'"),
        ({"is_decoder": True}, "is_decoder is True; this family has False only"),
        ({"add_cross_attention": True}, "add_cross_attention is True"),
    ],
    ids=["activation", "positions", "decoder", "cross attention"],
)
def test_another_bert_is_refused_in_one_line(tmp_path: Path, settings, said: str) -> None:
    _theirs().save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | settings))
    with pytest.raises(FileError, match=said) as error:
        oracle.ours("bert", tmp_path)
    assert "\n" not in str(error.value)


def test_classifier_of_transformers_loads_and_must_be_whole(tmp_path: Path) -> None:
    theirs = _theirs("BertForSequenceClassification", num_labels=3)
    theirs.save_pretrained(tmp_path)
    settings, tensors = hf_layout.read(tmp_path)
    loaded = hf_model.from_hf("bert", tmp_path, settings, tensors, allow_missing=("cls",))
    assert torch.equal(loaded.state["head.weight"], theirs.classifier.weight)
    assert torch.equal(loaded.state["head.bias"], theirs.classifier.bias)
    assert not loaded.unexpected
    tensors.pop("classifier.bias")
    with pytest.raises(FileError, match=r"classifier\.bias is missing, but classifier\.weight"):
        hf_model.from_hf("bert", tmp_path, settings, tensors, allow_missing=("cls",))


def test_default_sizes_give_the_papers_parameters() -> None:
    with torch.device("meta"):
        model, theirs = Model(Config(), 30522), transformers.BertForPreTraining(
            transformers.BertConfig()
        )  # fmt: skip
    # BERT base with both heads: 110,106,428 (transformers' num_parameters)
    assert sum(p.numel() for p in model.parameters()) == theirs.num_parameters() == 110_106_428


@pytest.mark.parametrize("name", ["dropout", "attention_dropout"])
def test_each_dropout_acts_alone(name: str) -> None:
    for rate in (0.0, 0.5):
        config = Config(**SIZES | {"dropout": 0.0, "attention_dropout": 0.0} | {name: rate})
        model = Model(config, VOCAB).train()
        ids, types = oracle.tokens(), oracle.types()
        assert torch.equal(model(LENGTHS, ids, types), model(LENGTHS, ids, types)) == (rate == 0)


def test_sequence_longer_than_the_positions_is_refused() -> None:
    model, ids = Model(Config(**SIZES), VOCAB), torch.zeros(65, dtype=torch.long)
    with pytest.raises(ValueError, match="65 tokens; the model has 64 positions"):
        model((65,), ids, ids)
