"""RoBERTa against transformers: positions, states, losses, gradients, files, its classifier."""

from pathlib import Path

import pytest
import torch
import transformers

from nlpkit.checkpoints import hf_writing
from nlpkit.checkpoints.hf_writing import TokenIds
from nlpkit.contracts.batch import IGNORE
from nlpkit.models.layers import embeddings, packs
from nlpkit.models.layers.head import task_head
from nlpkit.models.roberta import Config, model
from tests._families import oracle
from tests._families.oracle import CLOSE, LENGTHS, VOCAB

SIZES = {
    "hidden_size": 32, "num_layers": 2, "num_heads": 4, "intermediate_size": 48,
    "max_positions": 62,
}  # fmt: skip


def _theirs(architecture: str = "RobertaForMaskedLM", **settings) -> torch.nn.Module:
    sizes = {
        "vocab_size": VOCAB, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
        "intermediate_size": 48, "max_position_embeddings": 64, "type_vocab_size": 1,
        "layer_norm_eps": 1e-5,
    }  # fmt: skip
    return oracle.drawn(architecture, transformers.RobertaConfig(**sizes | settings))


@pytest.mark.parametrize(
    "settings",
    [{}, {"hidden_act": "relu", "tie_word_embeddings": False}, {"pad_token_id": 3}],
    ids=["roberta", "relu, untied", "another padding token"],
)
def test_states_losses_and_gradients_equal_transformers(tmp_path: Path, settings) -> None:
    theirs = _theirs(**settings)
    theirs.save_pretrained(tmp_path)
    made, loaded = oracle.ours("roberta", tmp_path)
    assert (loaded.missing, loaded.unexpected) == ((), ())
    pad = settings.get("pad_token_id", 1)
    assert loaded.config.max_positions == 64 - pad - 1
    ids = oracle.tokens()
    labels = oracle.masked_labels(ids)
    expected = theirs(
        **oracle.inputs(ids, pad), labels=oracle.padded(labels, IGNORE), output_hidden_states=True
    )
    hidden = made(LENGTHS, input_ids=ids)
    torch.testing.assert_close(hidden, oracle.seen(expected.hidden_states[-1]), **CLOSE)
    torch.testing.assert_close(made.logits(hidden), oracle.seen(expected.logits), **CLOSE)
    index = (labels != IGNORE).nonzero().squeeze(1)
    total, _ = made.token_loss(hidden, index, labels[index])
    torch.testing.assert_close(total / len(index), expected.loss, **CLOSE)
    expected.loss.backward()
    (total / len(index)).backward()
    oracle.assert_gradients_equal("roberta", loaded, made, theirs)


def test_token_with_the_padding_id_has_the_position_that_transformers_gives_it() -> None:
    ids = torch.tensor([5, 1, 6, 7, 1, 8, 9])
    found = embeddings.count_positions(ids, packs.layout_within((4, 3), 9, ids.device), 1)
    # By create_position_ids_from_input_ids, each sequence alone.
    theirs = transformers.models.roberta.modeling_roberta.RobertaEmbeddings
    expected = [theirs.create_position_ids_from_input_ids(i[None], 1)[0] for i in ids.split((4, 3))]
    assert torch.equal(found, torch.cat(expected))


@pytest.mark.parametrize("more", [{}, {"tie": False, "padding_idx": 0, "type_vocab_size": 2}])
def test_checkpoint_opens_in_transformers_and_comes_back_exactly(tmp_path: Path, more) -> None:
    config = Config(**SIZES, **more)
    oracle.assert_opens_both_ways("roberta", config, "RobertaForMaskedLM", tmp_path)


def test_bare_model_with_a_pooler_loads_where_its_head_may_be_missing(tmp_path: Path) -> None:
    theirs = _theirs("RobertaModel")
    theirs.save_pretrained(tmp_path)
    made, loaded = oracle.ours("roberta", tmp_path, allow_missing=("lm_head",))
    assert (len(loaded.missing), loaded.unexpected) == (5, ())
    ids = oracle.tokens()
    found = made(LENGTHS, input_ids=ids)
    expected = theirs(**oracle.inputs(ids, 1)).last_hidden_state
    torch.testing.assert_close(found, oracle.seen(expected), **CLOSE)


def test_classifier_of_transformers_gives_the_same_scores(tmp_path: Path) -> None:
    theirs = _theirs("RobertaForSequenceClassification", num_labels=3)
    theirs.save_pretrained(tmp_path)
    made, loaded = oracle.ours("roberta", tmp_path, allow_missing=("lm_head",))
    assert not loaded.unexpected
    head = task_head(model, "sequence_classification").new(32, 3, 0.0)
    head.load_state_dict({k[5:]: v for k, v in loaded.state.items() if k.startswith("head.")})
    ids = oracle.tokens()
    found = head(made.summary(made(LENGTHS, input_ids=ids), LENGTHS))
    torch.testing.assert_close(found, theirs(**oracle.inputs(ids, 1)).logits, **CLOSE)
    weights = {**made.state_dict(), **{f"head.{k}": v for k, v in head.state_dict().items()}}
    written = hf_writing.to_hf("roberta", loaded.config, weights, TokenIds(0))[""]
    assert written[0]["pad_token_id"] == 1  # the positions depend on it, not on the tokenizer
    for name, tensor in theirs.state_dict().items():
        assert torch.equal(written[1][name], tensor), name


def test_default_sizes_give_the_parameters_of_the_base_model() -> None:
    with torch.device("meta"):
        ours = model.Model(Config(), 50265)
    # roberta-base: 124,697,433 (transformers' num_parameters with 514 positions and one type)
    assert sum(p.numel() for p in ours.parameters()) == 124_697_433
