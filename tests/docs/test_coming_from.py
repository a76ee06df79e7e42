"""The pages docs/coming_from: their files are written, their `nlpkit` lines run, in their order.

Sizes and steps are made small by `--set`; all else is as the pages have it.
"""

import random
import re
import shlex
import shutil
import sys
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from accelerate.state import AcceleratorState
from transformers import BertConfig, BertForPreTraining, GPT2Config, GPT2LMHeadModel

from nlpkit import cli
from tests import _tiny

ROOT = Path(__file__).parents[2]
INDEX = (ROOT / "docs/coming_from.md").read_text(encoding="utf-8")
NAMES = re.findall(r"\]\((coming_from/\w+\.md)\)", INDEX)
PAGE = "\n".join((ROOT / "docs" / name).read_text(encoding="utf-8") for name in NAMES)
SIZES = {"hidden_size": 32, "num_layers": 2, "num_heads": 2, "intermediate_size": 48}
STEPS = {"tokens_per_step": 256, "tokens_per_batch": 256, "precision": "fp32"}
TEXT = "Mara took two green apples from the old house and gave one to her aunt"


def _files() -> Iterator[tuple[str, str]]:
    """Yield (name, text) of the files of the page: a block, and the name before it.

    The last sentence before a block names it, or two blocks that follow.
    """
    waiting: list[str] = []
    for part in re.split(r"(^```\w+\n.*?^```$)", PAGE, flags=re.DOTALL | re.MULTILINE):
        block = re.fullmatch(r"```(yaml|json|text|python)\n(.*?)```", part, re.DOTALL)
        if block is None:
            last = re.split(r"\. |\n", part.strip())[-1] if part.strip().endswith(":") else ""
            waiting += re.findall(r"`(\w+\.(?:yaml|jsonl?|tsv|txt|py))`", last)
        elif waiting:
            yield waiting.pop(0), block[2]


def _lines() -> list[str]:
    """Return the command lines of the page, in their order."""
    blocks = re.findall(r"^```console\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    return [line[2:] for block in blocks for line in block.splitlines() if line.startswith("$ ")]


FILES = dict(_files())


def test_index_names_every_page_once() -> None:
    found = {path.name for path in (ROOT / "docs/coming_from").glob("*.md")}
    assert sorted(name.partition("/")[2] for name in NAMES) == sorted(found)


def test_page_has_the_files_that_its_lines_name() -> None:
    named = set(re.findall(r"\b\w+\.yaml\b", "\n".join(_lines())))
    assert named == {name for name in FILES if name.endswith(".yaml")} - {"sft.yaml"}


def _written(folder: Path) -> None:
    """Write the files of the page, with few steps and small sizes, and text that they name."""
    for name, text in FILES.items():
        if name.endswith(".yaml") and name != "sft.yaml":
            whole = folder / "whole" / name
            whole.parent.mkdir(exist_ok=True)
            whole.write_text(text, encoding="utf-8")
            text = yaml.safe_dump(_small(yaml.safe_load(text)), allow_unicode=True)
        (folder / name).write_text(text, encoding="utf-8")
    draw = random.Random(0)
    texts = [" ".join(draw.choices(TEXT.split(), k=draw.randint(5, 40))) for _ in range(60)]
    lines = "".join(f"{text}\n" for text in texts)
    rows = "".join(f'{{"text": "{text}"}}\n' for text in texts)
    columns = "title,body\n" + "".join(f'x,"{text}"\n' for text in texts)
    for part in ("train", "valid"):
        for ending, content in (("txt", lines), ("json", rows), ("csv", columns)):
            (folder / f"{part}.{ending}").write_text(content, encoding="utf-8")
        for ending in ("de", "en"):
            pairs = lines if part == "train" else "".join(lines.splitlines(keepends=True)[:4])
            (folder / f"{part}.{ending}").write_text(pairs, encoding="utf-8")
    (folder / "input.txt").write_text(lines.replace("\n", "\n\n"), encoding="utf-8")
    (folder / "openwebtext").mkdir()
    (folder / "openwebtext" / "part.txt").write_text(lines, encoding="utf-8")
    characters = sorted(set(FILES["corpus.txt"] + FILES["train.tsv"]) - set(" \n\t"))
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    (folder / "vocab").mkdir()
    vocabulary = "\n".join([*special, *characters, *(f"##{each}" for each in characters)])
    (folder / "vocab" / "vocab.txt").write_text(vocabulary, encoding="utf-8")


def _small(recipe: dict[str, Any]) -> dict[str, Any]:
    """Return a recipe of the page with a small model and two steps."""
    if recipe.get("name") == "gpt2_owt":
        return recipe  # only planned
    train = recipe.setdefault("train", {})
    if "tokens_per_step" in train:
        train |= STEPS
    if {"steps", "epochs"} & set(train):
        train.pop("epochs", None)
        train["steps"] = 2
        if train.get("warmup_steps"):
            train["warmup_steps"] = 1
    if "eval_every" in train:
        train["eval_every"] = 2
    if "init_from" not in recipe and "extends" not in recipe:
        recipe["model"] |= {
            name: size
            for name, size in SIZES.items()
            if name in recipe["model"] or name != "intermediate_size"
        }
        for tokenizer in [recipe["tokenizer"], *recipe["tokenizer"].values()]:
            if isinstance(tokenizer, dict) and tokenizer.get("vocab_size", 0) > 300:
                tokenizer["vocab_size"] = 300
    return recipe


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files of the page and a CPM-Ant to start from."""
    folder = tmp_path_factory.mktemp("coming")
    _written(folder)
    _tiny.write(folder / "ant")
    with (folder / "ant" / "train.txt").open("a", encoding="utf-8") as file:
        file.write("是的，不是。\n" * 9)  # the word by which cpm_ant_nlu answers
    return folder


@pytest.mark.slow
def test_lines_of_the_page_run(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    for line in _lines():
        AcceleratorState._reset_state(reset_partial_state=True)
        given, _, command = line.rpartition(" | ")
        if given:
            monkeypatch.setattr(sys, "stdin", StringIO(f"{shlex.split(given)[1]}\n"))
        program, verb, *rest = shlex.split(command)
        assert program == "nlpkit"
        if rest == ["cpm_ant"]:  # the shipped recipe, in its small form
            rest = ["ant/tiny.yaml", "--out", "runs/cpm_ant"]
        device = [] if verb in ("plan", "convert") else ["--device", "cpu"]
        assert cli.run([verb, *rest, *device]) == 0, (line, capsys.readouterr().err)
    # The recipes as they are on the page: sizes, steps and all.
    for name in sorted(path.name for path in (folder / "whole").iterdir()):
        if name == "gpt2_owt.yaml":
            continue  # planned as it is by a line of the page
        command = ["plan", f"whole/{name}", "--no-probe"]
        assert cli.run(command) == 0, (name, capsys.readouterr().err)


def test_weights_of_nanogpt_open_here_after_the_script_of_the_page(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    torch.manual_seed(0)
    sizes = {"vocab_size": 50, "n_embd": 16, "n_layer": 2, "n_head": 2}
    config = GPT2Config(**sizes, n_positions=8, activation_function="gelu")
    model = GPT2LMHeadModel(config).eval()
    # nanoGPT's own names and shapes: torch's linear layers, whose weights are transposed there.
    saved = {f"_orig_mod.{name}": value for name, value in model.named_parameters()}
    saved = {
        name: value.T if value.ndim == 2 and ".h." in name else value
        for name, value in saved.items()
        if not name.endswith("bias")
    }
    saved["_orig_mod.lm_head.weight"] = model.lm_head.weight
    torch.save({"model": saved, "model_args": {**sizes, "block_size": 8}}, "ckpt.pt")
    exec(compile(FILES["export.py"], "export.py", "exec"), {})
    opened = GPT2LMHeadModel.from_pretrained("exported").eval()
    text = torch.tensor([[3, 1, 4, 1, 5]])
    torch.testing.assert_close(opened(text).logits, model(text).logits)


def test_weights_of_tencentpretrain_open_here_after_the_script_of_the_page(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    vocabulary = (folder / "vocab" / "vocab.txt").read_text(encoding="utf-8")
    config = BertConfig(
        vocab_size=len(vocabulary.split()),
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=24,
        tie_word_embeddings=False,
    )
    model = BertForPreTraining(config)
    config.save_pretrained("hf")
    torch.save(model.state_dict(), "hf/pytorch_model.bin")  # what their script of conversion writes
    exec(compile(FILES["to_hf.py"], "to_hf.py", "exec"), {})
    shutil.copy("vocab/vocab.txt", "hf2")
    text = (folder / "review.yaml").read_text(encoding="utf-8").replace("runs/uer", "hf2")
    Path("review_hf.yaml").write_text(text, encoding="utf-8")
    AcceleratorState._reset_state(reset_partial_state=True)
    command = ["finetune", "review_hf.yaml", "--out", "runs/review_hf", "--device", "cpu"]
    assert cli.run(command) == 0, capsys.readouterr().err
