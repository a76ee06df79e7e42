"""Longformer against transformers: states, losses, gradients, windows, globals, files, tasks."""

from pathlib import Path

import pytest
import torch
import transformers

from nlpkit.attention.choice import AttentionChoice
from nlpkit.checkpoints import hf_writing
from nlpkit.contracts.batch import IGNORE
from nlpkit.contracts.request import Layout
from nlpkit.models import families
from nlpkit.models.layers.embeddings import number_texts
from nlpkit.models.layers.head import task_head
from nlpkit.models.longformer import Config, model
from tests._families import oracle
from tests._families.oracle import CLOSE, LENGTHS, VOCAB

SIZES = {
    "hidden_size": 32, "num_layers": 2, "num_heads": 4, "intermediate_size": 48,
    "max_positions": 62,
}  # fmt: skip
SEPARATOR = 2


def _theirs(architecture: str = "LongformerForMaskedLM", **settings) -> torch.nn.Module:
    sizes = {
        "vocab_size": VOCAB, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
        "intermediate_size": 48, "max_position_embeddings": 64, "type_vocab_size": 2,
        "layer_norm_eps": 1e-5, "attention_window": [8, 4], "sep_token_id": SEPARATOR,
    }  # fmt: skip
    return oracle.drawn(architecture, transformers.LongformerConfig(**sizes | settings))


def _with_rule(made, loaded, **settings):
    """Return the model with another rule for global tokens, and its settings."""
    kinds = [
        AttentionChoice.of("longformer", causal=False, window=k.config.window, **settings)
        for k in loaded.config.attention
    ]
    config = loaded.config.model_copy(update={"attention": tuple(kinds)})
    again = families.load_model("longformer").Model(config, VOCAB).eval()
    again.load_state_dict(made.state_dict())
    return again


def _global_mask(rule: str, types: torch.Tensor) -> torch.Tensor:
    """Return the global tokens of a pack, by loops over its sequences."""
    rows = []
    for own in types.split(LENGTHS):
        begin = int((own == 0).sum())  # of the second text, whose second delimiter comes first
        of = {
            "none": [], "first": [0], "question": range(begin - 1),
            "answer": range(begin + 1, len(own)), "type": range(begin, len(own)),
        }[rule]  # fmt: skip
        rows.append(torch.tensor([int(i in of) for i in range(len(own))]))
    return torch.cat(rows)


@pytest.mark.parametrize("rule", ["none", "first", "question", "answer", "type"])
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"hidden_act": "relu", "tie_word_embeddings": False, "attention_window": 6},
        {"pad_token_id": 3, "attention_window": [4, 20]},
    ],
    ids=["two windows", "relu, untied, one window", "another padding token, a wide window"],
)
def test_states_losses_and_gradients_equal_transformers(
    tmp_path: Path, settings, rule: str
) -> None:
    theirs = _theirs(**settings)
    theirs.save_pretrained(tmp_path)
    made, loaded = oracle.ours("longformer", tmp_path)
    assert (loaded.missing, loaded.unexpected) == ((), ())
    assert {k.config.global_tokens for k in loaded.config.attention} == {"none"}
    made = _with_rule(made, loaded, global_tokens=rule, global_type=1)
    pad = settings.get("pad_token_id", 1)
    ids, types = oracle.tokens(), oracle.types()
    second = types.diff(prepend=types[:1]) == 1  # of two delimiters
    ids[second] = ids[second.roll(-1)]
    labels = oracle.masked_labels(ids)
    given = oracle.inputs(ids, pad, types)
    if rule != "none":
        given["global_attention_mask"] = oracle.padded(_global_mask(rule, types))
    expected = theirs(**given, labels=oracle.padded(labels, IGNORE), output_hidden_states=True)
    hidden = made(LENGTHS, input_ids=ids, token_type_ids=types)
    torch.testing.assert_close(hidden, oracle.seen(expected.hidden_states[-1]), **CLOSE)
    torch.testing.assert_close(made.logits(hidden), oracle.seen(expected.logits), **CLOSE)
    index = (labels != IGNORE).nonzero().squeeze(1)
    of_rows = made(LENGTHS, input_ids=ids, token_type_ids=types, rows=index)
    torch.testing.assert_close(of_rows, hidden[index], **CLOSE)
    total, _ = made.token_loss(hidden, index, labels[index])
    torch.testing.assert_close(total / len(index), expected.loss, **CLOSE)
    expected.loss.backward()
    (total / len(index)).backward()
    oracle.assert_gradients_equal("longformer", loaded, made, theirs)


def test_sequences_without_a_global_token_have_the_window_alone(tmp_path: Path) -> None:
    _theirs().save_pretrained(tmp_path)
    made, loaded = oracle.ours("longformer", tmp_path)
    ids, types = oracle.tokens(), oracle.types()
    types[9:13] = 0  # the second sequence has one text, so no question
    found = _with_rule(made, loaded, global_tokens="question")(LENGTHS, ids, types)
    parts = []
    for one, own in zip(ids.split(LENGTHS), types.split(LENGTHS), strict=True):
        rule = "question" if own.any() else "none"
        model = _with_rule(made, loaded, global_tokens=rule)
        parts.append(model((len(one),), one, own))
    torch.testing.assert_close(found, torch.cat(parts), **CLOSE)


def test_texts_are_numbered_without_delimiters() -> None:
    types = torch.tensor([0, 0, 0, 1, 1, 1, 0, 0, 0, 0, 0, 1, 1])
    # <s> a </s> </s> b </s>, then a single text, then <s> a </s> </s> b
    layout, ids = Layout([6, 3, 4]), torch.tensor([0, 7, 2, 2, 8, 2, 0, 7, 2, 0, 2, 2, 8])
    assert number_texts(layout, types, ids).tolist() == [1, 1, 0, 0, 2, 2, 0, 0, 0, 1, 0, 0, 2]
    # By BERT's vocabulary: [CLS] a [SEP] b c [SEP], a single text, [CLS] [SEP] b c
    ids = torch.tensor([0, 7, 2, 8, 9, 2, 0, 7, 2, 0, 2, 8, 9])
    assert number_texts(layout, types, ids).tolist() == [1, 1, 0, 2, 2, 2, 0, 0, 0, 1, 0, 2, 2]


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"tie": False, "padding_idx": 0, "type_vocab_size": 1},
        {"attention": [{"window": 4}, {"window": 10}]},
    ],
)
def test_checkpoint_opens_in_transformers_and_comes_back_exactly(tmp_path: Path, more) -> None:
    kinds = more.get("attention", [{"window": 6}])
    made = (
        AttentionChoice.of("longformer", causal=False, global_tokens="none", **k) for k in kinds
    )
    config = Config(**SIZES, **more | {"attention": tuple(made)})
    oracle.assert_opens_both_ways("longformer", config, "LongformerForMaskedLM", tmp_path)


def _scores(theirs: torch.nn.Module, kind: str, directory: Path, ids, types) -> torch.Tensor:
    """Return the scores of our model of transformers' files with their own rule for globals."""
    theirs.save_pretrained(directory)
    made, loaded = oracle.ours("longformer", directory, allow_missing=("lm_head",))
    assert not loaded.unexpected
    assert task_head(model, kind) is loaded.head
    weight = loaded.state["head.weight"]
    head = loaded.head.new(32, len(weight), 0.0)
    head.load_state_dict({k[5:]: v for k, v in loaded.state.items() if k.startswith("head.")})
    hidden = made(LENGTHS, input_ids=ids, token_type_ids=types)
    by_token = kind in ("token_classification", "question_answering")
    written = hf_writing.to_hf("longformer", loaded.config, {
        **made.state_dict(), **{f"head.{k}": v for k, v in head.state_dict().items()}
    }, head=loaded.head)[""]  # fmt: skip
    for name, tensor in theirs.state_dict().items():
        assert torch.equal(written[1][name], tensor), name
    assert written[0]["architectures"] == [type(theirs).__name__]
    return head(hidden if by_token else made.summary(hidden, LENGTHS))


def _pairs() -> tuple[torch.Tensor, torch.Tensor]:
    """Return ids with the delimiters of question and answer in each sequence, and the types."""
    sequences, types = oracle.tokens().split(LENGTHS), []
    for own in sequences:
        begin = len(own) // 2  # of the second text
        own[[begin - 1, begin, -1]] = SEPARATOR
        types.append((torch.arange(len(own)) >= begin).long())
    return torch.cat(sequences), torch.cat(types)


def test_task_models_of_transformers_give_the_same_scores_by_their_own_rules(
    tmp_path: Path,
) -> None:
    ids, types = _pairs()
    given = oracle.inputs(ids, 1, types)
    theirs = _theirs("LongformerForSequenceClassification", num_labels=3)
    found = _scores(theirs, "sequence_classification", tmp_path / "classes", ids, types)
    torch.testing.assert_close(found, theirs(**given).logits, **CLOSE)
    theirs = _theirs("LongformerForTokenClassification", num_labels=3)
    found = _scores(theirs, "token_classification", tmp_path / "tags", ids, types)
    torch.testing.assert_close(found, oracle.seen(theirs(**given).logits), **CLOSE)
    theirs = _theirs("LongformerForQuestionAnswering", num_labels=2)
    found = _scores(theirs, "question_answering", tmp_path / "answers", ids, types)
    expected = theirs(**given)
    expected = torch.stack([expected.start_logits, expected.end_logits], -1)
    torch.testing.assert_close(found, oracle.seen(expected), **CLOSE)
    theirs = _theirs("LongformerForMultipleChoice")
    found = _scores(theirs, "multiple_choice", tmp_path / "choices", ids, types)
    expected = theirs(**{name: value[None] for name, value in given.items()}).logits  # of one row
    torch.testing.assert_close(found.T, expected, **CLOSE)


def test_default_sizes_have_the_parameters_of_transformers_base_model() -> None:
    settings = transformers.LongformerConfig(
        vocab_size=50265, max_position_embeddings=4098, type_vocab_size=1
    )
    with torch.device("meta"):
        ours = model.Model(Config(type_vocab_size=1), 50265)
        theirs = transformers.LongformerForMaskedLM(settings)
    # RoBERTa's 124,697,433, 3,584 more positions, and three projections in each of 12 layers.
    assert sum(p.numel() for p in ours.parameters()) == 148_711_257 == theirs.num_parameters()


def test_causal_attention_is_refused() -> None:
    for choice in (AttentionChoice.of("causal"), AttentionChoice.of("longformer", causal=True)):
        assert Config().refuses_attention(choice) is not None
    assert (
        Config().refuses_attention(AttentionChoice.of("longformer", global_tokens="type")) is None
    )
