"""Runs of tagging and question answering: pipelines of transformers, resume, adapters, GPT-1."""

import json
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file

from nlpkit import cli
from nlpkit.runs.open_checkpoint import open_checkpoint
from tests import _tiny

DATA = Path(__file__).resolve().parents[2] / "data/spans"
TRAIN = """\
train: {steps: 6, tokens_per_step: 512, tokens_per_batch: 256, lr: 3.0e-3, warmup_steps: 2,
  precision: fp32, eval_every: 3, save_every: 3, keep: 9}
"""
SIZES = "hidden_size: 32, num_layers: 2, num_heads: 4, max_positions: 96"
START = {
    "bert": f"model: {{family: bert, {SIZES}, intermediate_size: 48, attention_dropout: 0.0}}\n"
    "tokenizer: {kind: wordpiece, vocab_size: 400, min_frequency: 1}\n"
    "objective: {name: mlm, max_length: 64}\n",
    "gpt": f"model: {{family: gpt, {SIZES}, attention_dropout: 0.0}}\n"
    "tokenizer: {kind: bpe, vocab_size: 500}\n"
    "objective: {name: clm, max_length: 64}\n",
}
TASKS = {
    "tagging": ("en_tag", "conll", "{name: tagging, max_length: 24, overlap: 6, scheme: iob2}"),
    "question_answering": (
        "en_answer",
        "squad.json",
        "{name: question_answering, max_length: 60, max_question_length: 20, stride: 16}",
    ),
}
ROWS = 40


def _contexts(part: str) -> list[str]:
    (article,) = json.loads((DATA / f"en_answer.{part}.squad.json").read_text("utf-8"))["data"]
    return [paragraph["context"] for paragraph in article["paragraphs"]]


@pytest.fixture(scope="module")
def starts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a few rows of each set, and a run of each family on their texts."""
    folder = tmp_path_factory.mktemp("spans")
    for part in ("train", "valid"):
        (folder / f"{part}.txt").write_text("\n".join(_contexts(part)[:60]) + "\n", "utf-8")
        blocks = (DATA / f"en_tag.{part}.conll").read_text("utf-8").split("\n\n")[:ROWS]
        (folder / f"en_tag.{part}.conll").write_text("\n\n".join(blocks) + "\n", "utf-8")
        whole = json.loads((DATA / f"en_answer.{part}.squad.json").read_text("utf-8"))
        whole["data"][0]["paragraphs"] = whole["data"][0]["paragraphs"][: ROWS // 3]
        (folder / f"en_answer.{part}.squad.json").write_text(json.dumps(whole, indent=1), "utf-8")
    for family, sections in START.items():
        path = folder / f"{family}.yaml"
        files = f"data: {{train: [{folder}/train.txt], valid: [{folder}/valid.txt]}}\n"
        path.write_text(f"name: {family}\n{files}{sections}{TRAIN}", encoding="utf-8")
        _tiny.pretrain(path, folder / family)
    return folder


def _recipe(starts: Path, family: str, task: str) -> Path:
    data, end, objective = TASKS[task]
    files = ", ".join(f"{part}: [{starts}/{data}.{part}.{end}]" for part in ("train", "valid"))
    path = starts / f"{family}-{task}.yaml"
    path.write_text(
        f"name: {task}\ninit_from: {starts}/{family}/checkpoints/latest\n"
        f"data: {{{files}}}\nobjective: {objective}\n{TRAIN}",
        encoding="utf-8",
    )
    return path


@pytest.fixture(scope="module")
def tuned(starts: Path) -> dict[tuple[str, str], Path]:
    """The last checkpoint of each family tuned for each task."""
    return {
        (family, task): _tiny.pretrain(_recipe(starts, family, task), starts / f"{family}-{task}")
        for family in START
        for task in TASKS
    }


def _evaluated(
    checkpoint: Path, capsys: pytest.CaptureFixture[str], *more: str
) -> tuple[dict, list[dict]]:
    """Return what `nlpkit eval --json` prints, and the predictions that it writes."""
    file = checkpoint.parent / "predictions.jsonl"
    arguments = ["eval", str(checkpoint), "--json", "--device", "cpu", "-q", *more]
    assert cli.run([*arguments, "--predictions", str(file)]) == 0
    printed = json.loads(capsys.readouterr().out)
    return printed, [json.loads(line) for line in file.read_text("utf-8").splitlines()]


@pytest.mark.slow
def test_tagger_answers_in_the_pipeline_as_in_eval(tuned, starts, capsys) -> None:
    saved = tuned["bert", "tagging"]
    printed, predictions = _evaluated(saved, capsys)
    config = json.loads((saved / "config.json").read_text())
    assert config["architectures"] == ["BertForTokenClassification"]
    assert config["id2label"]["0"] == "O"
    assert set(printed["metrics"]) == {"entity_f1:scheme=iob2", "tag_accuracy"}
    pipe = transformers.pipeline("token-classification", model=str(saved), device="cpu")
    blocks = (starts / "en_tag.valid.conll").read_text("utf-8").strip().split("\n\n")
    sentences = [[line.split(" ")[0] for line in block.split("\n")] for block in blocks]
    assert printed["targets"] == sum(map(len, sentences))
    compared = 0
    for words, row in zip(sentences, predictions, strict=True):
        text, begins = " ".join(words), []
        for number in range(len(words)):
            begins.append(len(" ".join(words[:number])) + (number > 0))
        if len(pipe.tokenizer(text)["input_ids"]) > 24:  # read in windows
            continue
        found = {each["start"]: each["entity"] for each in pipe(text, ignore_labels=[])}
        assert [found[begin] for begin in begins] == row["prediction"].split()
        compared += 1
    assert compared > ROWS // 2


def test_questions_are_answered_by_transformers_as_in_eval(tuned, starts, capsys) -> None:
    saved = tuned["bert", "question_answering"]
    more = ("--metrics", "squad_f1")
    printed, predictions = _evaluated(saved, capsys, *more)
    assert json.loads((saved / "config.json").read_text())["architectures"] == [
        "BertForQuestionAnswering"
    ]
    (article,) = json.loads((starts / "en_answer.valid.squad.json").read_text("utf-8"))["data"]
    asked = [(p["context"], q) for p in article["paragraphs"] for q in p["qas"]]
    assert printed["rows"] == len(asked) == len(predictions)
    model = transformers.AutoModelForQuestionAnswering.from_pretrained(saved).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(saved)
    compared = 0
    for (context, question), row in zip(asked, predictions, strict=True):
        assert row["prediction"] in context
        assert row["target"] == question["answers"][0]["text"]
        if len(tokenizer(question["question"], context)["input_ids"]) > 60:
            continue
        answer = _their_answer(model, tokenizer, question["question"], context)
        assert answer == row["prediction"]
        compared += 1
    assert compared > 5


def _their_answer(model, tokenizer, question: str, context: str) -> str:
    """Return the answer of transformers' model; version 5 has no pipeline for questions."""
    given = tokenizer(question, context, return_tensors="pt", return_offsets_mapping=True)
    offsets = given.pop("offset_mapping")[0].tolist()
    with torch.no_grad():
        found = model(**given)
    inside = [k for k, kind in enumerate(given["token_type_ids"][0].tolist()) if kind][:-1]
    spans = {
        (a, b): float(found.start_logits[0, a] + found.end_logits[0, b])
        for a in inside
        for b in inside
        if a <= b < a + 30
    }
    first, last = max(spans, key=lambda span: spans[span])
    return context[offsets[first][0] : offsets[last][1]]


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("family", START)
def test_checkpoint_evaluates_as_the_run_said(tuned, capsys, family: str, task: str) -> None:
    saved = tuned[family, task]
    printed, _ = _evaluated(saved, capsys)
    records = _tiny.metrics(saved.parent.parent)
    told = [record["held_out"] for record in records if "held_out" in record][-1]
    assert printed["metrics"] == pytest.approx(told["metrics"])
    assert printed["loss"] == pytest.approx(told["loss"], abs=1e-5)


@pytest.mark.parametrize("task", TASKS)
def test_gpt1_keeps_its_class_where_transformers_has_none_for_the_task(tuned, task: str) -> None:
    saved = tuned["gpt", task]
    config = json.loads((saved / "config.json").read_text())
    assert config["architectures"] == ["OpenAIGPTLMHeadModel"]
    tensors = load_file(saved / "model.safetensors")
    opened = open_checkpoint(saved, device="cpu")
    assert torch.equal(opened.model.head.weight, tensors["score.weight"])
    # The body opens as what it is.
    theirs = transformers.AutoModelForCausalLM.from_pretrained(saved).eval()
    ids = torch.arange(5, 15)
    with torch.no_grad():
        ours = opened.model.logits(opened.model((10,), input_ids=ids))
        torch.testing.assert_close(ours, theirs(ids[None]).logits[0], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("family", "task"),
    [("bert", "tagging"), pytest.param("gpt", "question_answering", marks=pytest.mark.slow)],
)
def test_run_stopped_and_resumed_is_the_same_bit_for_bit(
    tuned, starts, tmp_path, family: str, task: str
) -> None:
    path = _recipe(starts, family, task)
    last = _tiny.pretrain_with_stops(path, tmp_path / "parts", [3, 6])
    whole, parts = (load_file(p / "model.safetensors") for p in (tuned[family, task], last))
    assert all(torch.equal(whole[name], parts[name]) for name in whole)


@pytest.mark.parametrize(
    ("task", "kind", "layer"),
    [
        ("tagging", "TOKEN_CLS", "classifier"),
        pytest.param(*("question_answering", "QUESTION_ANS", "qa_outputs"), marks=pytest.mark.slow),
    ],
)
def test_adapters_resume_and_merge_into_the_model_of_the_task(
    starts, tmp_path, capsys, task: str, kind: str, layer: str
) -> None:
    path = _recipe(starts, "bert", task)
    saved = _tiny.pretrain_with_stops(path, tmp_path / "run", [4], "lora.rank=2")
    settings = json.loads((saved / "adapter_config.json").read_text())
    assert (settings["task_type"], settings["modules_to_save"]) == (kind, [layer])
    merged = tmp_path / "merged"
    assert cli.run(["convert", str(saved), str(merged), "-q"]) == 0
    capsys.readouterr()
    config = json.loads((merged / "config.json").read_text())
    expected = json.loads((saved / "config.json").read_text())
    assert config["architectures"] == expected["architectures"]
    assert config["id2label"] == expected["id2label"]
    ours, theirs = (open_checkpoint(p, device="cpu").model for p in (saved, merged))
    ids = torch.arange(5, 15)
    inputs = {"input_ids": ids, "token_type_ids": torch.zeros(10).long()}
    with torch.no_grad():
        states = [model.head(model((10,), **inputs)) for model in (ours, theirs)]
    torch.testing.assert_close(*states, atol=1e-6, rtol=1e-6)


def test_classifier_answers_in_the_pipeline_as_in_eval(starts, capsys) -> None:
    folder = DATA.parent / "en/classify"
    path = starts / "classes.yaml"
    path.write_text(
        f"name: classes\ninit_from: {starts}/bert/checkpoints/latest\n"
        f"data: {{train: [{folder}/train.tsv], valid: [{folder}/valid.tsv]}}\n"
        f"objective: {{name: classification, max_length: 90}}\n{TRAIN}",
        encoding="utf-8",
    )
    saved = _tiny.pretrain(path, starts / "classes")
    _, predictions = _evaluated(saved, capsys)
    lines = (folder / "valid.tsv").read_text("utf-8").splitlines()[1:]
    pipe = transformers.pipeline("text-classification", model=str(saved), device="cpu")
    found = pipe([line.split("\t")[1] for line in lines[:50]])
    assert [each["label"] for each in found] == [row["prediction"] for row in predictions[:50]]


def test_masked_model_answers_in_the_pipeline_with_our_scores(starts) -> None:
    saved = (starts / "bert/checkpoints/latest").resolve()
    pipe = transformers.pipeline("fill-mask", model=str(saved), device="cpu", top_k=5)
    found = pipe("Mara took two [MASK] apples to Windle.")
    opened = open_checkpoint(saved, device="cpu")
    special = opened.tokenizer.special_id
    before, after = opened.tokenizer.encode_batch(["Mara took two", "apples to Windle."])
    ids = torch.tensor([special("[CLS]"), *before, special("[MASK]"), *after, special("[SEP]")])
    with torch.no_grad():
        hidden = opened.model((len(ids),), input_ids=ids, token_type_ids=torch.zeros_like(ids))
        shares = opened.model.logits(hidden[len(before) + 1][None]).softmax(1)[0]
    top = shares.topk(5)
    assert [each["token"] for each in found] == top.indices.tolist()
    assert [each["score"] for each in found] == pytest.approx(top.values.tolist(), abs=1e-5)
