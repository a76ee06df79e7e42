"""`plan`: the longest batch, memory and its advice, time, and what people and scripts read."""

import json
import re
import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from nlpkit import cli, recipe
from nlpkit import plan as planning
from nlpkit.commands.plan import _format_value
from nlpkit.data.pack import Bins
from nlpkit.models.flops import count_projections, step_flops
from nlpkit.plan import probe
from nlpkit.runs import trial
from nlpkit.runs.fastest_precision import Precision
from nlpkit.train import machine, memory
from nlpkit.train.log import QUIET, Log
from tests import _processes, _tiny
from tests._tiny_tasks import CLASSES, start, task

CPU = torch.device("cpu")
MIB = 2**20
BERT = """\
name: tiny
model: {family: bert, hidden_size: 32, num_layers: 1, num_heads: 2, type_vocab_size: 1}
tokenizer: {kind: wordpiece, vocab_size: 120}
data: {train: [TRAIN]}
objective: {name: mlm, max_length: 32}
train: {steps: 2, schedule: constant, lr: 1.0e-3}
"""


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _tiny.write(tmp_path_factory.mktemp("plan"))


def _plan(path: Path, *sets: str) -> planning.Planned:
    resolved = recipe.load(str(path), [*sets, f"out={json.dumps(str(path.parent / 'run'))}"])
    return planning.make(resolved, path.parent / "run", "cpu", Log(QUIET))


def test_longest_batches_are_those_of_most_attention_and_of_most_tokens() -> None:
    # bins of (4, 4), (6), (3, 3, 3): squares 32, 36, 27; tokens 8, 6, 9. Item 7 is piece 1 again.
    sizes = np.array([4, 4, 6, 3, 3, 3])
    bins = Bins(np.array([0, 7, 2, 3, 4, 5]), np.array([0, 2, 3, 6]))
    plan = SimpleNamespace(
        stream=SimpleNamespace(plan=lambda epoch: bins),
        data=SimpleNamespace(examples=SimpleNamespace(sizes=sizes)),
    )
    assert trial.longest(plan) == [1, 2]
    assert trial.longest_tokens(plan) == 9


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        # evaluations 5, 10, 12; checkpoints 4, 8, 12 and those of evaluations
        ({}, (3, 5)),
        ({"eval_every": None}, (1, 3)),
        ({"steps": 10, "save_every": 5}, (2, 2)),
        ({"eval_every": 50, "save_every": 50}, (1, 1)),
    ],
)
def test_evaluations_and_checkpoints_are_counted_as_the_loop_makes_them(
    tiny: Path, settings: dict, expected: tuple[int, int]
) -> None:
    sets = [f"train.{key}={json.dumps(value)}" for key, value in settings.items()]
    assert probe._count_occasions(_plan(tiny, *sets)) == expected


def test_a_budget_of_a_year_is_counted_at_once() -> None:
    settings = SimpleNamespace(
        eval_every=300, save_every=200, budget_seconds=1.0, budget_clock="wall", steps=1
    )
    plan = SimpleNamespace(settings=settings, data=SimpleNamespace(held_out=[]))
    begin = time.perf_counter()
    # Of 600 steps, 3, 2 of them evaluated: 600 + 2 * 0.5 + 4 * 0.25 = 602 s; 36 million steps.
    cost = probe.Cost(1.0, 0.5, 0.25)
    assert probe.count_bought_steps(plan, cost, 602 * 60_000) == 600 * 60_000
    assert time.perf_counter() - begin < 0.5


def test_loop_makes_as_many_evaluations_and_no_more_checkpoints(tiny: Path, tmp_path: Path) -> None:
    _tiny.pretrain(tiny, tmp_path / "run", "train.keep=99")
    evaluations, checkpoints = probe._count_occasions(_plan(tiny))
    assert sum("held_out" in r for r in _tiny.metrics(tmp_path / "run")) == evaluations
    assert 3 <= len(list((tmp_path / "run/checkpoints").glob("step-*"))) <= checkpoints


def test_estimate_adds_up(tiny: Path) -> None:
    plan = _plan(tiny)
    found = probe.probe(plan)
    step = found["seconds_per_batch"] * 2 + found["seconds_per_update"]
    assert found["seconds_per_step"] == pytest.approx(step)
    assert found["training_seconds"] == pytest.approx(12 * step)
    parts = ("training_seconds", "evaluation_seconds", "saving_seconds")
    assert all(found[name] > 0 for name in parts)
    assert found["total_seconds"] == pytest.approx(sum(found[name] for name in parts))
    assert 0.9 * 256 < found["longest_batch_tokens"] <= 256
    assert found["fits"] is True
    assert found["peak_memory_bytes"] < found["memory_limit_bytes"]
    assert found["memory_share"] < 0.8
    assert found["advice"] is None


def test_evaluation_time_is_a_batchs_time_for_every_held_out_token(tiny: Path) -> None:
    plan = _plan(tiny)
    times = trial.Times(batches=[1.0, 3.0], tokens=[200, 240], update=0.5, held_out_token=0.01)
    figures = probe._estimate_time(plan, times)
    tokens = int(plan.data.held_out.sizes.sum())
    assert figures["seconds_per_step"] == 2.0 * 2 + 0.5
    assert figures["tokens_per_second"] == pytest.approx(440 / 4.5)
    assert figures["evaluation_seconds"] == pytest.approx(0.01 * tokens * 3)


def test_folders_of_words_take_the_time_of_their_share_of_a_checkpoint(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe, "_measure_saving", lambda directory, size: 2.0)
    times = trial.Times(batches=[1.0], tokens=[200], update=0.5, held_out_token=0.01)
    plans = _plan(tiny), _plan(tiny, "train.save_at=[10, 20, 30]")
    without, seconds = (probe._estimate_time(plan, times)["saving_seconds"] for plan in plans)
    # Adam's two moments are not in a folder.
    share = 1 - 8 * plans[1].parameters / plans[1].checkpoint_bytes
    assert seconds == pytest.approx(without + 3 * 2.0 * share)


class _Meter:
    """Memory that rises by `per_token` bytes a token; what trials train on is noted."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, limit: int, per_token: int):
        self.now = self.peak = 100 * MIB
        self.per_token, self.tokens, self.fail_at = per_token, [], None
        monkeypatch.setattr(machine, "used_memory", lambda device: (self.now, self.peak))
        monkeypatch.setattr(memory, "limit", lambda device: limit)
        monkeypatch.setattr(memory, "forget_peak", lambda device: None)
        train = trial.Trial.train

        def metered(trial, batch) -> float:
            self.tokens.append(batch.tokens)
            self.peak = max(self.peak, self.now + per_token * batch.tokens)
            if self.peak > limit:
                raise RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory")
            return train(trial, batch)

        monkeypatch.setattr(trial.Trial, "train", metered)


def test_trial_has_the_loss_of_the_run(tiny: Path) -> None:
    sums = []
    for z in (0.0, 0.5):
        plan = _plan(tiny, "model.dropout=0.0", f"train.z_loss={z}")
        made = trial.Trial(plan, Precision("fp32", "of the test"))
        batch = plan.data.examples.batch(plan.stream.plan(0)[0], 0)
        terms = made.training(machine.to_device(batch, CPU)).terms
        sums.append(sum(term.loss_sum.item() for term in terms.values()))
    assert sums[1] > sums[0]


BIG = ("train.tokens_per_step=4096", "train.tokens_per_batch=4096")


def test_batch_that_would_not_fit_is_not_tried_and_the_largest_that_fits_is_named(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # 1 MiB a token, 4096 tokens; 0.8 * 1700 - 100 (and the gradients) leaves 1259: 1024 divides
    meter = _Meter(monkeypatch, limit=1700 * MIB, per_token=MIB)
    found = probe.probe(_plan(tiny, *BIG))
    assert found["fits"] is False
    assert max(meter.tokens) < 1700
    assert found["advice"].endswith("set train.tokens_per_batch=1024")
    assert "and there are 1.7 GiB" in found["advice"]
    assert found["peak_memory_bytes"] == pytest.approx(4196 * MIB, rel=0.05)
    assert found["memory_share"] > 2
    assert found["seconds_per_step"] is None


def test_batch_above_four_fifths_is_tried_and_advised_against(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    meter = _Meter(monkeypatch, limit=4500 * MIB, per_token=MIB)
    found = probe.probe(_plan(tiny, *BIG))
    assert found["fits"] is True
    assert max(meter.tokens) > 4000
    assert found["memory_share"] == pytest.approx(4196 / 4500, rel=0.05)
    assert found["advice"].endswith("set train.tokens_per_batch=2048")
    assert found["seconds_per_step"] > 0


def test_shorter_examples_are_advised_where_no_batch_holds_the_longest(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # 10 MiB a token: 0.8 * 600 - 100 leaves 38 tokens of the longest example's 64: 32 divides
    _Meter(monkeypatch, limit=600 * MIB, per_token=10 * MIB)
    found = probe.probe(_plan(tiny, *BIG))
    assert found["fits"] is False
    expected = "set objective.max_length=32 and train.tokens_per_batch=32"
    assert found["advice"].endswith(expected)


def test_model_larger_than_memory_is_not_even_built(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    meter = _Meter(monkeypatch, limit=100 * MIB, per_token=1)
    found = probe.probe(_plan(tiny))
    assert meter.tokens == []
    assert found["fits"] is False
    assert "take a smaller model or a machine with more memory" in found["advice"]


def test_other_errors_of_the_probe_are_not_taken_for_a_want_of_memory(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(trial, batch):
        raise RuntimeError("shapes do not match")

    monkeypatch.setattr(trial.Trial, "train", broken)
    with pytest.raises(RuntimeError, match="shapes do not match"):
        probe.probe(_plan(tiny))
    assert memory.is_shortage(MemoryError())
    assert memory.is_shortage(torch.OutOfMemoryError("CUDA out of memory"))


def _machine(root: Path, available_kib: int, cgroup: str, **files: str) -> Path:
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/meminfo").write_text(f"MemTotal: 99 kB\nMemAvailable:  {available_kib} kB\n")
    (root / "proc/self/cgroup").write_text(cgroup)
    for name, content in files.items():
        path = root / "sys/fs/cgroup" / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.with_name(path.name.replace("-", ".")).write_text(content)
    return root


def test_available_memory_is_the_machines_without_control_groups(tmp_path: Path) -> None:
    assert memory.available(_machine(tmp_path, 1000, "0::/\n")) == 1000 * 1024


def test_available_memory_heeds_the_tightest_control_group_above(tmp_path: Path) -> None:
    files = {
        "a__b__memory-max": "max\n",
        "a__b__memory-current": "50\n",
        "a__memory-max": "5000\n",
        "a__memory-current": "1500\n",
        # 300 of what is used are cached files, which can be given up
        "a__memory-stat": "anon 1200\ninactive_file 300\n",
    }
    root = _machine(tmp_path, 1000, "0::/a/b\n", **files)
    assert memory.available(root) == 5000 - (1500 - 300)


def test_available_memory_heeds_version_1_control_groups(tmp_path: Path) -> None:
    files = {
        "memory__job__memory-limit_in_bytes": "9000\n",
        "memory__job__memory-usage_in_bytes": "4000\n",
    }
    root = _machine(tmp_path, 1000, "5:cpu,cpuacct:/x\n4:memory:/job\n", **files)
    assert memory.available(root) == 5000


def _memory_of_a_tensor() -> None:
    cpu = torch.device("cpu")
    memory.forget_peak(cpu)
    before, _ = machine.used_memory(cpu)
    block = torch.ones(64 * 2**20 // 4)
    now, _ = machine.used_memory(cpu)
    del block
    _, peak = machine.used_memory(cpu)
    print(now - before, peak - before, memory.limit(cpu) > before)


def test_used_memory_rises_with_a_tensor_and_its_peak_stays() -> None:
    # In a process of its own: in this one the heap may hold 64 MiB that earlier tests freed.
    done = _processes.printed(_memory_of_a_tensor).split()
    assert int(done[0]) >= 60 * MIB
    assert int(done[1]) >= 60 * MIB
    assert done[2] == "True"


@contextmanager
def _limited(gib: float) -> Iterator[None]:
    resource.setrlimit(resource.RLIMIT_AS, (int(gib * 2**30),) * 2)
    yield


@pytest.mark.slow
def test_plan_under_a_limit_advises_what_then_fits(tmp_path: Path) -> None:
    path = _tiny.write(tmp_path, documents=2000)
    sets = ("train.tokens_per_step=65536", "model.hidden_size=512", "model.intermediate_size=1024")
    command = ["plan", path, *(x for setting in sets for x in ("--set", setting))]
    batch = "train.tokens_per_batch=65536"
    refused = _tiny.command(*command, "--set", batch, around=partial(_limited, 3))
    assert refused.returncode == 2, refused.stderr
    assert "estimate.fits                  no" in refused.stdout
    assert "train.tokens_per_step" in refused.stdout  # the rest is there all the same
    [advised] = re.findall(r"set (train\.tokens_per_batch=\d+)$", refused.stderr.strip())
    accepted = _tiny.command(*command, "--set", advised, around=partial(_limited, 3))
    assert accepted.returncode == 0, accepted.stderr
    assert re.search(r"estimate\.fits +yes", accepted.stdout)


def _keys(data, prefix: str = "") -> set[str]:
    found = set()
    for key, value in data.items():
        name = f"{prefix}{key}"
        open_ended = name in ("settings", "origin", "data.dropped", "data.cut", "packing.save_at")
        nested = isinstance(value, dict) and not open_ended
        found |= _keys(value, name + ".") if nested else {name}
    return found


def test_plan_json_is_sorted_and_has_the_documented_keys(tiny: Path) -> None:
    pairs = tiny.with_name("pairs.csv")
    pairs.write_text("sentence_good,sentence_bad\n山水,山花\n", encoding="utf-8")
    asked = ("--card", "h100", "--baseline", "3", "--set", f"eval.pairs=[{pairs}]")
    asked += ("--set", "train.weight_decay=[{until: 0.5, value: 0.1}, {value: 0}]")  # `phases`
    asked += ("--set", "train.save_at=[10]")
    result = _tiny.command("plan", tiny, *asked, "--json", "-q")
    assert result.returncode == 0, result.stderr
    plan = json.loads(result.stdout)
    assert result.stdout.strip() == json.dumps(plan, ensure_ascii=False, sort_keys=True)
    text = Path("docs/reference/json.md").read_text(encoding="utf-8").partition("<!-- plan keys")[2]
    text = text.partition("\n## ")[0]
    documented = set()
    for names, said in re.findall(r"^\| (`.+?) \| (.*) \|$", text, re.MULTILINE):
        sections = re.findall(r"`([\w.]+)`", names)
        inside = set(re.findall(r"`(\w+)`", said)) - {"FILE:LINE", "default"}
        if sections == ["settings", "origin"]:
            documented |= set(sections)
        else:
            documented |= {f"{section}.{name}" for section in sections for name in inside}
    documented -= {
        "data.train.unigram_entropy",
        "data.train.ngram_loss",
        "estimate.init_from",
        "model.init_from",
    }
    assert _keys(plan) == documented


def test_first_batch_is_json_where_that_is_asked_for(
    tiny: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(["plan", str(tiny), "--batch", "--json", "-q"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert list(found) == ["batch"]
    assert found["batch"][0].startswith("sequence\ttoken\t")


def test_plan_for_people_is_narrow_prints_no_key_twice_and_says_units() -> None:
    # The packaged recipe, with a model that is soon tried.
    sizes = ("hidden_size=32", "num_layers=1", "num_heads=4", "intermediate_size=32")
    sets = [word for size in sizes for word in ("--set", f"model.{size}")]
    result = _tiny.command("plan", "cpm_ant", "-q", *sets)
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    assert [line[2:] for line in lines if line.startswith("#")] == [
        *("data", "packing", "model", "optimizer", "estimate", "settings")
    ]
    rows = [line for line in lines if line and not line.startswith("#")]
    keys = [line.split()[0] for line in rows]
    assert len(keys) == len(set(keys))
    assert max(map(len, rows)) <= 80
    text = result.stdout
    assert re.search(r"^data\.train\.documents +1,410$", text, re.MULTILINE)
    assert re.search(r"^estimate\.peak_memory_bytes +[\d,.]+ [MG]iB$", text, re.MULTILINE)
    assert re.search(r"^estimate\.total_seconds +[\d.]+ (s|min)$", text, re.MULTILINE)
    numbers = [line for line in rows if re.match(r"data\.(train|held_out)\.\w+ +[\d,]+$", line)]
    assert len(numbers) > 10
    assert len({len(line) for line in numbers}) == 1  # flush right


def test_plan_names_the_first_skipped_rows(tiny: Path, tmp_path: Path) -> None:
    bad = tmp_path / "bad.jsonl"
    bad.write_text(
        '{"text": 3}\n' + '{"text": "天地人山水花鸟鱼虫春夏秋冬"}\n' * 90, encoding="utf-8"
    )
    sets = ("--set", f"data.train=[{bad}]", "--set", "data.on_error=skip", "--no-probe", "-q")
    text = _tiny.command("plan", tiny, *sets).stdout
    assert re.search(r"^data\.train\.skipped_rows +1$", text, re.MULTILINE)
    assert re.search(rf"^data\.train\.first_skipped\.0 +{bad}:1: ", text, re.MULTILINE)
    plan = _plan(tiny, f"data.train=[{bad}]", "data.on_error=skip")
    [first] = planning.describe(plan)["data"]["train"]["first_skipped"]
    assert first.startswith(f"{bad}:1: ")


def test_plan_says_that_training_refuses_other_settings_than_those_of_the_run(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _tiny.pretrain(tiny, tmp_path / "run", "train.steps=1", "train.warmup_steps=1")
    asked = ["plan", str(tiny), "--no-probe", "--set", f"out={tmp_path / 'run'}", "-q"]
    more = ["--set", "train.warmup_steps=1", "--set", "train.steps=1"]
    assert cli.run([*asked, *more]) == 0
    assert capsys.readouterr().err == ""
    assert cli.run([*asked, *more[:3], "train.steps=2", "--set", "train.lr=0.5"]) == 0
    said = "was started with other settings, and training refuses these: train.steps, train.lr\n"
    assert capsys.readouterr().err.endswith(said)


def test_plan_counts_new_tokens_of_a_grown_vocabulary(tiny: Path, tmp_path: Path) -> None:
    place = _tiny.pretrain(tiny, tmp_path / "run", "tokenizer.vocab_size=60", "train.steps=1",
                           "train.warmup_steps=1")  # fmt: skip
    resolved = recipe.load(str(tiny), ["tokenizer.vocab_size=70"])
    section = resolved.recipe.model_copy(update={"init_from": str(place), "model": None})
    grown = replace(resolved, recipe=section)
    plan = planning.make(grown, tmp_path / "other", "cpu", Log(QUIET))
    assert planning.describe(plan)["model"]["new_tokens"] == 10


def test_rows_of_a_task_are_not_counted_as_products_with_the_vocabulary(tmp_path: Path) -> None:
    path = task(tmp_path, "classes", CLASSES, start(tmp_path / "base", "gpt"))
    flops = {}
    for weight in (0, 0.5):
        plan = _plan(path, f"objective.lm_weight={weight}")
        flops[weight] = planning.describe(plan)["model"]["flops_per_step"]
    config, batches = plan.part.config, plan.settings.batches_per_step
    per_token = 3 * 2 * config.hidden_size * plan.data.vocab_size
    assert flops[0.5] - flops[0] == batches * plan.first.tokens * per_token
    alone = step_flops("gpt", config, plan.data.vocab_size, plan.first.lengths, 0)
    assert flops[0] == batches * alone


@pytest.mark.slow
def test_targets_of_a_list_are_the_tokens_that_its_objectives_predict(tmp_path: Path) -> None:
    resolved = recipe.load("bert", [f"out={tmp_path}/run"])
    plan = planning.make(resolved, tmp_path / "run", "cpu", Log(QUIET), measure=False)
    masked = plan.first.num_targets["mlm"]
    assert count_projections(plan.data.objective, plan.first) == masked
    share = planning.describe(plan)["packing"]["share_of_tokens_with_loss"]
    assert share == pytest.approx(0.15 * 0.94, abs=0.01)  # special tokens are never masked


@pytest.mark.parametrize("kind", ["seen_range", "longformer, global_tokens: question"])
def test_mask_of_a_kind_has_what_the_model_says_where_the_objective_says_nothing(
    tmp_path: Path, kind: str
) -> None:
    pytest.importorskip("matplotlib")
    path = _tiny.write(tmp_path, text=BERT)
    plan = planning.make(
        recipe.load(str(path), [f"attention={{kind: {kind}}}"]),
        tmp_path / "run", "cpu", Log(QUIET), measure=False,
    )  # fmt: skip
    planning.draw_mask(plan, tmp_path / "mask.png")
    assert (tmp_path / "mask.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("data.train.tokens", 167929, ("167,929", "")),
        ("model.state_bytes", 3 * 2**30, ("3.0", "GiB")),
        ("model.state_bytes", 5 * 2**20, ("5.0", "MiB")),
        ("estimate.total_seconds", 126.0, ("2.1", "min")),
        ("estimate.total_seconds", 59.0, ("59.0", "s")),
        ("estimate.total_seconds", 5400.0, ("1.5", "h")),
        ("estimate.total_seconds", 216000.0, ("2.5", "days")),
        ("packing.fill", 0.9979, ("99.8%", "")),
        ("estimate.fits", True, ("yes", None)),
        ("train.lr", 0.002, ("0.002", "")),
        ("data.train.first_skipped", [], ("none", None)),
    ],
)
def test_figures_are_said_as_people_read_them(key: str, value, said) -> None:
    assert _format_value(key, value) == said
