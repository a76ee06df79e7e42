"""XLNet against transformers: both streams, losses, gradients, files, task heads."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

from nlpkit import recipe
from nlpkit.checkpoints import hf_layout, hf_model
from nlpkit.errors import FileError, RecipeError
from nlpkit.models.xlnet import Config
from nlpkit.models.xlnet.model import Model
from tests._families import oracle
from tests._families.oracle import CLOSE, LENGTHS, VOCAB

SIZES = {"hidden_size": 32, "num_layers": 2, "num_heads": 4, "intermediate_size": 48}


def _theirs(architecture: str = "XLNetLMHeadModel", **settings) -> torch.nn.Module:
    sizes = {"vocab_size": VOCAB, "d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 48}
    return oracle.drawn(architecture, transformers.XLNetConfig(**sizes | settings))


def _rank() -> torch.Tensor:
    """Return the place in the order of every third token of each sequence; 0 for the others."""
    rng = np.random.default_rng(0)
    parts = []
    for size in LENGTHS:
        rank = np.zeros(size, np.int64)
        rank[::3] = 1 + rng.permutation(len(rank[::3]))
        parts.append(rank)
    return torch.from_numpy(np.concatenate(parts))


def _order(rank: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return `perm_mask` and `target_mapping` of transformers for one sequence (Yang et al.)."""
    hides = (rank[None] > 0) & (rank[None] >= rank[:, None])
    return hides.float()[None], torch.eye(len(rank))[rank > 0][None]


@pytest.mark.parametrize(
    "settings",
    [{}, {"ff_activation": "relu"}, {"clamp_len": 3}],
    ids=["xlnet", "relu", "clamped"],
)
def test_content_stream_equals_transformers(tmp_path: Path, settings) -> None:
    theirs = _theirs(**settings)
    theirs.save_pretrained(tmp_path)
    model, loaded = oracle.ours("xlnet", tmp_path)
    assert (loaded.missing, loaded.unexpected) == ((), ())
    ids, types = oracle.tokens(), oracle.types()
    expected = theirs(**oracle.inputs(ids, token_types=types), output_hidden_states=True)
    hidden = model(LENGTHS, input_ids=ids, token_type_ids=types)
    torch.testing.assert_close(hidden, oracle.seen(expected.hidden_states[-1]), **CLOSE)
    torch.testing.assert_close(model.logits(hidden), oracle.seen(expected.logits), **CLOSE)


def test_both_streams_losses_and_gradients_equal_transformers(tmp_path: Path) -> None:
    """Each sequence alone there, all in one pack here."""
    theirs = _theirs()
    theirs.save_pretrained(tmp_path)
    model, loaded = oracle.ours("xlnet", tmp_path)
    ids, types, rank = oracle.tokens(), oracle.types(), _rank()
    logits, contents = [], []
    for one, kind, order in zip(*(x.split(LENGTHS) for x in (ids, types, rank)), strict=True):
        mask, mapping = _order(order)
        out = theirs(
            input_ids=one[None], token_type_ids=kind[None], perm_mask=mask, target_mapping=mapping,
            output_hidden_states=True,
        )  # fmt: skip
        logits.append(out.logits[0])
        contents.append(out.hidden_states[-2][0])
    hidden = model(LENGTHS, input_ids=ids, token_type_ids=types, rank=rank)
    index = (rank > 0).nonzero().squeeze(1)
    expected = torch.cat(logits)
    torch.testing.assert_close(model.logits(hidden[index]), expected, **CLOSE)
    others = (rank == 0).nonzero().squeeze(1)
    torch.testing.assert_close(hidden[others], torch.cat(contents)[others], **CLOSE)
    total, _ = model.token_loss(hidden, index, ids[index])
    loss = torch.nn.functional.cross_entropy(expected, ids[index])
    torch.testing.assert_close(total / len(index), loss, **CLOSE)
    loss.backward()
    (total / len(index)).backward()
    oracle.assert_gradients_equal("xlnet", loaded, model, theirs)


def test_states_never_depend_on_their_own_token_or_on_later_ones() -> None:
    torch.manual_seed(0)
    model = Model(Config(**SIZES, init_std=0.3), VOCAB).eval()
    ids, types, rank = oracle.tokens(), oracle.types(), _rank()
    base = model(LENGTHS, ids, types, rank)
    for k in (rank > 0).nonzero().squeeze(1).tolist():
        other = ids.clone()
        other[k] = (ids[k] + 1) % VOCAB
        moved = (model(LENGTHS, other, types, rank) != base).any(1)
        inside = torch.zeros_like(moved)
        starts = np.cumsum([0, *LENGTHS])
        number = int(np.searchsorted(starts, k, side="right")) - 1
        inside[starts[number] : starts[number + 1]] = True
        assert torch.equal(moved, inside & (rank > rank[k])), k


def test_sequence_without_a_predicted_token_is_refused() -> None:
    model = Model(Config(**SIZES), VOCAB)
    ids, types, rank = oracle.tokens(), oracle.types(), _rank()
    rank[: LENGTHS[0]] = 0
    with pytest.raises(ValueError, match="at least one token"):
        model(LENGTHS, ids, types, rank)


@pytest.mark.parametrize("more", [{}, {"hidden_act": "relu", "max_distance": 7}])
def test_checkpoint_opens_in_transformers_and_comes_back_exactly(tmp_path: Path, more) -> None:
    config = Config(**SIZES, **more)
    oracle.assert_opens_both_ways("xlnet", config, "XLNetLMHeadModel", tmp_path)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"ff_activation": "silu"}, "ff_activation is 'silu'; this family has gelu, relu"),
        ({"attn_type": "uni"}, "attn_type is 'uni'; this family has 'bi' only"),
        ({"summary_type": "first"}, "summary_type is 'first'"),
    ],
)
def test_another_xlnet_is_refused_in_one_line(tmp_path: Path, settings, said: str) -> None:
    _theirs().save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | settings))
    with pytest.raises(FileError, match=said) as error:
        oracle.ours("xlnet", tmp_path)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "kind", ["SequenceClassification", "TokenClassification", "QuestionAnsweringSimple"]
)
def test_task_heads_of_transformers_load(tmp_path: Path, kind: str) -> None:
    theirs = _theirs(f"XLNetFor{kind}", num_labels=2)
    theirs.save_pretrained(tmp_path)
    settings, tensors = hf_layout.read(tmp_path)
    loaded = hf_model.from_hf("xlnet", tmp_path, settings, tensors, allow_missing=("lm_loss",))
    assert not loaded.unexpected
    layer = {"S": "logits_proj", "T": "classifier", "Q": "qa_outputs"}[kind[0]]
    assert torch.equal(loaded.state["head.weight"], getattr(theirs, layer).weight)


def test_default_sizes_give_the_parameters_of_transformers() -> None:
    base = transformers.XLNetConfig(d_model=768, n_layer=12, n_head=12, d_inner=3072)
    with torch.device("meta"):
        model, theirs = Model(Config(), 32000), transformers.XLNetLMHeadModel(base)
    assert sum(p.numel() for p in model.parameters()) == theirs.num_parameters()


def test_all_initial_weights_have_init_std_as_in_transformers() -> None:
    model = Model(Config(**SIZES, init_std=0.1), VOCAB)
    for name, parameter in model.named_parameters():
        if parameter.ndim > 1:
            assert parameter.std().item() == pytest.approx(0.1, rel=0.4), name


def test_dropout_acts() -> None:
    for rate in (0.0, 0.5):
        model = Model(Config(**SIZES, dropout=rate), VOCAB).train()
        given = LENGTHS, oracle.tokens(), oracle.types(), _rank()
        assert torch.equal(model(*given), model(*given)) == (rate == 0)


def test_sines_of_distances_have_dropout_as_in_transformers() -> None:
    # Of 2 tokens there are 3 distances: a column of sines is dropped for all of them one time in 8,
    # and its row of `r` then has no gradient.
    for rate in (0.0, 0.5):
        torch.manual_seed(0)
        model = Model(Config(**SIZES, dropout=rate), VOCAB).train()
        hidden = model([2], torch.tensor([7, 8]), torch.tensor([0, 0]))
        hidden.square().sum().backward()
        r = dict(model.named_parameters())["attention_tensors.layer_0_r"]
        without = (r.grad == 0).flatten(1).all(1).float().mean()
        assert (0 < without < 0.4) == (rate > 0)


def test_memory_of_parts_equals_memories_of_transformers(tmp_path: Path) -> None:
    """There one part after the other with `mems`, each alone; here all parts in one pack."""
    size = 5
    theirs = _theirs(mem_len=size)
    theirs.save_pretrained(tmp_path)
    model, loaded = oracle.ours("xlnet", tmp_path)
    config = loaded.config.model_copy(update={"memory": size})
    with_memory = Model(config, VOCAB).eval()
    with_memory.load_state_dict(model.state_dict())
    ids, rank = oracle.tokens(), _rank()
    types = torch.zeros_like(ids)  # transformers gives memories the type 0
    starts = torch.cat([torch.arange(n) // size * size for n in LENGTHS])
    loss = torch.zeros(())
    expected = []
    for one, order in zip(ids.split(LENGTHS), rank.split(LENGTHS), strict=True):
        mems = None
        for part, places in zip(one.split(size), order.split(size), strict=True):
            mask, mapping = _order(places)
            out = theirs(
                input_ids=part[None], token_type_ids=torch.zeros_like(part)[None], perm_mask=mask,
                target_mapping=mapping if len(mapping[0]) else None, mems=mems, use_mems=True,
            )  # fmt: skip
            mems = out.mems
            if len(mapping[0]):
                expected.append(out.logits[0])
                loss = loss + torch.nn.functional.cross_entropy(
                    out.logits[0], part[places > 0], reduction="sum"
                )
    hidden = with_memory(LENGTHS, ids, types, rank, part_start=starts)
    index = (rank > 0).nonzero().squeeze(1)
    torch.testing.assert_close(with_memory.logits(hidden[index]), torch.cat(expected), **CLOSE)
    total, _ = with_memory.token_loss(hidden, index, ids[index])
    total.backward()
    loss.backward()
    oracle.assert_gradients_equal("xlnet", loaded, with_memory, theirs)


def test_memory_beside_a_task_which_reads_no_parts_is_refused_with_a_remedy() -> None:
    text = "name: x\nmodel: {family: xlnet, memory: 8}\nobjective: {name: entailment}\n"
    text += "tokenizer: {kind: bpe}\ndata: {train: a.csv}\ntrain: {steps: 1, schedule: constant}\n"
    with pytest.raises(RecipeError) as error:
        recipe.parse(text.encode(), "r.yaml", Path("."))
    assert error.value.problems == [
        "r.yaml:3:19: objective.name: entailment does not give part_start, and family xlnet reads "
        "them; set model.memory: 0"
    ]
