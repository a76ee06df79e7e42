"""Minimal pairs at each evaluation of a run: their accuracy is that of `nlpkit judge --pairs`."""

import json
import random
import signal
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from nlpkit import cli, recipe
from nlpkit import plan as planning
from nlpkit.checkpoints import files
from nlpkit.checkpoints.run_directory import DATA_FILES, RunDirectory
from nlpkit.disk import file_sha256, read_json
from nlpkit.errors import Stopped, TryAgain
from nlpkit.runs import judged
from nlpkit.runs.likelihood import Likelihood
from nlpkit.train.log import NORMAL, QUIET, Log
from nlpkit.train.signals import StopFlag
from tests import _tiny
from tests._processes import FSDP, launched

SIZES = "hidden_size: 32, num_layers: 2, num_heads: 4, intermediate_size: 48"
RECIPE = f"""\
name: judged
model: {{family: FAMILY, {SIZES}}}
tokenizer: {{kind: KIND, vocab_size: 300}}
data: {{train: [TRAIN], valid: [VALID]}}
objective: {{name: OBJECTIVE, max_length: 64}}
train: {{steps: 4, tokens_per_step: 512, tokens_per_batch: 256, lr: 1.0e-2, warmup_steps: 1,
  precision: bf16, eval_every: 2, save_every: 2, keep: 9}}
"""
PARTS = {
    "gpt2": ("gpt2", "bpe", "clm"),
    "bert": ("bert", "wordpiece", "mlm"),
    "hybrid": ("gpt2", "bpe", "hybrid"),
}
ALL = 40


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Text, a recipe of each model, and a file of pairs."""
    place = tmp_path_factory.mktemp("judged")
    for name, parts in PARTS.items():
        text = RECIPE
        for word, part in zip(("FAMILY", "KIND", "OBJECTIVE"), parts, strict=True):
            text = text.replace(word, part)
        text += "attention: {kind: hybrid}\n" if name == "hybrid" else ""
        _tiny.write(place, text=text).rename(place / f"{name}.yaml")
    draw = random.Random(1)
    with (place / "pairs.jsonl").open("w", encoding="utf-8") as file:
        for _ in range(ALL):
            words = draw.choices(_tiny.WORDS, k=draw.randint(2, 12))
            good, bad = "".join(words), "".join([*words[:-1], draw.choice(_tiny.WORDS)])
            file.write(json.dumps({"sentence_good": good, "sentence_bad": bad}) + "\n")
    return place


def _sets(folder: Path, *sets: str) -> list[str]:
    return [f"eval.pairs=[{folder / 'pairs.jsonl'}]", *sets]


def _accuracies(run: Path) -> dict[int, float]:
    """Return the accuracy of each evaluation, by its step."""
    records = [record for record in _tiny.metrics(run) if "held_out" in record]
    return {each["step"]: each["held_out"]["metrics"]["pairs"] for each in records}


@pytest.mark.parametrize(
    ("name", "method", "sets"),
    [
        ("gpt2", "log-probability", ("train.z_loss=1e-3", "train.average={name: ema}")),
        pytest.param("bert", "pll-word-l2r", (), marks=pytest.mark.slow),
        pytest.param("hybrid", "mntp", (), marks=pytest.mark.slow),
    ],
)
def test_accuracy_of_each_evaluation_is_that_of_judge(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, method: str,
    sets: tuple[str, ...],
) -> None:  # fmt: skip
    of_pairs = (f"eval.max_pairs={ALL}", f"eval.pairs_method={method}", "train.best_by=pairs")
    run = tmp_path / "run"
    _tiny.pretrain(folder / f"{name}.yaml", run, *_sets(folder, *of_pairs, *sets))
    found = _accuracies(run)
    assert [*found] == [2, 4]
    for step, accuracy in found.items():
        saved = str(files.checkpoint_path(run, step))
        capsys.readouterr()
        asked = ("--pairs", str(folder / "pairs.jsonl"), "--method", method, "--json")
        assert cli.run(["judge", saved, *asked]) == 0
        assert json.loads(capsys.readouterr().out)["accuracy"] == accuracy
    best = files.read_pointer(run, "best")
    assert best is not None
    assert best.name == f"step-{max(found, key=lambda step: found[step]):08}"
    if name != "gpt2":
        return
    _tiny.pretrain(folder / f"{name}.yaml", tmp_path / "without", *sets)
    for ours, theirs in _tiny.figures_of_both(run, tmp_path / "without"):
        ours.pop("metrics", None)
        assert ours == theirs


@pytest.mark.slow
def test_stopped_run_is_judged_by_the_same_pairs(folder: Path, tmp_path: Path) -> None:
    path, sets = folder / "gpt2.yaml", _sets(folder, "train.tokens_per_step=2048")
    _tiny.pretrain(path, tmp_path / "whole", *sets)
    _tiny.pretrain_with_stops(path, tmp_path / "stopped", [12], *sets)
    assert _tiny.metrics(tmp_path / "stopped") == _tiny.metrics(tmp_path / "whole")


@pytest.mark.slow
def test_signal_while_pairs_are_scored_ends_the_run_within_a_batch(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, sets = folder / "gpt2.yaml", _sets(folder, f"eval.max_pairs={ALL}")
    _tiny.pretrain(path, tmp_path / "whole", *sets)
    stop, batches, write = StopFlag(), list[int](), Likelihood._write

    def write_and_stop(self: Likelihood, *values: Any) -> None:
        write(self, *values)
        batches.append(len(batches))
        stop.signal = signal.SIGINT if len(batches) == 2 else None

    with monkeypatch.context() as patch:
        patch.setattr(judged, "Likelihood", partial(Likelihood, tokens_per_batch=64))
        patch.setattr(Likelihood, "_write", write_and_stop)
        with pytest.raises(Stopped, match="saved at step 2; the same command resumes the run"):
            _tiny.pretrain(path, tmp_path / "stopped", *sets, stop=stop)
    assert len(batches) == 2
    assert _accuracies(tmp_path / "stopped") == {}
    _tiny.pretrain(path, tmp_path / "stopped", *sets)
    assert _tiny.metrics(tmp_path / "stopped") == _tiny.metrics(tmp_path / "whole")


@pytest.mark.slow
def test_run_records_its_pairs_and_says_when_they_have_changed(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory, file = RunDirectory(tmp_path / "run"), tmp_path / "some.jsonl"
    lines = (folder / "pairs.jsonl").read_text("utf-8").splitlines(keepends=True)
    file.write_text("".join(lines), "utf-8")
    sets = (f"eval.pairs=[{file}]", "eval.max_pairs=9")
    stop = _tiny.StopAtStep(directory.path, 2)
    with pytest.raises(TryAgain):
        _tiny.pretrain(folder / "gpt2.yaml", directory.path, *sets, stop=stop)
    before = directory.status()["pairs"]
    assert (before["judged"], before["method"]) == (9, "log-probability")
    ((entry,),) = read_json(directory.path / DATA_FILES)["pairs"]
    assert (entry["path"], entry["sha256"]) == (str(file), file_sha256(file))
    assert "eval.pairs" not in capsys.readouterr().err

    file.write_text("".join(lines[1:]), "utf-8")
    _tiny.pretrain(folder / "gpt2.yaml", directory.path, *sets)
    now = directory.status()["pairs"]
    assert capsys.readouterr().err.split(" ", 2)[2].strip() == (
        "warning: eval.pairs: this run was judged by other pairs so far (9 pairs, log-probability, "
        f"files {before['sha256'][:12]}) than from here on (9 pairs, log-probability, files "
        f"{now['sha256'][:12]}): the accuracies are not comparable"
    )
    assert now["sha256"] != before["sha256"]


def test_other_pairs_are_named_of_a_run_in_the_home_directory(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NLPKIT_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "run"
    path.mkdir()
    before = {"judged": 7, "method": "log-probability", "sha256": "f" * 64}
    RunDirectory(path).set_status(pairs=before)
    resolved = recipe.load(str(folder / "gpt2.yaml"), [*_sets(folder), "out=~/run"])
    planning.make(resolved, path, "cpu", Log(NORMAL))
    assert "judged by other pairs so far (7 pairs, log-probability," in capsys.readouterr().err


def _plan(path: Path, *sets: str) -> planning.Planned:
    resolved = recipe.load(str(path), [*sets, f"out={json.dumps(str(path.parent / 'run'))}"])
    return planning.make(resolved, path.parent / "run", "cpu", Log(QUIET))


@pytest.mark.parametrize(("name", "in_sequences"), [
    ("gpt2", lambda tokens: tokens),  # the end token before it, and no state behind its last one
    ("bert", lambda tokens: tokens * (tokens + 2)),
])  # fmt: skip
def test_sample_costs_at_most_a_twentieth_of_the_tokens_trained_on(
    folder: Path, name: str, in_sequences: object
) -> None:
    path, sets = folder / f"{name}.yaml", _sets(folder, "train.tokens_per_step=4096")
    judge = _plan(path, *sets).judge
    assert judge is not None
    figures = judge.describe()
    texts = [len(text) for text in judge.encoded]
    assert figures["tokens"] == sum(map(in_sequences, texts))  # type: ignore[call-overload]
    # Batches are not quite full; there are two steps of 4,096 tokens for each evaluation.
    most = 0.05 * 2 * 4096
    assert 0.9 * most - max(texts) ** 2 < figures["tokens"] <= most
    assert figures["run_share"] == pytest.approx(figures["tokens"] / (2 * 4096), rel=0.1)
    assert 1 < figures["judged"] < figures["found"] == ALL
    # Another seed has the same pairs, and a larger sample begins with them.
    other = _plan(path, *sets, "seed=2").judge
    larger = _plan(path, *sets, f"eval.max_pairs={figures['judged'] + 3}").judge
    assert other is not None
    assert larger is not None
    keys = [text.make_key() for text in judge.encoded]
    assert [text.make_key() for text in other.encoded][: len(keys)] == keys
    assert [text.make_key() for text in larger.encoded][: len(keys)] == keys
    assert len(larger.encoded) == len(keys) + 6
    # A step has as many tokens however often an epoch has each text.
    data = f"data.train=[{{files: {folder / 'train.txt'}, weight: 4}}]"
    assert (weighted := _plan(path, *sets, data).judge)
    assert weighted.describe()["run_share"] == pytest.approx(figures["run_share"], rel=0.1)
    # A budget of time says not what the share of a run is; the number of pairs does.
    budget = ("train.budget=1m", "train.warmup_ratio=0.1", "train.warmup_steps=0")
    timed = _plan(path, *sets, *budget, "train.eval_every=null", "eval.max_pairs=all").judge
    assert timed is not None
    assert timed.describe() | {"tokens": 0} == {
        "found": ALL, "judged": ALL, "tokens": 0, "run_share": None,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "code", "said"),
    [
        (None, 4, "no such file: pairs.jsonl; looked in "),
        ("", 3, "PLACE/pairs.jsonl: empty file"),
        ('{"sentence_good": "a", "sentence_bad": "b"}\n{"sentence_good": "a"}\n', 3,
         'PLACE/pairs.jsonl:2: no "sentence_bad"'),
        ('{"sentence_good": "a"\n', 3, "PLACE/pairs.jsonl:1: broken JSON"),
    ],
)  # fmt: skip
def test_wrong_pairs_are_one_line_with_the_line_of_the_recipe(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str | None, code: int,
    said: str,
) -> None:  # fmt: skip
    path = tmp_path / "wrong.yaml"
    named = "eval:\n  pairs:\n    - pairs.jsonl\n"  # from the folder of the recipe
    path.write_text((folder / "gpt2.yaml").read_text("utf-8") + named, encoding="utf-8")
    if text is not None:
        (tmp_path / "pairs.jsonl").write_text(text, encoding="utf-8")
    assert cli.run(["pretrain", str(path), "--out", str(tmp_path / "run"), "-q"]) == code
    errors = capsys.readouterr().err.splitlines()
    assert len(errors) == 1
    said = said.replace("PLACE", str(tmp_path))
    assert errors[0].startswith(f"nlpkit: {path}:10:7: eval.pairs.0: {said}")


@pytest.mark.slow
@pytest.mark.parametrize("shards", [{}, FSDP], ids=["ddp", "fsdp"])
def test_two_processes_find_the_accuracy_of_one(
    folder: Path, tmp_path: Path, shards: dict[str, str]
) -> None:
    sets = [each for one in _sets(folder, "train.precision=fp32") for each in ("--set", one)]
    for number, env in ((1, {}), (2, shards)):
        verb = ("pretrain", folder / "gpt2.yaml", "--out", tmp_path / str(number), *sets)
        done = launched(number, *verb, **env)
        assert done.returncode == 0, done.stderr
    assert _accuracies(tmp_path / "1") == _accuracies(tmp_path / "2")


def test_pairs_are_judged_by_the_backend_that_takes_float32(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    compute = Likelihood.compute_log_probs

    def watched(likelihood: Likelihood, *given: Any) -> Any:
        seen.append(likelihood.opened.model.backend)
        return compute(likelihood, *given)

    monkeypatch.setattr(Likelihood, "compute_log_probs", watched)
    sets = _sets(folder, "attention.backend=reference", "train.steps=2", "eval.max_pairs=2")
    _tiny.pretrain(folder / "gpt2.yaml", tmp_path / "run", *sets)
    assert seen == ["auto"]
