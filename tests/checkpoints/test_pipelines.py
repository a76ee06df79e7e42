"""Checkpoints in the pipelines of `transformers` answer as `nlpkit eval` and `generate` do."""

import csv
import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, pipeline

from nlpkit import cli
from nlpkit.runs.open_checkpoint import open_checkpoint
from tests._family_runs import Runs

slow = pytest.mark.slow


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return Runs(tmp_path_factory.mktemp("pipelines"))


def _evaluated(checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> tuple[dict, list[str]]:
    """Return what `nlpkit eval --json` prints, and its predictions."""
    file = checkpoint.parents[1] / "predictions.jsonl"
    arguments = ["eval", str(checkpoint), "--json", "--device", "cpu", "-q"]
    assert cli.run([*arguments, "--predictions", str(file)]) == 0
    printed = json.loads(capsys.readouterr().out)
    rows = [json.loads(line) for line in file.read_text("utf-8").splitlines()]
    return printed, [row["prediction"] for row in rows]


def _generated(checkpoint: Path, texts: list[str], capsys, *more: str) -> list[str]:
    """Return what `nlpkit generate` writes for the texts."""
    file = checkpoint.parents[1] / "inputs.txt"
    file.write_text("\n".join(texts) + "\n", "utf-8")
    arguments = ["generate", str(checkpoint), str(file), "--device", "cpu", "-q", "--json", *more]
    assert cli.run(arguments) == 0
    return [json.loads(line)["output"] for line in capsys.readouterr().out.splitlines()]


CLASSES = "{name: classification, max_length: 80, lm_weight: 0.0}"
CLASSIFIERS = (
    "gpt2",
    *(
        pytest.param(family, marks=slow)
        for family in (
            "xlnet",
            "roberta",
            "albert",
            "gpt",
            "bert",
            "distilbert",
            "electra",
            "modernbert",
            "xlm",
            "llama",
            "deberta_v2",
            "gpt_neo",
            "gpt_neox",
        )
    ),
)


@pytest.mark.parametrize("family", CLASSIFIERS)
def test_classifier_answers_as_eval(runs: Runs, capsys, family: str) -> None:
    saved = runs.tuned(family, "classes", "classify.{}.tsv", CLASSES)
    printed, predictions = _evaluated(saved, capsys)
    lines = (runs.folder / "classify.valid.tsv").read_text("utf-8").splitlines()[1:]
    labels, texts = zip(*(line.split("\t") for line in lines), strict=True)
    pipe = pipeline("text-classification", model=str(saved), device="cpu", top_k=None)
    found = pipe([*texts], truncation=True)
    assert [each[0]["label"] for each in found] == predictions
    scores = [{one["label"]: one["score"] for one in each} for each in found]
    losses = [-math.log(each[label]) for each, label in zip(scores, labels, strict=True)]
    assert np.mean(losses) == pytest.approx(printed["loss"], abs=1e-5)
    if family == "gpt":  # GPT-1's vocabulary has nothing to pad with
        return
    batched = pipe([*texts], truncation=True, batch_size=8)
    for one, other in zip(batched, scores, strict=True):
        assert {e["label"]: e["score"] for e in one} == pytest.approx(other, abs=1e-5)


@pytest.mark.parametrize(
    "family",
    ["gpt2", *(pytest.param(f, marks=slow) for f in ("roberta", "bert", "llama", "modernbert"))],
)
def test_classifier_of_two_texts_answers_as_eval(runs: Runs, capsys, family: str) -> None:
    objective = "{name: entailment, max_length: 80, lm_weight: 0.0}"
    saved = runs.tuned(family, "pairs", "entail.{}.csv", objective)
    printed, predictions = _evaluated(saved, capsys)
    pipe = pipeline("text-classification", model=str(saved), device="cpu", top_k=None)
    losses = []
    with (runs.folder / "entail.valid.csv").open(encoding="utf-8") as file:
        for row, prediction in zip(csv.DictReader(file), predictions, strict=True):
            found = pipe({"text": row["premise"], "text_pair": row["hypothesis"]})
            assert found[0]["label"] == prediction
            (share,) = (each["score"] for each in found if each["label"] == row["label"])
            losses.append(-math.log(share))
    assert np.mean(losses) == pytest.approx(printed["loss"], abs=1e-5)


@slow
def test_numbers_of_both_orders_add_up_to_that_of_eval(runs: Runs, capsys) -> None:
    objective = "{name: similarity, regression: true, max_length: 80, lm_weight: 0.0}"
    saved = runs.tuned("gpt2", "near", "near.{}.jsonl", objective)
    _, predictions = _evaluated(saved, capsys)
    pipe = pipeline("text-classification", model=str(saved), device="cpu")
    rows = (runs.folder / "near.valid.jsonl").read_text("utf-8").splitlines()
    for row, prediction in zip(map(json.loads, rows), predictions, strict=True):
        texts = row["text_a"], row["text_b"]
        orders = [{"text": a, "text_pair": b} for a, b in (texts, texts[::-1])]
        total = sum(each["score"] for each in pipe(orders))
        assert total == pytest.approx(float(prediction), abs=1e-4)


@pytest.mark.parametrize(
    "family", ["gpt2", *(pytest.param(f, marks=slow) for f in ("roberta", "llama", "modernbert"))]
)
def test_tagger_answers_as_eval(runs: Runs, capsys, family: str) -> None:
    objective = "{name: tagging, max_length: 100, scheme: iob2}"
    saved = runs.tuned(family, "tags", "tag.{}.conll", objective)
    _, predictions = _evaluated(saved, capsys)
    pipe = pipeline("token-classification", model=str(saved), device="cpu", ignore_labels=[])
    blocks = (runs.folder / "tag.valid.conll").read_text("utf-8").strip().split("\n\n")
    for block, prediction in zip(blocks, predictions, strict=True):
        words = [line.split(" ")[0] for line in block.split("\n")]
        text = " ".join(words)
        found: dict[int, str] = {}
        for each in pipe(text):  # a token of bytes may begin with the space before its word
            begin = each["start"] + (text[each["start"]] == " ")
            found.setdefault(begin, each["entity"])
        begins = np.cumsum([0, *(len(word) + 1 for word in words[:-1])]).tolist()
        assert [found[begin] for begin in begins] == prediction.split()


MASKED = (
    "albert",
    *(
        pytest.param(name, marks=slow)
        for name in ("roberta", "bert", "distilbert", "modernbert", "xlm")
    ),
)


@pytest.mark.parametrize("family", MASKED)
def test_masked_words_get_our_scores(runs: Runs, family: str) -> None:
    saved = runs.first(family)
    pipe = pipeline("fill-mask", model=str(saved), device="cpu", top_k=5)
    found = pipe(f"Mara took two {pipe.tokenizer.mask_token} apples to Windle.")
    opened = open_checkpoint(saved, device="cpu")
    # In training a mask stands for a word with the space before it.
    before, after = opened.tokenizer.encode_batch(["Mara took two", " apples to Windle."])
    mask = opened.tokenizer.special_id(opened.part.config.mask_token)
    frame = opened.objective.frame
    ids = torch.from_numpy(frame.ids([np.array([*before, mask, *after])], np.int64))
    types = {"token_type_ids": torch.zeros_like(ids)} if opened.part.config.can("pairs") else {}
    with torch.no_grad():
        hidden = opened.model((len(ids),), input_ids=ids, **types)
        row = hidden[len(frame.start) + len(before)]
        top = opened.model.logits(row[None]).softmax(1)[0].topk(5)
    assert [each["token"] for each in found] == top.indices.tolist()
    assert [each["score"] for each in found] == pytest.approx(top.values.tolist(), abs=1e-6)


def test_generator_of_electra_fills_masks_with_the_tokenizer_beside_it(runs: Runs) -> None:
    saved = runs.first("electra")
    pipe = pipeline("fill-mask", model=str(saved / "generator"), tokenizer=str(saved))
    assert len(pipe("Mara took two [MASK] apples.")) == 5


@pytest.mark.parametrize(
    ("family", "contiguous"),
    [
        ("gpt2", True),
        pytest.param("gpt2", False, marks=slow),
        pytest.param("modernbert_decoder", True, marks=slow),
    ],
)
def test_texts_go_on_as_in_generate(runs: Runs, capsys, family: str, contiguous: bool) -> None:
    objective = f"{{name: clm, max_length: 64, contiguous: {str(contiguous).lower()}}}"
    saved = runs.first(family, objective)
    texts = [line[:30] for line in (runs.folder / "valid.txt").read_text("utf-8").splitlines()[:6]]
    expected = _generated(saved, texts, capsys)
    pipe = pipeline("text-generation", model=str(saved), device="cpu")
    begin = [pipe.tokenizer.bos_token_id]
    ids = pipe.tokenizer(texts[0])["input_ids"]
    assert (ids[:1] == begin) is not contiguous
    assert pipe.tokenizer.model_max_length == 64
    found = [pipe(text, return_full_text=False)[0]["generated_text"] for text in texts]
    assert found == expected


@slow
@pytest.mark.parametrize(
    "family",
    ["gpt2", "gpt", *(pytest.param(f, marks=slow) for f in ("llama", "gpt_neo", "gpt_neox"))],
)
def test_answers_end_where_those_of_generate_do(runs: Runs, capsys, family: str) -> None:
    objective = "{name: generation, max_length: 60}"
    saved = runs.tuned(family, "answers", "copy.{}.jsonl", objective, 30)
    rows = (runs.folder / "copy.valid.jsonl").read_text("utf-8").splitlines()[:6]
    texts = [json.loads(row)["source"] for row in rows]
    expected = _generated(saved, texts, capsys)
    settings = json.loads((saved / "generation_config.json").read_text())
    assert settings["max_new_tokens"] == 30
    assert max(map(len, expected)) < 20  # it learned to stop
    pipe = pipeline("text-generation", model=str(saved), device="cpu")
    assert pipe.tokenizer.eos_token == "</s>"
    found = [pipe(text, return_full_text=False)[0]["generated_text"] for text in texts]
    assert [each.strip() for each in found] == [each.strip() for each in expected]
    config = json.loads((saved / "config.json").read_text())
    assert config["eos_token_id"] == settings["eos_token_id"] == pipe.tokenizer.eos_token_id


@pytest.mark.parametrize("task", ["span_corruption", pytest.param("seq2seq", marks=slow)])
def test_encoder_and_decoder_write_as_in_generate(runs: Runs, capsys, task: str) -> None:
    texts = [line[:30] for line in (runs.folder / "valid.txt").read_text("utf-8").splitlines()[:6]]
    if task == "seq2seq":
        objective = "{name: seq2seq, max_length: 40}"
        saved = runs.tuned("t5", "written", "copy.{}.jsonl", objective, 30)
    else:
        saved = runs.first("t5")
        texts = [text.replace(" a ", " <extra_id_0> ") for text in texts]
    expected = _generated(saved, texts, capsys)
    model, tokenizer = (
        kind.from_pretrained(saved) for kind in (AutoModelForSeq2SeqLM, AutoTokenizer)
    )
    found = []
    for text in texts:
        written = model.generate(**tokenizer(text, return_tensors="pt"))[0]
        found.append(tokenizer.decode(written, skip_special_tokens=task == "seq2seq"))
    # transformers puts spaces around sentinels elsewhere.
    bare = [each.replace("<pad>", "").replace(" ", "").removesuffix("</s>") for each in found]
    assert bare == [each.replace(" ", "") for each in expected]


def test_checkpoint_of_a_task_that_writes_nothing_has_no_generation_settings(runs: Runs) -> None:
    saved = runs.first("roberta")
    assert not (saved / "generation_config.json").exists()
    settings = json.loads((saved / "tokenizer_config.json").read_text())
    assert (settings["model_max_length"], "truncation_side" in settings) == (64, False)


def test_control_tokens_stay_the_objectives_affair_in_nlpkit(runs: Runs) -> None:
    # The file says what transformers puts around a text; our own ids have none of it.
    saved = runs.tuned("gpt2", "classes", "classify.{}.tsv", CLASSES)
    theirs = transformers.AutoTokenizer.from_pretrained(saved)
    ours = open_checkpoint(saved, device="cpu").tokenizer
    text = "The soup was _start_ good</s>"
    names = ("_start_", "_delimiter_", "_classify_")
    start, delimiter, end = (ours.special_id(name) for name in names)
    assert not {start, delimiter, end} & {*ours.encode(text)}
    plain = theirs("The soup", add_special_tokens=True)["input_ids"]
    assert plain == [start, *ours.encode("The soup"), end]
    both = theirs("The soup", "was good")["input_ids"]
    first, second = ours.encode_batch(["The soup", "was good"])
    assert both == [start, *first, delimiter, *second, end]
    # What is written in a text is ordinary text here, and the token itself in transformers.
    assert start in theirs(text, add_special_tokens=False)["input_ids"]
    ordinary = theirs(text, add_special_tokens=False, split_special_tokens=True)["input_ids"]
    assert ordinary == ours.encode(text)
