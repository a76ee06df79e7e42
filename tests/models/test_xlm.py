"""XLM against transformers: states, losses, gradients, languages, positions, files, its heads."""

import json
from pathlib import Path

import pytest
import torch
import transformers
from transformers.models.xlm.modeling_xlm import create_sinusoidal_embeddings

from nlpkit.checkpoints import hf_writing
from nlpkit.checkpoints.hf_writing import TokenIds
from nlpkit.contracts.batch import IGNORE
from nlpkit.errors import FileError
from nlpkit.models.layers.head import task_head
from nlpkit.models.xlm import Config, model
from tests._families import oracle
from tests._families.oracle import CLOSE, LENGTHS, VOCAB

SIZES = {"hidden_size": 32, "num_layers": 2, "num_heads": 4, "max_positions": 62}


def _theirs(architecture: str = "XLMWithLMHeadModel", **settings) -> torch.nn.Module:
    sizes = {
        "vocab_size": VOCAB, "emb_dim": 32, "n_layers": 2, "n_heads": 4, "n_langs": 3,
        "max_position_embeddings": 62,
    }  # fmt: skip
    return oracle.drawn(architecture, transformers.XLMConfig(**sizes | settings))


def _languages() -> torch.Tensor:
    """Return the languages of a pack: 2, then 0 from the middle of each sequence."""
    return 2 - 2 * oracle.types()


def _positions() -> torch.Tensor:
    """Return positions that begin again where the language changes."""
    return torch.cat([torch.arange(n) - (torch.arange(n) > n // 2) * (n // 2 + 1) for n in LENGTHS])


@pytest.mark.parametrize(
    ("settings", "given"),
    [
        ({}, ("langs", "position_ids")),
        ({}, ()),
        ({"gelu_activation": False, "tie_word_embeddings": False}, ("langs",)),
        ({"sinusoidal_embeddings": True, "n_langs": 1}, ("position_ids",)),
        ({"use_lang_emb": False}, ()),
    ],
    ids=["languages", "no languages given", "relu, untied", "sinusoidal", "no embeddings of them"],
)
def test_states_losses_and_gradients_equal_transformers(tmp_path: Path, settings, given) -> None:
    theirs = _theirs(**settings)
    theirs.save_pretrained(tmp_path)
    made, loaded = oracle.ours("xlm", tmp_path)
    assert (loaded.missing, loaded.unexpected) == ((), ())
    ids = oracle.tokens()
    labels = oracle.masked_labels(ids)
    more = {"langs": _languages(), "position_ids": _positions()}
    more = {name: more[name] for name in given}
    expected = theirs(
        **oracle.inputs(ids),
        **{name: oracle.padded(value) for name, value in more.items()},
        labels=oracle.padded(labels, IGNORE),
        output_hidden_states=True,
    )
    hidden = made(LENGTHS, input_ids=ids, **more)
    torch.testing.assert_close(hidden, oracle.seen(expected.hidden_states[-1]), **CLOSE)
    torch.testing.assert_close(made.logits(hidden), oracle.seen(expected.logits), **CLOSE)
    index = (labels != IGNORE).nonzero().squeeze(1)
    total, _ = made.token_loss(hidden, index, labels[index])
    torch.testing.assert_close(total / len(index), expected.loss, **CLOSE)
    expected.loss.backward()
    (total / len(index)).backward()
    if settings.get("sinusoidal_embeddings"):
        theirs.transformer.position_embeddings.weight.grad = None  # fixed, as in the paper's code
    oracle.assert_gradients_equal("xlm", loaded, made, theirs)


@pytest.mark.parametrize(
    "more", [{}, {"tie": False, "hidden_act": "relu"}, {"num_languages": 1, "sinusoidal": True}]
)
def test_checkpoint_opens_in_transformers_and_comes_back_exactly(tmp_path: Path, more) -> None:
    oracle.assert_opens_both_ways("xlm", Config(**SIZES, **more), "XLMWithLMHeadModel", tmp_path)


def test_sinusoidal_positions_are_those_of_transformers_and_are_not_trained() -> None:
    made = model.Model(Config(**SIZES, sinusoidal=True), VOCAB)
    expected = create_sinusoidal_embeddings(62, 32, torch.empty(62, 32))
    torch.testing.assert_close(made.embeddings.position_embedding, expected, **CLOSE)
    assert "embeddings.position_embedding" not in dict(made.named_parameters())


def test_checkpoint_without_a_padding_token_opens_with_the_same_states(tmp_path: Path) -> None:
    torch.manual_seed(2)
    made = model.Model(Config(**SIZES), VOCAB).eval()
    folders = hf_writing.to_hf("xlm", made.config, made.state_dict())
    hf_writing.write_folders(tmp_path, folders)
    theirs = transformers.XLMWithLMHeadModel.from_pretrained(tmp_path).eval()
    ids = torch.arange(10)  # all of them are tokens, whatever transformers' default padding is
    with torch.no_grad():
        torch.testing.assert_close(
            made.logits(made((10,), input_ids=ids)), theirs(ids[None]).logits[0], **CLOSE
        )
    padded = hf_writing.to_hf("xlm", made.config, made.state_dict(), TokenIds(3))
    assert padded[""][0]["pad_token_id"] == 3


@pytest.mark.parametrize(
    ("kind", "outputs"),
    [
        ("sequence_classification", 3), ("token_classification", 5), ("question_answering", 2),
        ("multiple_choice", 1),
    ],
)  # fmt: skip
def test_task_models_of_transformers_give_the_same_scores(
    tmp_path: Path, kind: str, outputs: int
) -> None:
    head_class = task_head(model, kind)
    theirs = _theirs(head_class.architecture, num_labels=outputs)
    theirs.save_pretrained(tmp_path)
    made, loaded = oracle.ours("xlm", tmp_path, allow_missing=("pred_layer",))
    assert not loaded.unexpected
    assert loaded.head == head_class
    head = head_class.new(32, outputs, 0.0)
    head.load_state_dict({k[5:]: v for k, v in loaded.state.items() if k.startswith("head.")})
    ids = oracle.tokens()
    hidden = made(LENGTHS, input_ids=ids)
    of_tokens = kind in ("token_classification", "question_answering")
    found = head(hidden if of_tokens else made.summary(hidden, LENGTHS))
    given = oracle.inputs(ids)
    if kind == "multiple_choice":  # one row with a choice for each sequence
        expected = theirs(**{name: value[None] for name, value in given.items()}).logits.T
    elif kind == "question_answering":
        answers = theirs(**given)
        both = torch.stack([answers.start_logits, answers.end_logits], -1)
        expected = oracle.seen(both)
    else:
        logits = theirs(**given).logits
        expected = oracle.seen(logits) if of_tokens else logits
    torch.testing.assert_close(found, expected, **CLOSE)
    weights = {**made.state_dict(), **{f"head.{k}": v for k, v in head.state_dict().items()}}
    settings, tensors = hf_writing.to_hf("xlm", loaded.config, weights, head=loaded.head)[""]
    assert settings["architectures"] == [head_class.architecture]
    for name, tensor in theirs.state_dict().items():
        assert torch.equal(tensors[name], tensor), name


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"causal": True}, "causal is True; this family has False only"),
        ({"asm": True}, "asm is True"),
        (
            {"architectures": ["XLMForSequenceClassification"], "summary_activation": "tanh"},
            "summary_activation is 'tanh'; this family has None only",
        ),
    ],
)
def test_other_models_of_the_layout_are_refused(tmp_path: Path, changed, said: str) -> None:
    _theirs().save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changed))
    with pytest.raises(FileError, match=said):
        oracle.ours("xlm", tmp_path)


def test_default_sizes_give_the_parameters_of_the_model_for_15_languages() -> None:
    with torch.device("meta"):
        ours = model.Model(Config(num_languages=15), 95000)
        theirs = transformers.XLMWithLMHeadModel(
            transformers.XLMConfig(
                vocab_size=95000, emb_dim=1024, n_layers=12, n_heads=8, n_langs=15
            )
        )
    # transformers counts the tied table once.
    assert sum(p.numel() for p in ours.parameters()) == theirs.num_parameters()
