"""The family seq2seq against the papers' formulas, step by step, one pair of texts at a time.

The reference below has loops over steps and source tokens, and torch's own modules for the cells.
"""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nlpkit.attention.cache import Cache
from nlpkit.checkpoints import hf_writing
from nlpkit.models.layers.recurrent import ResetBefore
from nlpkit.models.seq2seq import Config
from nlpkit.models.seq2seq.model import Model
from tests._formats import from_hf, to_hf
from tests.models.test_gru_reset import by_hand

States = tuple[Tensor, Tensor] | Tensor | None  # (L D, 1, C), as torch has them
VOCAB, LENGTHS, SOURCES = 30, (3, 6, 1, 6), (4, 2, 5, 7)
CLOSE = {"atol": 1e-5, "rtol": 1e-5}
VARIANTS = {
    "first state only": {"score": None, "previous_output": False},
    "every step": {"score": None, "previous_output": False, "context": "every_step"},
    "Cho, maxout": {"score": None, "context": "both", "cell": "gru", "reset": "before",
                    "joined": "maxout"},
    "Bahdanau, maxout": {"score": "additive", "context": "both", "cell": "gru",
                         "num_directions": 2, "joined": "maxout", "embedding_size": 5},
    "maxout, fed, no token": {"score": "general", "previous_output": False,
                              "joined": "maxout", "input_feeding": True},
    "maxout, every step": {"score": None, "context": "every_step", "joined": "maxout",
                           "previous_output": False, "num_directions": 2},
    "maxout after the state": {"score": "dot", "joined": "maxout"},
    "every step and output": {"score": None, "context": "every_step", "cell": "gru"},
    "Sutskever": {"score": None},
    "Cho": {"score": None, "context": "both", "cell": "gru", "num_directions": 2},
    "Cho, reset before": {"score": None, "context": "both", "cell": "gru", "reset": "before"},
    "Bahdanau, reset before": {"score": "additive", "context": "both", "cell": "gru",
                               "num_directions": 2, "reset": "before"},
    "Bahdanau": {"score": "additive", "context": "both", "cell": "gru", "num_directions": 2},
    "Bahdanau, no first state": {"score": "general", "context": "every_step", "cell": "rnn"},
    "own first state": {"score": None, "context": "every_step", "first_state": "learned"},
    "attention, own first state": {"score": "dot", "context": "every_step",
                                   "first_state": "learned", "cell": "rnn", "joined": "sum"},
    "concat": {"score": "general", "num_directions": 2, "joined": "concat"},
    "concat, fed": {"score": "dot", "joined": "concat", "input_feeding": True},
    "sum": {"score": "dot", "joined": "sum", "embedding_size": 5},
    "the document's five steps": {"score": "dot", "context": "both", "joined": "concat"},
    "dot": {"score": "dot"},
    "general": {"score": "general", "num_directions": 2, "embedding_size": 5},
    "additive": {"score": "additive", "tie_embeddings": False},
    "local-m": {"score": "general", "window": "local_m", "window_size": 1},
    "local-p": {"score": "general", "window": "local_p", "window_size": 2, "num_directions": 2},
    "input feeding": {"score": "dot", "input_feeding": True},
    "all": {"score": "additive", "window": "local_p", "window_size": 2, "input_feeding": True,
            "context": "both", "num_directions": 2},
}  # fmt: skip
STEPWISE = ("Sutskever", "Cho", "general", "Bahdanau", "input feeding", "concat", "own first state",
            "Cho, maxout", "Bahdanau, maxout", "maxout after the state")  # fmt: skip


def _model(variant: str, **more: object) -> Model:
    torch.manual_seed(0)
    sizes = {"hidden_size": 6, "num_layers": 2, "dropout": 0.0}
    model = Model(Config(**sizes, **VARIANTS[variant], **more), VOCAB).eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.4)
    return model


def _ids(total: int, seed: int) -> Tensor:
    return torch.randint(VOCAB, (total,), generator=torch.Generator().manual_seed(seed))


TARGETS, LABELS, FROM = _ids(sum(LENGTHS), 0), _ids(sum(LENGTHS), 1), _ids(sum(SOURCES), 2)


def _texts() -> list[tuple[Tensor, Tensor]]:
    return list(zip(TARGETS.split(LENGTHS), FROM.split(SOURCES), strict=True))


def _weights(model: Model, query: Tensor, states: Tensor, t: int) -> Tensor:
    """Return the weights (S,) of Luong et al. 2015, eq. 7 to 10, counted from 0."""
    align, config, last = model.decoder.alignment, model.config, len(states) - 1
    scores = []
    for h in states:
        if config.score == "dot":
            scores.append(query @ h)
        elif config.score == "general":
            scores.append(query @ align.key.weight @ h)
        else:
            both = torch.cat([align.query.weight, align.key.weight], 1) @ torch.cat([query, h])
            scores.append(align.weight.weight[0] @ torch.tanh(both + align.query.bias))
    place = torch.arange(len(states))
    if config.window == "global":
        return torch.stack(scores).softmax(0)
    if config.window == "local_m":
        centre = torch.tensor(float(min(t, last)))
    else:
        inner = torch.tanh(align.place.weight @ query)
        centre = last * torch.sigmoid(align.place_weight.weight[0] @ inner)
    near = [s for s in place.tolist() if abs(s - centre.item()) <= config.window_size]
    weights = torch.zeros(len(states))
    weights[near] = torch.stack([scores[s] for s in near]).softmax(0)
    if config.window == "local_p":
        weights = weights * torch.exp(
            -((place - centre) ** 2) / (2 * (config.window_size / 2) ** 2)
        )
    return weights


def _cells(layers: nn.RNNBase, x: Tensor, given: States = None) -> tuple[Tensor, States]:
    """Return the states (T, C) of one text x (T, E), and the last ones, as torch's modules do."""
    if not isinstance(layers, ResetBefore):
        states, last = layers(x[:, None], given)
        return states[:, 0], last
    depth = layers.num_layers * (2 if layers.bidirectional else 1)
    before = torch.zeros(depth, layers.hidden_size) if given is None else given[:, 0]
    states, last = by_hand(layers, x, before)
    return states, last[:, None]


def _maxout(model: Model, c: Tensor, state: Tensor, embedded: Tensor) -> Tensor:
    """Return s of Cho et al. 2014, app. A.1.2: of each two of O_h h + O_y y + O_c c the larger."""
    config, layer = model.config, model.decoder.combine
    sizes = [config.source_size, config.hidden_size]
    sizes += [config.input_size] if config.previous_output else []
    o_c, o_h, *o_y = layer.weight.split(sizes, 1)
    both = o_c @ c + o_h @ state + layer.bias
    both = both + (o_y[0] @ embedded if o_y else 0)
    return torch.stack([torch.maximum(both[2 * i], both[2 * i + 1]) for i in range(len(state))])


def _reference(
    model: Model, target: Tensor, source: Tensor, forced: Tensor | None = None
) -> tuple[Tensor, Tensor | None]:
    """Return hidden states (T, C) and the weights (T, S) of one pair."""
    config, table, many = model.config, model.token_embedding, model.config.num_directions
    states, final = _cells(model.encoder, table[source])
    final = dict(zip("hc", final if isinstance(final, tuple) else (final,), strict=False))
    c = torch.cat([*final["h"][-many:, 0]])
    if config.context == "every_step":
        now = {name: torch.zeros(config.num_layers, 1, config.hidden_size) for name in final}
        for name, learned in model.decoder.first.items():
            now[name] = torch.stack(learned.chunk(config.num_layers))[:, None]
    else:
        now = {}
        for name, part in final.items():
            rows = [torch.cat([*part[i : i + many, 0]]) for i in range(0, len(part), many)]
            if many == 2:
                rows = [model.bridge[name](row) for row in rows]
                rows = [torch.tanh(row) for row in rows] if name == "h" else rows
            now[name] = torch.stack(rows)[:, None]
    wide = config.hidden_size * (1 + many * (config.joined == "concat"))
    fed, hidden, weights = torch.zeros(wide), [], []
    for t, token in enumerate(target.tolist()):
        if forced is not None and t and not forced[t]:
            token = int(model.logits(hidden[-1][None]).argmax())
        if config.attends_before:
            weights.append(_weights(model, now["h"][-1, 0], states, t))
            c = weights[-1] @ states
        read = [table[token]] if config.previous_output else []
        read += [c] if config.context != "initial_state" else []
        read += [fed] if config.input_feeding else []
        x = torch.cat(read) if read else torch.ones(1)
        given = tuple(now.values()) if len(now) > 1 else now["h"]
        out, after = _cells(model.decoder.cells, x[None], given)
        now = dict(zip("hc", after if isinstance(after, tuple) else (after,), strict=False))
        state = out[0]
        if config.score is not None and not config.attends_before:
            weights.append(_weights(model, state, states, t))
            c = weights[-1] @ states
        if config.joined == "maxout":
            state = _maxout(model, c, state, table[token])
        elif config.score is not None:
            both = torch.cat([c, state])
            tanh = config.joined == "tanh"
            state = torch.tanh(model.decoder.combine.weight @ both) if tanh else both
            state = c + out[0] if config.joined == "sum" else state
        fed = state
        hidden.append(state)
    return torch.stack(hidden), torch.stack(weights) if weights else None


def _expected(model: Model, forced: Tensor | None = None) -> Tensor:
    parts = [None] * len(LENGTHS) if forced is None else forced.split(LENGTHS)
    found = [_reference(model, *text, part)[0] for text, part in zip(_texts(), parts, strict=True)]
    return torch.cat(found)


def _compare(model: Model, hidden: Tensor, expected: Tensor) -> None:
    """Assert that states, loss and all gradients are equal."""
    torch.testing.assert_close(hidden, expected, **CLOSE)
    loss, _ = model.token_loss(hidden, torch.arange(len(LABELS)), LABELS)
    theirs = F.cross_entropy(model.logits(expected), LABELS, reduction="sum")
    torch.testing.assert_close(loss, theirs, **CLOSE)
    parameters = dict(model.named_parameters())
    ours = torch.autograd.grad(loss, [*parameters.values()], allow_unused=True)
    wanted = torch.autograd.grad(theirs, [*parameters.values()], allow_unused=True)
    for name, one, two in zip(parameters, ours, wanted, strict=True):
        zero = torch.zeros_like(parameters[name])
        one, two = zero if one is None else one, zero if two is None else two
        torch.testing.assert_close(one, two, atol=1e-5, rtol=1e-4, msg=name)


@pytest.mark.parametrize("variant", VARIANTS)
def test_states_loss_and_gradients_equal_the_formulas(variant) -> None:
    model = _model(variant)
    hidden = model(LENGTHS, TARGETS, source_ids=FROM, source_lengths=SOURCES)
    _compare(model, hidden, _expected(model))


@pytest.mark.fast_cases(4)
@pytest.mark.parametrize("variant", STEPWISE)
def test_own_output_takes_the_place_of_the_target_where_it_is_not_forced(variant) -> None:
    model = _model(variant).train()  # without dropout
    forced = torch.rand(sum(LENGTHS), generator=torch.Generator().manual_seed(3)) < 0.5
    hidden = model(LENGTHS, TARGETS, source_ids=FROM, source_lengths=SOURCES, teacher_forced=forced)
    assert not torch.allclose(hidden, _expected(model))
    _compare(model, hidden, _expected(model, forced))
    # Evaluation is always teacher-forced, so that losses can be compared.
    model.eval()
    hidden = model(LENGTHS, TARGETS, source_ids=FROM, source_lengths=SOURCES, teacher_forced=forced)
    torch.testing.assert_close(hidden, _expected(model), **CLOSE)


@pytest.mark.parametrize("variant", VARIANTS)
def test_cached_steps_equal_the_whole_and_survive_select_and_append(variant) -> None:
    model, texts = _model(variant), _texts()
    with torch.no_grad():
        whole = [_reference(model, *texts[i])[0] for i in (0, 1, 3)]
        cache, other = Cache(), Cache()
        first = torch.cat([texts[0][0][:1], texts[1][0][:1]])
        source = torch.cat([texts[0][1], texts[1][1]])
        model((1, 1), first, source_ids=source, source_lengths=SOURCES[:2], cache=cache)
        source = texts[3][1]
        model((1,), texts[3][0][:1], source_ids=source, source_lengths=SOURCES[3:], cache=other)
        cache.append(other)
        cache.select([2, 0, 0, 1])
        order = (3, 0, 0, 1)
        for t in (1, 2):
            ids = torch.stack([texts[i][0][t] for i in order])
            hidden = model((1,) * 4, ids, cache=cache)
            expected = torch.stack([whole[min(i, 2)][t] for i in order])
            torch.testing.assert_close(hidden, expected, **CLOSE)
    assert cache.lengths == [3, 3, 3, 3]


@pytest.mark.parametrize("variant", [name for name, v in VARIANTS.items() if v["score"]])
def test_alignments_are_the_weights_of_the_formulas(variant) -> None:
    model = _model(variant)
    with torch.no_grad():
        found = model.alignments(LENGTHS, TARGETS, FROM, SOURCES)
        expected = [_reference(model, *text)[1] for text in _texts()]
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, **CLOSE)


def test_alignments_of_a_model_without_attention_are_refused() -> None:
    with pytest.raises(ValueError, match="no attention"):
        _model("Sutskever").alignments(LENGTHS, TARGETS, FROM, SOURCES)


def test_local_window_gives_no_weight_outside() -> None:
    # Hand arithmetic: around positions 0 to 5, and behind a source of 2 tokens around its last.
    (short, long) = (
        _model("local-m").alignments(LENGTHS, TARGETS, FROM, SOURCES)[i] for i in (1, 3)
    )
    seen = [(row != 0).nonzero().flatten().tolist() for row in long]
    assert seen == [[0, 1], [0, 1, 2], [1, 2, 3], [2, 3, 4], [3, 4, 5], [4, 5, 6]]
    assert [(row != 0).tolist() for row in short] == [[True, True]] * 6
    torch.testing.assert_close(long.sum(1), torch.ones(6))


@pytest.mark.parametrize("variant", ["general", "Bahdanau", "all"])
def test_no_pair_moves_another_by_a_bit(variant) -> None:
    model, changed = _model(variant), FROM.clone()
    changed[4:6] = (changed[4:6] + 1) % VOCAB  # the second source
    with torch.no_grad():
        before, after = (
            model(LENGTHS, TARGETS, source_ids=each, source_lengths=SOURCES).split(LENGTHS)
            for each in (FROM, changed)
        )
    same = [torch.equal(one, two) for one, two in zip(before, after, strict=True)]
    assert same == [True, False, True, True]


@pytest.mark.parametrize("variant", ["general", "Bahdanau", "Cho", "concat", "own first state",
                                     "Cho, maxout", "Bahdanau, maxout"])  # fmt: skip
def test_mixed_precision_trains_all_parameters(variant) -> None:
    model = _model(variant).train()
    forced = torch.arange(sum(LENGTHS)) % 2 == 0
    with torch.autocast("cpu", torch.bfloat16):
        hidden = model(
            LENGTHS, TARGETS, source_ids=FROM, source_lengths=SOURCES, teacher_forced=forced
        )
        loss, _ = model.token_loss(hidden, torch.arange(len(LABELS)), LABELS)
    loss.backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
    # bfloat16 has 8 bits: about 1 % of the loss.
    expected = F.cross_entropy(model.logits(_expected(model, forced)), LABELS, reduction="sum")
    assert loss.item() == pytest.approx(expected.item(), rel=0.05)


@pytest.mark.parametrize(
    "variant", ["every step", "own first state", "concat", "additive", "all", "Cho, maxout"]
)
def test_layout_of_its_own_says_so_and_comes_back_exactly(variant, tmp_path) -> None:
    model = _model(variant)
    settings, tensors = to_hf("seq2seq", model.config, model.state_dict())
    assert settings["model_type"] == "nlpkit-seq2seq"  # transformers does not open it
    hf_writing.write(tmp_path, settings, tensors)
    config, state = from_hf("seq2seq", tmp_path)
    assert config == model.config
    assert state.keys() == model.state_dict().keys()
    assert all(torch.equal(state[name], value) for name, value in model.state_dict().items())


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"score": None, "window": "local_m"}, "window local_m needs attention"),
        ({"score": None, "input_feeding": True}, "input_feeding needs attention"),
        ({"joined": "sum", "num_directions": 2}, "sum needs encoder states as wide"),
        ({"score": "dot", "num_directions": 2}, "dot needs encoder states as wide"),
    ],
)
def test_settings_that_exclude_each_other_are_refused(settings, said) -> None:
    with pytest.raises(ValueError, match=said):
        Config(**settings)
