"""`nlpkit selftest`: what is sound passes every proof, each thing broken fails the proof of it."""

import getpass
import json
import os
import signal
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from accelerate.state import AcceleratorState

from nlpkit import cli, recipe, selftest
from nlpkit.attention.kinds import cpm_ant as kind
from nlpkit.checkpoints import hf_writing
from nlpkit.contracts.batch import IGNORE
from nlpkit.contracts.request import Request
from nlpkit.data import loader, pack
from nlpkit.errors import UsageError
from nlpkit.objectives.cpm_ant import Objective
from nlpkit.selftest import batching, leaks, resuming, texts
from nlpkit.selftest.subject import STEPS, Bench
from nlpkit.train import whole_tensors
from nlpkit.train.state import State
from tests import _processes, _provable, _tiny

NAMES = [
    "noise floor", "no leak", "no neighbour leak", "unmasking", "packed = alone", "batches",
    "accumulated = one", "saved = reopened", "resumed = whole",
]  # fmt: skip
TORCHS = f"torchinductor_{getpass.getuser()}"  # a cache that torch makes among temporary files


@contextmanager
def _bench(folder: Path, *sets: str) -> Iterator[Bench]:
    with _provable.of_recipe(_tiny.write(folder, documents=60), *sets) as made:
        yield made


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with _bench(tmp_path) as made:
        yield made


@pytest.fixture(scope="module")
def made_once(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    with _bench(tmp_path_factory.mktemp("bench")) as made:
        yield made


@pytest.fixture
def shared(made_once: Bench) -> Iterator[Bench]:
    """The bench for what trains and saves nothing in it; all is put back that a test replaces."""
    subject = made_once.subject
    right = {name: getattr(subject, name) for name in ("objective", "examples", "build_fresh")}
    weights = {name: each.clone() for name, each in subject.model.state_dict().items()}
    yield made_once
    for name, value in right.items():
        setattr(subject, name, value)
    subject.examples.objective = subject.objective
    subject.model.load_state_dict(weights)


def _use(bench: Bench, cls: type[Objective]) -> None:
    """Put an objective of `cls` in the place of the recipe's."""
    right = bench.subject.objective
    broken = cls(right.config, bench.subject.tokenizer, bench.run.part.config)
    bench.subject.objective = bench.subject.examples.objective = broken


class Unshifted(Objective):
    """As training transformers' port does: everything is context, labels are the inputs."""

    def example(self, ids, rng):
        made = super().example(ids, rng)
        made["labels"] = np.where(made["context"], IGNORE, made["input_ids"])
        made["context"] = np.ones_like(made["context"])
        return made


class Uncovered(Objective):
    """Labels are right but everything is context, so that the next token is seen."""

    def example(self, ids, rng):
        made = super().example(ids, rng)
        made["context"] = np.ones_like(made["context"])
        return made


class Late(Objective):
    """Labels stand one place too early."""

    def example(self, ids, rng):
        made = super().example(ids, rng)
        made["labels"] = np.append(made["labels"][1:], IGNORE)
        return made


class Forgetful(Objective):
    """Loses the first word of every piece."""

    def example(self, ids, rng):
        made = super().example(ids, rng)
        made["input_ids"][self.prompt_length + 1] = self.eos_id
        return made


class Global(Objective):
    """Draws from numpy's global generator, as if there were one process only."""

    def example(self, ids, rng):
        return super().example(ids, np.random.default_rng(np.random.randint(2**31)))


class Mean(Objective):
    """Returns the mean of each batch, which is not the mean of a step's targets."""

    def loss(self, model, hidden, batch):
        made = super().loss(model, hidden, batch)
        for term in made.terms.values():
            term.loss_sum = term.loss_sum / term.num_targets
        return made


class Miscounted(Objective):
    """Counts a target too many."""

    def num_targets(self, batch):
        return {name: number + 1 for name, number in super().num_targets(batch).items()}


class Longer(Objective):
    """Makes examples of a token more than it says."""

    def length(self, pieces):
        return super().length(pieces) - 1


def _run_selftest(folder: Path, *options: str) -> int:
    AcceleratorState._reset_state(reset_partial_state=True)
    return cli.run(["selftest", str(_tiny.write(folder, documents=60)), *options])


def test_recipe_of_adapters_is_proven_without_what_it_starts_from(tmp_path: Path) -> None:
    path = _tiny.write(tmp_path, documents=60)
    sets = (f"init_from={_tiny.pretrain(path, tmp_path / 'run', 'train.steps=1')}", "model=null")
    with _provable.of_recipe(path, *sets, "tokenizer=null", "lora.rank=2") as made:
        passed, figure = resuming.resume(made)
    assert passed, figure


def test_selftest_of_a_sound_recipe_proves_everything_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    room = tmp_path / "room"
    room.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(room))
    monkeypatch.chdir(room)
    monkeypatch.setattr(leaks, "SHORT", _provable.FEW)
    monkeypatch.setattr(leaks, "NOISE_STEPS", 200)
    # A small vocabulary: the unknown tokens are warned of once, however many runs are made.
    assert _run_selftest(tmp_path, "--set", "tokenizer.vocab_size=40") == 0
    out, err = capsys.readouterr()
    warned = [line.partition("warning: ")[2] for line in err.splitlines() if "warning: " in line]
    assert len(warned) == len({*warned}) == 2
    assert all("are unknown" in line for line in warned)
    lines = out.splitlines()
    assert [line[6:24].rstrip() for line in lines] == NAMES
    assert all(line.startswith("ok  ") for line in lines)
    assert [p.name for p in room.iterdir() if p.name != TORCHS] == []


# The first proof finds a leak by training, the second by looking; each must on its own.
@pytest.mark.parametrize(
    ("broken", "proof"),
    [
        (Unshifted, leaks.find_leaks),
        (Uncovered, leaks.find_leaks),
        pytest.param(Unshifted, leaks.find_noise_floor, marks=pytest.mark.slow),
        pytest.param(Uncovered, leaks.find_noise_floor, marks=pytest.mark.slow),
    ],
)
def test_selftest_of_targets_in_sight_is_a_leak(
    shared: Bench, monkeypatch: pytest.MonkeyPatch, broken, proof
) -> None:
    _use(shared, broken)
    if broken is Unshifted:  # learned at once
        monkeypatch.setattr(leaks, "NOISE_STEPS", 100)
        monkeypatch.setattr(leaks, "NOISE_LAST", 30)
    passed, figure = proof(shared.subject)
    assert not passed, figure
    assert "leak" in figure or "move with their own token" in figure


@pytest.mark.slow
def test_selftest_of_a_model_that_gives_nan_proves_nothing(
    shared: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    with torch.no_grad():
        shared.subject.model.norm.weight.fill_(torch.nan)
    assert not leaks.find_leaks(shared.subject)[0]
    assert not leaks.find_neighbour_leaks(shared.subject)[0]
    assert not batching.compare_packed(shared.subject)[0]
    right = shared.subject.build_fresh

    def fresh():
        model = right()
        model.load_state_dict(shared.subject.model.state_dict())
        return model

    shared.subject.build_fresh = fresh
    monkeypatch.setattr(leaks, "NOISE_STEPS", 3)  # no more of them end the NaN
    monkeypatch.setattr(leaks, "NOISE_LAST", 2)
    assert not leaks.find_noise_floor(shared.subject)[0]


def test_selftest_of_a_mask_that_shows_everything_is_a_leak(
    shared: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        kind, "mask", lambda config, q, k: (q.index == q.index) & (k.index == k.index)
    )
    passed, figure = leaks.find_leaks(shared.subject)
    assert not passed
    assert " 0 move with their own" not in figure


def test_selftest_of_a_mask_that_shows_only_later_targets_is_a_leak(
    shared: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def mask(config, q, k):
        near = k["position"] - q["position"]
        return k["context"] | (~q["context"] & (near <= 2) & (near != 1))

    monkeypatch.setattr(kind, "mask", mask)
    assert not leaks.find_leaks(shared.subject)[0]


def test_dependence_in_a_ring_is_told_from_an_order() -> None:
    # 0 on 1, 1 on 2: an order. With 2 on 0 a ring; 3, on the ring, has no order either.
    order = torch.tensor([[0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 0], [1, 0, 0, 0]]).bool()
    assert leaks._count_in_cycles(order) == 0
    order[2, 0] = True
    assert leaks._count_in_cycles(order) == 4


def test_selftest_of_a_mask_that_forgets_documents_is_a_neighbour_leak(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with _bench(tmp_path) as bench:
        _provable.by_reference(bench)
        assert leaks.find_neighbour_leaks(bench.subject)[0]
        assert batching.compare_packed(bench.subject)[0]
        monkeypatch.setattr(Request, "visible", lambda self, q, k: self.mask(q, k))
        passed, figure = leaks.find_neighbour_leaks(bench.subject)
        assert not passed, figure
        passed, figure = batching.compare_packed(bench.subject)
        assert not passed, figure


@pytest.mark.parametrize("broken", [Late, Forgetful])
def test_selftest_of_an_example_without_its_text_is_found(shared: Bench, broken) -> None:
    assert texts.check_unmasking(shared.subject)[0]
    _use(shared, broken)
    assert not texts.check_unmasking(shared.subject)[0]


def test_unmasking_puts_back_a_last_target_that_is_not_learned() -> None:
    # The piece 5 3 6 3, where 3 is <unk>: the last one is no input, and has no label.
    subject = SimpleNamespace(
        objective=SimpleNamespace(unlearned_id=3), list_objectives_with=lambda name: []
    )
    example = {"input_ids": np.array([5, 3, 6]), "labels": np.array([IGNORE, 6, IGNORE])}
    found = [each["input_ids"].tolist() for each in texts.unmask(subject, example)]
    assert [5, 3, 6, 3] in found
    subject.objective.unlearned_id = None
    found = [each["input_ids"].tolist() for each in texts.unmask(subject, example)]
    assert [5, 3, 6, 3] not in found


def test_selftest_of_an_objective_with_global_randomness_is_found(shared: Bench) -> None:
    _use(shared, Global)
    passed, figure = batching.check_batches(shared)
    assert not passed
    assert "other batches" in figure


def _dropping(bins: pack.Bins) -> pack.Bins:
    return replace(
        bins, items=bins.items[:-1], offsets=np.append(bins.offsets[:-1], len(bins.items) - 1)
    )


def _repeating(bins: pack.Bins) -> pack.Bins:
    items = np.append(bins.items, bins.items[0])
    return replace(bins, items=items, offsets=np.append(bins.offsets, len(items)))


@pytest.mark.parametrize("spoil", [_dropping, _repeating])
def test_selftest_of_a_packer_that_drops_or_repeats_is_found(
    shared: Bench, monkeypatch: pytest.MonkeyPatch, spoil: Callable[[pack.Bins], pack.Bins]
) -> None:
    def plan_bins(*arguments, **options):
        return spoil(pack.plan_bins(*arguments, **options))

    monkeypatch.setattr(loader, "plan_bins", plan_bins)
    passed, figure = batching.check_batches(shared)
    assert not passed
    assert "every piece exactly once" in figure


def test_selftest_of_examples_longer_than_planned_is_found(shared: Bench) -> None:
    _use(shared, Longer)
    examples = shared.subject.examples
    shared.subject.examples = loader.Examples(
        examples.corpus, shared.subject.objective, examples.seed
    )
    passed, figure = batching.check_batches(shared)
    assert not passed
    assert "was planned as" in figure or "over 256" in figure


@pytest.mark.parametrize(("broken", "figure"), [(Mean, "differ by"), (Miscounted, "counted as")])
def test_selftest_of_a_loss_of_each_batch_apart_is_found(bench: Bench, broken, figure) -> None:
    assert batching.compare_gradients(bench)[0]
    _use(bench, broken)
    passed, found = batching.compare_gradients(bench)
    assert not passed
    assert figure in found


@pytest.mark.parametrize("number", [1, 2, 3])
def test_selftest_of_few_examples_counts_each_once(
    shared: Bench, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    few = shared.subject.draw_sources(2000)[:number]
    monkeypatch.setattr(shared.subject, "draw_sources", lambda count: few)
    passed, figure = batching.compare_gradients(shared)
    assert passed, figure


def test_selftest_of_a_checkpoint_with_another_weight_is_found(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = hf_writing.save_file

    def save_file(tensors, *arguments, **options):
        name = "cpmant.encoder.output_layernorm.weight"
        if name in tensors:  # not in the file of the optimizer
            tensors |= {name: tensors[name] * (1 + 2**-23)}
        right(tensors, *arguments, **options)

    monkeypatch.setattr(hf_writing, "save_file", save_file)
    passed, figure = resuming.reopen(bench)
    assert not passed
    assert figure == "1 of 23 tensors differ: norm.weight"


@pytest.mark.slow
def test_selftest_of_a_checkpoint_without_position_in_the_data_is_found(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = State.from_json
    monkeypatch.setattr(State, "from_json", lambda v, by: right(v | {"position": [0, 0]}, by))
    passed, figure = resuming.resume(bench)
    assert not passed
    assert ": step 3: metrics.jsonl: " in figure


@pytest.mark.parametrize(
    "sets", [("data.valid=[]",), pytest.param(("model.dropout=0.0",), marks=pytest.mark.slow)]
)
def test_selftest_of_a_run_without_held_out_text_or_dropout_holds(
    tmp_path: Path, sets: tuple[str, ...]
) -> None:
    with _bench(tmp_path, *sets) as bench:
        passed, figure = resuming.resume(bench)
        assert passed, figure


def test_selftest_of_a_checkpoint_without_moments_is_found(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = whole_tensors.restore

    def restore(training, optimizer, weights, moments):
        right(training, optimizer, weights, {n: m * 0 for n, m in moments.items()})

    monkeypatch.setattr(whole_tensors, "restore", restore)
    assert not resuming.resume(bench)[0]


def test_shrinking_lowers_what_is_large_and_nothing_else() -> None:
    small, lowered = selftest._shrink(recipe.load("cpm_ant"))
    assert lowered == {
        "hidden_size": (256, 64),
        "num_layers": (4, 2),
        "num_heads": (8, 4),
        "intermediate_size": (640, 128),
    }
    assert small.recipe.model.config.num_buckets == 128
    # 3 heads of 10: 4 or fewer must divide what is left of the width.
    wide = recipe.load("cpm_ant", ["model.hidden_size=30", "model.num_heads=15"])
    assert selftest._shrink(wide)[0].recipe.model.config.num_heads == 3


@pytest.mark.parametrize(
    ("name", "sets", "sizes"),
    [
        # Heads that two dilations share, also those of the generator.
        ("electra", ["generator_heads=2", "kind=longformer", "dilation=[1, 2]"], (64, 4, 2)),
        # The default is a head for a width of 64: the recipe's own width has two.
        ("electra", ["hidden_size=256", "kind=longformer", "dilation=[1, 2]"], (256, 4, 2)),
        ("longformer", ["num_heads=6", "hidden_size=192", "dilation=[1, 2, 3]"], (96, 3, None)),
        # Heads of keys are no more than heads.
        ("llama", ["num_heads=8", "num_key_heads=8"], (64, 4, 4)),
    ],
)
def test_shrinking_keeps_heads_that_fit_together(
    name: str, sets: list[str], sizes: tuple[int, int, int | None]
) -> None:
    of_attention = ("kind", "dilation")
    sets = [f"{'attention' if s.startswith(of_attention) else 'model'}.{s}" for s in sets]
    config = selftest._shrink(recipe.load(name, sets))[0].recipe.model.config
    of_others = "num_generator_heads" if name == "electra" else "num_key_heads"
    assert (config.hidden_size, config.num_heads, getattr(config, of_others, None)) == sizes


def test_shrinking_keeps_a_layer_for_each_kind_of_attention() -> None:
    small, lowered = selftest._shrink(recipe.load("modernbert"))
    assert lowered["num_layers"] == (4, 3) == (4, len(small.recipe.attention.layers))


def test_selftest_of_a_run_in_epochs_trains_its_few_steps(tmp_path: Path) -> None:
    sets = ("train.steps=null", "train.epochs=2", "train.warmup_steps=0", "train.warmup_ratio=0.1")
    sets += ("train.tokens_per_batch=null", "train.memory=4GB")
    with _bench(tmp_path, *sets) as bench:
        train = bench.small.recipe.train
        assert (train.steps, train.epochs) == (STEPS, None)
        assert 10 < bench.run.settings.steps <= 20  # of which a tenth, rounded up, is 2
        assert (train.warmup_steps, train.warmup_ratio) == (2, None)


def test_selftest_of_a_run_in_words_trains_its_few_steps(tmp_path: Path) -> None:
    given = recipe.load(str(_tiny.write(tmp_path)), ("train.steps=null", "train.words=5M"))
    train = selftest._shorten(given, 4, 64).recipe.train
    assert (train.steps, train.words) == (STEPS, None)


def test_selftest_of_a_recipe_that_goes_on_from_a_model_uses_its_tokenizer(tmp_path: Path) -> None:
    path = _tiny.write(tmp_path)
    place = _tiny.pretrain(path, tmp_path / "run", "train.steps=4")
    text = path.read_text(encoding="utf-8")
    head, tail = text[: text.index("model:")], text[text.index("data:") :]
    path.write_text(f"{head}init_from: {place}\n{tail}", encoding="utf-8")
    with _provable.of_recipe(path) as bench:
        assert bench.shrunk == {}
        assert leaks.find_leaks(bench.subject)[0]
        assert resuming.reopen(bench)[0]


def test_selftest_of_several_processes_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UsageError, match="one process"), _bench(tmp_path):
        pass


def test_selftest_without_text_is_the_usual_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _run_selftest(tmp_path, "--set", "data.train=[nowhere.txt]") == 4
    told = capsys.readouterr()
    assert "nowhere.txt" in told.err
    assert told.out == ""


# `test_failed_proofs_are_no_bug_with_a_traceback` is the short form of it.
@pytest.mark.slow
def test_selftest_that_fails_exits_with_1_and_says_what_in_json(tmp_path: Path) -> None:
    (tmp_path / "wrong").mkdir()
    (tmp_path / "wrong" / "__init__.py").write_text("", encoding="utf-8")
    (tmp_path / "wrong" / "mean.py").write_text(
        "from nlpkit.objectives.cpm_ant import Config\n"
        "from tests.selftest.test_selftest import Mean as Objective\n",
        encoding="utf-8",
    )
    path = _tiny.write(tmp_path, documents=60)
    path.write_text(path.read_text("utf-8").replace("name: cpm_ant,", "name: wrong.mean,"), "utf-8")
    root = str(Path(__file__).parents[2])
    paths = os.pathsep.join([str(tmp_path), root])
    done = _tiny.command("selftest", path, "--json", env={"PYTHONPATH": paths}, cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr
    assert "nlpkit: " in done.stderr
    told = json.loads(done.stdout)
    assert told["passed"] is False
    assert [p["name"] for p in told["proofs"]] == NAMES
    assert "accumulated = one" in [p["name"] for p in told["proofs"] if not p["passed"]]
    assert told["shrunk"] == {}
    assert {"recipe", "device", "precision", "attention"} <= told.keys()


@pytest.mark.slow
def test_selftest_stopped_by_a_signal_leaves_nothing(tmp_path: Path) -> None:
    room = tmp_path / "room"
    room.mkdir()
    recipe = _tiny.write(tmp_path, documents=60)
    process = _processes.Process("selftest", recipe, env={"TMPDIR": str(room)})
    _processes.wait_until(lambda: any(room.glob("nlpkit-selftest-*")), process)
    process.send_signal(signal.SIGTERM)
    _, told = process.communicate()
    assert process.returncode == 143
    assert "stopped by SIGTERM" in told
    assert [p.name for p in room.iterdir() if p.name != TORCHS] == []


@pytest.mark.slow
def test_selftest_of_the_packaged_recipe_passes() -> None:
    done = _tiny.command("selftest")
    assert done.returncode == 0, done.stderr


def test_failed_proofs_are_no_bug_with_a_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    proofs = [
        selftest.Proof("round trip", True, "32 of 32", 0.1),
        selftest.Proof("noise floor", False, "loss 0.1, ln V is 5.3", 0.2),
    ]
    bench = SimpleNamespace(
        run=SimpleNamespace(part=SimpleNamespace(family="cpm_ant")),
        subject=SimpleNamespace(device="cpu"),
        **{"precision": "fp32", "attention": "sdpa", "shrunk": {}},
    )
    monkeypatch.setattr(selftest, "bench", lambda *_, **__: nullcontext(bench))
    monkeypatch.setattr(selftest, "prove", lambda _: iter(proofs))
    path = str(_tiny.write(tmp_path))
    assert cli.run(["selftest", path, "--json"]) == 1
    out, err = capsys.readouterr()
    told = json.loads(out)
    assert told["passed"] is False
    assert [(p["name"], p["passed"]) for p in told["proofs"]] == [
        ("round trip", True), ("noise floor", False),
    ]  # fmt: skip
    assert told["shrunk"] == {}
    assert {"recipe", "device", "precision", "attention"} <= told.keys()
    assert err.endswith("nlpkit: 1 of 2 proofs failed: noise floor\n")
    assert cli.run(["selftest", path]) == 1
    out, err = capsys.readouterr()
    assert [line.split()[0] for line in out.splitlines()] == ["ok", "FAIL"]
    assert err.endswith("nlpkit: 1 of 2 proofs failed: noise floor\n")
    assert "Traceback" not in err
    assert "bug" not in err
