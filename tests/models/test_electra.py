"""ELECTRA against transformers' two models: states, both losses, gradients, files, classifiers."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from pydantic import ValidationError
from torch import Tensor, nn

from nlpkit.checkpoints import any_layout, hf_model, hf_writing
from nlpkit.contracts.batch import IGNORE, Batch
from nlpkit.contracts.format import FOLDERS
from nlpkit.errors import FileError
from nlpkit.models import families
from nlpkit.models.electra import Config, model
from nlpkit.models.formats import hf_reading
from nlpkit.models.layers.generator import sample
from nlpkit.models.layers.head import CHOICE, SEQUENCE, task_head
from nlpkit.objectives.examples.text import forward
from nlpkit.runs.open_checkpoint import open_checkpoint
from tests._families import oracle
from tests._families.oracle import CLOSE, LENGTHS, VOCAB
from tests._losses import all_states
from tests._masked import bound

SIZES = {
    "hidden_size": 32, "num_layers": 2, "num_heads": 4, "intermediate_size": 48,
    "max_positions": 64, "embedding_size": 16, "generator_size": 0.5, "generator_heads": 2,
}  # fmt: skip
GENERATOR = {"hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 64}


def _theirs(architecture: str, **settings: Any) -> nn.Module:
    sizes = {
        "vocab_size": VOCAB, "embedding_size": 16, "hidden_size": 32, "num_hidden_layers": 2,
        "num_attention_heads": 4, "intermediate_size": 48, "max_position_embeddings": 64,
        "pad_token_id": None,  # no row of the table is without a gradient: any token is sampled
    }  # fmt: skip
    return oracle.drawn(architecture, transformers.ElectraConfig(**sizes | settings))


def _pair(directory: Path, **settings: Any) -> tuple[nn.Module, nn.Module]:
    """Return a discriminator and a generator with the same embeddings, saved as nlpkit reads them.

    The embeddings are those of one ElectraEmbeddings, so that their gradients add up.
    """
    discriminator = _theirs("ElectraForPreTraining", **settings)
    generator = _theirs("ElectraForMaskedLM", **settings | GENERATOR)
    generator.electra.embeddings = discriminator.electra.embeddings
    if generator.config.tie_word_embeddings:
        generator.generator_lm_head.weight = discriminator.electra.embeddings.word_embeddings.weight
    discriminator.save_pretrained(directory)
    generator.save_pretrained(directory / "generator")
    return discriminator, generator


def _opened(directory: Path, **allowed: tuple[str, ...]) -> tuple[Any, hf_model.Loaded]:
    """Return the model of a directory, found by its `model_type`, and how it was loaded."""
    loaded = hf_model.from_hf("electra", directory, *any_layout.read(directory), **allowed)
    made = model.Model(loaded.config, VOCAB).eval()
    body = {name: value for name, value in loaded.state.items() if not name.startswith("head.")}
    made.load_state_dict(body, strict=not loaded.missing and loaded.head is None)
    return made, loaded


def _batch(ids: Tensor, labels: Tensor) -> Batch:
    uniform = torch.rand(len(ids), generator=torch.Generator().manual_seed(3))
    fields = {
        "input_ids": ids, "token_type_ids": oracle.types(), "labels": labels,
        "is_target": labels != IGNORE, "uniform": uniform,
    }  # fmt: skip
    return Batch(fields, LENGTHS)


@pytest.mark.parametrize(
    "settings",
    [{}, {"hidden_act": "relu", "tie_word_embeddings": False}, {"embedding_size": 32}],
    ids=["electra", "relu, untied", "wide embeddings"],
)
def test_states_both_losses_and_gradients_equal_transformers(tmp_path: Path, settings) -> None:
    discriminator, generator = _pair(tmp_path, **settings)
    made, loaded = _opened(tmp_path)
    assert (loaded.missing, loaded.unexpected) == ((), ())
    ids, types = oracle.tokens(), oracle.types()
    objective, batch = bound("rtd"), _batch(ids, oracle.masked_labels(ids))
    labels = batch.fields["labels"]

    hidden = all_states(objective, made, batch)
    expected = generator(
        **oracle.inputs(ids, token_types=types), labels=oracle.padded(labels, IGNORE),
        output_hidden_states=True,
    )  # fmt: skip
    torch.testing.assert_close(hidden, oracle.seen(expected.hidden_states[-1]), **CLOSE)
    torch.testing.assert_close(made.logits(hidden), oracle.seen(expected.logits), **CLOSE)

    original = torch.where(labels == IGNORE, ids, labels)
    (index,) = (labels != IGNORE).nonzero(as_tuple=True)
    read = objective.corrupted(made, hidden, index, original, batch)
    is_replaced = read != original
    # Samples that are right and samples that are wrong.
    assert 0 < int(is_replaced.sum()) <= len(index)
    judged = discriminator(
        **oracle.inputs(read, token_types=types), labels=oracle.padded(is_replaced.long()),
        output_hidden_states=True,
    )  # fmt: skip
    states = made(LENGTHS, read, types)
    torch.testing.assert_close(states, oracle.seen(judged.hidden_states[-1]), **CLOSE)
    scores = made.replaced_logits(states, LENGTHS)
    torch.testing.assert_close(scores, oracle.seen(judged.logits), **CLOSE)

    loss = objective.loss(made, hidden, batch)
    means = {name: term.loss_sum / term.num_targets for name, term in loss.terms.items()}
    torch.testing.assert_close(means["mlm"], expected.loss, **CLOSE)
    torch.testing.assert_close(means["rtd"], judged.loss, **CLOSE)
    total = expected.loss + 50 * judged.loss  # Clark et al. 2020, sec. 2
    torch.testing.assert_close(loss.mean(loss.num_targets), total, **CLOSE)
    total.backward()
    loss.mean(loss.num_targets).backward()
    _assert_gradients_equal(loaded, made, discriminator, generator)


def _assert_gradients_equal(loaded: Any, made: nn.Module, *theirs: nn.Module) -> None:
    gradients = {name: p.grad for name, p in made.named_parameters() if p.grad is not None}
    folders = hf_writing.to_hf("electra", loaded.config, gradients)
    compared = set()
    for folder, half in zip(("", "generator"), theirs, strict=True):
        for name, parameter in half.named_parameters():
            # Gradients of 50 times a loss are large.
            torch.testing.assert_close(
                folders[folder][1][name], parameter.grad, atol=1e-4, rtol=1e-5, msg=name
            )
            compared.add((folder, name))
    assert len(compared) > 80


def test_gradient_of_the_discriminator_does_not_reach_the_generator() -> None:
    made = model.Model(Config(**SIZES), VOCAB).eval()
    ids = oracle.tokens()
    objective = bound("rtd", mlm_weight=0.0)
    batch = _batch(ids, oracle.masked_labels(ids))
    loss = objective.loss(made, forward(objective, made, batch), batch)
    loss.terms["rtd"].loss_sum.backward()
    reached = {name for name, p in made.named_parameters() if p.grad is not None}
    every = {name for name, _ in made.named_parameters()}
    assert every - reached == {name for name in every if name.startswith("generator.")}


@pytest.mark.parametrize(
    "more",
    [{}, {"tie": False, "hidden_act": "relu", "type_vocab_size": 3}, {"embedding_size": None},
     {"generator_size": 0.3333, "generator_heads": 1, "generator_layers": 0.5},
     {"generator_intermediate_size": 20}],
    ids=["electra", "untied", "wide embeddings", "shares", "inner"],
)  # fmt: skip
def test_both_halves_open_in_transformers_and_come_back_exactly(tmp_path: Path, more) -> None:
    config = Config(**SIZES | more)
    torch.manual_seed(2)
    made = model.Model(config, VOCAB).eval()
    hf_writing.write_folders(tmp_path, hf_writing.to_hf("electra", config, made.state_dict()))
    for folder, name in (("", "ElectraForPreTraining"), ("generator", "ElectraForMaskedLM")):
        half, report = getattr(transformers, name).from_pretrained(
            tmp_path / folder, output_loading_info=True
        )
        assert not any(report.values()), report
        half.save_pretrained(tmp_path / "again" / folder)
    again, loaded = _opened(tmp_path / "again")
    assert loaded.config == config
    assert (loaded.missing, loaded.unexpected) == ((), ())
    state = made.state_dict()
    assert again.state_dict().keys() == state.keys()
    assert all(torch.equal(again.state_dict()[name], value) for name, value in state.items())


def test_generator_of_other_embeddings_is_reported(tmp_path: Path) -> None:
    _theirs("ElectraForPreTraining").save_pretrained(tmp_path)
    _, other = _theirs("ElectraModel"), _theirs("ElectraForMaskedLM", **GENERATOR)
    other.electra.embeddings.position_embeddings.weight.data += 1
    other.save_pretrained(tmp_path / "generator")
    _, loaded = _opened(tmp_path)
    assert "generator/electra.embeddings.position_embeddings.weight" in loaded.unexpected


def test_discriminator_alone_opens_without_a_generator(tmp_path: Path) -> None:
    theirs = _theirs("ElectraForPreTraining")
    theirs.save_pretrained(tmp_path)
    made, loaded = _opened(tmp_path)
    assert (loaded.missing, loaded.unexpected) == ((), ())
    assert not loaded.config.has_generator
    assert made.generator is None
    ids, types = oracle.tokens(), oracle.types()
    expected = theirs(**oracle.inputs(ids, token_types=types)).logits
    found = made.replaced_logits(made(LENGTHS, ids, types), LENGTHS)
    torch.testing.assert_close(found, oracle.seen(expected), **CLOSE)
    # Written, it has no folder.
    assert [*hf_writing.to_hf("electra", loaded.config, made.state_dict())] == [""]


def test_half_of_a_model_is_named_where_the_whole_is_needed(tmp_path: Path) -> None:
    theirs = _theirs("ElectraForMaskedLM")
    theirs.save_pretrained(tmp_path)
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    words += [f"word{number}" for number in range(theirs.config.vocab_size - len(words))]
    (tmp_path / "vocab.txt").write_text("".join(f"{word}\n" for word in words))
    said = f"^{tmp_path}: the objective of electra: rtd needs generator, which the model does not"
    with pytest.raises(FileError, match=said):
        open_checkpoint(tmp_path)


def test_generator_that_may_be_missing_is_drawn_in_the_default_size(tmp_path: Path) -> None:
    _theirs("ElectraForPreTraining").save_pretrained(tmp_path)
    made, loaded = _opened(tmp_path, allow_missing=("generator",))
    assert loaded.config.generator_size == Config().generator_size == 0.25
    assert made.generator.output_dense.in_features == 8
    assert {name.partition("/")[0] for name in loaded.missing} == {"generator"}
    names = {name for name, _ in made.named_parameters() if name.startswith("generator.")}
    assert len(loaded.missing) == len(names)


def test_generator_with_other_embeddings_than_the_discriminator_is_refused(tmp_path: Path) -> None:
    _theirs("ElectraForPreTraining").save_pretrained(tmp_path)
    _theirs("ElectraForMaskedLM", **GENERATOR, embedding_size=8).save_pretrained(
        tmp_path / "generator"
    )
    with pytest.raises(FileError, match="the generator's embedding_size is 8; it shares") as error:
        _opened(tmp_path)
    assert "\n" not in str(error.value)


def test_settings_of_the_released_models_are_read(tmp_path: Path) -> None:
    """The config.json of google/electra-base-discriminator and -generator, of 2020."""
    common = {
        "attention_probs_dropout_prob": 0.1, "embedding_size": 768, "hidden_act": "gelu",
        "hidden_dropout_prob": 0.1, "initializer_range": 0.02, "layer_norm_eps": 1e-12,
        "max_position_embeddings": 512, "model_type": "electra", "num_hidden_layers": 12,
        "pad_token_id": 0, "type_vocab_size": 2, "vocab_size": 30522,
    }  # fmt: skip
    main = {"hidden_size": 768, "intermediate_size": 3072, "num_attention_heads": 12}
    inner = {"hidden_size": 256, "intermediate_size": 1024, "num_attention_heads": 4}
    settings = common | main | {FOLDERS: {"generator": common | inner}}
    found = hf_reading.read_config(model.FORMAT, Config, settings)
    assert found == Config(generator_size=256 / 768)
    assert (found.generator_width, found.num_generator_heads) == (256, 4)
    with torch.device("meta"):
        ours = model.Model(found, 30522)
        theirs = transformers.ElectraForPreTraining(transformers.ElectraConfig(**common | main))
        half = transformers.ElectraForMaskedLM(transformers.ElectraConfig(**common | inner))
        shared = theirs.electra.embeddings
    count = sum(p.numel() for p in ours.parameters())
    twice = sum(p.numel() for p in shared.parameters())
    assert count == theirs.num_parameters() + half.num_parameters() - twice


@pytest.mark.parametrize(
    ("kind", "architecture"),
    [(SEQUENCE, "ElectraForSequenceClassification"), (CHOICE, "ElectraForMultipleChoice")],
)
def test_heads_of_transformers_give_the_same_scores(
    tmp_path: Path, kind: str, architecture: str
) -> None:
    outputs = 1 if kind == CHOICE else 3
    theirs = _theirs(architecture, num_labels=3)
    theirs.save_pretrained(tmp_path)
    made, loaded = _opened(tmp_path)
    assert not loaded.unexpected
    assert not loaded.missing  # the layers of replaced tokens are not needed
    form = task_head(model, kind)
    assert loaded.head == form
    head = form.new(32, outputs, 0.0)
    head.load_state_dict({k[5:]: v for k, v in loaded.state.items() if k.startswith("head.")})
    ids, types = oracle.tokens(), oracle.types()
    found = head(made.summary(made(LENGTHS, ids, types), LENGTHS))
    given = oracle.inputs(ids, token_types=types)
    if kind == CHOICE:  # the three sequences are the choices of one row
        given = {name: values[None] for name, values in given.items()}
        found = found.T
    torch.testing.assert_close(found, theirs(**given).logits, **CLOSE)
    weights = {**made.state_dict(), **{f"head.{k}": v for k, v in head.state_dict().items()}}
    written = hf_writing.to_hf("electra", loaded.config, weights, head=form)[""]
    assert written[0]["architectures"] == [architecture]
    for name, tensor in theirs.state_dict().items():
        assert torch.equal(written[1][name], tensor), name


def test_model_that_transformers_saved_from_ours_opens_without_its_generator(
    tmp_path: Path,
) -> None:
    made = model.Model(Config(**SIZES), VOCAB)
    folders = hf_writing.to_hf("electra", made.config, made.state_dict())
    hf_writing.write_folders(tmp_path, folders)
    half = transformers.ElectraForPreTraining.from_pretrained(tmp_path)
    half.save_pretrained(tmp_path / "theirs")
    saved = json.loads((tmp_path / "theirs/config.json").read_text())
    assert saved["nlpkit"]["folders"] == ["generator"]  # transformers keeps what it does not know
    _, loaded = _opened(tmp_path / "theirs")
    assert (loaded.missing, loaded.unexpected) == ((), ())
    assert not loaded.config.has_generator


def test_samples_have_the_softmax_as_their_distribution() -> None:
    torch.manual_seed(0)
    states, weight, bias = torch.randn(1, 4), torch.randn(7, 4), torch.randn(7)
    for temperature in (1.0, 0.5):
        expected = ((states @ weight.T + bias) / temperature).softmax(1)[0]
        uniform = (torch.arange(10_000) + 0.5) / 10_000  # every quantile once
        rows = states.expand(10_000, 4)
        drawn = sample(rows, weight, uniform, bias=bias, temperature=temperature)
        share = torch.bincount(drawn, minlength=7) / 10_000
        # The inverse of the distribution: each share is right up to one quantile at either end.
        torch.testing.assert_close(share, expected, atol=1.01e-4, rtol=0)
    ends = sample(states.expand(2, 4), weight, torch.tensor([0.0, 1.0]), bias=bias)
    assert ends.tolist() == [0, 6]


def test_sizes_of_the_generator_are_those_of_the_authors_code() -> None:
    # get_generator_config of google-research/electra, by hand.
    small = Config(hidden_size=256, num_heads=4, intermediate_size=1024, embedding_size=128)
    assert (small.generator_width, small.num_generator_layers) == (64, 12)
    assert (small.num_generator_heads, small.generator_inner_size) == (1, 256)
    large = Config(hidden_size=1024, num_layers=24, num_heads=16, intermediate_size=4096)
    assert (large.generator_width, large.num_generator_heads) == (256, 4)
    assert large.generator_inner_size == 1024


def test_generator_whose_heads_do_not_divide_it_is_refused() -> None:
    with pytest.raises(ValidationError, match="the generator is 16 wide, which its 3 heads do not"):
        Config(**SIZES | {"generator_heads": 3})


def test_family_is_found_by_its_model_type() -> None:
    assert transformers.ElectraConfig.model_type == families.load("electra").MODEL_TYPE
