"""Checkpoints that others made: whatever is in them, one line and exit code 4, nothing run or read
outside."""

import hashlib
import json
import pickle
import resource
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from nlpkit import cli
from nlpkit.checkpoints import files, integrity
from tests import _tiny

_SETS = (
    *("train.steps=3", "train.save_every=2", "data.valid=[]", "train.tokens_per_step=256"),
    *("train.eval_every=null", "train.warmup_steps=1"),
)
Change = Callable[[Path], object]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A folder with a recipe that begins at START, and one of the run whose checkpoints these are.

    The run has stopped at step 2 of 3.
    """
    folder = tmp_path_factory.mktemp("base")
    path = _tiny.write(folder, documents=60)
    _tiny.pretrain(path, folder / "run", *_SETS, "train.steps=2")
    text = path.read_text(encoding="utf-8")
    head, _, tail = text.partition("model: {")
    text = head + "init_from: START\n" + tail[tail.index("}\n") + 2 :]
    lines = [line for line in text.splitlines() if not line.startswith("tokenizer:")]
    (folder / "start.yaml").write_text("\n".join(lines), encoding="utf-8")
    return folder, folder / "run"


def _run(*arguments: object) -> int:
    from accelerate.state import AcceleratorState

    AcceleratorState._reset_state(reset_partial_state=True)
    sets = [word for each in _SETS for word in ("--set", each)]
    return cli.run(["pretrain", *map(str, arguments), "-q", *sets])


def _in_little_memory(run: Callable[[], int]) -> int:
    """Run with 4 GB more address space than now: what is huge must not be allocated."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + (4 << 30), before[1]))
    try:
        return run()
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def _put(name: str, content: bytes | str | dict | list) -> Change:
    if isinstance(content, (dict, list)):
        content = json.dumps(content)
    data = content.encode() if isinstance(content, str) else content
    return lambda directory: (directory / name).write_bytes(data)


def _set(name: str, *keys: str, value: Any) -> Change:
    """Set a value in a JSON file (remove it if None)."""

    def change(directory: Path) -> None:
        content = json.loads((directory / name).read_text(encoding="utf-8"))
        place = content
        for key in keys[:-1]:
            place = place[key]
        place[keys[-1]] = value
        if value is None:
            del place[keys[-1]]
        (directory / name).write_text(json.dumps(content), encoding="utf-8")

    return change


class _Payload:
    """Writes a file when unpickled."""

    def __init__(self, path: str):
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (Path(self.path),)


def _pickle(name: str) -> Change:
    def change(directory: Path) -> None:
        (directory / "model.safetensors").unlink()
        payload = pickle.dumps(_Payload(str(directory.parent / "RAN")))
        (directory / name).write_bytes(payload)

    return change


def _stored_as(dtype: torch.dtype, word: str) -> Change:
    """Store the weights with `word` in their name as integers or bools."""

    def change(directory: Path) -> None:
        tensors = load_file(directory / _WEIGHTS)
        cast = {n: t.to(dtype) if word in n else t for n, t in tensors.items()}
        assert any(tensor.dtype == dtype for tensor in cast.values())
        save_file(cast, directory / _WEIGHTS)

    return change


_CONFIG, _WEIGHTS, _INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
_STARTS: dict[str, tuple[Change, str]] = {
    "pickle as safetensors": (_pickle(_WEIGHTS), "not a readable safetensors file"),
    "pickle alone": (
        _pickle("pytorch_model.bin"),
        "bin: not a file of tensors alone",
    ),
    "giant header": (_put(_WEIGHTS, struct.pack("<Q", 2**62) + b"{}"), "header too large"),
    "empty weights": (_put(_WEIGHTS, b""), "not a readable safetensors file"),
    "half JSON": (_put(_CONFIG, "{nope"), "config.json: cannot be read"),
    "list": (_put(_CONFIG, []), "config.json: holds list, not a JSON object"),
    "null": (_put(_CONFIG, "null"), "config.json: holds NoneType"),
    "UTF-16": (_put(_CONFIG, "{}".encode("utf-16")), "config.json: cannot be read"),
    "deep": (_put(_CONFIG, "[" * 100_000), "config.json: cannot be read"),
    "absurd width": (_set(_CONFIG, "hidden_size", value=10**12), "hidden_size: must be at most"),
    "huge width": (_set(_CONFIG, "hidden_size", value=10**6), "config.json requires (200, 1000000"),
    "absurd depth": (_set(_CONFIG, "num_hidden_layers", value=10**9), "num_layers: must be at"),
    "huge depth": (_set(_CONFIG, "num_hidden_layers", value=900), "'layer 899' is missing"),
    "huge vocabulary": (_set(_CONFIG, "vocab_size", value=10**12), "does not fit the weights"),
    "negative width": (_set(_CONFIG, "hidden_size", value=-1), "must be greater than 0, got -1"),
    "word": (_set(_CONFIG, "hidden_size", value="big"), "expected an integer, got 'big'"),
    "word for vocabulary": (_set(_CONFIG, "vocab_size", value="x"), "does not fit the weights"),
    "half a head": (
        _set(_CONFIG, "num_attention_heads", value=2.5),
        "num_heads: expected an integer",
    ),
    "other heads": (_set(_CONFIG, "num_attention_heads", value=8), "config.json requires (48, 8)"),
    "no width": (_set(_CONFIG, "hidden_size", value=None), "'hidden_size' is missing"),
    "no type": (_set(_CONFIG, "model_type", value=None), "model_type None is none of"),
    "list of types": (_set(_CONFIG, "model_type", value=["cpmant"]), "is none of"),
    "notes": (_set(_CONFIG, "nlpkit", value=[]), "does not fit the weights"),
    "blocks": (_set(_CONFIG, "nlpkit", "prompt_blocks", value=[99] * 4), "out of bounds"),
    "shard above": (_put(_INDEX, {"weight_map": {"a": "../x.safetensors"}}), "is outside"),
    "shard elsewhere": (_put(_INDEX, {"weight_map": {"a": "/etc/passwd"}}), "is outside"),
    "shard of a number": (_put(_INDEX, {"weight_map": {"a": 5}}), "needs weight_map"),
    "index list": (_put(_INDEX, []), "holds list, not a JSON object"),
    "integer embeddings": (_stored_as(torch.int64, "input_embedding"), "is int64; weights"),
    "bool norms": (_stored_as(torch.bool, "layernorm"), "is bool; weights are floating-point"),
    "half index": (_put(_INDEX, "{x"), "index.json: cannot be read"),
}


@pytest.mark.fast_cases(12)
@pytest.mark.parametrize("case", _STARTS)
def test_hostile_init_from_is_one_line_and_exit_4(base, tmp_path: Path, capsys, case: str) -> None:
    folder, run = base
    change, said = _STARTS[case]
    start = tmp_path / "start"
    shutil.copytree(files.checkpoint_path(run, 2), start)
    (start / files.MANIFEST).unlink()  # its hashes would tell
    change(start)
    if (start / _INDEX).exists():
        (start / _WEIGHTS).unlink()  # which would be read in place of shards
    text = (folder / "start.yaml").read_text(encoding="utf-8").replace("START", str(start))
    (tmp_path / "r.yaml").write_text(text, encoding="utf-8")
    code = _in_little_memory(lambda: _run(tmp_path / "r.yaml", "--out", tmp_path / "out"))
    out, err = capsys.readouterr()
    assert (code, out) == (4, ""), err
    assert err.startswith(f"nlpkit: {start}")
    assert said in err
    assert len(err.splitlines()) == 1
    assert not (tmp_path / "RAN").exists()


@pytest.mark.parametrize("verb", ["eval", "convert", "generate"])
def test_weights_stored_as_integers_are_refused_by_every_verb(
    base, tmp_path: Path, capsys, verb: str
) -> None:
    start = tmp_path / "start"
    shutil.copytree(files.checkpoint_path(base[1], 2), start)
    (start / files.MANIFEST).unlink()
    _stored_as(torch.int64, "input_embedding")(start)
    more = {"eval": ["--data", str(base[0] / "valid.txt")], "convert": [str(tmp_path / "made")]}
    more["generate"] = [str(base[0] / "valid.txt")]
    assert cli.run([verb, str(start), *more[verb], "-q"]) == 4
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"nlpkit: {start}: token_embedding is int64; weights are floating")


def _sealed(change: Change) -> Change:
    """Return the change with the manifest made to agree: hashes protect from accidents only."""

    def both(directory: Path) -> None:
        change(directory)
        content = json.loads((directory / files.MANIFEST).read_text())
        for name in content["files"]:
            data = (directory / name).read_bytes()
            digest = hashlib.sha256(data).hexdigest()
            content["files"][name] = {"bytes": len(data), "sha256": digest}
        (directory / files.MANIFEST).write_text(json.dumps(content))

    return both


def _without_a_moment(directory: Path) -> None:
    moments = load_file(directory / files.OPTIMIZER_STATE)
    moments.pop(sorted(moments)[0])
    save_file(moments, directory / files.OPTIMIZER_STATE)


_STATE, _MANIFEST = files.TRAINING, files.MANIFEST
_RESUMES: dict[str, tuple[Change, str]] = {
    "manifest above": (
        _set(_MANIFEST, "files", "../../../../etc/passwd", value={"bytes": 1, "sha256": ""}),
        "'../../../../etc/passwd', which is outside the checkpoint",
    ),
    "manifest elsewhere": (
        _set(_MANIFEST, "files", "/etc/passwd", value={"bytes": 1, "sha256": ""}),
        "'/etc/passwd', which is outside the checkpoint",
    ),
    "manifest list": (_put(_MANIFEST, []), "manifest.json"),
    "manifest of lists": (_put(_MANIFEST, {"files": []}), "does not name training.json"),
    "manifest of nothing": (_put(_MANIFEST, {"files": {}}), "does not name training.json"),
    "manifest deep": (_put(_MANIFEST, "[" * 100_000), "manifest.json"),
    "state half": (_sealed(_put(_STATE, "{")), "training.json: not the state of a run"),
    "state list": (_sealed(_put(_STATE, [])), "training.json: not the state of a run"),
    "state word": (_sealed(_set(_STATE, "state", "step", value="2")), "of the wrong type"),
    "state negative": (_sealed(_set(_STATE, "state", "tokens", value=-1)), "of the wrong type"),
    "state position": (_sealed(_set(_STATE, "state", "position", value=7)), "not the state"),
    "state extra": (_sealed(_set(_STATE, "state", "nope", value=7)), "unexpected keyword"),
    "state without data": (_sealed(_set(_STATE, "data", value=None)), "'data'"),
    "moment missing": (_sealed(_without_a_moment), "does not fit the model of the recipe"),
    "moments pickled": (
        _sealed(_put(files.OPTIMIZER_STATE, pickle.dumps({}))),
        "optimizer.safetensors: Error while deserializing",
    ),
}


@pytest.mark.fast_cases(5)
@pytest.mark.parametrize("case", _RESUMES)
def test_hostile_checkpoint_to_resume_is_one_line_and_exit_4(
    base, tmp_path: Path, capsys, case: str
) -> None:
    folder, run = base
    change, said = _RESUMES[case]
    shutil.copytree(run, tmp_path / "run", symlinks=True)
    change(files.checkpoint_path(tmp_path / "run", 2))
    code = _run(folder / "tiny.yaml", "--out", tmp_path / "run", "--allow-change")
    out, err = capsys.readouterr()
    assert (code, out) == (4, ""), err
    assert said in err
    errors = [line for line in err.splitlines() if "warning:" not in line]
    assert len(errors) == 1
    assert errors[0].startswith(f"nlpkit: {tmp_path}/run")
    named = _run(
        *(folder / "tiny.yaml", "--out", tmp_path / "new"),
        *("--resume", files.checkpoint_path(tmp_path / "run", 2)),
    )
    assert named == 4
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize("content", ["[]", "{", '{"precision": 5}', '{"finished": "x"}', "null"])
def test_hostile_run_json_never_is_a_traceback(base, tmp_path: Path, capsys, content: str) -> None:
    folder, run = base
    shutil.copytree(run, tmp_path / "run", symlinks=True)
    (tmp_path / "run" / "run.json").write_text(content)
    code = _run(folder / "tiny.yaml", "--out", tmp_path / "run", "--allow-change")
    err = capsys.readouterr().err
    assert "Traceback" not in err
    assert code in (0, 4)
    assert code == 0 or f"{tmp_path}/run/run.json: " in err


def test_directory_beside_the_checkpoints_with_another_name_is_left_alone(
    base, tmp_path: Path
) -> None:
    folder, run = base
    shutil.copytree(run, tmp_path / "run", symlinks=True)
    copy = tmp_path / "run" / "checkpoints" / "step-00000002 (copy)"
    shutil.copytree(files.checkpoint_path(run, 2), copy)
    assert _run(folder / "tiny.yaml", "--out", tmp_path / "run", "--allow-change") == 0
    assert integrity.find_corruption(copy) is None
