"""ModernBERT and its decoder against transformers: states, losses, gradients, files, tasks."""

from pathlib import Path

import pytest
import torch
import transformers

from nlpkit.attention.cache import Cache
from nlpkit.attention.choice import AttentionChoice
from nlpkit.checkpoints import hf_writing
from nlpkit.contracts.batch import IGNORE
from nlpkit.errors import FileError
from nlpkit.models import families, modernbert, modernbert_decoder
from nlpkit.models.layers.head import task_head
from tests._families import oracle
from tests._families.oracle import CLOSE, LENGTHS, VOCAB

SIZES = {
    "hidden_size": 32, "num_layers": 4, "num_heads": 4, "intermediate_size": 48,
    "max_positions": 64,
}  # fmt: skip
ENCODER = "modernbert", transformers.ModernBertConfig, "ModernBertForMaskedLM"
DECODER = (
    "modernbert_decoder", transformers.ModernBertDecoderConfig, "ModernBertDecoderForCausalLM"
)  # fmt: skip
SETTINGS = [
    {},
    {"layer_types": ["sliding_attention", "full_attention"] * 2, "tie_word_embeddings": False},
    {
        "global_attn_every_n_layers": 2,
        "local_rope_theta": 500.0,
        "global_rope_theta": 77.0,
        "local_attention": 4,
    },
]
NAMES = ["every third", "untied, every second", "names of transformers 4"]


def _theirs(kind: type, architecture: str, **settings) -> torch.nn.Module:
    sizes = {
        "vocab_size": VOCAB, "hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 4,
        "intermediate_size": 48, "max_position_embeddings": 64, "local_attention": 6,
        "pad_token_id": 0,
    }  # fmt: skip
    return oracle.drawn(architecture, kind(**sizes | settings))


@pytest.mark.parametrize(("family", "kind", "architecture"), [ENCODER, DECODER])
@pytest.mark.parametrize("settings", SETTINGS, ids=NAMES)
def test_states_losses_and_gradients_equal_transformers(
    tmp_path: Path, settings, family: str, kind: type, architecture: str
) -> None:
    theirs = _theirs(kind, architecture, **settings)
    theirs.save_pretrained(tmp_path)
    made, loaded = oracle.ours(family, tmp_path)
    assert (loaded.missing, loaded.unexpected) == ((), ())
    ids = oracle.tokens()
    labels = oracle.masked_labels(ids)
    expected = theirs(**oracle.inputs(ids), output_hidden_states=True)
    hidden = made(LENGTHS, input_ids=ids)
    torch.testing.assert_close(hidden, oracle.seen(expected.hidden_states[-1]), **CLOSE)
    torch.testing.assert_close(made.logits(hidden), oracle.seen(expected.logits), **CLOSE)
    index = (labels != IGNORE).nonzero().squeeze(1)
    of_rows = made(LENGTHS, input_ids=ids, rows=index)
    torch.testing.assert_close(of_rows, hidden[index], **CLOSE)
    total, _ = made.token_loss(hidden, index, labels[index])
    loss = torch.nn.functional.cross_entropy(oracle.seen(expected.logits)[index], labels[index])
    torch.testing.assert_close(total / len(index), loss, **CLOSE)
    loss.backward()
    (total / len(index)).backward()
    oracle.assert_gradients_equal(family, loaded, made, theirs)


@pytest.mark.parametrize(("family", "kind", "architecture"), [ENCODER, DECODER])
@pytest.mark.parametrize("more", [{}, {"tie": False, "local_theta": 77.0}, {"layers": "LGG"}])
def test_checkpoint_opens_in_transformers_and_comes_back_exactly(
    tmp_path: Path, more, family: str, kind: type, architecture: str
) -> None:
    made = families.load(family).Config
    kinds = made.layer_kinds([each == "G" for each in more.get("layers", "")], 10)
    given = {name: value for name, value in more.items() if name != "layers"}
    config = made(**SIZES, **given, attention=kinds)
    oracle.assert_opens_both_ways(family, config, architecture, tmp_path)


def test_decoder_with_a_cache_gives_the_states_of_whole_sequences() -> None:
    config = modernbert_decoder.Config(**SIZES)
    torch.manual_seed(0)
    made = families.load_model("modernbert_decoder").Model(config, VOCAB).eval()
    ids = oracle.tokens()[: LENGTHS[0]]
    whole = made((9,), ids)
    cache = Cache()
    steps = [made((n,), part, cache=cache) for n, part in ((4, ids[:4]), (5, ids[4:]))]
    torch.testing.assert_close(torch.cat(steps), whole, **CLOSE)


@pytest.mark.parametrize(
    ("kind", "end", "settings"),
    [
        ("sequence_classification", "SequenceClassification", {}),
        ("sequence_classification", "SequenceClassification", {"classifier_pooling": "mean"}),
        ("token_classification", "TokenClassification", {}),
        ("question_answering", "QuestionAnswering", {}),
        ("multiple_choice", "MultipleChoice", {}),
        ("sequence_classification", "Decoder", {}),
    ],
)
def test_task_models_of_transformers_give_the_same_scores(
    tmp_path: Path, kind: str, end: str, settings
) -> None:
    family, config = ENCODER[:2]
    name = f"ModernBertFor{end}"
    if end == "Decoder":
        family, config, name = *DECODER[:2], "ModernBertDecoderForSequenceClassification"
    if kind != "multiple_choice":
        settings = settings | {"num_labels": 2 if kind == "question_answering" else 3}
    theirs = _theirs(config, name, **settings)
    theirs.save_pretrained(tmp_path)
    made, loaded = oracle.ours(family, tmp_path, allow_missing=("lm_head", "decoder"))
    assert not loaded.unexpected
    assert task_head(families.load_model(family), kind) is loaded.head
    head = loaded.head.new(32, len(loaded.state["head.weight"]), 0.0)
    head.load_state_dict({k[5:]: v for k, v in loaded.state.items() if k.startswith("head.")})
    ids = oracle.tokens()
    hidden = made(LENGTHS, input_ids=ids)
    by_token = kind in ("token_classification", "question_answering")
    found = head(hidden if by_token else made.summary(hidden, LENGTHS))
    given = oracle.inputs(ids)
    if kind == "multiple_choice":
        given = {key: value[None] for key, value in given.items()}
    expected = theirs(**given)
    if kind == "question_answering":
        expected = oracle.seen(torch.stack([expected.start_logits, expected.end_logits], -1))
    else:
        logits = expected.logits
        expected = oracle.seen(logits) if by_token else logits.reshape(found.shape)
    torch.testing.assert_close(found, expected, **CLOSE)
    weights = {**made.state_dict(), **{f"head.{k}": v for k, v in head.state_dict().items()}}
    settings, tensors = hf_writing.to_hf(family, loaded.config, weights, head=loaded.head)[""]
    assert all(torch.equal(tensors[key], value) for key, value in theirs.state_dict().items())
    assert settings["architectures"] == [name]


def test_head_of_a_task_begins_as_that_of_masked_tokens_as_in_transformers(tmp_path: Path) -> None:
    _theirs(ENCODER[1], ENCODER[2]).save_pretrained(tmp_path)
    begun = transformers.ModernBertForSequenceClassification.from_pretrained(tmp_path).state_dict()
    made, _ = oracle.ours("modernbert", tmp_path)
    task_head(families.load_model("modernbert"), "sequence_classification").add(made, 32, 2, 0.0)
    for name in ("dense.weight", "norm.weight"):
        assert torch.equal(made.head.state_dict()[name], begun[f"head.{name}"])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"attention_bias": True}, "attention_bias is True; this family has False only"),
        ({"layer_types": ["full_attention", "chunked"]}, "layer_types has 'chunked'"),
        ({"layer_types": ["full_attention"]}, "layer_types has 1 entries for 4 layers"),
        ({"rope_parameters": {"full_attention": {"rope_type": "yarn"}}}, "rope_type is 'yarn'"),
        ({"rope_parameters": {"rope_theta": 5.0}}, "rope_parameters has 'rope_theta'"),
        ({"num_attention_heads": 32}, "rotary positions turn pairs of channels"),
        ({"hidden_activation": "silu"}, "hidden_activation is 'silu'; this family has gelu"),
    ],
)
def test_settings_that_the_family_lacks_are_named(tmp_path: Path, change, said: str) -> None:
    config = modernbert.Config(**SIZES)
    made = families.load_model("modernbert").Model(config, VOCAB)
    settings, tensors = hf_writing.to_hf("modernbert", config, made.state_dict())[""]
    hf_writing.write(tmp_path, settings | change, tensors)
    with pytest.raises(FileError, match=said) as error:
        oracle.ours("modernbert", tmp_path)
    assert "\n" not in str(error.value)


def test_default_sizes_have_the_parameters_of_transformers_base_models() -> None:
    for family, kind, architecture in (ENCODER, DECODER):
        with torch.device("meta"):
            ours = families.load_model(family).Model(families.load(family).Config(), 50368)
            theirs = getattr(transformers, architecture)(kind())
        number = sum(p.numel() for p in ours.parameters())
        assert number == theirs.num_parameters() == 149_655_232  # 149 million in the paper


def test_other_kinds_of_attention_are_not_transformers_model() -> None:
    local = AttentionChoice.of("local_window", causal=False, window=3)
    for kinds, own in (((local,), True), ((AttentionChoice.of("causal"),), False)):
        config = modernbert.Config(**SIZES, attention=kinds)
        assert config.has_default_attention is own
