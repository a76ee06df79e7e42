"""`train.gradient_checkpointing`: the numbers of the plain step, bit for bit, in every family."""

import json
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load_file

from nlpkit import plan as planning
from nlpkit import recipe, registry
from nlpkit.checkpoints import files
from nlpkit.errors import NlpkitError, UsageError
from nlpkit.runs import build
from nlpkit.runs.planned import Planned
from nlpkit.runs.run import Training
from nlpkit.train import recompute
from nlpkit.train.log import QUIET, Log
from nlpkit.train.machine import to_device
from tests import _tiny
from tests._family_runs import START, TRAIN, Runs
from tests._processes import FSDP, SHARDED, launched

ON = "train.gradient_checkpointing=true"
RECIPES = Path(__file__).parents[2] / "recipes"
# Rows without texts train no tokenizer; the families of these recipes are in others.
ROWS = {"cpm_ant_nlg", "cpm_ant_nlu", "gpt1_choice", "gpt1_similarity"}
# Their loss reads the run of another recipe.
FROZEN = {"gpt2_distilled", "gpt2_dpo"}
OWN_TEXT = {"babylm", "babylm_zh"}  # not shipped; recipe llama has its model
ALL = sorted({path.stem for path in RECIPES.glob("*.yaml")} - ROWS - FROZEN - OWN_TEXT)
DROPOUT = ("dropout", "residual_dropout", "attention_dropout")


def _step(plan: Planned, on: bool) -> tuple[torch.Tensor, dict[str, torch.Tensor], int]:
    """Return the loss and the gradients of two batches, and how often a layer was computed."""
    torch.manual_seed(0)
    model = build.build_model(plan.part, plan.data.vocab_size, "auto")
    runs = []
    for layer in recompute.layers(model):
        counted = layer.forward
        layer.forward = lambda *a, _of=counted, **b: runs.append(1) or _of(*a, **b)
    if on:
        recompute.apply(model)
    training = Training(model, plan.data.objective)
    training.train()
    torch.manual_seed(1)
    losses = []
    for batch in plan.stream[0].batches:
        moved = to_device(batch, torch.device("cpu"))
        loss = training(moved).mean(batch.num_targets)
        loss.backward()
        losses.append(loss.detach())
    gradients = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    return torch.stack(losses), gradients, len(runs)


def _is_the_same(plan: Planned) -> None:
    """Fail unless both ways give the same bits, and layers were computed twice."""
    plain, gradients, runs = _step(plan, False)
    loss, again, twice = _step(plan, True)
    assert torch.equal(loss, plain)
    assert again.keys() == gradients.keys()
    assert all(torch.equal(again[name], gradients[name]) for name in gradients)
    assert runs > 0
    assert twice == 2 * runs


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("families")
    Runs(folder)
    return folder


def _plan(path: Path, *sets: str) -> Planned:
    return planning.make(recipe.load(str(path), list(sets)), path.parent, "cpu", Log(QUIET))


@pytest.mark.fast_cases(1)
@pytest.mark.parametrize(
    "family",
    ["gpt2", "t5", *(pytest.param(f, marks=pytest.mark.slow) for f in ("albert", "xlnet"))],
)
def test_step_is_the_plain_one_bit_for_bit(folder: Path, family: str) -> None:
    sizes, tokenizer, objective = START[family]
    path = folder / f"{family}.yaml"
    path.write_text(
        f"name: {family}\nmodel: {{family: {family}, {sizes}}}\ntokenizer: {tokenizer}\n"
        f"data: {{train: [{folder}/train.txt], valid: [{folder}/valid.txt]}}\n"
        f"objective: {objective}\n" + TRAIN.replace("STEPS", "2"),
        "utf-8",
    )
    settings = registry.load("models", family).Config.model_fields
    sets = [f"model.{name}=0.1" for name in DROPOUT if name in settings]
    assert sets
    _is_the_same(_plan(path, "model.num_layers=2", *sets))


@pytest.mark.slow
@pytest.mark.parametrize("name", ALL)
def test_step_of_every_recipe_is_the_plain_one(tmp_path: Path, name: str) -> None:
    sets = ["train.tokens_per_step=4096", "train.tokens_per_batch=2048", f"out={tmp_path}/run"]
    written = yaml.safe_load((RECIPES / f"{name}.yaml").read_text("utf-8"))
    if "init_from" in written:  # the model is another recipe's, which need not be trained for this
        base = yaml.safe_load(
            (RECIPES / f"{Path(written['init_from']).name}.yaml").read_text("utf-8")
        )
        parts = {n: json.dumps(base[n]) for n in ("model", "tokenizer") if n in base}
        sets += ["init_from=null", *(f"{n}={value}" for n, value in parts.items())]
    if name == "gpt1_paper":  # 12 layers of 768 take minutes
        sets.append("model.num_layers=2")
    resolved = recipe.load(name, sets)
    plan = planning.make(resolved, tmp_path / "run", "cpu", Log(QUIET))
    try:
        recompute.check(plan.model)
    except UsageError:
        assert plan.part.family in {"lstm", "gru", "rnn", "seq2seq", "word2vec"}
        return
    _is_the_same(plan)


BPE = "tokenizer={kind: bpe, vocab_size: 300}"
RUN = ("model.dropout=0.1", "train.steps=8", "train.precision=bf16")
TINY = {  # of the layers: what a run does with them
    "average_bf16": (*RUN, "train.average=ema"),
    "sparse": (
        "model={family: gpt2, hidden_size: 32, num_layers: 2, num_heads: 4, max_positions: 64}",
        BPE,
        "objective={name: clm, max_length: 64}",
        "attention={kind: strided, stride: 4, backend: sparse}",
    ),
}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _tiny.write(tmp_path_factory.mktemp("tiny"))


def _tensors(checkpoint: Path) -> dict[str, torch.Tensor]:
    weights = load_file(checkpoint / "model.safetensors")
    return weights | load_file(checkpoint / files.OPTIMIZER_STATE)


@pytest.mark.slow
@pytest.mark.parametrize("case", ["average_bf16", "sparse"])
def test_run_that_was_begun_without_goes_on_with_it_bit_for_bit(
    tiny: Path, tmp_path: Path, case: str
) -> None:
    plain = _tiny.pretrain(tiny, tmp_path / "plain", *TINY[case])
    with pytest.raises(NlpkitError):
        _tiny.pretrain(tiny, tmp_path / "run", *TINY[case], stop=_tiny.StopAfter(16))
    other = _tiny.pretrain(tiny, tmp_path / "run", *TINY[case], ON)  # a free setting
    assert _tiny.metrics(tmp_path / "run") == _tiny.metrics(tmp_path / "plain")
    ours, theirs = _tensors(other), _tensors(plain)
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_recurrent_network_is_refused_before_training(tiny: Path, tmp_path: Path) -> None:
    model = "model={family: lstm, hidden_size: 16, num_layers: 1, embedding_size: 16}"
    sets = (
        model,
        "objective={name: clm, max_length: 64}",
        BPE,
        ON,
    )
    said = (
        "train.gradient_checkpointing: the model has no layers that can be computed again one by "
        "one: it has none, or is a recurrent network, whose layers torch computes in one call and "
        "whose steps in time need the one before; set it to false"
    )
    with pytest.raises(UsageError) as caught:
        _plan(tiny, *sets)
    assert str(caught.value) == f"--set {said}"
    with pytest.raises(UsageError) as caught:
        _tiny.pretrain(tiny, tmp_path / "run", *sets)
    assert str(caught.value) == said  # its caller adds the place


@pytest.mark.slow
def test_shards_of_two_processes_give_the_losses_of_one(tiny: Path, tmp_path: Path) -> None:
    sets = [word for each in ("model.dropout=0.0", ON) for word in ("--set", each)]
    _tiny.pretrain(tiny, tmp_path / "one", "model.dropout=0.0")
    two = launched(2, "pretrain", tiny, "--out", tmp_path / "two", *sets, **FSDP)
    assert two.returncode == 0, two.stderr
    assert SHARDED in two.stderr
    for ours, theirs in _tiny.figures_of_both(tmp_path / "one", tmp_path / "two"):
        assert theirs["loss"] == pytest.approx(ours["loss"], abs=1e-4)
