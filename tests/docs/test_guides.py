"""Guides of tasks, evaluating and sharing: each command runs, on a small GPT-1."""

import re
import subprocess
from pathlib import Path

import pytest

from tests import _processes, _server

ROOT = Path(__file__).resolve().parents[2]
SMALL = ["model.hidden_size=32", "model.num_layers=1", "model.num_heads=2", "train.eval_every=null",
         "train.steps=2", "train.tokens_per_step=256"]  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A user's folder with the two runs of docs/evaluating.md, made small."""
    place = tmp_path_factory.mktemp("user")
    (place / "data").symlink_to(ROOT / "data")
    for verb, sets in (("pretrain gpt1", SMALL), ("finetune gpt1_classify", SMALL[3:])):
        words = [word for each in sets for word in ("--set", each)]
        cache = {"NLPKIT_CACHE": str(place / "cache")}
        done = _processes.command(*verb.split(), *words, cwd=place, env=cache)
        assert done.returncode == 0, done.stderr
    return place


@pytest.mark.fast_cases(1)
@pytest.mark.parametrize("page", ["tasks", "evaluating", "sharing"])
def test_each_command_of_the_guide_runs(folder: Path, page: str) -> None:
    text = (ROOT / f"docs/{page}.md").read_text("utf-8")
    blocks = re.findall(r"```console\n(.*?)```", text, re.DOTALL)
    lines = re.findall(r"^\$ (.*)", "".join(blocks), re.MULTILINE)
    assert len(lines) > 3
    for line in lines:
        if line.startswith("nlpkit finetune gpt1_prompt") or "runs/gpt1_prompt" in line:
            line += " --set train.steps=2 --set train.eval_every=null"
        done = subprocess.run(
            ["bash", "-c", f"{_server.function()}export NLPKIT_CACHE={folder}/cache; {line}"],
            cwd=folder, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, (line, done.stderr)
