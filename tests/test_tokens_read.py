"""The last layer computes the states that a loss reads: same loss and gradients as with all."""

import numpy as np
import pytest
import torch

from nlpkit.attention.contract import Choice
from nlpkit.data.items import Row
from nlpkit.data.marks import Marked
from nlpkit.data.pack import Batch, collate
from nlpkit.models import encoder, families
from nlpkit.models.head import Head
from nlpkit.objectives import classification
from nlpkit.objectives._combined import combined
from nlpkit.objectives.contract import Loss, forward
from tests import _masked
from tests._losses import all_states

SIZES = {"hidden_size": 32, "num_layers": 2, "num_heads": 4, "max_positions": 512}
RANGES = {"attention": (Choice.of("seen_range"),)}
# The family with its other settings; the objectives of the list with theirs.
CASES: dict[str, tuple[str, dict, dict[str, dict]]] = {
    "mlm": ("bert", {}, {"mlm": {}}),
    "wwm": ("bert", {}, {"wwm": {}}),
    "nsp and mlm": ("bert", {}, {"nsp": {}, "mlm": {}}),
    "nsp": ("bert", {}, {"nsp": {}}),
    "sop of three and mlm": ("albert", {}, {"sop": {"segments": 3}, "mlm": {}}),
    "sop": ("albert", {}, {"sop": {}}),
    "span": ("bert", {}, {"span": {"rate": 0.3}}),
    "span without boundaries": ("bert", {}, {"span": {"boundary_weight": 0}}),
    "rtd": ("electra", {}, {"rtd": {}}),
    "tlm": ("xlm", {}, {"tlm": {"monolingual": 0.5}}),
    "unilm": ("bert", RANGES, {"unilm": {"mask_types": False}}),
    "few": ("bert", {}, {"mlm": {"rate": 0.01}}),  # sequences without a target
}


def _model(name: str, **more):
    torch.manual_seed(0)
    config = families.load(name).Config(**SIZES, **more)
    size = _masked.tokenizer().vocab_size
    model = families.load_model(name).Model(config, size).double().eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    return model


def _pair() -> Marked:
    first, second = _masked.SENTENCES[1], _masked.SENTENCES[4]
    texts = _masked.marked(first), _masked.marked(second, is_second=True)
    return Marked(*(np.concatenate([getattr(t, n) for t in texts]) for n in ("ids", "marks")))


def _batch(objective, examples: list[dict[str, np.ndarray]]) -> Batch:
    batch = collate(examples, objective.fields)
    batch.fields = {n: torch.from_numpy(v) for n, v in batch.fields.items()}
    return batch


def _case(name: str):
    """Return a model, an objective and a batch."""
    family, settings, listed = CASES[name]
    model = _model(family, **settings)
    bound = [_masked.bound(each, model.config, **more) for each, more in listed.items()]
    objective = combined(bound, [1.0] * len(bound))
    torch.manual_seed(1)
    heads = objective.heads() if hasattr(objective, "heads") else {}
    model.objective_heads = torch.nn.ModuleDict(heads).double()
    examples = []
    for number in range(6):
        rng = np.random.default_rng(number)
        text = _pair() if "tlm" in listed else _masked.document(4, rng)
        mates = [[_masked.document(4, rng)]] if objective.mates else []
        examples.append(objective.example(text, rng, *mates))
    return model, objective, _batch(objective, examples)


def _gradients(model, objective, batch: Batch, states) -> tuple[Loss, dict[str, torch.Tensor]]:
    model.zero_grad()
    loss = objective.loss(model, states(objective, model, batch), batch)
    loss.mean(loss.num_targets).backward()
    return loss, {n: p.grad for n, p in model.named_parameters() if p.grad is not None}


def _is_the_same(model, objective, batch: Batch) -> None:
    loss, gradients = _gradients(model, objective, batch, forward)
    expected, wanted = _gradients(model, objective, batch, all_states)
    assert loss.num_targets == expected.num_targets
    for name, (total, _) in expected.parts.items():
        torch.testing.assert_close(loss.parts[name][0], total, rtol=1e-10, atol=1e-10)
    assert gradients.keys() == wanted.keys()
    for name in wanted:
        torch.testing.assert_close(gradients[name], wanted[name], rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("name", CASES)
def test_loss_and_gradients_are_those_of_all_states(name: str) -> None:
    _is_the_same(*_case(name))


@pytest.mark.parametrize("name", CASES)
def test_last_layer_computes_no_more(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, objective, batch = _case(name)
    sizes: list[int] = []
    plain = encoder.Layer.forward

    def counting(*given):
        made = plain(*given)
        sizes.append(len(made))
        return made

    monkeypatch.setattr(encoder.Layer, "forward", counting)
    forward(objective, model, batch)
    read = objective.tokens_read(batch)
    read[np.cumsum((0, *batch.lengths[:-1]))] = True
    assert sizes == [sum(batch.lengths), int(read.sum())]
    assert sizes[1] < sizes[0]


@pytest.mark.parametrize("family", ["bert", "electra"])
def test_a_class_is_read_from_the_first_state(family: str) -> None:
    model = _model(family)
    model.head = Head(model.config.state_size, 2, 0.0).double()
    config = classification.Config(labels=["a", "b"], lm_weight=0)
    objective = classification.Objective(config, _masked.tokenizer(), model.config)
    items = []
    for number, text in enumerate(_masked.SENTENCES):
        row = Row({"text": text, "label": "ab"[number % 2]}, "rows", number + 1)
        items.append(objective.item(row, [_masked.tokenizer().encode_batch([text])[0]]))
    batch = _batch(objective, [objective.example(item, np.random.default_rng(0)) for item in items])
    assert int(objective.tokens_read(batch).sum()) == len(items)
    _is_the_same(model, objective, batch)


def test_all_states_are_computed_where_one_of_a_list_does_not_say_what_it_reads() -> None:
    model, objective, batch = _case("nsp and mlm")
    silent = _masked.bound("mlm", model.config)
    silent.tokens_read = lambda batch: None
    both = combined([objective.first, silent], [1.0, 1.0])
    assert both.tokens_read(batch) is None
    torch.testing.assert_close(forward(both, model, batch), all_states(both, model, batch))


def test_attention_with_a_named_backend_computes_all_states() -> None:
    model, objective, batch = _case("mlm")
    model.backend = "reference"
    _is_the_same(model, objective, batch)
