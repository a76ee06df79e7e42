"""DeBERTa-v2 against transformers: states, losses, gradients, files, heads; replaced tokens."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import nn
from transformers.models.deberta_v2.modeling_deberta_v2 import make_log_bucket_position

from nlpkit.attention.kinds import disentangled
from nlpkit.checkpoints import any_layout, hf_layout, hf_model, hf_writing
from nlpkit.contracts.batch import IGNORE, Batch
from nlpkit.errors import UsageError
from nlpkit.models import adapter_config, lora
from nlpkit.models.deberta_v2 import Config, model
from nlpkit.models.layers.head import task_head
from nlpkit.objectives.examples.text import forward
from tests._families import oracle
from tests._families.oracle import CLOSE, LENGTHS, VOCAB
from tests._masked import bound

SIZES = {
    "hidden_size": 32, "num_layers": 2, "num_heads": 4, "intermediate_size": 48,
    "max_positions": 64, "position_buckets": 8, "max_distance": 12,
}  # fmt: skip
# As microsoft/deberta-v3-base has it, but for the sizes.
V3 = {
    "model_type": "deberta-v2", "attention_probs_dropout_prob": 0.1, "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1, "hidden_size": 32, "initializer_range": 0.02,
    "intermediate_size": 48, "max_position_embeddings": 64, "relative_attention": True,
    "position_buckets": 8, "norm_rel_ebd": "layer_norm", "share_att_key": True,
    "pos_att_type": "p2c|c2p", "layer_norm_eps": 1e-7, "max_relative_positions": -1,
    "position_biased_input": False, "num_attention_heads": 4, "num_hidden_layers": 2,
    "type_vocab_size": 0, "vocab_size": VOCAB,
}  # fmt: skip


def _theirs(architecture: str = "DebertaV2ForMaskedLM", **settings: Any) -> nn.Module:
    return oracle.drawn(architecture, transformers.DebertaV2Config(**V3 | settings))


@pytest.mark.parametrize(("buckets", "farthest"), [(256, 512), (8, 12), (32, 500), (2, 7), (0, 9)])
def test_every_distance_has_the_row_that_transformers_gives_it(buckets: int, farthest: int) -> None:
    distance = torch.arange(-2000, 2001)
    config = disentangled.Config(buckets=buckets, max_distance=farthest)
    found, span = disentangled.row_of(config, distance), buckets or farthest
    theirs = make_log_bucket_position(distance, buckets, farthest) if buckets else distance
    assert torch.equal(found, (theirs.long() + span).clamp(0, 2 * span - 1))


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"max_relative_positions": 12, "legacy": False},
        {"share_att_key": False, "norm_rel_ebd": "none", "position_biased_input": True},
        {"pos_att_type": ["c2p"], "position_buckets": -1, "type_vocab_size": 2},
        {"pos_att_type": "p2c", "share_att_key": False, "tie_word_embeddings": False},
    ],
    ids=["v3", "far, new head", "v2 without sharing", "c2p, no buckets, types", "p2c, untied"],
)
def test_states_losses_and_gradients_equal_transformers(tmp_path: Path, settings) -> None:
    theirs = _theirs(**settings)
    theirs.save_pretrained(tmp_path)
    made, loaded = oracle.ours("deberta_v2", tmp_path)
    assert (loaded.missing, loaded.unexpected) == ((), ())
    ids = oracle.tokens()
    types = oracle.types() if settings.get("type_vocab_size") else None
    labels = oracle.masked_labels(ids)
    expected = theirs(
        **oracle.inputs(ids, 0, types), labels=oracle.padded(labels, IGNORE),
        output_hidden_states=True,
    )  # fmt: skip
    hidden = made(LENGTHS, ids, types)
    torch.testing.assert_close(hidden, oracle.seen(expected.hidden_states[-1]), **CLOSE)
    torch.testing.assert_close(made.logits(hidden), oracle.seen(expected.logits), **CLOSE)
    index = (labels != IGNORE).nonzero().squeeze(1)
    total, _ = made.token_loss(hidden, index, labels[index])
    torch.testing.assert_close(total / len(index), expected.loss, **CLOSE)
    if settings.get("legacy", True):
        expected.loss.backward()
        (total / len(index)).backward()
        oracle.assert_gradients_equal("deberta_v2", loaded, made, theirs)


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"shared_projections": False, "absolute_positions": True, "type_vocab_size": 2},
        {"tie": False, "terms": "p2c", "distance_norm": False, "max_distance": None},
    ],
)
def test_checkpoint_opens_in_transformers_and_comes_back_exactly(tmp_path: Path, more) -> None:
    config = Config(**SIZES | more)
    oracle.assert_opens_both_ways("deberta_v2", config, "DebertaV2ForMaskedLM", tmp_path)


def test_directory_as_microsoft_publishes_it_opens_with_its_head(tmp_path: Path) -> None:
    """`lm_predictions`, which transformers reads only if told that the head is not `legacy`."""
    theirs = _theirs(legacy=False)
    theirs.save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(V3), "utf-8")
    tensors = load_file(tmp_path / "model.safetensors")
    more = {
        "mask_predictions.dense.weight": torch.ones(32, 32),
        "mask_predictions.classifer.bias": torch.ones(1),
        "deberta.embeddings.position_embeddings.weight": torch.ones(64, 32),
    }
    save_file(tensors | more, tmp_path / "model.safetensors")
    made, loaded = oracle.ours("deberta_v2", tmp_path)
    assert (loaded.missing, loaded.unexpected) == ((), ())
    ids = oracle.tokens()
    found = made.logits(made(LENGTHS, ids))
    torch.testing.assert_close(found, oracle.seen(theirs(**oracle.inputs(ids)).logits), **CLOSE)


@pytest.mark.parametrize("kind", sorted(model.TASK_HEADS))
def test_heads_of_transformers_give_the_same_scores(tmp_path: Path, kind: str) -> None:
    head = task_head(model, kind)
    outputs = {"multiple_choice": 1, "question_answering": 2}.get(kind, 3)
    theirs = _theirs(head.architecture, num_labels=outputs)
    theirs.save_pretrained(tmp_path)
    made, loaded = oracle.ours("deberta_v2", tmp_path, allow_missing=("cls",))
    assert not loaded.unexpected
    layer = head.new(32, outputs, 0.0)
    layer.load_state_dict({k[5:]: v for k, v in loaded.state.items() if k.startswith("head.")})
    ids = oracle.tokens()
    hidden, given = made(LENGTHS, input_ids=ids), oracle.inputs(ids)
    if kind == "multiple_choice":  # a row of three choices
        found = layer(made.summary(hidden, LENGTHS)).T
        given = {name: rows[None] for name, rows in given.items()}
        expected = theirs(**given).logits
    elif kind == "sequence_classification":
        found, expected = layer(made.summary(hidden, LENGTHS)), theirs(**given).logits
    elif kind == "token_classification":
        found, expected = layer(hidden), oracle.seen(theirs(**given).logits)
    else:
        found = layer(hidden)[:, 0]
        expected = oracle.seen(theirs(**given).start_logits)
    torch.testing.assert_close(found, expected, **CLOSE)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"relative_attention": False}, "relative_attention is False"),
        ({"conv_kernel_size": 3}, "conv_kernel_size is 3"),
        ({"pos_att_type": "p2p"}, "pos_att_type is 'p2p'"),
        ({"embedding_size": 16}, "embedding_size is 16"),
        ({"attention_head_size": 16}, "attention_head_size is 16"),
        ({"pooler_hidden_act": "tanh"}, "pooler_hidden_act is 'tanh'"),
    ],
)
def test_settings_of_another_model_are_named(tmp_path: Path, settings, message: str) -> None:
    _theirs().save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(V3 | settings), "utf-8")
    with pytest.raises(Exception, match=message):
        hf_model.from_hf("deberta_v2", tmp_path, *hf_layout.read(tmp_path))


def _pair(sharing: str) -> model.Model:
    """Return a discriminator and a generator with large values, so that every part counts."""
    torch.manual_seed(0)
    config = Config(**SIZES, generator_layers=0.5, embedding_sharing=sharing)
    made = model.Model(config, VOCAB).eval()
    for parameter in made.parameters():
        nn.init.normal_(parameter, std=0.2)
    return made


def _write(made: model.Model, directory: Path) -> None:
    written = hf_writing.to_hf("deberta_v2", made.config, made.state_dict())
    hf_writing.write_folders(directory, written)


def _batch(ids: torch.Tensor, labels: torch.Tensor) -> Batch:
    uniform = torch.rand(len(ids), generator=torch.Generator().manual_seed(3))
    fields = {"input_ids": ids, "labels": labels, "is_target": labels != IGNORE, "uniform": uniform}
    return Batch(fields, LENGTHS)


@pytest.mark.parametrize("sharing", ["gdes", "es"])
def test_replaced_tokens_train_both_tables_as_the_paper_shares_them(
    tmp_path: Path, sharing: str
) -> None:
    made = _pair(sharing)
    _write(made, tmp_path)
    discriminator = transformers.DebertaV2Model.from_pretrained(tmp_path).eval()
    generator = transformers.DebertaV2ForMaskedLM.from_pretrained(tmp_path / "generator").eval()
    ids = oracle.tokens()
    objective, batch = (
        bound("rtd", made.config, max_length=64),
        _batch(ids, oracle.masked_labels(ids)),
    )
    labels = batch.fields["labels"]
    states = forward(objective, made, batch, torch.arange(len(ids)))
    expected = generator(**oracle.inputs(ids), labels=oracle.padded(labels, IGNORE))
    torch.testing.assert_close(made.logits(states), oracle.seen(expected.logits), **CLOSE)

    original = torch.where(labels == IGNORE, ids, labels)
    (index,) = (labels != IGNORE).nonzero(as_tuple=True)
    read = objective.corrupted(made, states, index, original, batch)
    hidden = oracle.seen(discriminator(**oracle.inputs(read)).last_hidden_state)
    torch.testing.assert_close(made(LENGTHS, read), hidden, **CLOSE)
    # The head of the authors' code: the first state is added to each.
    parts = [part + part[0] for part in hidden.split(LENGTHS)]
    x = nn.functional.gelu(made.replaced_dense(made.replaced_norm(torch.cat(parts))))
    replaced = (read != original).float()
    rtd = nn.functional.binary_cross_entropy_with_logits(made.replaced_score(x)[:, 0], replaced)

    loss = objective.loss(made, states, batch)
    total = expected.loss + 50 * rtd
    torch.testing.assert_close(loss.mean(loss.num_targets), total, **CLOSE)
    total.backward()
    of_generator = generator.deberta.embeddings.word_embeddings.weight.grad
    of_discriminator = discriminator.embeddings.word_embeddings.weight.grad
    made.zero_grad()
    loss.mean(loss.num_targets).backward()
    close = {"atol": 1e-4, "rtol": 1e-4}  # gradients of 50 times a loss are large
    rows = slice(1, None)  # transformers' table has no gradient at the id of padding
    table = made.generator.token_embedding.grad[rows]
    if sharing == "gdes":  # He et al. 2021, sec. 3.3
        torch.testing.assert_close(table, of_generator[rows], **close)
        assert made.embedding_delta is not None
        torch.testing.assert_close(made.embedding_delta.grad[rows], of_discriminator[rows], **close)
    else:
        assert made.embedding_delta is None
        both = of_generator + of_discriminator
        torch.testing.assert_close(table, both[rows], **close)
    for ours, theirs in (
        (made.layers.distance_embedding, discriminator.encoder.rel_embeddings.weight),
        (made.generator.layers.distance_embedding, generator.deberta.encoder.rel_embeddings.weight),
        (made.layers.blocks[1].query.weight,
         discriminator.encoder.layer[1].attention.self.query_proj.weight),
    ):  # fmt: skip
        torch.testing.assert_close(ours.grad, theirs.grad, **close)


def test_discriminator_begins_with_the_table_of_the_generator() -> None:
    made = model.Model(Config(**SIZES, generator_layers=0.5), VOCAB)
    assert made.embedding_delta is not None
    assert not made.embedding_delta.any()


@pytest.mark.parametrize("sharing", ["gdes", "es"])
def test_both_models_come_back_exactly(tmp_path: Path, sharing: str) -> None:
    made = _pair(sharing)
    _write(made, tmp_path)
    loaded = hf_model.from_hf("deberta_v2", tmp_path, *any_layout.read(tmp_path))
    assert (loaded.missing, loaded.unexpected) == ((), ())
    assert loaded.config == made.config
    assert loaded.state.keys() == made.state_dict().keys()
    assert all(torch.equal(loaded.state[n], value) for n, value in made.state_dict().items())


def test_generator_of_another_program_is_found_by_its_table(tmp_path: Path) -> None:
    """Without what nlpkit notes: the delta is the difference of both tables."""
    made = _pair("gdes")
    _write(made, tmp_path)
    settings = json.loads((tmp_path / "config.json").read_text("utf-8"))
    del settings["nlpkit"]["generator_layers"], settings["nlpkit"]["embedding_sharing"]
    (tmp_path / "config.json").write_text(json.dumps(settings), "utf-8")
    tensors = load_file(tmp_path / "model.safetensors")
    del tensors["mask_predictions.embedding_delta"]
    save_file(tensors, tmp_path / "model.safetensors")
    loaded = hf_model.from_hf("deberta_v2", tmp_path, *any_layout.read(tmp_path))
    assert (loaded.missing, loaded.config) == ((), made.config)
    torch.testing.assert_close(loaded.state["embedding_delta"], made.embedding_delta.data)


def test_task_reads_the_discriminators_own_table(tmp_path: Path) -> None:
    made = _pair("gdes")
    _write(made, tmp_path)
    assert not any("cls." in name for name in load_file(tmp_path / "model.safetensors"))
    content = hf_layout.keep_folders(hf_layout.read(tmp_path), [])
    loaded = hf_model.from_hf("deberta_v2", tmp_path, *content, predicts=False)
    assert loaded.config == made.config.for_task()
    alone = model.Model(loaded.config, VOCAB).eval()
    alone.load_state_dict(loaded.state, strict=False)
    ids = oracle.tokens()
    torch.testing.assert_close(alone(LENGTHS, ids), made(LENGTHS, ids), **CLOSE)


def test_table_that_is_the_generators_gets_no_adapter() -> None:
    adapters = adapter_config.Config(targets=["token_embedding"])
    assert [*lora.find_targets(adapters, model, Config(**SIZES))] == ["token_embedding"]
    with pytest.raises(UsageError, match="no layer 'token_embedding' in this model"):
        lora.find_targets(adapters, model, Config(**SIZES, generator_layers=0.5))


def test_default_sizes_give_the_parameters_of_the_base_model() -> None:
    with torch.device("meta"):
        ours = model.Model(Config(), 128_100)
        theirs = transformers.DebertaV2ForMaskedLM(
            transformers.DebertaV2Config(
                **V3 | {
                    "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12,
                    "intermediate_size": 3072, "max_position_embeddings": 512,
                    "position_buckets": 256, "vocab_size": 128_100,
                }
            )
        )  # fmt: skip
        theirs.tie_weights()
    assert sum(p.numel() for p in ours.parameters()) == theirs.num_parameters()
