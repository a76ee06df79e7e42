"""The lines of docs/other_tools.md for runners of benchmarks; skipped where these are missing."""

import json
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch

from nlpkit import cli
from nlpkit.runs.open_checkpoint import open_checkpoint
from tests import _tiny

DOCS = Path(__file__).resolve().parents[2] / "docs/other_tools.md"
SIZES = "hidden_size: 32, num_layers: 1, num_heads: 4, max_positions: 64"
RECIPES = {
    "gpt2": f"model: {{family: gpt2, {SIZES}}}\ntokenizer: {{kind: bpe, vocab_size: 400}}\n"
    "objective: {name: clm, max_length: 48}\n",
    "bert": f"model: {{family: bert, {SIZES}, intermediate_size: 48}}\n"
    "tokenizer: {kind: wordpiece, vocab_size: 300}\nobjective: {name: mlm, max_length: 48}\n",
}
TRAIN = """\
data: {train: [TEXT]}
train: {steps: 4, tokens_per_step: 512, tokens_per_batch: 256, lr: 1.0e-2, warmup_steps: 2,
  precision: fp32, save_every: 4}
"""
TEXTS = ("Mara took two apples.", "The bridge is closed.")


def _needs(tool: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(find_spec(tool) is None, reason=f"{tool} is not installed")


def _lines(tool: str, language: str) -> str:
    """Return the lines of a tool's section."""
    section = DOCS.read_text("utf-8").partition(f"### {tool}\n")[2].partition("\n### ")[0]
    found = re.search(rf"```{language}\n(.*?)```", section, re.DOTALL)
    assert found is not None
    return found[1]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a run of each family that the page names, and no network."""
    text = tmp_path / "text.txt"
    text.write_text(
        "\n".join(f"Mara took {n} apples, and the bridge is closed." for n in range(40))
    )
    for family, sections in RECIPES.items():
        path = tmp_path / f"{family}.yaml"
        path.write_text(f"name: {family}\n{sections}{TRAIN.replace('TEXT', str(text))}")
        saved = _tiny.pretrain(path, tmp_path / "runs" / family)
        saved.with_name("best").symlink_to(saved.name)  # nothing was held out
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return tmp_path


def _log_probability(given: str, text: str) -> float:
    """Return log p of a text behind another one, and the token before a document."""
    opened = open_checkpoint("runs/gpt2/checkpoints/best", device="cpu")
    first, second = opened.tokenizer.encode_batch([given, text])
    ids = torch.tensor([opened.tokenizer.eos_id, *first, *second])
    with torch.no_grad():
        logits = opened.model.logits(opened.model((len(ids),), input_ids=ids))
    shares = logits.log_softmax(-1)[:-1].gather(1, ids[1:, None])[:, 0]
    return float(shares[len(first) :].sum())


@_needs("lm_eval")
def test_lm_eval_scores_a_task_in_a_file_as_nlpkit_does(folder: Path) -> None:
    (folder / "mini.yaml").write_text(_lines("lm-evaluation-harness", "yaml"))
    row = {"text": "Mara took two", "choices": [" apples", " clouds"], "answer": 0}
    (folder / "mini.jsonl").write_text(json.dumps(row) + "\n")
    command = _lines("lm-evaluation-harness", "sh").split()[1:]
    more = ["--log_samples", "--output_path", "out"]
    subprocess.run([sys.executable, "-m", "lm_eval", *command, *more], check=True, timeout=300)
    (file,) = folder.glob("out/**/samples_mini_*.jsonl")
    (sample,) = [json.loads(line) for line in file.read_text("utf-8").splitlines()]
    found = [float(each[0]) for each in sample["filtered_resps"]]
    expected = [_log_probability(row["text"], choice) for choice in row["choices"]]
    assert found == pytest.approx(expected, abs=1e-4)
    assert sample["acc"] == (expected[0] > expected[1])


@_needs("minicons")
def test_minicons_scores_a_text_as_eval_does(folder: Path, capsys) -> None:
    exec(_lines("minicons", "python"), {})
    (found,) = json.loads(capsys.readouterr().out)
    (folder / "lines.txt").write_text(TEXTS[0] + "\n")
    arguments = ["judge", "runs/gpt2", "lines.txt", "--surprisal", "out.tsv", "-q"]
    assert cli.run([*arguments, "--device", "cpu"]) == 0
    (line,) = [each for each in Path("out.tsv").read_text().splitlines() if "\tsentence\t" in each]
    assert -found == pytest.approx(float(line.split("\t")[-1]), abs=1e-3)


@_needs("sentence_transformers")
def test_sentence_transformers_takes_the_mean_of_our_states(folder: Path, capsys) -> None:
    names: dict = {}
    exec(_lines("sentence-transformers", "python"), names)
    assert capsys.readouterr().out == "(2, 32)\n"
    opened = open_checkpoint("runs/bert/checkpoints/best", device="cpu")
    for text, found in zip(TEXTS, names["model"].encode([*TEXTS]), strict=True):
        ids = opened.objective.frame.ids([np.array(opened.tokenizer.encode(text))], np.int64)
        with torch.no_grad():
            states = opened.model(
                (len(ids),),
                input_ids=torch.from_numpy(ids),
                token_type_ids=torch.zeros(len(ids)).long(),
            )
        np.testing.assert_allclose(found, states.mean(0).numpy(), atol=1e-6)
