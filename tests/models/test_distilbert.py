"""DistilBERT against transformers: states, losses, gradients, files, heads of tasks, dropout."""

from pathlib import Path

import pytest
import torch
import transformers

from nlpkit.checkpoints import hf_writing
from nlpkit.contracts.batch import IGNORE
from nlpkit.models.distilbert import Config, model
from nlpkit.models.layers.head import task_head
from tests._families import oracle
from tests._families.oracle import CLOSE, LENGTHS, VOCAB

SIZES = {
    "hidden_size": 32, "num_layers": 2, "num_heads": 4, "intermediate_size": 48,
    "max_positions": 64,
}  # fmt: skip


def _theirs(architecture: str = "DistilBertForMaskedLM", **settings) -> torch.nn.Module:
    sizes = {
        "vocab_size": VOCAB, "dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 48,
        "max_position_embeddings": 64,
    }  # fmt: skip
    return oracle.drawn(architecture, transformers.DistilBertConfig(**sizes | settings))


@pytest.mark.parametrize(
    "settings",
    [{}, {"activation": "relu", "tie_word_embeddings": False}, {"sinusoidal_pos_embds": True}],
    ids=["distilbert", "relu, untied", "sines"],
)
def test_states_losses_and_gradients_equal_transformers(tmp_path: Path, settings) -> None:
    theirs = _theirs(**settings)
    theirs.save_pretrained(tmp_path)
    made, loaded = oracle.ours("distilbert", tmp_path)
    assert (loaded.missing, loaded.unexpected) == ((), ())
    ids = oracle.tokens()
    labels = oracle.masked_labels(ids)
    expected = theirs(
        **oracle.inputs(ids, 0), labels=oracle.padded(labels, IGNORE), output_hidden_states=True
    )
    hidden = made(LENGTHS, input_ids=ids)
    torch.testing.assert_close(hidden, oracle.seen(expected.hidden_states[-1]), **CLOSE)
    torch.testing.assert_close(made.logits(hidden), oracle.seen(expected.logits), **CLOSE)
    index = (labels != IGNORE).nonzero().squeeze(1)
    total, _ = made.token_loss(hidden, index, labels[index])
    torch.testing.assert_close(total / len(index), expected.loss, **CLOSE)
    expected.loss.backward()
    (total / len(index)).backward()
    oracle.assert_gradients_equal("distilbert", loaded, made, theirs)


@pytest.mark.parametrize("tie", [True, False])
def test_files_open_both_ways(tie: bool, tmp_path: Path) -> None:
    config = Config(**SIZES, tie=tie)
    oracle.assert_opens_both_ways("distilbert", config, "DistilBertForMaskedLM", tmp_path)


@pytest.mark.parametrize(
    ("kind", "ending"),
    [
        ("sequence_classification", "SequenceClassification"),
        ("token_classification", "TokenClassification"),
        ("question_answering", "QuestionAnswering"),
    ],
)
def test_heads_of_tasks_equal_transformers(kind: str, ending: str, tmp_path: Path) -> None:
    theirs = _theirs(f"DistilBertFor{ending}", num_labels=2)
    theirs.save_pretrained(tmp_path)
    made, loaded = oracle.ours("distilbert", tmp_path)
    assert loaded.head == task_head(model, kind)
    head = loaded.head.new(32, 2, 0.0).eval()
    head.load_state_dict({n.removeprefix("head."): loaded.state[n] for n in loaded.head.names})
    ids = oracle.tokens()
    hidden = made(LENGTHS, input_ids=ids)
    found = theirs(**oracle.inputs(ids, 0))
    if kind == "sequence_classification":
        torch.testing.assert_close(head(made.summary(hidden, LENGTHS)), found.logits, **CLOSE)
    else:
        wide = "logits" in found
        both = found.logits if wide else torch.stack([found.start_logits, found.end_logits], 2)
        torch.testing.assert_close(head(hidden), oracle.seen(both), **CLOSE)
    again = hf_writing.to_hf("distilbert", loaded.config, loaded.state, head=loaded.head)[""]
    assert again[0]["architectures"] == [f"DistilBertFor{ending}"]
    for name, tensor in theirs.state_dict().items():
        assert torch.equal(again[1][name], tensor), name


def test_dropout_is_where_transformers_has_it() -> None:
    # `TransformerBlock` adds what `attention` returns as it is; `FFN` ends in dropout.
    made = model.Model(Config(**SIZES, dropout=0.3), VOCAB)
    assert [(each.dropout, each.output_dropout) for each in made.layers.order] == [(0.0, 0.3)] * 2


def test_another_epsilon_is_refused() -> None:
    with pytest.raises(ValueError, match="norm_eps: transformers' DistilBERT has 1e-12 only"):
        Config(**SIZES, norm_eps=1e-5)
