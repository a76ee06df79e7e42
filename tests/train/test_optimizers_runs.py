"""Runs with every optimizer: stopped and resumed bit for bit, several processes, plan and log."""

import json
import multiprocessing
import os
import socket
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from nlpkit import plan as planning
from nlpkit import recipe, registry
from nlpkit.checkpoints import changes, files
from nlpkit.checkpoints.run_directory import RunDirectory
from nlpkit.errors import FileError, NlpkitError, UsageError
from nlpkit.evaluate import source
from nlpkit.plan import probe
from nlpkit.runs import checks, fastest_precision
from nlpkit.runs.planned import Planned
from nlpkit.train import machine, processes
from nlpkit.train.log import NORMAL, QUIET, Log
from nlpkit.train.optimizers import muon
from nlpkit.train.state import State
from tests import _tiny, _tiny_tasks
from tests._processes import FSDP, SHARDED, launched

NAMES = [name for name in registry.names("train/optimizers") if name != "adamw"]
MUON = "train.optimizer={name: muon, adamw_lr: 0.005}"
ADAFACTOR = "train.optimizer=adafactor"
SHORT = ("train.steps=8", "train.eval_every=4", "train.warmup_steps=2")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _tiny.write(tmp_path_factory.mktemp("optimizers"))


def _installed(name: str) -> None:
    if package := registry.load("train/optimizers", name).PACKAGE:
        pytest.importorskip(package.replace("-", "_"))


def _tensors(checkpoint: Path) -> dict[str, torch.Tensor]:
    weights = load_file(checkpoint / "model.safetensors")
    return weights | load_file(checkpoint / files.OPTIMIZER_STATE)


OUTSIDE = "{name: tests.parts.rprop, grow: 1.1}"
KEPT = {
    "{name: muon}": {"momentum_buffer", "exp_avg", "exp_avg_sq", "step"},
    "{name: sgd}": {"momentum_buffer"},
    "{name: sgd, momentum: 0.0}": set(),
    "{name: adafactor}": {"row_var", "col_var", "variance", "step"},
    "{name: lion}": {"exp_avg"},
    OUTSIDE: {"prev", "step_size", "step"},
}


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_muon_computes_in_the_type_that_the_run_has_chosen(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, precision: str
) -> None:
    monkeypatch.setattr(machine, "choose_precision", lambda *_: (precision, "said by the test"))
    monkeypatch.setattr(fastest_precision, "_speed", lambda *_: 2.0)
    types = set()
    orthogonalize = muon._orthogonalize

    def noted(update: Tensor, steps: int) -> Tensor:
        types.add(update.dtype)
        return orthogonalize(update, steps)

    monkeypatch.setattr(muon, "_orthogonalize", noted)
    short = ("train.steps=1", "train.warmup_steps=0", "train.schedule=constant")
    _tiny.pretrain(tiny, tmp_path, MUON, "train.precision=auto", *short)
    assert types == {torch.float32 if precision == "fp32" else torch.bfloat16}


# Of Muon the next test proves it, too; what Lion and SGD keep is one number for each weight.
_PROVED = ("{name: muon}", "{name: lion}", "{name: sgd}", "{name: sgd, momentum: 0.0}")


@pytest.mark.fast_cases(1)
@pytest.mark.parametrize(
    "optimizer", [pytest.param(o, marks=[pytest.mark.slow] * (o in _PROVED)) for o in KEPT]
)
def test_stopped_run_goes_on_bit_for_bit(tiny: Path, tmp_path: Path, optimizer: str) -> None:
    assert {text.split()[1].strip(",}") for text in KEPT if text != OUTSIDE} == {*NAMES}
    _installed(optimizer.split()[1].strip(",}"))
    sets = (*SHORT, f"train.optimizer={optimizer}")
    whole = _tiny.pretrain(tiny, tmp_path / "whole", *sets)
    place = _tiny.pretrain_with_stops(tiny, tmp_path / "run", [10, 9], *sets)
    assert _tiny.metrics(tmp_path / "run") == _tiny.metrics(tmp_path / "whole")
    ours, theirs = _tensors(place), _tensors(whole)
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert {name.partition(":")[0] for name in ours if ":" in name} == KEPT[optimizer]
    losses = [r["held_out"]["loss"] for r in _tiny.metrics(tmp_path / "run") if "held_out" in r]
    assert losses[1] < losses[0]


@pytest.mark.slow
def test_two_optimizers_in_bf16_with_an_average_resume_bit_for_bit(
    tiny: Path, tmp_path: Path
) -> None:
    sets = (*SHORT, MUON, "train.average=ema", "train.precision=bf16", "train.schedule=wsd")
    whole = _tiny.pretrain(tiny, tmp_path / "whole", *sets)
    place = _tiny.pretrain_with_stops(tiny, tmp_path / "run", [12], *sets)
    for name in ("model.safetensors", files.OPTIMIZER_STATE, files.TRAINED):
        assert (place / name).read_bytes() == (whole / name).read_bytes()


def test_a_checkpoint_of_another_optimizer_is_not_resumed(tiny: Path, tmp_path: Path) -> None:
    place = _tiny.pretrain(tiny, tmp_path / "run", "train.steps=4")
    with pytest.raises(UsageError) as caught:
        _tiny.pretrain(tiny, tmp_path / "other", MUON, resume=str(place))
    assert str(caught.value) == (
        f"{place.resolve()}: has the state of adamw, and train.optimizer is muon; start another "
        f"run with init_from: {place.resolve()}"
    )


def test_recipe_of_a_stranger_brings_no_optimizer(tiny: Path, tmp_path: Path) -> None:
    for written in ("evil.steps", "{name: evil.steps, x: 3}"):
        path = tmp_path / "recipe.yaml"
        path.write_text(tiny.read_text("utf-8").replace("lr:", f"optimizer: {written}, lr:"))
        with pytest.raises(FileError, match=r"recipe\.yaml: names 'evil\.steps'"):
            source.load_run_recipe(path)
    for written in ("{kind: evil.mask}", "{layers: [{kind: causal}, {kind: evil.mask}]}"):
        path.write_text(tiny.read_text("utf-8") + f"attention: {written}\n", "utf-8")
        with pytest.raises(FileError, match=r"recipe\.yaml: names 'evil\.mask'"):
            source.load_run_recipe(path)
    path.write_text(tiny.read_text("utf-8") + "attention: {backend: evil.fast}\n", "utf-8")
    with pytest.raises(FileError, match=r"recipe\.yaml: names 'evil\.fast'"):
        source.load_run_recipe(path)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("environment", "optimizer"),
    [({}, MUON), (FSDP, MUON), (FSDP, ADAFACTOR)],
    ids=["ddp", "fsdp", "adafactor on fsdp"],
)
def test_two_processes_give_the_losses_of_one_and_resume(
    tiny: Path, tmp_path: Path, environment: dict[str, str], optimizer: str
) -> None:
    chosen = (*SHORT, "model.dropout=0.0", "train.save_every=4", optimizer)
    sets = [word for each in chosen for word in ("--set", each)]
    one = _tiny.command("pretrain", tiny, "--out", tmp_path / "one", *sets)
    assert one.returncode == 0, one.stderr
    two = launched(2, "pretrain", tiny, "--out", tmp_path / "two", *sets, **environment)
    assert two.returncode == 0, two.stderr
    assert "processes: 2" in two.stderr
    assert (SHARDED in two.stderr) == bool(environment)
    for ours, theirs in _tiny.figures_of_both(tmp_path / "one", tmp_path / "two"):
        assert theirs["loss"] == pytest.approx(ours["loss"], abs=1e-4)
    middle = ("--resume", tmp_path / "two/checkpoints/step-00000004")
    again = launched(2, "pretrain", tiny, "--out", tmp_path / "on", *middle, *sets, **environment)
    assert again.returncode == 0, again.stderr
    name = "checkpoints/step-00000008"
    theirs, ours = _tensors(tmp_path / "two" / name), _tensors(tmp_path / "on" / name)
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_an_optimizer_that_needs_whole_parameters_is_refused_with_fsdp(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "is_sharded", lambda number: number > 1)
    for name in registry.names("train/optimizers"):
        resolved = recipe.load(str(tiny), [f"train.optimizer={name}"])
        checks.check_optimizer(resolved, 2)
    monkeypatch.setattr(registry.load("train/optimizers", "sgd"), "SHARDED", False)
    resolved = recipe.load(str(tiny), ["train.optimizer=sgd"])
    checks.check_optimizer(resolved, 1)
    with pytest.raises(UsageError) as caught:
        checks.check_optimizer(resolved, 2)
    assert str(caught.value) == (
        "train.optimizer: sgd needs whole parameters, and FSDP shards them; start the "
        "processes without FSDP, or take one of adafactor, adamw, lion, muon"
    )


class _Layers(nn.Module):
    """Two layers; the first one has two matrices in its weight."""

    MATRICES: ClassVar = {"layers.0.weight": 2}

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(8, 16), nn.Linear(16, 6)])

    def forward(self, x: Tensor) -> Tensor:
        return self.layers[1](self.layers[0](x).tanh())


def _sharded(rank: int, port: str, name: str, found: Any) -> None:
    """Put into `found` how far three steps on shards are from those on whole parameters."""
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    from nlpkit.train.average import Average
    from nlpkit.train.average_settings import AverageConfig
    from nlpkit.train.optim import optimizers
    from nlpkit.train.schedule import ResolvedTraining

    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    dist.init_process_group("gloo", rank=rank, world_size=2)
    settings = ResolvedTraining.model_validate(
        {"steps": 9, "schedule": "constant", "lr": 0.02, "optimizer": name}
    )
    nets = []
    for sharded in (False, True):
        torch.manual_seed(0)
        net = _Layers()
        if sharded:
            fully_shard(net, mesh=init_device_mesh("cpu", (2,)))
        made = optimizers(net, settings)
        average = Average(net, AverageConfig(name="ema"), 3)
        x = torch.arange(32.0).view(4, 8).sin()
        for step in range(3):
            net(x).square().sum().backward()
            for optimizer in made:
                optimizer.step()
                optimizer.zero_grad()
            average.update(State(step=step + 1))
            # A forward pass alone leaves whole parameters behind; the next step has its own.
            with average.applied(), torch.no_grad():
                net(x)
        nets.append(net)
    pairs = zip(nets[0].parameters(), nets[1].parameters(), strict=True)
    found.put(max(float((p - q.full_tensor()).abs().max()) for p, q in pairs))
    dist.destroy_process_group()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["adafactor", "adamw", "lion", "muon", "sgd"])
def test_a_step_on_shards_is_that_on_whole_parameters(name: str) -> None:
    _installed(name)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    context = multiprocessing.get_context("spawn")
    found = context.Queue()
    both = [context.Process(target=_sharded, args=(rank, port, name, found)) for rank in range(2)]
    for process in both:
        process.start()
    assert max(found.get(timeout=120) for _ in both) < 1e-6
    for process in both:
        process.join()


def test_log_says_what_updates_what(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sets = ("train.steps=1", "train.warmup_steps=1", MUON)
    _tiny.pretrain(tiny, tmp_path / "run", *sets, verbosity=NORMAL)
    lines = capsys.readouterr().err.splitlines()
    said = [line.partition("optimizer: ")[2] for line in lines if "optimizer: " in line]
    # By hand: two layers of q, k, v, out (32 x 32) and gate, up, down (32 x 48).
    assert said[0] == "Muon: 14 layer matrices; 17,408 weights; lr 0.01, decay 0.01"
    assert said[1].startswith("AdamW: 4 tables, others; ")
    assert said[1].endswith("; lr 0.005, decay 0.01")
    assert said[2].startswith("AdamW: 5 norms, biases; ")
    assert said[2].endswith("; lr 0.005, decay 0")


def test_prompts_alone_are_tuned_by_adamw_and_the_log_says_so(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = _tiny.pretrain(tiny, tmp_path / "base", "train.steps=1", "train.warmup_steps=1")
    rows = _tiny_tasks.rows_of("nlg", 20, 1)
    for name in ("train", "valid"):
        _tiny_tasks.write_rows(tmp_path / f"NAME.{name}.jsonl", rows)
    path = tmp_path / "nlg.yaml"
    path.write_text(
        _tiny_tasks.NLG.replace("FOLDER", str(tmp_path)).replace("START", str(base)), "utf-8"
    )
    sets = ("train.tune=prompt", "train.steps=3", MUON)
    place = _tiny.pretrain(path, tmp_path / "run", *sets, verbosity=NORMAL)
    said = "train.optimizer: nothing is trained that muon is for; AdamW does all"
    assert said in capsys.readouterr().err
    before, after = (load_file(each / "model.safetensors") for each in (base, place))
    (changed,) = [name for name in before if not torch.equal(before[name], after[name])]
    assert changed == "cpmant.input_embedding.weight"  # prompts and tokens are one table there


def test_a_run_keeps_its_optimizer_also_with_allow_change(tiny: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    _tiny.pretrain(tiny, run, "train.steps=4")
    other = recipe.load(str(tiny), [MUON, "train.steps=4", f"out={json.dumps(str(run))}"])
    with pytest.raises(UsageError, match=r'train\.optimizer\.name: "adamw" then, "muon" now'):
        changes.check_changes(RunDirectory(run), other, allow_change=False)
    with pytest.raises(UsageError, match=r"a run keeps its optimizer, .* init_from: "):
        changes.check_changes(RunDirectory(run), other, allow_change=True)


@pytest.mark.slow
def test_a_changed_rate_of_the_adamw_part_counts_after_resuming(tiny: Path, tmp_path: Path) -> None:
    with pytest.raises(NlpkitError, match="saved at step"):
        _tiny.pretrain(tiny, tmp_path, *SHORT, MUON, stop=_tiny.StopAtStep(tmp_path, 4))
    place = files.read_pointer(tmp_path, "latest")
    assert place is not None
    before = _tensors(place)
    # A rate of (nearly) 0: the tables stay, the matrices of layers do not.
    frozen = MUON.replace("0.005", "1.0e-30")
    after = _tensors(_tiny.pretrain(tiny, tmp_path, *SHORT, frozen, allow_change=True))
    same = {n for n in before if ":" not in n and torch.equal(before[n], after[n])}
    of_adamw = {n.partition(":")[2] for n in before if n.startswith("exp_avg:")}
    assert len(same) == len(of_adamw)
    assert not any("project_q" in name for name in same)


# --- plan ----------------------------------------------------------------------------------------


def _plan(path: Path, *sets: str) -> Planned:
    resolved = recipe.load(str(path), [*sets, f"out={json.dumps(str(path.parent / 'run'))}"])
    return planning.make(resolved, path.parent / "run", "cpu", Log(QUIET))


@pytest.mark.slow
def test_plan_counts_the_state_of_the_optimizer(tiny: Path) -> None:
    plan = _plan(tiny)
    assert plan.state_bytes == 16 * plan.parameters  # weights, gradients, two moments
    table = plan.model.state_dict()["token_embedding"].numel()  # in files as input and as output
    assert plan.checkpoint_bytes == 12 * plan.parameters + 4 * table
    muon = _plan(tiny, MUON)
    assert muon.state_bytes == 16 * plan.parameters - 4 * 17408  # one moment of the matrices
    assert _plan(tiny, "train.optimizer={name: sgd, momentum: 0.0}").optimizer_bytes == 0
    figures = planning.describe(muon)["model"]["optimizer"]
    assert [each["lr"] for each in figures] == [0.01, 0.005, 0.005]
    assert sum(each["weights"] for each in figures) == muon.trained
    found = probe.probe(muon)
    assert found["seconds_per_update"] > 0
    assert found["fits"]


def test_plan_prints_a_line_for_each_group(tiny: Path) -> None:
    result = _tiny.command("plan", tiny, "--no-probe", "-q", "--set", MUON)
    assert result.returncode == 0, result.stderr
    said = "optimizer.0  Muon: 14 layer matrices; 17,408 weights; lr 0.01, decay 0.01\n"
    assert f"# optimizer\n{said}" in result.stdout
    assert "train.optimizer.adamw_lr" in result.stdout
