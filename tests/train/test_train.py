"""The loop: what it computes, and that a stopped run goes on as if it had not been stopped."""

import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from nlpkit import cli
from nlpkit.checkpoints import files, integrity
from nlpkit.data.loader import Step, Stream
from nlpkit.errors import (
    DivergedError,
    FileError,
    NlpkitError,
    OutOfMemory,
    Stopped,
    UsageError,
)
from nlpkit.models.cpm_ant.model import Model
from nlpkit.train import held_out, loop
from nlpkit.train.log import NORMAL
from tests import _tiny
from tests._formats import from_hf


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A recipe and the directory of its run that nothing interrupted."""
    folder = tmp_path_factory.mktemp("whole")
    path = _tiny.write(folder)
    _tiny.pretrain(path, folder / "run")
    return path, folder / "run"


@pytest.fixture(scope="module")
def stopped(whole, tmp_path_factory: pytest.TempPathFactory) -> Callable[[int, Path], None]:
    """Put a copy of the run, stopped after so many looks at the flag, into a directory."""

    @cache
    def made(reads: int) -> Path:
        run = tmp_path_factory.mktemp("stopped")
        with pytest.raises(NlpkitError):
            _tiny.pretrain(whole[0], run, stop=_tiny.StopAfter(reads))
        return run

    def copy(reads: int, place: Path) -> None:
        shutil.copytree(made(reads), place, symlinks=True, dirs_exist_ok=True)

    return copy


def _tensors(checkpoint_path: Path) -> dict[str, torch.Tensor]:
    weights = load_file(checkpoint_path / "model.safetensors")
    return weights | load_file(checkpoint_path / "optimizer.safetensors")


def _same_bits(first: Path, second: Path) -> bool:
    ours, theirs = _tensors(first), _tensors(second)
    return ours.keys() == theirs.keys() and all(torch.equal(ours[n], theirs[n]) for n in ours)


def test_run_directory_holds_what_the_specification_says(whole) -> None:
    _, run = whole
    records = _tiny.metrics(run)
    assert [r["step"] for r in records if "loss" in r] == list(range(1, 13))
    assert [r["step"] for r in records if "held_out" in r] == [5, 10, 12]
    assert {"tokens", "targets", "losses", "lr", "grad_norm"} <= records[0].keys()
    assert records[0]["losses"].keys() == {"infilling", "generation"}
    final = files.read_pointer(run, "latest")
    assert final is not None
    assert final.name == "step-00000012"
    assert integrity.find_corruption(final) is None
    assert len(files.list_checkpoints(run)) <= 3  # keep: 2, and the best
    assert json.loads((run / "run.json").read_text())["finished"] is True


def test_loss_falls_and_best_is_where_it_was_lowest(whole) -> None:
    _, run = whole
    held_out = {r["step"]: r["held_out"]["loss"] for r in _tiny.metrics(run) if "held_out" in r}
    assert held_out[12] < held_out[5] < math.log(200)
    best = files.read_pointer(run, "best")
    assert best is not None
    assert int(best.name[5:]) == min(held_out, key=held_out.__getitem__)


def test_checkpoint_opens_in_transformers_with_our_logits(whole) -> None:
    _, run = whole
    place = files.read_pointer(run, "latest")
    theirs = AutoModelForCausalLM.from_pretrained(place)
    tokenizer = AutoTokenizer.from_pretrained(place)
    assert type(theirs).__name__ == "CpmAntForCausalLM"
    assert len(tokenizer) == theirs.config.vocab_size
    ids = tokenizer("天地人山水花鸟鱼虫春夏秋冬", return_tensors="pt")["input_ids"]

    config, state = from_hf("cpm_ant", place)
    ours = Model(config, theirs.config.vocab_size).eval()
    ours.load_state_dict(state)
    length, vocab = config.prompt_length, theirs.config.vocab_size
    prompt = vocab + config.prompts.generation * length + torch.arange(length)
    tokens = torch.cat([prompt, ids[0]])
    segment = torch.tensor([0] * length + [2] * ids.shape[1])
    everything = torch.ones(len(tokens), dtype=torch.bool)
    hidden = ours((len(tokens),), tokens, segment, torch.arange(len(tokens)), everything)
    with torch.no_grad():
        expected = theirs(ids).logits[0]
    torch.testing.assert_close(ours.logits(hidden)[length:], expected, atol=1e-5, rtol=0)


# The flag is read about three times a step; evaluations read it once a batch.
@pytest.mark.parametrize(
    "reads",
    [
        [2],
        [22, 9, 11],
        *(
            pytest.param(reads, marks=pytest.mark.slow)
            for reads in ([8], [12, 12], [19], [28], [35, 40])
        ),
    ],
)
def test_stopped_run_goes_on_bit_for_bit(whole, tmp_path: Path, reads: list[int]) -> None:
    path, run = whole
    place = _tiny.pretrain_with_stops(path, tmp_path / "run", reads)
    assert _tiny.metrics(tmp_path / "run") == _tiny.metrics(run)
    assert _same_bits(place, files.read_pointer(run, "latest"))


def test_stop_saves_the_last_whole_step_and_says_so(whole, tmp_path: Path) -> None:
    path, _ = whole
    with pytest.raises(NlpkitError, match=r"saved at step \d+; the same command resumes the run"):
        _tiny.pretrain(path, tmp_path, stop=_tiny.StopAfter(20))
    latest = files.read_pointer(tmp_path, "latest")
    assert latest is not None
    last = max(r["step"] for r in _tiny.metrics(tmp_path))
    assert latest.name == f"step-{last:08d}"


def test_run_of_an_older_version_keeps_its_schedule(tmp_path: Path) -> None:
    path, run = _tiny.write(tmp_path), tmp_path / "run"
    sets = ("train.schedule=linear", "train.steps=6", "train.warmup_steps=2")
    for step in (3, 4):  # stopped twice, so that its own checkpoints go on with it
        with pytest.raises(NlpkitError, match="saved at step"):
            _tiny.pretrain(path, run, *sets, stop=_tiny.StopAtStep(run, step))
        if step == 3:
            start = files.list_checkpoints(run)[0].path
            state = json.loads((start / "training.json").read_text())
            assert state.pop("zero_at_last_step") is False
            _tiny.reseal(start, "training.json", json.dumps(state))
    _tiny.pretrain(path, run, *sets)
    rates = {r["step"]: r["lr"] for r in _tiny.metrics(run) if "loss" in r}
    # By hand: after the peak at step 2 the rate falls by 1/5 a step, and by 1/4 in the old run.
    assert rates[6] == 0.0
    assert rates[5] == pytest.approx(0.01 / 4)
    _tiny.pretrain(path, tmp_path / "new", *sets)
    rates = {r["step"]: r["lr"] for r in _tiny.metrics(tmp_path / "new") if "loss" in r}
    assert [rates[5], rates[6]] == pytest.approx([0.01 * 2 / 5, 0.01 / 5])


def test_workers_do_not_change_the_run(whole, tmp_path: Path) -> None:
    path, run = whole
    place = _tiny.pretrain(path, tmp_path, "train.workers=2")
    assert _tiny.metrics(tmp_path) == _tiny.metrics(run)
    assert _same_bits(place, files.read_pointer(run, "latest"))


def test_killed_worker_is_one_line_and_the_last_whole_step_is_saved(
    whole, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, run = whole
    parent, make = os.getpid(), Stream.__getitem__

    def dies(stream: Stream, step: int) -> Step:
        if step == 5 and os.getpid() != parent:  # the sixth step, as the kernel kills
            os.kill(os.getpid(), signal.SIGKILL)
        return make(stream, step)

    monkeypatch.setattr(Stream, "__getitem__", dies)
    with pytest.raises(OutOfMemory) as error:
        _tiny.pretrain(path, tmp_path, "train.workers=2")
    # Steps that the other worker has begun are lost, too.
    (saved,) = re.findall(
        r"^a worker process ended by itself \(killed, usually for lack of memory\); fewer workers "
        r"need less: train.workers: 0; saved at step ([1-5]); the same command resumes the run$",
        str(error.value),
    )
    monkeypatch.undo()
    assert files.list_checkpoints(tmp_path)[0].step == int(saved)
    place = _tiny.pretrain(path, tmp_path)
    assert _tiny.metrics(tmp_path) == _tiny.metrics(run)
    assert _same_bits(place, files.read_pointer(run, "latest"))


def test_metrics_written_after_the_last_save_are_taken_back(whole, stopped, tmp_path: Path) -> None:
    path, run = whole
    stopped(20, tmp_path)
    with open(tmp_path / "metrics.jsonl", "a") as file:  # as kill -9 leaves it
        file.write('{"step": 11, "tokens": 1, "loss": 99.0}\n{"step": 12, "tok')
    _tiny.pretrain(path, tmp_path)
    assert _tiny.metrics(tmp_path) == _tiny.metrics(run)


def test_damaged_line_of_metrics_is_named_and_left_out(
    whole, stopped, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, run = whole
    stopped(20, tmp_path)
    file = tmp_path / "metrics.jsonl"
    first, *rest = file.read_text(encoding="utf-8").splitlines(keepends=True)
    file.write_text("".join([first, '{"step": 3, "tok\n', *rest]), encoding="utf-8")
    _tiny.pretrain(path, tmp_path, verbosity=NORMAL)
    assert (
        f"warning: {file}:2: no record of a step; the line is left out" in capsys.readouterr().err
    )
    assert _tiny.metrics(tmp_path) == _tiny.metrics(run)


def test_run_that_lost_its_recipe_is_not_taken_for_finished(
    whole, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, run = whole
    shutil.copytree(run, tmp_path / "run", symlinks=True)
    (tmp_path / "run/recipe.yaml").unlink()
    command = ["pretrain", str(path), "--out", str(tmp_path / "run"), "--set", "train.lr=0.5"]
    assert cli.run(command) == 4
    assert f"{tmp_path}/run/recipe.yaml: no such file, and the settings" in capsys.readouterr().err
    assert cli.run([*command, "--allow-change"]) == 0
    assert "lr: 0.5" in (tmp_path / "run/recipe.yaml").read_text(encoding="utf-8")


def test_diverged_run_stops_at_the_step_and_keeps_the_last_good_state(tmp_path: Path) -> None:
    path = _tiny.write(tmp_path)
    sets = ("train.clip=null", "train.schedule=constant", "train.warmup_steps=0")
    with pytest.raises(DivergedError, match=r"step \d+: .* not finite; this step was not applied"):
        _tiny.pretrain(path, tmp_path / "run", "train.lr=1.0e+30", *sets)
    for found in files.list_checkpoints(tmp_path / "run"):
        tensors = load_file(found.path / "model.safetensors")
        assert all(t.isfinite().all() for t in tensors.values())


_NO_WARMUP = ("train.schedule=constant", "train.warmup_steps=0")


def test_weights_that_are_not_finite_are_neither_saved_nor_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, run = _tiny.write(tmp_path), tmp_path / "run"
    sets = (*_NO_WARMUP, "data.valid=[]", "train.eval_every=null", "train.steps=3")
    sets = (*sets, "train.save_every=1")
    # 1e45 is infinite in float32: the last update is applied to weights of a finite loss.
    monkeypatch.setattr(loop, "lr_factor", lambda step, _: 1e45 if step == 3 else 1.0)
    with pytest.raises(DivergedError) as error:
        _tiny.pretrain(path, run, *sets)
    last = files.checkpoint_path(run, 2)
    assert str(error.value) == (
        "step 3: weights of token_embedding are not finite; nothing is saved; "
        f"the last checkpoint is {last}; try a lower train.lr or train.clip"
    )
    assert [c.step for c in files.list_checkpoints(run)] == [2, 1]
    assert json.loads((run / "run.json").read_text())["finished"] is False
    monkeypatch.undo()
    place = _tiny.pretrain(path, run, *sets)
    assert all(t.isfinite().all() for t in _tensors(place).values())


def test_held_out_loss_that_is_not_finite_is_no_finished_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, run = _tiny.write(tmp_path), tmp_path / "run"
    figures = {"loss": math.inf, "losses": {}, "perplexity": None, "bits_per_character": None}
    monkeypatch.setattr(held_out, "_figures", lambda *_: figures)
    with pytest.raises(DivergedError, match="step 5: held-out loss inf is not finite; it is not"):
        _tiny.pretrain(path, run)
    assert [c.step for c in files.list_checkpoints(run)] == [4]
    assert json.loads((run / "run.json").read_text())["finished"] is False
    assert "Infinity" not in (run / "metrics.jsonl").read_text()  # which JSON does not have


def test_changed_recipe_is_refused_with_each_key_and_both_values(
    whole, stopped, tmp_path: Path
) -> None:
    path, _ = whole
    stopped(20, tmp_path)
    with pytest.raises(UsageError) as error:
        _tiny.pretrain(path, tmp_path, "train.lr=0.5", "seed=7")
    assert "train.lr: 0.01 then, 0.5 now" in str(error.value)
    assert "seed: 1 then, 7 now" in str(error.value)
    _tiny.pretrain(path, tmp_path, "train.save_every=3")  # cannot matter


def test_start_that_failed_before_a_checkpoint_binds_nobody(tmp_path: Path) -> None:
    path = _tiny.write(tmp_path)
    with pytest.raises(UsageError, match="does not fit in a batch"):
        _tiny.pretrain(path, tmp_path / "run", "train.tokens_per_batch=32")
    assert not (tmp_path / "run" / "tokenizer").exists()
    place = _tiny.pretrain(path, tmp_path / "run", "tokenizer.vocab_size=50")
    assert len((place / "vocab.txt").read_text(encoding="utf-8").splitlines()) == 50


def test_start_that_fails_leaves_no_run_directory_and_loads_no_torch(tmp_path: Path) -> None:
    path = _tiny.write(tmp_path)
    (tmp_path / "train.txt").unlink()
    code = (
        "import sys; from nlpkit import cli; code = cli.run(sys.argv[1:]); "
        "sys.exit(99 if 'torch' in sys.modules else code)"
    )
    out = tmp_path / "runs" / "tiny"
    words = [sys.executable, "-c", code, "pretrain", path, "--out", out]
    ended = subprocess.run(words, capture_output=True, text=True, check=False)
    assert ended.returncode == 4, ended.stderr
    said = rf"nlpkit: {path}:\d+:\d+: data\.train\.0: no such file: {tmp_path}/train.txt\n"
    assert re.fullmatch(said, ended.stderr)
    assert not out.exists()


def test_start_that_fails_later_leaves_no_run_directory_either(tmp_path: Path) -> None:
    path = _tiny.write(tmp_path)
    with pytest.raises(UsageError, match="does not fit in a batch"):
        _tiny.pretrain(path, tmp_path / "run", "train.tokens_per_batch=32")
    assert not (tmp_path / "run").exists()
    (tmp_path / "run").mkdir()  # a directory of the user's stays
    with pytest.raises(UsageError, match="does not fit in a batch"):
        _tiny.pretrain(path, tmp_path / "run", "train.tokens_per_batch=32")
    assert (tmp_path / "run").is_dir()


@pytest.mark.parametrize("verb", [("pretrain",), ("pretrain", "--dry-run"), ("plan",)])
def test_batch_that_is_too_small_is_refused_with_its_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], verb: tuple[str, ...]
) -> None:
    path = _tiny.write(tmp_path)
    text, number = re.subn(r"tokens_per_batch: \d+", "tokens_per_batch: 32", path.read_text())
    assert number == 1
    path.write_text(text)
    out = f"out={tmp_path / 'run'}"
    assert cli.run([*verb, str(path), "--device", "cpu", "--set", out, "-q"]) == 2
    said = rf"nlpkit: {path}:\d+:\d+: train\.tokens_per_batch: a sequence of \d+ tokens does not"
    assert re.match(said, capsys.readouterr().err)


def test_files_of_a_checkpoint_follow_the_umask(tmp_path: Path) -> None:
    path = _tiny.write(tmp_path)
    before = os.umask(0o027)
    try:
        place = _tiny.pretrain(path, tmp_path / "run", "train.steps=1", "train.warmup_steps=1")
    finally:
        os.umask(before)
    modes = {file.name: oct(file.stat().st_mode & 0o777) for file in place.iterdir()}
    assert set(modes.values()) == {"0o640"}, modes


def test_allowed_change_is_kept_for_the_next_time(tmp_path: Path) -> None:
    path = _tiny.write(tmp_path)
    _tiny.pretrain(path, tmp_path / "run", "train.steps=4")
    _tiny.pretrain(path, tmp_path / "run", "train.steps=6", allow_change=True)
    _tiny.pretrain(path, tmp_path / "run", "train.steps=6")
    assert [r["step"] for r in _tiny.metrics(tmp_path / "run") if "loss" in r] == [1, 2, 3, 4, 5, 6]


def test_changed_data_are_refused(tmp_path: Path) -> None:
    path = _tiny.write(tmp_path)
    with pytest.raises(NlpkitError):
        _tiny.pretrain(path, tmp_path / "run", stop=_tiny.StopAfter(20))
    with open(tmp_path / "train.txt", "a", encoding="utf-8") as file:
        file.write("天地人山水花鸟\n")
    with pytest.raises(UsageError, match="was trained on other data: their content"):
        _tiny.pretrain(path, tmp_path / "run")


@pytest.mark.slow
def test_changed_tokenizer_of_a_run_is_named_and_can_be_restored(tmp_path: Path) -> None:
    path = _tiny.write(tmp_path)
    with pytest.raises(NlpkitError):
        _tiny.pretrain(path, tmp_path / "run", stop=_tiny.StopAfter(20))
    vocabulary = tmp_path / "run" / "tokenizer" / "vocab.txt"
    text = vocabulary.read_text(encoding="utf-8")
    vocabulary.write_text(text.replace("天", "夭"), encoding="utf-8")
    with pytest.raises(UsageError, match="run/tokenizer: not the tokenizer that") as refused:
        _tiny.pretrain(path, tmp_path / "run")
    (newest,) = re.findall(r"copy its files from (\S+),", str(refused.value))
    shutil.copy(Path(newest) / "vocab.txt", vocabulary)
    assert vocabulary.read_text(encoding="utf-8") == text
    _tiny.pretrain(path, tmp_path / "run")


def test_damaged_newest_checkpoint_gives_way_to_the_one_before(
    whole, stopped, tmp_path: Path
) -> None:
    path, run = whole
    stopped(40, tmp_path)
    newest, before = files.list_checkpoints(tmp_path)[:2]
    weights = newest.path / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[len(content) // 2] ^= 1
    weights.write_bytes(content)
    warnings: list[str] = []
    assert integrity.find_newest_valid(tmp_path, warnings.append) == before
    assert "model.safetensors has changed since it was written" in warnings[0]
    place = _tiny.pretrain(path, tmp_path)
    assert _tiny.metrics(tmp_path) == _tiny.metrics(run)
    assert _same_bits(place, files.read_pointer(run, "latest"))


@pytest.mark.parametrize("linked", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_copy_of_another_steps_checkpoint_gives_way_to_the_one_before(
    whole, stopped, tmp_path: Path, linked: bool
) -> None:
    path, run = whole
    stopped(40, tmp_path)
    newest, before = files.list_checkpoints(tmp_path)[:2]
    shutil.rmtree(newest.path)
    if linked:
        newest.path.symlink_to(before.path)
    else:
        shutil.copytree(before.path, newest.path)
    warnings: list[str] = []
    assert integrity.find_newest_valid(tmp_path, warnings.append) == before
    assert f"(it is step {before.step} by its manifest.json, copied to this name)" in warnings[0]
    place = _tiny.pretrain(path, tmp_path)
    assert _tiny.metrics(tmp_path) == _tiny.metrics(run)
    assert _same_bits(place, files.read_pointer(run, "latest"))


def test_all_damaged_is_an_error_and_never_a_fresh_start(whole, stopped, tmp_path: Path) -> None:
    path, _ = whole
    stopped(40, tmp_path)
    for found in files.list_checkpoints(tmp_path):
        (found.path / "optimizer.safetensors").unlink()
    with pytest.raises(NlpkitError, match="checkpoints are damaged"):
        _tiny.pretrain(path, tmp_path)


def test_best_checkpoint_is_linked_again_where_a_damaged_one_was_the_best(tmp_path: Path) -> None:
    path, run = _tiny.write(tmp_path, documents=30), tmp_path / "run"
    sets = ("train.steps=3", "train.save_every=1", "train.eval_every=3", "train.keep=1")
    _tiny.pretrain(path, run, *sets, "train.keep=9")
    for name in ("step-00000003", "step-00000002"):
        checkpoint = run / "checkpoints" / name
        text = files.training_file(checkpoint).read_text("utf-8")
        state = json.loads(text)["state"] | {"best_step": 1, "best_value": 0.0}
        text = json.dumps(json.loads(text) | {"state": state})
        _tiny.reseal(checkpoint, files.training_file(checkpoint).name, text)
    files.set_pointer(run, "best", checkpoint.with_name("step-00000003"))
    (checkpoint.with_name("step-00000003") / "config.json").unlink()
    _tiny.pretrain(path, run, *sets, allow_change=True)
    assert [c.step for c in files.list_checkpoints(run)] == [3, 1]
    assert files.read_pointer(run, "best") == files.checkpoint_path(run, 1).resolve()


def test_checkpoint_without_a_manifest_is_put_aside_and_named(
    whole, stopped, tmp_path: Path
) -> None:
    path, run = whole
    stopped(40, tmp_path)
    newest, before = files.list_checkpoints(tmp_path)[:2]
    (newest.path / "manifest.json").unlink()
    content = (newest.path / "model.safetensors").read_bytes()
    old = files.checkpoint_path(tmp_path, before.step - 1)  # of the user, older than the others
    shutil.copytree(newest.path, old)
    aside = newest.path.with_name(f"damaged-{newest.path.name}")
    shutil.copytree(newest.path, aside)  # that name is taken already
    warnings: list[str] = []
    assert integrity.find_newest_valid(tmp_path, warnings.append) == before
    (line,) = warnings
    assert line == (
        f"{newest.path} is damaged (manifest.json is missing); renamed to "
        f"{aside.name}.2; {before.path.name} is used"
    )
    place = _tiny.pretrain(path, tmp_path)
    assert _same_bits(place, files.read_pointer(run, "latest"))
    assert (old / "model.safetensors").read_bytes() == content
    kept = aside.with_name(f"{aside.name}.2")
    assert (kept / "model.safetensors").read_bytes() == content


def test_all_without_a_manifest_is_an_error_and_nothing_is_removed(whole, tmp_path: Path) -> None:
    path, _ = whole
    mine = files.checkpoint_path(tmp_path, 5)
    mine.mkdir(parents=True)
    (mine / "model.safetensors").write_bytes(b"weights of mine")
    with pytest.raises(FileError, match="the only checkpoint is damaged"):
        _tiny.pretrain(path, tmp_path)
    assert (mine / "model.safetensors").read_bytes() == b"weights of mine"


def test_removal_that_was_killed_is_finished_at_the_next_start(
    whole, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, _ = whole
    _tiny.pretrain(path, tmp_path, "train.steps=8")
    monkeypatch.setattr(shutil, "rmtree", lambda *_, **__: None)  # killed before the files go
    files.prune(tmp_path, 1)
    monkeypatch.undo()
    assert [c.step for c in files.list_checkpoints(tmp_path)] == [8]
    directory = tmp_path / "checkpoints"
    assert list(directory.glob(".step-*"))
    (tmp_path / ".run.json").write_text("{")  # as a killed write leaves it
    _tiny.pretrain(path, tmp_path, "train.steps=8")
    assert not list(directory.glob(".*"))
    assert not list(tmp_path.glob(".*"))


# A step so small that nothing moves: the run ends with the weights that it starts with.
_STILL = ("train.lr=1.0e-30", "train.weight_decay=0.0", "train.steps=1", "train.warmup_steps=1")


def _starting_from(start: Path, path: Path, other: Path) -> Path:
    """Write the recipe in `path` with `init_from: start` as `other`; return it."""
    head, _, tail = path.read_text(encoding="utf-8").partition("model: {")
    text = head + f"init_from: {start}\n" + tail[tail.index("}\n") + 2 :]
    tokenizer = "tokenizer: {kind: cpm_ant, vocab_size: 200, min_frequency: 1}\n"
    other.write_text(text.replace(tokenizer, ""), encoding="utf-8")
    return other


def test_init_from_starts_with_those_weights(whole, tmp_path: Path) -> None:
    path, run = whole
    start = files.read_pointer(run, "latest")
    other = _starting_from(start, path, tmp_path / "more.yaml")
    place = _tiny.pretrain(other, tmp_path / "run", *_STILL)
    name = "cpmant.input_embedding.weight"
    assert torch.equal(_tensors(start)[name], _tensors(place)[name])
    # Its dropout is 0.1; the resumed run keeps the other rate, too.
    sets = ("model.dropout=0.0", "train.eval_every=null")
    _tiny.pretrain(other, tmp_path / "none", *sets, "train.steps=4")
    _tiny.pretrain(other, tmp_path / "none", *sets, "train.steps=5", allow_change=True)
    saved = files.read_pointer(tmp_path / "none", "latest")
    assert saved is not None
    assert start is not None
    rates = [json.loads((p / "config.json").read_text())["dropout_p"] for p in (start, saved)]
    assert rates == [0.1, 0.0]
    with pytest.raises(UsageError, match=r"^model\.hidden_dropout: .* no such setting.*dropout"):
        _tiny.pretrain(other, tmp_path / "x", "model.hidden_dropout=0.0")
    with pytest.raises(UsageError, match=r"^model\.dropout: .*less than 1"):
        _tiny.pretrain(other, tmp_path / "x", "model.dropout=1.5")


def test_init_from_a_run_takes_its_best_checkpoint_or_its_latest_and_says_so(
    whole, tmp_path: Path, capsys
) -> None:
    path, run = whole
    run = Path(shutil.copytree(run, tmp_path / "start", symlinks=True))
    other = _starting_from(run, path, tmp_path / "more.yaml")
    files.set_pointer(run, "best", files.list_checkpoints(run)[-1].path)
    for number, which in enumerate(("best", "latest")):
        start = files.read_pointer(run, which)
        place = _tiny.pretrain(other, tmp_path / f"run{number}", *_STILL, verbosity=NORMAL)
        name = "cpmant.input_embedding.weight"
        assert torch.equal(_tensors(start)[name], _tensors(place)[name])
        assert (
            f"init_from: {run}: its {which} checkpoint, {start.name}\n" in capsys.readouterr().err
        )
        (run / "checkpoints" / "best").unlink(missing_ok=True)  # as without an evaluation


@pytest.mark.parametrize("name", ["model.safetensors", "vocab.txt", "nlpkit.json"])
def test_init_from_with_a_flipped_bit_is_refused(whole, tmp_path: Path, name: str) -> None:
    path, run = whole
    start = Path(shutil.copytree(files.read_pointer(run, "latest"), tmp_path / "start"))
    content = bytearray((start / name).read_bytes())
    content[-3] ^= 1
    (start / name).write_bytes(content)
    other = _starting_from(start, path, tmp_path / "more.yaml")
    with pytest.raises(FileError) as error:
        _tiny.pretrain(other, tmp_path / "run", *_STILL)
    assert str(error.value) == (
        f"{start}: {name} has changed since it was written (its hash differs)"
    )


def test_stop_error_is_named_after_its_signal() -> None:
    flag = _tiny.StopFlag()
    said = "another process was told to stop, or the time limit is reached; saved"
    assert str(flag.ending("saved")) == said
    flag.signal = 15
    error = flag.ending("saved")
    assert isinstance(error, Stopped)
    assert error.exit_code == 143
    assert str(error) == "stopped by SIGTERM; saved"
