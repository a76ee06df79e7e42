"""Losses of GPT-1's tasks against transformers' OpenAIGPT with the same weights.

L3 = L2 + λ L1 (Radford et al. 2018, eq. 5) is computed there sequence by sequence.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy.stats import pearsonr, spearmanr
from transformers import OpenAIGPTConfig, OpenAIGPTForSequenceClassification, OpenAIGPTModel

from nlpkit import registry
from nlpkit.contracts.batch import Batch
from nlpkit.data.items import Row
from nlpkit.data.pack import collate
from nlpkit.models.gpt import Config
from nlpkit.models.gpt.model import Model
from nlpkit.models.layers.head import Head
from nlpkit.objectives.examples.text import forward
from nlpkit.train.scores import scores
from tests._formats import to_hf
from tests._letters import Letters
from tests._losses import loss_of, only_term

SMALL = Config(hidden_size=32, num_layers=2, num_heads=4, max_positions=40)
WEIGHT = 0.7
ROWS = {
    "classification": [
        {"text": "abc", "label": "x"},
        {"text": "defghij", "label": "z"},
        {"text": "", "label": "y"},
        {"text": "b", "label": "x"},
    ],
    "entailment": [
        {"premise": "abc", "hypothesis": "ca", "label": "y"},
        {"premise": "b", "hypothesis": "defgh", "label": "z"},
        {"premise": "bcd", "hypothesis": "e", "label": "x"},
    ],
    "similarity": [
        {"text_a": "abc", "text_b": "ca", "label": "y"},
        {"text_a": "b", "text_b": "defgh", "label": "z"},
        {"text_a": "ef", "text_b": "fe", "label": "x"},
    ],
    "regression": [
        {"text_a": "abc", "text_b": "ca", "label": 1.5},
        {"text_a": "b", "text_b": "defgh", "label": -2},
        {"text_a": "ef", "text_b": "fe", "label": 0.25},
    ],
    "multiple_choice": [
        {"context": "abc", "options": ["d", "efg", "h"], "label": 1},
        {"context": "b", "options": ["ab", "c"], "label": 0},
        {"context": "", "options": ["ab", "c", "", "dd"], "label": 3},
    ],
}


def _task(name: str, **settings):
    if name == "regression":
        name, settings = "similarity", settings | {"regression": True}
    elif name != "multiple_choice":
        settings["labels"] = ["x", "y", "z"]
    module = registry.load("objectives", name)
    return module.Objective(module.Config(max_length=40, **settings), Letters(), SMALL)


def _batch(task, rows: list[dict]) -> Batch:
    made = []
    for values in rows:
        row = Row(values, "x", 1)
        item = task.item(row, task.encode(list(task.texts(row))))
        made.append(task.example(item, np.random.default_rng(0)))
    return collate(made, task.fields)


def _pair(outputs: int) -> tuple[Model, OpenAIGPTModel, torch.nn.Parameter]:
    """Return our model with a layer on top, theirs and their copy of that layer."""
    torch.manual_seed(0)
    model = Model(SMALL, Letters.vocab_size).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    settings, tensors = to_hf("gpt", SMALL, model.state_dict())
    model.head = Head(SMALL.hidden_size, outputs, 0.0)
    theirs = OpenAIGPTModel(OpenAIGPTConfig(**settings)).eval()
    body = {n.removeprefix("transformer."): t for n, t in tensors.items() if "lm_head" not in n}
    theirs.load_state_dict(body)
    with torch.no_grad():
        model.head.weight.mul_(20)
    return model, theirs, torch.nn.Parameter(model.head.weight.detach().clone())


def _right(name: str, row: dict) -> torch.Tensor:
    if name == "regression":
        return torch.tensor(float(row["label"]))
    return torch.tensor(row["label"] if name == "multiple_choice" else "xyz".index(row["label"]))


def _theirs(name: str, theirs, layer, batch: Batch, rows: list[dict]):
    """Return L2 and L1 summed over rows, and the rows' outputs."""
    sequences = torch.from_numpy(batch.fields["input_ids"]).split(list(batch.lengths))
    numbers = (batch.fields["order"] == 0).cumsum() - 1
    task, auxiliary, found = torch.zeros(()), torch.zeros(()), []
    for number, row in enumerate(rows):
        states, losses = [], []
        for ids in (s for s, n in zip(sequences, numbers, strict=True) if n == number):
            hidden = theirs(ids[None]).last_hidden_state[0]
            losses.append(F.cross_entropy(hidden[:-1] @ theirs.tokens_embed.weight.T, ids[1:]))
            states.append(hidden[-1])
        auxiliary = auxiliary + torch.stack(losses).mean()
        right = _right(name, row)
        if name == "multiple_choice":
            output = torch.stack(states) @ layer[0]
        else:  # of similarity both orders' states, added element by element
            output = layer @ torch.stack(states).sum(0)
        if name == "regression":
            task = task + (output[0] - right) ** 2
        else:
            task = task + F.cross_entropy(output[None], right[None])
        found.append(output)
    return task, auxiliary, found


@pytest.mark.parametrize("name", ROWS)
def test_loss_and_gradients_are_those_of_transformers(name: str) -> None:
    task = _task(name, lm_weight=WEIGHT)
    model, theirs, layer = _pair(task.outputs)
    rows = ROWS[name]
    batch = _batch(task, rows)
    fields = {key: torch.from_numpy(value) for key, value in batch.fields.items()}
    moved = replace(batch, fields=fields)
    loss, judged = task.predict(model, forward(task, model, moved), moved)
    expected, auxiliary, outputs = _theirs(name, theirs, layer, batch, rows)
    assert loss.num_targets == task.num_targets(batch.fields) == {"task": len(rows)}
    assert loss.parts["task"][0].item() == pytest.approx(expected.item(), rel=1e-5)
    assert loss.parts["lm"][0].item() == pytest.approx(auxiliary.item(), rel=1e-5)
    total = expected + WEIGHT * auxiliary
    assert only_term(loss).loss_sum.item() == pytest.approx(total.item(), rel=1e-5)
    if name == "regression":
        assert [float(a) for a, _ in judged] == pytest.approx([o.item() for o in outputs], abs=1e-4)
    else:
        chosen = [int(o.argmax()) for o in outputs]
        named = map(str, chosen) if name == "multiple_choice" else ["xyz"[i] for i in chosen]
        assert [a for a, _ in judged] == list(named)
    assert [b for _, b in judged] == [
        repr(float(row["label"])) if name == "regression" else str(row["label"]) for row in rows
    ]
    only_term(loss).loss_sum.backward()
    total.backward()
    for ours, other in (
        (model.head.weight, layer),
        (model.token_embedding, theirs.tokens_embed.weight),
        (model.position_embedding, theirs.positions_embed.weight),
        (model.layers[0].attn.c_attn.weight.grad.T, theirs.h[0].attn.c_attn.weight),
    ):
        gradient = ours if ours.grad is None else ours.grad
        assert torch.allclose(gradient, other.grad, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("learned", [False, True])
@pytest.mark.parametrize("name", ["classification", "multiple_choice"])
def test_auxiliary_loss_of_unknown_tokens_is_learned_only_if_asked(
    name: str, learned: bool
) -> None:
    """L1 is the mean of torch's cross entropy over the known targets of each sequence."""
    rows = {
        "classification": [{"text": "a?c", "label": "x"}, {"text": "??", "label": "y"}],
        "multiple_choice": [{"context": "?b", "options": ["?", "efg"], "label": 1}],
    }[name]
    task = _task(name, lm_weight=WEIGHT, learn_unknown=learned)
    model, theirs, _ = _pair(task.outputs)
    batch = _batch(task, rows)
    fields = {key: torch.from_numpy(value) for key, value in batch.fields.items()}
    found = loss_of(task, model, fields, batch.lengths).parts["lm"][0]
    means = []
    for ids in fields["input_ids"].split(list(batch.lengths)):
        logits = theirs(ids[None]).last_hidden_state[0, :-1] @ theirs.tokens_embed.weight.T
        skipped = -1 if learned else Letters.unk_id
        means.append(F.cross_entropy(logits, ids[1:], ignore_index=skipped))
    # A row of the choice has two sequences, of which the mean counts.
    expected = torch.stack(means).sum() / (2 if name == "multiple_choice" else 1)
    assert found.item() == pytest.approx(expected.item(), rel=1e-5)
    items = [task.item(Row(r, "x", 1), task.encode(list(task.texts(Row(r, "x", 1))))) for r in rows]
    unknown = 3  # in both: of the choice, "?b" stands in both sequences
    assert sum(map(task.unlearned, items)) == (0 if learned else unknown)
    assert not any(map(_task(name, lm_weight=0.0).unlearned, items))


@pytest.mark.parametrize("name", ROWS)
def test_auxiliary_loss_alone_moves_what_its_weight_says(name: str) -> None:
    gradients = []
    for weight in (0.0, 0.5, 1.0):
        task = _task(name, lm_weight=weight)
        model, *_ = _pair(task.outputs)
        batch = _batch(task, ROWS[name])
        fields = {key: torch.from_numpy(value) for key, value in batch.fields.items()}
        loss = loss_of(task, model, fields, batch.lengths)
        assert set(loss.parts) == ({"task", "lm"} if weight else {"task"})
        only_term(loss).loss_sum.backward()
        gradients.append(model.token_embedding.grad)
    without, half, whole = gradients
    assert torch.allclose(half - without, (whole - without) / 2, rtol=1e-4, atol=1e-5)
    assert (half - without).abs().max() > 1e-3


def test_classification_logits_are_those_of_their_classifier() -> None:
    task = _task("classification")
    model, _, layer = _pair(task.outputs)
    settings, tensors = to_hf(
        "gpt", SMALL, {n: t for n, t in model.state_dict().items() if "head" not in n}
    )
    theirs = OpenAIGPTForSequenceClassification(OpenAIGPTConfig(**settings, num_labels=3)).eval()
    tensors = {n: t for n, t in tensors.items() if "lm_head" not in n} | {"score.weight": layer}
    theirs.load_state_dict(tensors)
    batch = _batch(task, ROWS["classification"])
    ids = torch.from_numpy(batch.fields["input_ids"])
    hidden = model(batch.lengths, input_ids=ids)
    ours = model.head(hidden[torch.tensor(batch.lengths).cumsum(0) - 1])
    for logits, one in zip(ours, ids.split(list(batch.lengths)), strict=True):
        assert torch.allclose(logits, theirs(one[None]).logits[0], atol=1e-5)


def test_loss_of_a_row_does_not_depend_on_its_batch() -> None:
    task = _task("similarity")
    model, *_ = _pair(task.outputs)
    alone = 0.0
    for row in ROWS["similarity"]:
        batch = _batch(task, [row])
        fields = {key: torch.from_numpy(value) for key, value in batch.fields.items()}
        alone += only_term(loss_of(task, model, fields, batch.lengths)).loss_sum.item()
    batch = _batch(task, ROWS["similarity"])
    fields = {key: torch.from_numpy(value) for key, value in batch.fields.items()}
    together = only_term(loss_of(task, model, fields, batch.lengths)).loss_sum.item()
    assert together == pytest.approx(alone, rel=1e-5)


def test_scores_of_classes_are_scikit_learns() -> None:
    from sklearn.metrics import accuracy_score, f1_score

    draw = np.random.default_rng(3)
    answers, right = (draw.choice(["a", "b", "c"], 200, p=[0.6, 0.3, 0.1]) for _ in range(2))
    found = scores(_task("entailment").metrics, list(zip(answers, right, strict=True)))
    assert found["accuracy"] == pytest.approx(accuracy_score(right, answers), abs=1e-12)
    assert found["f1"] == pytest.approx(f1_score(right, answers, average="macro"), abs=1e-12)


def test_scores_of_numbers_are_scipys_and_none_where_undefined() -> None:
    draw = np.random.default_rng(3)
    right = draw.normal(size=50)
    answers = right + draw.normal(size=50)
    metrics = _task("regression").metrics
    found = scores(
        metrics, [(repr(float(a)), repr(float(b))) for a, b in zip(answers, right, strict=True)]
    )
    assert found["pearson"] == pytest.approx(pearsonr(answers, right)[0], abs=1e-12)
    assert found["spearman"] == pytest.approx(spearmanr(answers, right)[0], abs=1e-12)
    constant = scores(metrics, [("1.0", repr(float(b))) for b in right])
    assert constant == {"pearson": None, "spearman": None}
