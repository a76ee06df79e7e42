"""What the loop computes, against plain torch; when it stops, and what a resumed run keeps."""

import contextlib
import copy
import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from nlpkit.checkpoints import files, integrity
from nlpkit.contracts.batch import Batch, Loss, Term
from nlpkit.data.loader import Step
from nlpkit.errors import NlpkitError
from nlpkit.runs import fastest_precision, pretrain
from nlpkit.runs import run as runs
from nlpkit.runs.run import Training
from nlpkit.train import loop, machine
from nlpkit.train.held_out import HeldOut
from nlpkit.train.log import NORMAL
from nlpkit.train.losses import LossSums
from tests import _tiny

# Large, so that the size of a gradient counts and not only its sign.
_EPS = 1e-3
_STEPS = (
    *("train.steps=3", "train.warmup_steps=1", "train.schedule=linear", "train.eval_every=null"),
    *("data.valid=[]", "model.dropout=0.0", "train.weight_decay=0.3", f"train.adam_eps={_EPS}"),
)


@dataclass
class _Seen:
    """The model before the first step, and the batches of each step."""

    model: list[Training] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)


def _watch(
    monkeypatch: pytest.MonkeyPatch, change: Callable[[Step], Step] = lambda step: step
) -> _Seen:
    """Return what a run in this process will be given to train; `change` is made to its steps."""
    seen, train = _Seen(), loop.train

    def watched(job: loop.Job, state: loop.State) -> loop.State:
        seen.model.append(copy.deepcopy(job.training))  # type: ignore[arg-type]

        def steps(state: loop.State) -> Iterator[Step]:
            for step in job.steps(state):
                seen.steps.append(change(step))
                yield seen.steps[-1]

        return train(replace(job, steps=steps), state)

    monkeypatch.setattr(pretrain, "train", watched)
    return seen


def _tensors(batch: Batch) -> Batch:
    return replace(batch, fields={k: torch.from_numpy(v) for k, v in batch.fields.items()})


def _gradient(model: Training, step: Step) -> tuple[float, dict[str, Tensor]]:
    """Return the loss, each term's sum over the step by its number of targets, and its gradient."""
    model.zero_grad()
    sums: dict[str, Any] = {}
    for batch in step.batches:
        for name, term in model(_tensors(batch)).terms.items():
            total, number, _ = sums.get(name, (0.0, 0, 0.0))
            sums[name] = total + term.loss_sum, number + term.num_targets, term.weight
    loss: Tensor = sum(weight * total / number for total, number, weight in sums.values())
    loss.backward()
    return loss.item(), {name: p.grad.clone() for name, p in model.named_parameters()}


def _plain_adamw(
    model: Training, steps: list[Step], clip: float | None
) -> tuple[list[float], list[float]]:
    """Take three steps by hand (Loshchilov & Hutter 2019, algorithm 2).

    Return the loss and the norm of the gradient of each.
    """
    first = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    second = copy.deepcopy(first)
    losses, norms = [], []
    # Warm-up of one step, then linear: to 0 after three steps.
    for t, (step, lr) in enumerate(zip(steps, (0.01, 0.01 * 2 / 3, 0.01 / 3), strict=True), 1):
        loss, gradient = _gradient(model, step)
        losses.append(loss)
        norms.append(math.sqrt(sum(float(g.square().sum()) for g in gradient.values())))
        share = min(1.0, (clip or math.inf) / norms[-1])
        with torch.no_grad():
            for name, p in model.named_parameters():
                g = gradient[name] * share
                first[name] = 0.9 * first[name] + 0.1 * g
                second[name] = 0.999 * second[name] + 0.001 * g.square()
                update = first[name] / (1 - 0.9**t)
                update /= (second[name] / (1 - 0.999**t)).sqrt() + _EPS
                p -= lr * ((0.3 * p if p.ndim >= 2 else 0.0) + update)
    return losses, norms


def test_batch_that_is_not_counted_makes_its_terms_known_and_adds_nothing() -> None:
    # As the process does that has no batch left where others have one.
    sums = LossSums()
    parts = {"mlm": (torch.tensor(3.0), 4)}
    loss = Loss({"mlm": Term(torch.tensor(3.0), 4, parts=parts, weight=0.5, is_text=True)})
    sums.add(loss, counted=False)
    assert (sums.mean, sums.means, sums.text) == (0, {"mlm": None}, (0, 0))
    sums.add(loss)
    assert (sums.mean, sums.means, sums.text) == (0.375, {"mlm": 0.75}, (3, 4))


@pytest.mark.parametrize("clip", [None, 0.2])
def test_three_steps_equal_plain_torch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clip: float | None
) -> None:
    seen = _watch(monkeypatch)
    path = _tiny.write(tmp_path)
    _tiny.pretrain(path, tmp_path / "run", *_STEPS, f"train.clip={clip or 'null'}")
    run = [record for record in _tiny.metrics(tmp_path / "run") if "loss" in record]
    assert [len(step.batches) for step in seen.steps] == [2, 2, 2]
    model = seen.model[0].train()
    losses, norms = _plain_adamw(model, seen.steps, clip)
    assert all(norm > 2 * (clip or 0.0) for norm in norms)  # so that clipping changes something
    assert [record["loss"] for record in run] == pytest.approx(losses, rel=1e-5)
    assert [record["grad_norm"] for record in run] == pytest.approx(norms, rel=1e-5)
    found = _weights(files.checkpoint_path(tmp_path / "run", 3), model)
    for name, p in model.named_parameters():
        torch.testing.assert_close(found[name], p.detach(), rtol=0, atol=1e-6)


def _libraries(name: str, model: Training) -> list[torch.optim.Optimizer]:
    """Return the library's optimizers by hand; weight decay is 0.3 for two dimensions and more."""
    named = dict(model.named_parameters())
    wide = [p for p in named.values() if p.ndim >= 2]
    thin = {"params": [p for p in named.values() if p.ndim < 2], "weight_decay": 0.0}
    groups = [{"params": wide, "weight_decay": 0.3}, thin]
    if name == "sgd":
        return [torch.optim.SGD(groups, lr=0.01, momentum=0.9)]
    if name == "adafactor":
        return [torch.optim.Adafactor(groups, lr=0.01)]
    layers = [p for n, p in named.items() if n.startswith("model.layers.") and p.ndim == 2]
    muon = torch.optim.Muon(layers, lr=0.01, weight_decay=0.3, adjust_lr_fn="match_rms_adamw")
    rest = {"params": [p for p in wide if not any(p is q for q in layers)], "weight_decay": 0.3}
    adamw = torch.optim.AdamW([rest, thin], lr=0.02, betas=(0.9, 0.999), eps=_EPS)
    return [muon, adamw]


@pytest.mark.fast_cases(2)
@pytest.mark.parametrize("name", ["muon", "adafactor", "sgd"])
def test_three_steps_with_other_optimizers_equal_those_of_the_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    seen = _watch(monkeypatch)
    path = _tiny.write(tmp_path)
    own = f"train.optimizer={{name: {name}{', adamw_lr: 0.02' if name == 'muon' else ''}}}"
    sets = [each for each in _STEPS if name == "muon" or "adam_eps" not in each]
    _tiny.pretrain(path, tmp_path / "run", *sets, "train.clip=0.2", own)
    model = seen.model[0].train()
    # torch's Muon knows bfloat16 alone; the run is in float32, and so are its iterations.
    monkeypatch.setattr(torch.Tensor, "bfloat16", torch.Tensor.clone)
    optimizers = _libraries(name, model)
    peaks = [[group["lr"] for group in each.param_groups] for each in optimizers]
    losses = []
    for step, factor in zip(seen.steps, (1, 2 / 3, 1 / 3), strict=True):
        loss, gradient = _gradient(model, step)
        losses.append(loss)
        norm = math.sqrt(sum(float(g.square().sum()) for g in gradient.values()))
        assert norm > 0.4  # so that clipping changes something
        for key, parameter in model.named_parameters():
            parameter.grad = gradient[key] * (0.2 / norm)
        for optimizer, rates in zip(optimizers, peaks, strict=True):
            for group, rate in zip(optimizer.param_groups, rates, strict=True):
                group["lr"] = rate * factor
            optimizer.step()
    run = [record for record in _tiny.metrics(tmp_path / "run") if "loss" in record]
    close = {"rtol": 0, "atol": 1e-5}
    assert [record["loss"] for record in run] == pytest.approx(losses, rel=close["atol"])
    assert [record["lr"] for record in run] == pytest.approx([0.01, 0.02 / 3, 0.01 / 3])
    found = _weights(files.checkpoint_path(tmp_path / "run", 3), model)
    for key, p in model.named_parameters():
        torch.testing.assert_close(found[key], p.detach(), **close)


def _weights(checkpoint: Path, model: Training) -> dict[str, Tensor]:
    """Return the weights of a checkpoint by the names of `model`."""
    from nlpkit.checkpoints import hf_layout, hf_model

    state = hf_model.from_hf("cpm_ant", checkpoint, *hf_layout.read(checkpoint)).state
    return {name: state[name.removeprefix("model.")] for name, _ in model.named_parameters()}


def _joined(step: Step) -> Step:
    """Return the step with all its sequences in one batch."""
    names = step.batches[0].fields
    batch = Batch(
        {name: np.concatenate([each.fields[name] for each in step.batches]) for name in names},
        tuple(length for each in step.batches for length in each.lengths),
        {
            name: sum(each.num_targets[name] for each in step.batches)
            for name in step.batches[0].num_targets
        },
    )
    return Step([batch], step.after)


def test_accumulated_batches_equal_one_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = _tiny.write(tmp_path)
    found = []
    for name, change in (("many", lambda step: step), ("one", _joined)):
        seen = _watch(monkeypatch, change)
        place = _tiny.pretrain(path, tmp_path / name, *_STEPS, "train.tokens_per_batch=128")
        assert {len(step.batches) for step in seen.steps} == ({4} if name == "many" else {1})
        found.append(_weights(place, seen.model[0]))
        monkeypatch.undo()
    for name, tensor in found[0].items():
        torch.testing.assert_close(tensor, found[1][name], rtol=0, atol=1e-6)


def test_dropout_differs_from_step_to_step_and_from_batch_to_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draws, forward = [], Training.forward

    def watched(training: Training, batch: Batch, predict: bool = False) -> Any:
        # The next random numbers of the generator that dropout uses.
        state = torch.get_rng_state()
        draws.append(tuple(torch.rand(4).tolist()))
        torch.set_rng_state(state)
        return forward(training, batch, predict)

    monkeypatch.setattr(Training, "forward", watched)
    sets = [each for each in _STEPS if "dropout" not in each]
    sets.append("attention.backend=sdpa")  # a choice takes a forward pass more
    _tiny.pretrain(_tiny.write(tmp_path), tmp_path / "run", *sets)
    assert len(draws) == len(set(draws)) == 6


def test_dropout_differs_from_process_to_process() -> None:
    draws = set()
    for rank in (0, 1):
        loop._seed_dropout(7, 1, SimpleNamespace(process_index=rank, device=torch.device("cpu")))
        draws.add(float(torch.rand(())))
    assert len(draws) == 2


def _losses(monkeypatch: pytest.MonkeyPatch, *values: float) -> None:
    """Let the evaluations of a run give these held-out losses."""
    left = iter(values)

    def evaluate(*_: object) -> dict[str, Any]:
        return {
            **{"loss": next(left), "losses": {}, "targets": 1},
            **{"perplexity": None, "bits_per_character": None},
        }

    monkeypatch.setattr(HeldOut, "evaluate", evaluate)


@pytest.mark.fast_cases(1)
@pytest.mark.parametrize("patience", [1, 3])
def test_patience_is_the_number_of_evaluations_without_gain_and_the_best_one_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, patience: int
) -> None:
    _losses(monkeypatch, 3.0, 2.0, *[2.5] * 10)  # the best is that of step 2
    sets = ("train.eval_every=1", "train.save_every=1", "train.keep=1")
    place = _tiny.pretrain(
        _tiny.write(tmp_path), tmp_path / "run", *sets, f"train.patience={patience}"
    )
    assert place.name == f"step-{2 + patience:08}"
    assert [c.step for c in files.list_checkpoints(tmp_path / "run")] == [2 + patience, 2]
    best = files.read_pointer(tmp_path / "run", "best")
    assert best is not None
    assert best.name == "step-00000002"
    assert json.loads((tmp_path / "run" / "run.json").read_text())["finished"] is True
    assert integrity.find_corruption(best) is None


@pytest.mark.slow
def test_resumed_run_begins_at_its_newest_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path, run = _tiny.write(tmp_path), tmp_path / "run"
    sets = ("train.save_every=1", "train.keep=5", "train.steps=6")
    with pytest.raises(NlpkitError, match="saved at step"):
        _tiny.pretrain(path, run, *sets, stop=_tiny.StopAtStep(run, 4))
    newest = files.list_checkpoints(run)[0]
    assert newest.step == 4
    seen = _watch(monkeypatch)
    _tiny.pretrain(path, run, *sets, verbosity=NORMAL)
    assert f"resuming from {newest.path} (step {newest.step})\n" in capsys.readouterr().err
    assert len(seen.steps) == 6 - newest.step


@pytest.mark.slow
def test_resumed_run_keeps_its_precision_whatever_is_faster_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, run = _tiny.write(tmp_path), tmp_path / "run"
    chosen = []

    def finds(precision: str) -> None:
        monkeypatch.setattr(machine, "choose_precision", lambda *_: (precision, "of the test"))
        monkeypatch.setattr(fastest_precision, "_speed", lambda *_: 2.0)

    def forward(*arguments: Any) -> Any:
        types.add(torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else "fp32")
        return real(*arguments)

    types, real = set(), runs.forward
    monkeypatch.setattr(runs, "forward", forward)

    finds("bf16")
    with pytest.raises(NlpkitError, match="saved at step"):
        _tiny.pretrain(path, run, "train.precision=auto", stop=_tiny.StopAtStep(run, 4))
    chosen.append(set(types))
    types.clear()
    finds("fp32")
    _tiny.pretrain(path, run, "train.precision=auto")
    chosen.append(set(types))
    types.clear()
    _tiny.pretrain(path, tmp_path / "other", "train.precision=auto", "train.steps=4")
    chosen.append(set(types))
    types.clear()
    assert chosen == [{torch.bfloat16}, {torch.bfloat16}, {"fp32"}]


@pytest.mark.fast_cases(1)
@pytest.mark.parametrize("wanted", [True, False])
def test_deterministic_decides_whether_torch_is(tmp_path: Path, wanted: bool) -> None:
    before = torch.are_deterministic_algorithms_enabled()
    with contextlib.ExitStack() as stack:
        stack.callback(torch.use_deterministic_algorithms, before)
        torch.use_deterministic_algorithms(False)
        sets = ("train.steps=4", f"train.deterministic={str(wanted).lower()}")
        _tiny.pretrain(_tiny.write(tmp_path), tmp_path / "run", *sets)
        assert torch.are_deterministic_algorithms_enabled() is wanted
