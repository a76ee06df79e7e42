"""The last layer computes the states that a loss reads: same loss and gradients as with all."""

import numpy as np
import pytest
import torch

from nlpkit import registry
from nlpkit.attention.choice import AttentionChoice
from nlpkit.contracts.batch import Batch, FlaggedIds, Loss
from nlpkit.data.items import Row
from nlpkit.data.pack import collate
from nlpkit.models import families
from nlpkit.models.layers import encoder
from nlpkit.models.layers.head import Head
from nlpkit.objectives import classification, cpm_ant
from nlpkit.objectives.examples.text import forward
from nlpkit.objectives.several.combined import combine
from tests import _masked
from tests._letters import Letters
from tests._losses import all_states

SIZES = {
    "hidden_size": 32, "num_layers": 2, "num_heads": 4, "intermediate_size": 48, "head_dim": 8,
    "max_positions": 512,
}  # fmt: skip
RANGES = {"attention": (AttentionChoice.of("seen_range"),)}
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
    "mlm with windows": ("modernbert", {}, {"mlm": {}}),
    "few": ("bert", {}, {"mlm": {"rate": 0.01}}),  # sequences without a target
}


def _model(name: str, size: int, **more):
    torch.manual_seed(0)
    settings = families.load(name).Config.model_fields
    sizes = {key: value for key, value in SIZES.items() if key in settings}
    config = families.load(name).Config(**sizes, **more)
    model = families.load_model(name).Model(config, size).double().eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    return model


def _pair() -> FlaggedIds:
    first, second = _masked.SENTENCES[1], _masked.SENTENCES[4]
    texts = _masked.flagged(first), _masked.flagged(second, is_second=True)
    names = ("ids", "token_flags")
    return FlaggedIds(*(np.concatenate([getattr(t, name) for t in texts]) for name in names))


def _batch(objective, examples: list[dict[str, np.ndarray]]) -> Batch:
    batch = collate(examples, objective.fields)
    batch.fields = {n: torch.from_numpy(v) for n, v in batch.fields.items()}
    return batch


def _case(name: str):
    """Return a model, an objective and a batch."""
    family, settings, listed = CASES[name]
    model = _model(family, _masked.tokenizer().vocab_size, **settings)
    bound = [_masked.bound(each, model.config, **more) for each, more in listed.items()]
    objective = combine(bound, [1.0] * len(bound))
    torch.manual_seed(1)
    heads = objective.heads() if hasattr(objective, "heads") else {}
    model.objective_heads = torch.nn.ModuleDict(heads).double()
    examples = []
    for number in range(6):
        rng = np.random.default_rng(number)
        text = _pair() if "tlm" in listed else _masked.document(4, rng)
        negatives = [[_masked.document(4, rng)]] if objective.negatives else []
        examples.append(objective.example(text, rng, *negatives))
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


@pytest.mark.parametrize("name", ["few", "mlm", "nsp and mlm", "rtd", "tlm"])
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


class Characters(Letters):
    """Letters with begin and end tokens."""

    bos_id, eos_id = 6, 7

    def special_id(self, token: str) -> int | None:
        return 7 if token == "</s>" else super().special_id(token)

    def encode(self, text: str) -> list[int]:
        return self.encode_batch([text])[0]


TEXTS = ("a model", "predicts", "what it does not see", "x")
INPUTS = [{"input": text, "target": text[:3]} for text in TEXTS]
PAIRS = [{"source": text, "target": text[:3]} for text in TEXTS]
CLASSES = [{"text": text, "label": "xy"[number % 2]} for number, text in enumerate(TEXTS)]
OPTIONS = [{"input": text, "target": 1, "options": ["a", "bc"]} for text in TEXTS]
CHOICES = [{"context": text, "label": 0, "options": ["a", "b c"]} for text in TEXTS]
ONE_LOSS = {"labels": ["x", "y"], "lm_weight": 0}
# Of each: the family, the objective with its settings, the rows.
TASKS: dict[str, tuple[str, str, dict, list[dict]]] = {
    "classes of bert": ("bert", "classification", ONE_LOSS, CLASSES),
    "classes of electra": ("electra", "classification", ONE_LOSS, CLASSES),
    "classes of modernbert": ("modernbert", "classification", ONE_LOSS, CLASSES),
    "classes of gpt": ("gpt", "classification", ONE_LOSS, CLASSES),
    "options of gpt2": ("gpt2", "multiple_choice", {"lm_weight": 0}, CHOICES),
    "texts of gpt": ("gpt", "generation", {}, PAIRS),
    "texts of gpt2": ("gpt2", "generation", {}, PAIRS),
    "texts of cpm_ant": ("cpm_ant", "cpm_ant_nlg", {}, INPUTS),
    "options of cpm_ant": ("cpm_ant", "cpm_ant_nlu", {"cue": "", "answer": "y"}, OPTIONS),
}


def _task_case(name: str, **more):
    """Return a model, a task and a batch of its rows."""
    family, task, settings, rows = TASKS[name]
    with_words = family in ("bert", "electra", "modernbert")
    words = _masked.tokenizer() if with_words else Characters()
    model = _model(family, words.vocab_size, **more)
    module = registry.load("objectives", task)
    objective = module.Objective(module.Config(**settings), words, model.config)
    if hasattr(objective, "outputs"):
        model.head = Head(model.config.state_size, objective.outputs, 0.0).double()
    examples = []
    for number, values in enumerate(rows):
        row = Row(values, "rows", number + 1)
        item = objective.item(row, objective.encode(list(objective.texts(row))))
        examples.append(objective.example(item, np.random.default_rng(number)))
    return model, objective, _batch(objective, examples)


@pytest.mark.parametrize("name", TASKS)
def test_loss_of_a_task_is_that_of_all_states(name: str) -> None:
    model, objective, batch = _task_case(name)
    read = objective.tokens_read(batch)
    assert 0 < int(read.sum()) < len(read)
    _is_the_same(model, objective, batch)


def test_task_on_the_mean_of_a_sequence_reads_all_states() -> None:
    model, objective, batch = _task_case("classes of modernbert", pooling="mean")
    assert objective.tokens_read(batch) is None
    _is_the_same(model, objective, batch)
    loss = objective.loss(model, forward(objective, model, batch), batch)
    assert loss.parts["task"][0].isfinite()


def test_loss_of_cpm_ant_is_that_of_all_states() -> None:
    words = Characters()
    model = _model("cpm_ant", words.vocab_size)
    objective = cpm_ant.Objective(cpm_ant.Config(), words, model.config)
    texts = [np.array(ids) for ids in words.encode_batch([*TEXTS])]
    rngs = [np.random.default_rng(number) for number in range(len(texts))]
    batch = _batch(objective, [*map(objective.example, texts, rngs)])
    _is_the_same(model, objective, batch)


def test_a_task_with_the_loss_of_all_tokens_reads_all_states() -> None:
    objective = classification.Objective(
        classification.Config(labels=["x", "y"]), Characters(), _model("gpt", 100).config
    )
    assert objective.lm_weight
    assert objective.tokens_read(Batch({}, (3, 4))) is None


def test_all_states_are_computed_where_one_of_a_list_does_not_say_what_it_reads() -> None:
    model, objective, batch = _case("nsp and mlm")
    silent = _masked.bound("mlm", model.config)
    silent.tokens_read = lambda batch: None
    both = combine([objective.first, silent], [1.0, 1.0])
    assert both.tokens_read(batch) is None
    torch.testing.assert_close(forward(both, model, batch), all_states(both, model, batch))


def test_attention_with_a_named_backend_computes_all_states() -> None:
    model, objective, batch = _case("mlm")
    model.backend = "reference"
    _is_the_same(model, objective, batch)


def test_a_loss_that_reads_more_than_it_says_is_nan() -> None:
    model, objective, batch = _case("mlm")
    model.train()
    hidden = forward(objective, model, batch)
    read = objective.tokens_read(batch)
    read[np.cumsum((0, *batch.lengths[:-1]))] = True
    assert hidden[read].isfinite().all()
    assert hidden[~read].isnan().all()
    other = (~read).nonzero().squeeze(1)
    total, _ = model.token_loss(hidden, other, batch.fields["input_ids"][other])
    assert total.isnan()
