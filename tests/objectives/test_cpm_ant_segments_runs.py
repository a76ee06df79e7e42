"""CPM-Ant's segments through the command line: tuned, evaluated, written; all weights or few."""

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from nlpkit import cli
from tests import _tiny, _tiny_tasks
from tests._tiny import WORDS

SEGMENTS = """\
objective:
  name: cpm_ant_segments
  max_length: 64
  segments:
    - {text: passage, type: 1}
    - {text: "问{question}", type: 2, prompt: 3}
    - {text: answer, type: 3, decode: true}
"""
KEY = "{passage}[SEP]问{question}"


Run = Callable[..., Any]  # the command line in this process: (stdout, stderr)


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def call(*arguments: object) -> Any:
        assert cli.run([*map(str, arguments)]) == 0, capsys.readouterr().err
        return capsys.readouterr()

    return call


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pretrained run; rows whose answer is the word behind that of the question."""
    folder = tmp_path_factory.mktemp("segments")
    run = _tiny_tasks.start(folder)
    _tiny_tasks.task(folder, "nlg", _tiny_tasks.NLG, run)
    draw = random.Random(3)
    for part, count in (("train", 60), ("valid", 9)):
        rows = []
        for _ in range(count):
            words = draw.sample(WORDS, 5)
            asked = draw.randrange(4)
            rows.append({"passage": "".join(words), "question": words[asked],
                         "answer": words[asked + 1]})  # fmt: skip
        _tiny_tasks.write_rows(folder / f"qa.{part}.jsonl", rows)
    text = _tiny_tasks.HEAD + SEGMENTS + _tiny_tasks.TRAIN
    text = text.replace("NAME", "qa").replace("START", str(run / "checkpoints/latest"))
    (folder / "qa.yaml").write_text(text.replace("FOLDER", str(folder)), encoding="utf-8")
    return folder


def test_segments_are_tuned_evaluated_and_written(run: Run, folder: Path) -> None:
    run("finetune", folder / "qa.yaml", "-q")
    found = json.loads(run("eval", folder / "runs/qa", "--json").out)
    assert found["metrics"].keys() == {"exact_match", "rouge:tokenize=zh", "bleu:tokenize=zh"}
    rows = folder / "qa.valid.jsonl"
    written = run("generate", folder / "runs/qa", rows, "--key", KEY, "--json")
    lines = [json.loads(line) for line in written.out.splitlines()]
    first = json.loads(rows.read_text("utf-8").splitlines()[0])
    assert lines[0]["input"] == f"{first['passage']}[SEP]问{first['question']}"
    assert len(lines) == 9
    assert all(line["output"] for line in lines)
    short = run("generate", folder / "runs/qa", rows, "--key", "passage")
    assert (
        "input 1: has 1 text, but the segments before the last one are 2: {passage}[SEP]问"
        "{question}; its output is empty"
    ) in short.err


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("type: 3", "type: 4", "11:28: objective.segments.2.type: 4, but the model has the segment "
         "types 0 to 3"),
        ("prompt: 3", "prompt: 4", "10:46: objective.segments.1.prompt: 4, but the model has 4 "
         "prompts"),
        ("问{question}", "{asked}", 'no "asked"; it has: passage, question, answer (FILE:10:14: '
         "objective.segments.1.text: {asked})"),
        ("max_length: 64", "max_length: 6", "7:15: objective.max_length: 6 leaves no tokens"),
    ],
)  # fmt: skip
def test_mistakes_that_model_and_rows_show_have_their_line(
    folder: Path, capsys: pytest.CaptureFixture[str], old: str, new: str, said: str
) -> None:
    path = folder / "wrong.yaml"
    path.write_text((folder / "qa.yaml").read_text("utf-8").replace(old, new), encoding="utf-8")
    out = str(folder / "runs/wrong")
    assert cli.run(["finetune", str(path), "--dry-run", "--out", out]) != 0
    assert said.replace("FILE", str(path)) in capsys.readouterr().err


def test_tuned_prompts_are_those_that_the_segments_name(run: Run, folder: Path) -> None:
    out = folder / "runs/prompt"
    ended = run("finetune", folder / "qa.yaml", "--out", out, "--set", "train.tune=prompt")
    assert "256 of the parameters are trained" in ended.err  # 2 blocks x 4 vectors x 32
    before, after = (
        load_file(each / "checkpoints/latest/model.safetensors")
        for each in (folder / "cpm_ant-run", out)
    )
    (table,) = (name for name in before if not torch.equal(before[name], after[name]))
    rows = (before[table] != after[table]).any(1).nonzero().flatten().tolist()
    words = len(before[table]) - 4 * 4
    # On disk the prompt of generation is block 2; 3 is where it was.
    assert rows == [*range(words + 8, words + 16)]


@pytest.mark.slow
def test_nlg_as_a_composition_has_the_same_losses_to_the_last_digit(run: Run, folder: Path) -> None:
    segments = (
        "{name: cpm_ant_segments, max_length: 48, segments: [{text: input, type: 2, end: false}, "
        "{text: target, type: 2, decode: true, begin: false}]}"
    )
    text = (folder / "nlg.yaml").read_text("utf-8")
    text = text.replace("{name: cpm_ant_nlg, max_length: 48}", segments)
    (folder / "free.yaml").write_text(text, encoding="utf-8")
    losses = []
    for name in ("nlg", "free"):
        run("finetune", folder / f"{name}.yaml", "-q", "--out", folder / "runs" / name)
        rows = _tiny.metrics(folder / "runs" / name)
        losses.append([row.get("loss", row.get("held_out", {}).get("loss")) for row in rows])
    assert losses[0] == losses[1]
    assert len(losses[0]) > 2


@pytest.mark.slow
def test_adapters_of_segments(run: Run, folder: Path) -> None:
    out = folder / "runs/lora"
    run("finetune", folder / "qa.yaml", "--lora", "--out", out, "-q", "--set", "train.steps=2")
    assert (out / "checkpoints/latest/adapter_model.safetensors").is_file()
    written = run("generate", out, folder / "qa.valid.jsonl", "--key", KEY)
    assert len(written.out.splitlines()) == 9
