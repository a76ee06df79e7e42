"""Runs of the tasks of GPT-1 and GPT-2.

What a checkpoint holds, against transformers and scikit-learn; resume.
"""

import json
import re
import shutil
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from nlpkit import recipe
from nlpkit.data.store import Callbacks
from nlpkit.runs import build
from nlpkit.runs.open_checkpoint import open_checkpoint
from tests import _tiny
from tests._tiny_tasks import CLASSES, rows_of, start, task

FRAME = ["_start_", "_delimiter_", "_classify_"]
SIMILARITY = """\
name: NAME
init_from: START
data: {train: [FOLDER/pairs.train.tsv], valid: [FOLDER/pairs.valid.tsv]}
objective: {name: similarity, max_length: 48, regression: true}
train: {steps: 6, tokens_per_step: 512, tokens_per_batch: 256, lr: 1.0e-2, warmup_steps: 2,
  precision: fp32, eval_every: 3, save_every: 3, best_by: pearson}
"""


@pytest.fixture(scope="module")
def base(tmp_path_factory) -> Path:
    return start(tmp_path_factory.mktemp("base"), "gpt")


@pytest.fixture(scope="module", params=["gpt", "gpt2"])
def classes(
    base: Path, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Path]:
    """A run of a classification, and its last checkpoint."""
    folder = tmp_path_factory.mktemp("classes")
    begun = base if request.param == "gpt" else start(folder, request.param)
    path = task(folder, "classes", CLASSES, begun)
    out = folder / "run"
    return out, _tiny.pretrain(path, out)


def _last_evaluation(out: Path) -> dict:
    return [r["held_out"] for r in _tiny.metrics(out) if "held_out" in r][-1]


def test_checkpoint_opens_in_transformers_with_labels_tokens_and_our_predictions(classes) -> None:
    from sklearn.metrics import accuracy_score, f1_score

    out, saved = classes
    theirs = AutoModelForSequenceClassification.from_pretrained(saved).eval()
    tokenizer = AutoTokenizer.from_pretrained(saved)
    assert theirs.config.id2label == {0: "bad", 1: "good", 2: "so so"}
    assert theirs.config.label2id == {"bad": 0, "good": 1, "so so": 2}
    ids = tokenizer.convert_tokens_to_ids(FRAME)
    assert ids == list(range(len(tokenizer) - 3, len(tokenizer)))
    assert theirs.config.vocab_size == len(tokenizer)
    rows = rows_of("classes", 13, 2)  # the held-out ones
    chosen = []
    for row in rows:
        text = tokenizer(row["text"], add_special_tokens=False)["input_ids"]
        with torch.no_grad():
            logits = theirs(torch.tensor([[ids[0], *text, ids[2]]])).logits[0]
        chosen.append(theirs.config.id2label[int(logits.argmax())])
    figures = _last_evaluation(out)["metrics"]
    right = [row["label"] for row in rows]
    assert figures["accuracy"] == pytest.approx(accuracy_score(right, chosen))
    assert figures["f1"] == pytest.approx(f1_score(right, chosen, average="macro", zero_division=0))


def test_checkpoint_logits_are_those_of_transformers(classes) -> None:
    opened = open_checkpoint(classes[1], device="cpu")
    assert opened.objective.config.labels == ["bad", "good", "so so"]
    theirs = AutoModelForSequenceClassification.from_pretrained(classes[1]).eval()
    ids = torch.arange(3, 20)
    with torch.no_grad():
        ours = opened.model.head(opened.model((len(ids),), input_ids=ids)[-1:])
        assert torch.allclose(ours, theirs(ids[None]).logits, atol=1e-5)


@pytest.mark.parametrize(
    ("sets", "differ"),
    [
        (["objective.max_length=30", "objective.dropout=0.3", "objective.lm_weight=0"], ""),
        (["objective.labels=[good, bad, so so]"], "labels"),
        (["objective.name=similarity", "objective.text_a=text", "objective.text_b=text"], "name"),
    ],
)
@pytest.mark.parametrize("has_notes", [True, False])
def test_output_layer_is_kept_where_its_outputs_are_the_same(
    classes, tmp_path, sets: list[str], differ: str, has_notes: bool
) -> None:
    start = shutil.copytree(classes[1], tmp_path / "start")
    if not has_notes:
        for name in ("nlpkit.json", "manifest.json"):
            (start / name).unlink()
        differ = {"name": "", "labels": "classes"}.get(differ, differ)  # id2label alone tells
    path = task(tmp_path, "classes", CLASSES, classes[0])
    resolved = recipe.load(str(path), [f"init_from={start}", *sets])
    part, notes = build.model_part(resolved), list[str]()
    data = build.build_data(resolved, part, tmp_path / "run", Callbacks(note=notes.append))
    model = build.build_model(part, data.vocab_size, "math")
    before = open_checkpoint(classes[1], device="cpu").model.head.weight
    assert torch.equal(model.head.weight, before) is not bool(differ)
    told = [note for note in notes if "output layer" in note]
    assert bool(told) is bool(differ)
    assert all(f"the {differ} of its task" in note for note in told)


@pytest.mark.slow
@pytest.mark.parametrize("lora", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_run_stopped_and_resumed_is_the_same_bit_for_bit(base, tmp_path, lora: bool) -> None:
    path = task(tmp_path, "classes", CLASSES, base)
    sets = ["lora={}"] if lora else []
    _tiny.pretrain(path, tmp_path / "whole", *sets)
    _tiny.pretrain_with_stops(path, tmp_path / "parts", [2, 3], *sets)
    assert _tiny.metrics(tmp_path / "parts") == _tiny.metrics(tmp_path / "whole")
    last = "checkpoints/step-00000008"
    files = [file.name for file in (tmp_path / "whole" / last).glob("*.safetensors")]
    assert len(files) >= 2  # weights and moments
    for name in files:
        whole, parts = ((tmp_path / run / last / name).read_bytes() for run in ("whole", "parts"))
        assert parts == whole, name


def test_rows_of_the_base_vocabulary_are_kept_and_three_are_new(base, tmp_path) -> None:
    path = task(tmp_path, "classes", CLASSES, base)
    begun = _tiny.pretrain(path, tmp_path / "run", "train.steps=2", "train.lr=1.0e-12")
    old = open_checkpoint(base, device="cpu")
    new = open_checkpoint(begun, device="cpu")
    size = old.tokenizer.vocab_size
    assert new.tokenizer.vocab_size == size + 3
    assert [new.tokenizer.special_id(token) for token in FRAME] == [size, size + 1, size + 2]
    ours = new.model.token_embedding[:size]
    assert torch.allclose(ours, old.model.token_embedding, atol=1e-6)


def test_regression_run_reports_correlations_and_chooses_by_them(base, tmp_path) -> None:
    for split, count, seed in (("train", 60, 1), ("valid", 13, 2)):
        rows = rows_of("nlg", count, seed)
        lines = [f"{r['input']}\t{r['target']}\t{len(r['input']) / 4}" for r in rows]
        text = "\n".join(["text_a\ttext_b\tlabel", *lines]) + "\n"
        (tmp_path / f"pairs.{split}.tsv").write_text(text, encoding="utf-8")
    recipe = SIMILARITY.replace("START", str(base / "checkpoints/latest")).replace("NAME", "pairs")
    (tmp_path / "pairs.yaml").write_text(recipe.replace("FOLDER", str(tmp_path)))
    saved = _tiny.pretrain(tmp_path / "pairs.yaml", tmp_path / "run")
    figures = _last_evaluation(tmp_path / "run")
    assert set(figures["metrics"]) == {"pearson", "spearman"}
    assert set(figures["losses"]) == {"task", "lm"}
    assert figures["perplexity"] is None
    assert json.loads((saved / "config.json").read_text())["id2label"] == {"0": "LABEL_0"}


def test_task_on_a_family_that_reads_more_than_tokens_is_refused(tmp_path) -> None:
    path = task(tmp_path, "classes", CLASSES, start(tmp_path, "cpm_ant"))
    found = _tiny.command("finetune", path, "--out", tmp_path / "run")
    assert found.returncode == 2
    assert "objective.name: classification does not give segment, position, context" in found.stderr
    (trained,) = re.findall(r"it trains: (.*)", found.stderr)
    assert {"gpt", "gpt2"} <= set(re.findall(r"\w+", trained))
    assert "cpm_ant" not in trained
