"""The families rnn, lstm and gru against torch.nn.RNN, LSTM and GRU, a sequence at a time."""

import json

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from nlpkit import recipe
from nlpkit.attention.cache import Cache
from nlpkit.checkpoints import hf_writing
from nlpkit.errors import RecipeError, UsageError
from nlpkit.models import adapter_config, families, lora
from nlpkit.models.layers import recurrent
from nlpkit.models.layers.recurrence import TimeFirst
from nlpkit.models.layers.recurrent_config import CellsConfig
from nlpkit.runs.convert import convert
from nlpkit.tokenizers.cpm_ant import Tokenizer
from tests import _adapters, _tiny
from tests._formats import from_hf, to_hf

FAMILIES = ("rnn", "lstm", "gru")
VOCAB, LENGTHS = 40, (3, 7, 1, 7, 4)
CLOSE = {"atol": 1e-5, "rtol": 1e-5}
SIZES = CellsConfig(hidden_size=6, num_layers=2, dropout=0.0)
VARIANTS = {
    "plain": {},
    "two directions": {"num_directions": 2},
    "wide": {"num_directions": 2, "embedding_size": 5, "tie_embeddings": False},
    "projected": {"embedding_size": 5},
}


def _config(family: str, **settings: object):
    sizes = {"hidden_size": 6, "num_layers": 2, **settings}
    return families.load(family).Config(**sizes)


def _model(family: str, **settings: object):
    torch.manual_seed(0)
    model = families.load_model(family).Model(_config(family, **settings), VOCAB).eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.4)
    return model


def _ids(total: int = sum(LENGTHS), seed: int = 0) -> Tensor:
    return torch.randint(VOCAB, (total,), generator=torch.Generator().manual_seed(seed))


def _torch(model, ids: Tensor) -> tuple[Tensor, Tensor]:
    """Return torch's own states (T, C) of one sequence, and the last ones of its last layer."""
    hidden, final = model.cells(F.embedding(ids, model.token_embedding)[:, None])
    h = final[0] if isinstance(final, tuple) else final
    return hidden[:, 0], h[-model.config.num_directions :, 0].flatten()


def _oracle_logits(model, hidden: Tensor) -> Tensor:
    if model.output_projection is not None:
        hidden = hidden @ model.output_projection.weight.T
    table = model.token_embedding if model.output_embedding is None else model.output_embedding
    return hidden @ table.T + model.token_bias


@pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS)
@pytest.mark.parametrize("family", FAMILIES)
def test_states_loss_and_gradients_equal_torch(family, variant) -> None:
    model, ids, labels = _model(family, **variant), _ids(), _ids(seed=1)
    hidden = model(LENGTHS, ids)
    loss, _ = model.token_loss(hidden, torch.arange(len(ids)), labels)
    (loss + model.summary(hidden, LENGTHS).square().sum()).backward()
    ours = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    model.zero_grad()
    alone = [_torch(model, text) for text in ids.split(LENGTHS)]
    states, last = torch.cat([each for each, _ in alone]), torch.stack([each for _, each in alone])
    expected = F.cross_entropy(_oracle_logits(model, states), labels, reduction="sum")
    (expected + last.square().sum()).backward()
    torch.testing.assert_close(hidden, states, **CLOSE)
    torch.testing.assert_close(model.summary(hidden, LENGTHS), last, **CLOSE)
    torch.testing.assert_close(loss, expected, **CLOSE)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(ours[name], parameter.grad, **CLOSE, msg=name)


def test_rnn_with_relu_equals_torch() -> None:
    model = _model("rnn", nonlinearity="relu")
    (model(LENGTHS, _ids()) ** 2).sum().backward()
    ours = model.cells.weight_hh_l0.grad.clone()
    model.zero_grad()
    sum((_torch(model, text)[0] ** 2).sum() for text in _ids().split(LENGTHS)).backward()
    assert model.cells.mode == "RNN_RELU"
    torch.testing.assert_close(ours, model.cells.weight_hh_l0.grad, **CLOSE)


@pytest.mark.parametrize("family", FAMILIES)
def test_way_of_gpus_equals_loops_with_initial_states_and_their_gradients(family) -> None:
    # torch's PackedSequence, which is also the oracle of the initial states.
    layers = recurrent.make_layers(family, SIZES, 5, num_directions=2).double()
    time, results = TimeFirst.of(LENGTHS), []
    torch.manual_seed(1)
    x = torch.randn(sum(LENGTHS), 5, dtype=torch.float64, requires_grad=True)
    before = {
        name: torch.randn(len(LENGTHS), 4, 6, dtype=torch.float64, requires_grad=True)
        for name in recurrent.zeros(layers, x, 1)
    }
    for way in (recurrent._loops, recurrent._torch):
        hidden, states = way(layers, x, time, before)
        total = hidden.square().sum() + sum(
            (s * (i + 2)).sum() for i, s in enumerate(states.values())
        )
        wanted = [x, *before.values(), *layers.parameters()]
        results.append([hidden, *states.values(), *torch.autograd.grad(total, wanted)])
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-12, rtol=1e-10)


@pytest.mark.parametrize("family", FAMILIES)
def test_one_step_equals_a_pack_of_one_token_each(family) -> None:
    layers = recurrent.make_layers(family, SIZES, 5)
    x, states = torch.randn(3, 5), recurrent.zeros(layers, torch.zeros(1), 3)
    states = {name: torch.randn_like(part) for name, part in states.items()}
    hidden, after = recurrent.one_step(layers, x, states)
    expected, expected_after = recurrent.run(layers, x, TimeFirst.of((1, 1, 1)), states)
    torch.testing.assert_close(hidden, expected, **CLOSE)
    for name, part in after.items():
        torch.testing.assert_close(part, expected_after[name], **CLOSE)


@pytest.mark.parametrize("lengths", [(5,), (1, 2, 3), (3, 2, 1), (4, 4, 4), LENGTHS])
def test_time_first_is_the_order_of_torch(lengths) -> None:
    # pack_sequence numbers the tokens in torch's order.
    starts = torch.tensor([0, *lengths[:-1]]).cumsum(0)
    numbers = [start + torch.arange(n) for start, n in zip(starts, lengths, strict=True)]
    packed: PackedSequence = nn.utils.rnn.pack_sequence(numbers, enforce_sorted=False)
    backwards = nn.utils.rnn.pack_sequence([n.flip(0) for n in numbers], enforce_sorted=False)
    time = TimeFirst.of(lengths)
    assert time.sizes == packed.batch_sizes.tolist()
    assert sorted(packed.data.tolist()) == sorted(time.order.tolist())
    sizes = torch.tensor(lengths)
    assert torch.equal(sizes[time.rows], sizes.sort(descending=True).values)
    assert torch.equal(time.order[time.last], (starts + sizes - 1)[time.rows])
    if torch.equal(time.rows, packed.sorted_indices):
        assert torch.equal(time.order, packed.data)
        assert torch.equal(time.order[time.mirror], backwards.data)


@pytest.mark.parametrize("family", FAMILIES)
def test_no_sequence_moves_another_by_a_bit(family) -> None:
    model, ids = _model(family, num_directions=2), _ids()
    changed = ids.clone()
    changed[3:10] = (changed[3:10] + 1) % VOCAB  # the second sequence
    with torch.no_grad():
        before, after = (model(LENGTHS, each).split(LENGTHS) for each in (ids, changed))
    same = [torch.equal(one, two) for one, two in zip(before, after, strict=True)]
    assert same == [True, False, True, True, True]


@pytest.mark.parametrize("family", FAMILIES)
def test_cached_states_are_of_fixed_size_and_equal_those_without_a_cache(family) -> None:
    model = _model(family)
    texts = [_ids(9, seed) for seed in range(3)]
    with torch.no_grad():
        cache, other = Cache(), Cache()
        model((4, 6), torch.cat([texts[0][:4], texts[1][:6]]), cache=cache)
        model((3,), texts[2][:3], cache=other)
        cache.append(other)
        cache.select([2, 0, 0])
        steps = []
        for number in range(2):
            ids = torch.stack([texts[2][3 + number], *[texts[0][4 + number]] * 2])
            steps.append(model((1, 1, 1), ids, cache=cache))
            # h, and c of the LSTM: 2 layers of 6 numbers, however many tokens were read
            assert {tuple(t.shape) for t in cache.state("cells").values()} == {(3, 2, 6)}
        expected = [_torch(model, text)[0] for text in (texts[2], texts[0], texts[0])]
    assert cache.lengths == [5, 6, 6]
    for number, states in enumerate(steps):
        wanted = torch.stack(
            [text[at + number] for text, at in zip(expected, (3, 4, 4), strict=True)]
        )
        torch.testing.assert_close(states, wanted, **CLOSE)


def test_dropout_is_where_torch_has_it_and_not_in_evaluation() -> None:
    model = _model("lstm", dropout=0.5)
    assert model.cells.dropout == 0.5
    with torch.no_grad():
        still = model(LENGTHS, _ids())
        torch.manual_seed(0)
        dropped = model.train()(LENGTHS, _ids())
        torch.manual_seed(0)
        again = model(LENGTHS, _ids())
    assert torch.equal(dropped, again)
    assert 0.2 < (dropped == 0).float().mean() < 0.8
    assert not torch.allclose(dropped * 0.5, still)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS)
def test_layout_of_its_own_says_so_and_comes_back_exactly(family, variant, tmp_path) -> None:
    model = _model(family, **variant)
    settings, tensors = to_hf(family, model.config, model.state_dict())
    assert settings["model_type"] == f"nlpkit-{family}"  # transformers does not open it
    assert settings["architectures"] == []
    assert {f"cells.{name}" for name, _ in model.cells.named_parameters()} <= tensors.keys()
    hf_writing.write(tmp_path, settings, tensors)
    config, state = from_hf(family, tmp_path)
    assert config == model.config
    assert state.keys() == model.state_dict().keys()
    assert all(torch.equal(state[name], value) for name, value in model.state_dict().items())


def test_convert_warns_that_transformers_has_no_such_model(tmp_path) -> None:
    model = families.load_model("lstm").Model(_config("lstm"), len(_adapters.WORDS))
    settings, tensors = to_hf("lstm", model.config, model.state_dict())
    (tmp_path / "base").mkdir()
    hf_writing.write(tmp_path / "base", settings, tensors)
    Tokenizer(_adapters.WORDS).save(tmp_path / "base")
    warnings: list[str] = []
    convert(tmp_path / "base", tmp_path / "out", warn=warnings.append)
    (line,) = warnings
    assert line.startswith("transformers has no lstm: nlpkit opens ")


RECIPE = """\
name: tiny
model: {family: gru, hidden_size: 16, num_layers: 2, dropout: 0.1}
tokenizer: {kind: bpe, vocab_size: 300}
data: {train: [TRAIN], valid: [VALID]}
objective: {name: clm, max_length: 64}
train: {steps: 6, tokens_per_step: 256, tokens_per_batch: 128, lr: 1.0e-2, warmup_steps: 2,
  eval_every: 3, save_every: 3, precision: fp32}
"""


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (
            "dropout: 0.1",
            "num_directions: 2",
            r"5:19: objective\.name: clm needs causal .*family gru with num_directions 2 does not "
            r"have; with num_directions 1 it does$",
        ),
        (
            "name: clm",
            "name: mlm",
            r"5:19: .* num_directions 1 does not have; with num_directions 2 it does$",
        ),
        (
            "\ntrain:",
            "\nattention: {kind: causal}\ntrain:",
            r"6:19: attention.kind: .*no attention to choose; remove the section attention$",
        ),
        (
            "\ntrain:",
            "\nattention: {backend: sdpa}\ntrain:",
            r"6:\d+: attention.backend: the model has no attention to compute; set it to auto",
        ),
        ("dropout: 0.1", "nonlinearity: relu", r"2:\d+: model\.nonlinearity: unknown setting"),
        ("name: clm", "name: mlm", r"5:19: objective\.name: mlm needs bidirectional "),
    ],
)
def test_recipe_that_does_not_fit_is_named_with_its_line(tmp_path, old, new, said) -> None:
    with pytest.raises(RecipeError, match=said):
        recipe.load(str(_tiny.write(tmp_path, text=RECIPE.replace(old, new, 1))))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({}, "lora.targets: .*name some of token_embedding"),
        ({"embedding_size": 5}, "lora.targets: .*name some of output_projection, token_embedding"),
    ],
)
def test_adapters_are_refused_with_the_reason(settings, said) -> None:
    with pytest.raises(UsageError, match=said):
        lora.find_targets(
            adapter_config.Config(), families.load_model("gru"), _config("gru", **settings)
        )


def test_adapters_of_the_table_are_merged_when_they_are_read(tmp_path) -> None:
    base = _tiny.pretrain(_tiny.write(tmp_path, text=RECIPE, documents=40), tmp_path / "base")
    path = _adapters.tuning_recipe(tmp_path, base, "lora: {rank: 4, targets: token_embedding}")
    _tiny.pretrain(path, tmp_path / "run", "objective={name: clm, max_length: 64}")
    losses = [r["held_out"]["loss"] for r in _tiny.metrics(tmp_path / "run") if "held_out" in r]
    assert losses[-1] < losses[0] - 0.01
    done = _tiny.command("eval", tmp_path / "run", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["loss"] == pytest.approx(losses[-1], abs=1e-5)


@pytest.mark.slow
def test_both_directions_may_learn_masked_tokens(tmp_path) -> None:
    text = RECIPE.replace("dropout: 0.1", "num_directions: 2").replace("name: clm", "name: mlm")
    _tiny.pretrain(_tiny.write(tmp_path, text=text, documents=40), tmp_path / "run")
    records = _tiny.metrics(tmp_path / "run")
    assert records[-1]["held_out"]["loss"] < records[0]["loss"]
