"""The same list for each of the younger families: runs from what is published, and proofs."""

import json
import signal
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import transformers

from nlpkit import cli
from nlpkit.checkpoints import files
from nlpkit.runs.open_checkpoint import open_checkpoint
from tests import _tiny
from tests._faults import KILL, Disk, Server
from tests._layouts import DECODERS, LAYOUTS, TEXTS, assert_same_logits, theirs

ROOT = Path(__file__).resolve().parents[2]
# A recipe and its family, or its variant.
PROVEN = (
    ("distilbert", "model.family=distilbert"), ("gpt_neo", "model.family=gpt_neo"),
    ("llama", "model.variant=mistral"), ("llama", "model.variant=qwen2"),
    ("llama", "model.variant=qwen3"), ("llama", "model.variant=llama"),
    ("gpt_neox", "model.family=gpt_neox"), ("deberta", "model.family=deberta_v2"),
    ("modernbert", "model.family=modernbert"),
    ("modernbert_decoder", "model.family=modernbert_decoder"),
)  # fmt: skip


def _tune(folder: Path, start: Path, name: str) -> Path:
    """Write the recipe of a short run that begins with a directory, and its texts."""
    objective = "clm" if name in DECODERS else "mlm"
    (folder / "t.txt").write_text("\n".join(TEXTS), "utf-8")
    path = folder / "tuned.yaml"
    path.write_text(
        f"name: tuned\nout: {folder}/run\ninit_from: {start}\n"
        f"data: {{train: [{folder}/t.txt], valid: [{folder}/t.txt]}}\n"
        f"objective: {{name: {objective}, max_length: 24}}\n"
        "train: {steps: 4, tokens_per_step: 128, lr: 1.0e-3, warmup_steps: 1, precision: fp32,"
        " eval_every: 4, save_every: 2}\n"
    )
    return path


@pytest.mark.fast_cases(4)
@pytest.mark.parametrize("name", LAYOUTS)
def test_tuned_files_open_in_auto_classes_and_judge_pairs(
    name: str, published, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = published(name)
    assert cli.run(["pretrain", str(_tune(tmp_path, source, name)), "--device", "cpu"]) == 0
    made = Path(capsys.readouterr().out.splitlines()[-1])
    settings = [json.loads((each / "config.json").read_text()) for each in (made, source)]
    assert settings[0]["model_type"] == settings[1]["model_type"]
    assert settings[0]["architectures"] == settings[1]["architectures"]
    opened = open_checkpoint(made, device="cpu", warn=pytest.fail)
    assert_same_logits(opened.model, theirs(made, name))
    ours, released = map(transformers.AutoTokenizer.from_pretrained, (made, source))
    roles = released.special_tokens_map
    assert {role: ours.special_tokens_map.get(role) for role in roles} == roles
    # Around texts stands what the objective puts there, for a decoder nothing.
    found, expected = (
        each(TEXTS[:3], add_special_tokens=name not in DECODERS).input_ids
        for each in (ours, released)
    )
    assert found == expected
    pairs = tmp_path / "pairs.jsonl"
    pair = {"sentence_good": "the cat sat on a mat", "sentence_bad": "the mat cat on sat a"}
    pairs.write_text(json.dumps(pair) + "\n")
    assert cli.run(["judge", str(made), "--pairs", str(pairs), "--json", "--device", "cpu"]) == 0
    assert json.loads(capsys.readouterr().out)["pairs"] == 1


def _slow(cases: Iterable[Any], fast: Any = None) -> list[Any]:
    return [each if each == fast else pytest.param(each, marks=pytest.mark.slow) for each in cases]


@pytest.mark.slow
@pytest.mark.parametrize("name", LAYOUTS)
def test_killed_run_goes_on_bit_for_bit(
    name: str, published, server: Server, tmp_path: Path
) -> None:
    path, whole, run = _tune(tmp_path, published(name), name), tmp_path / "whole", tmp_path / "run"
    disk = Disk(whole, how=KILL)
    with disk.armed():
        _tiny.pretrain(path, whole)
    ended = server.run("pretrain", path, disk=(run, 2 * len(disk.seen) // 3, KILL))
    assert ended.code == -signal.SIGKILL, ended
    assert 0 < len(files.list_checkpoints(run)) < 2
    assert server.run("pretrain", path).code == 0
    assert _tiny.metrics(run) == _tiny.metrics(whole)
    one, two = (files.read_pointer(each, "latest") for each in (run, whole))
    assert one is not None
    assert two is not None
    for file in ("model.safetensors", "optimizer.safetensors"):
        assert (one / file).read_bytes() == (two / file).read_bytes()


@pytest.mark.parametrize("proven", _slow(PROVEN))
def test_proofs_hold(
    proven: tuple[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)  # where the recipes find their data
    name, setting = proven
    code = cli.run(["selftest", name, "--set", setting, "--json", "--device", "cpu"])
    printed = capsys.readouterr()
    assert code == 0, printed.err
    assert json.loads(printed.out)["passed"]
