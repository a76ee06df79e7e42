"""`nlpkit shots`: rows as prompts with examples, without tuning.

Oracles: the prompts by hand, and plain loops with transformers over these prompts.
"""

import io
import json
import re
import statistics
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import transformers

from nlpkit import cli
from nlpkit.contracts.reader import RowError
from nlpkit.data.items import Row
from nlpkit.errors import DataError
from nlpkit.evaluate import prompts
from nlpkit.evaluate.shots import Shots
from nlpkit.generate.settings import Settings
from nlpkit.models import t5
from nlpkit.models.t5 import model as t5_model
from nlpkit.objectives import seq2seq
from nlpkit.runs.open_checkpoint import open_checkpoint
from nlpkit.tokenizers import bpe
from tests import _tiny_tasks

ROWS = [
    {"text": "A fine day.", "label": "good"},
    {"text": "The soup was cold.", "label": "bad"},
    {"text": "She liked the song.", "label": "good"},
    {"text": "Nobody came.", "label": "bad"},
    {"text": "We were happy {there}.", "label": "good"},
]
RECIPE = """\
name: tiny
init_from: nowhere
data: {train: [FOLDER/train.jsonl], valid: [FOLDER/valid.jsonl]}
objective: {name: classification, max_length: 32}
train: {steps: 1, tokens_per_step: 64, tokens_per_batch: 64, lr: 1.0e-3, warmup_steps: 1,
  best_by: accuracy}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random GPT-1 in transformers' layout, rows of a classification, and its recipe."""
    place = tmp_path_factory.mktemp("shots")
    torch.manual_seed(0)
    text = ["Label: good bad\n\n Answer:", *(str(row["text"]) for row in ROWS)]
    tokenizer = bpe.Tokenizer.train(text, bpe.Config(vocab_size=320))
    tokenizer.save(place / "gpt")
    config = transformers.OpenAIGPTConfig(
        vocab_size=tokenizer.vocab_size, n_positions=160, n_embd=32, n_layer=2, n_head=4,
        initializer_range=0.3,
    )  # fmt: skip
    transformers.OpenAIGPTLMHeadModel(config).save_pretrained(place / "gpt")
    _tiny_tasks.write_rows(place / "train.jsonl", ROWS)
    _tiny_tasks.write_rows(place / "valid.jsonl", [ROWS[1], {"text": "Good.", "label": "good"}])
    (place / "r.yaml").write_text(RECIPE.replace("FOLDER", str(place)), encoding="utf-8")
    return place


def _run(capsys: pytest.CaptureFixture, *arguments: object) -> tuple[int, str, str]:
    code = cli.run([str(each) for each in ("shots", *arguments, "--device", "cpu")])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def _done(capsys: pytest.CaptureFixture, *arguments: object) -> dict:
    code, out, err = _run(capsys, *arguments, "--json", "-q")
    assert code == 0, err
    return json.loads(out)


def _expected(folder: Path, prompt: str, answers: Sequence[str]) -> list[list[float]]:
    """Return the log-probability of each token of each answer, one forward pass an answer."""
    model = transformers.OpenAIGPTLMHeadModel.from_pretrained(folder / "gpt").eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder / "gpt")
    found = []
    for answer in answers:
        first, last = (tokenizer(text)["input_ids"] for text in (prompt, answer))
        ids = torch.tensor([[tokenizer.eos_token_id, *first, *last]])
        with torch.no_grad():
            logs = model(ids[:, :-1]).logits[0].log_softmax(-1).gather(1, ids[0, 1:, None])
        found.append(logs[len(first) :, 0].tolist())
    return found


def test_shots_prompt_is_examples_then_the_row_and_never_the_row_itself(folder: Path) -> None:
    rows = prompts.load(str(folder / "r.yaml"), [], [], 3)
    assert [row.prompt for row in rows.rows] == ["The soup was cold.\nLabel:", "Good.\nLabel:"]
    assert rows.rows[0].answers == (" bad", " good")
    for seed in range(20):
        examples = rows.draw_examples(3, seed, 0)
        assert len(examples) == 3
        assert "The soup was cold.\nLabel:" not in {each.prompt for each in examples}
        assert examples == rows.draw_examples(3, seed, 0)
    drawn = {tuple(each.prompt for each in rows.draw_examples(2, seed, 1)) for seed in range(40)}
    assert len(drawn) > 8  # of 20 ordered pairs
    first = rows.train[:2]
    # By hand.
    assert rows.write_prompt(first, rows.rows[1]) == (
        "A fine day.\nLabel: good\n\nThe soup was cold.\nLabel: bad\n\nGood.\nLabel:"
    )


def test_all_training_rows_are_drawn_where_the_row_is_none_of_them(
    folder: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other.jsonl"
    _tiny_tasks.write_rows(other, [{"text": "Good.", "label": "good"}])
    rows = prompts.load(str(folder / "r.yaml"), [], [str(other)], len(ROWS))
    assert len(rows.draw_examples(len(ROWS), 0, 0)) == len(ROWS)


def test_row_that_is_several_times_in_the_training_rows_has_no_example_fewer() -> None:
    def made(name: str) -> prompts.PromptRow:
        return prompts.PromptRow((), (), "", "", name, "")

    train = [made("a"), made("a"), made("a"), made("b"), made("c")]
    rows = prompts.Rows("x", 0, (), prompts.Prompt(), [made("a")], train)
    for seed in range(20):
        assert sorted(each.prompt for each in rows.draw_examples(2, seed, 0)) == ["b", "c"]


@pytest.mark.fast_cases(2)
@pytest.mark.parametrize("shots", [0, 2])
@pytest.mark.parametrize("kind", ["sum", "token", "neutral"])
def test_shots_scores_equal_plain_transformers_on_the_same_prompts(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture, shots: int, kind: str
) -> None:
    arguments = (folder / "r.yaml", "--shots", shots, "--set", f"eval.prompt.option_score={kind}")
    file = tmp_path / "p.jsonl"
    found = _done(capsys, folder / "gpt", *arguments, "--predictions", file,
                  "--tokens-per-batch", 200)  # fmt: skip
    rows = prompts.load(str(folder / "r.yaml"), [], [], shots)
    written = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    answers = [" bad", " good"]
    right = 0
    for number, (row, given) in enumerate(zip(rows.rows, written, strict=True)):
        prompt = rows.write_prompt(rows.draw_examples(shots, rows.seed, number), row)
        tokens = _expected(folder, prompt, answers)
        scores = [sum(each) for each in tokens]
        if kind == "token":
            scores = [np.mean(each) for each in tokens]
        elif kind == "neutral":
            neutral = _expected(folder, "Label:", answers)
            scores = [a - sum(b) for a, b in zip(scores, neutral, strict=True)]
        assert given["scores"] == pytest.approx(scores, abs=1e-4)
        best = ["bad", "good"][int(np.argmax(scores))]
        assert (given["prediction"], given["target"]) == (best, ["bad", "good"][number])
        right += given["prediction"] == given["target"]
    assert found["metrics"]["accuracy"] == right / 2
    assert (found["shots"], found["rows"], found["option_score"]) == (shots, 2, kind)
    first = rows.write_prompt(rows.draw_examples(shots, rows.seed, 0), rows.rows[0])
    assert found["prompt"]["text"] == first
    assert found["prompt"]["template"] == "{text}\nLabel:"
    if shots == 0 and kind == "sum":  # other scores, though a run by accuracy could not have them
        found = _done(capsys, folder / "gpt", folder / "r.yaml", "--set", "eval.metrics=[f1]")
        assert [*found["metrics"]] == ["f1"]


def test_shots_written_answers_are_those_of_transformers_up_to_the_separator(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    rows = [{"input": row["text"], "target": row["label"]} for row in ROWS]
    data = _tiny_tasks.write_rows(tmp_path / "w.jsonl", rows)
    recipe = tmp_path / "w.yaml"
    recipe.write_text(
        f"name: w\ninit_from: nowhere\ndata: {{train: [{data}], valid: [{data}]}}\n"
        "objective: {name: cpm_ant_nlg, max_length: 32}\n"
        "eval: {metrics: [exact_match], prompt: {answer_prefix: ' ', separator: '\\n'}}\n"
        "train: {steps: 1, tokens_per_step: 64, tokens_per_batch: 64, warmup_steps: 1}\n",
        encoding="utf-8",
    )
    file = tmp_path / "p.jsonl"
    found = _done(capsys, folder / "gpt", recipe, "--shots", 1,
                  "--max-new-tokens", 12, "--predictions", file)  # fmt: skip
    assert found["method"] == "generate"
    written = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    model = transformers.OpenAIGPTLMHeadModel.from_pretrained(folder / "gpt").eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder / "gpt")
    shown = prompts.load(str(recipe), [], [], 1)
    for number, (row, given) in enumerate(zip(shown.rows, written, strict=True)):
        prompt = shown.write_prompt(shown.draw_examples(1, shown.seed, number), row)
        ids = torch.tensor([tokenizer(prompt)["input_ids"]])
        out = model.generate(ids, max_new_tokens=12, do_sample=False, suppress_tokens=[
            tokenizer.convert_tokens_to_ids("<pad>")])  # fmt: skip
        text = tokenizer.decode(out[0, ids.shape[1] :], skip_special_tokens=True)
        assert given["prediction"] == text.partition("\n")[0].strip()
        assert given["target"] == rows[number]["target"]


def test_shots_prompt_of_a_model_with_a_source_leaves_no_room_for_the_answer(
    folder: Path, tmp_path: Path
) -> None:
    rows = [{"input": row["text"], "target": row["label"]} for row in ROWS]
    data = _tiny_tasks.write_rows(tmp_path / "w.jsonl", rows)
    (tmp_path / "w.yaml").write_text(
        f"name: w\ninit_from: nowhere\ndata: {{train: [{data}], valid: [{data}]}}\n"
        "objective: {name: cpm_ant_nlg, max_length: 32}\neval: {prompt: {answer_prefix: ' '}}\n"
        "train: {steps: 1, tokens_per_step: 64, tokens_per_batch: 64, warmup_steps: 1}\n"
    )
    shown = prompts.load(str(tmp_path / "w.yaml"), [], [], 2)
    tokenizer = bpe.Tokenizer.load(folder / "gpt").extended(["<pad>", "</s>"])
    config = t5.Config(hidden_size=16, num_layers=1, num_heads=2, head_dim=8, intermediate_size=16)
    whole = [shown.write_prompt(shown.draw_examples(2, 1, n), row)
             for n, row in enumerate(shown.rows)]  # fmt: skip
    longest = max(len(tokenizer.encode(f"task: {prompt}")) for prompt in whole)
    for missing in (0, 1):  # the prefix and the end token count
        settings = seq2seq.Config(max_length=longest + 1 - missing, prefix="task: ")
        objective = seq2seq.Objective(settings, tokenizer, config)
        model = t5_model.Model(config, tokenizer.vocab_size).eval()
        opened = SimpleNamespace(model=model, tokenizer=tokenizer, objective=objective)
        asked = Shots(opened, shown, None, 4096, Settings())
        answers = asked.answer(2, 1, lambda done, total: None)
        assert len(answers) == len(ROWS)
        assert bool(asked.cut) == missing
    empty = replace(shown, rows=[replace(shown.rows[0], prompt="")])
    objective = seq2seq.Objective(seq2seq.Config(max_length=longest), tokenizer, config)
    opened = SimpleNamespace(model=model, tokenizer=tokenizer, objective=objective)
    with pytest.raises(DataError, match=r"w\.jsonl:1: the source is empty"):
        Shots(opened, empty, None, 4096, Settings()).answer(0, 1, lambda done, total: None)


@pytest.mark.parametrize("writes", [False, True])
def test_shots_counts_the_unknown_tokens_that_are_left_out(folder: Path, writes: bool) -> None:
    opened = open_checkpoint(folder / "gpt", device="cpu", precision="fp32")
    assert opened.tokenizer is not None
    unknown = opened.tokenizer.encode("Label: good")[0]
    shown = prompts.load(str(folder / "r.yaml"), [], [], 0)
    texts = [row.prompt for row in shown.rows]
    if writes:
        rows = [replace(row, answers=(), names=()) for row in shown.rows]
        shown = replace(shown, rows=rows)
    else:
        texts += shown.rows[0].answers
    count = sum(opened.tokenizer.encode(text).count(unknown) for text in texts)
    opened.tokenizer.unk_id, opened.objective.drop_unknown = unknown, True  # type: ignore[misc]
    asked = Shots(opened, shown, None, 4096, Settings(max_new_tokens=2))
    for _ in range(2):
        asked.cut.clear()
        asked.answer(0, 1, lambda done, total: None)
        assert asked.cut == {"unknown tokens left out": count}
        assert count


def test_shots_of_several_seeds_give_mean_and_deviation_of_each(
    folder: Path, capsys: pytest.CaptureFixture
) -> None:
    arguments = (folder / "gpt", folder / "r.yaml", "--shots", 2)
    several = _done(capsys, *arguments, "--seeds", 3)
    alone = [
        _done(capsys, *arguments, "--set", f"seed={seed}")["metrics"]["accuracy"]
        for seed in (1, 2, 3)
    ]
    found = several["figures"]["accuracy"]
    assert several["seeds"] == [1, 2, 3]
    assert found["values"] == alone
    assert found["mean"] == pytest.approx(statistics.fmean(alone))
    assert found["std"] == pytest.approx(statistics.stdev(alone))
    code, out, _ = _run(capsys, *arguments, "--seeds", 2)
    assert code == 0
    assert out.splitlines()[0].split("\t") == [
        "figure",
        "mean",
        "median",
        "std",
        "seed 1",
        "seed 2",
    ]


def test_shots_too_long_for_the_model_loses_examples_then_the_start(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    rows = [{"text": "cold " * 12 + str(number), "label": "bad"} for number in range(5)]
    rows += [{"text": "cold " * 100, "label": "good"}]
    data = _tiny_tasks.write_rows(tmp_path / "long.jsonl", rows)
    file = tmp_path / "p.jsonl"
    arguments = ("--set", f"data.train=[{data}]", "--data", data, "--predictions", file)
    code, _, err = _run(capsys, folder / "gpt", folder / "r.yaml", "--shots", 4, *arguments)
    assert code == 0, err
    said = r"not read whole: (\d+) examples that did not fit, 1 prompts cut, \d+ tokens"
    counts = re.search(said, err)
    assert counts
    assert int(counts[1]) >= 4
    written = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder / "gpt")
    sizes = [len(tokenizer(answer)["input_ids"]) for answer in (" bad", " good")]
    room = 160 - max(sizes)
    # The examples that are left stand nearest to the row.
    shown = prompts.load(str(folder / "r.yaml"), [arguments[1]], [str(data)], 4)
    left = []
    for number, row in enumerate(shown.rows[:5]):
        examples = shown.draw_examples(4, shown.seed, number)
        while len(tokenizer(shown.write_prompt(examples, row))["input_ids"]) > room:
            examples = examples[1:]
        left.append(len(examples))
        tokens = _expected(folder, shown.write_prompt(examples, row), [" bad", " good"])
        assert written[number]["scores"] == pytest.approx([sum(x) for x in tokens], abs=1e-4)
    assert {*left} & {1, 2, 3}
    # The last prompt alone: its last tokens, so that prompt, answer and end token fit in 160 + 1.
    ids = tokenizer("cold " * 100 + "\nLabel:")["input_ids"]
    kept = tokenizer.decode(ids[-room:])
    expected = [sum(each) for each in _expected(folder, kept, [" bad", " good"])]
    assert written[-1]["scores"] == pytest.approx(expected, abs=1e-4)


def test_shots_show_prompt_prints_it_and_opens_no_checkpoint(
    folder: Path, capsys: pytest.CaptureFixture
) -> None:
    sets = ("--set", "eval.prompt.template=Is {{this}} {label}? {text}", "--set",
            "eval.prompt.labels={bad: 'no', good: 'yes'}")  # fmt: skip
    arguments = ("nowhere", folder / "r.yaml", "--show-prompt", *sets)
    code, out, err = _run(capsys, *arguments)
    assert code == 0, err
    assert out.splitlines() == ["Is {this} bad? The soup was cold.", "* ' no'", "  ' yes'"]
    found = _done(capsys, *arguments, "--shots", 1)
    assert found["right"] == " no"
    assert found["text"].endswith("\n\nIs {this} bad? The soup was cold.")
    code, _, err = _run(capsys, *arguments, "--predictions", folder / "none.jsonl")
    assert code == 2
    assert err.startswith("nlpkit: --predictions: has the answers of one seed")


@pytest.mark.parametrize(
    ("objective", "row", "prompt", "answers", "right"),
    [
        ("{name: classification}", {"text": "a", "label": 1}, "a\nLabel:", [" 0", " 1"], " 1"),
        ("{name: entailment}", {"premise": "a", "hypothesis": "b", "label": 0},
         "a\nHypothesis: b\nLabel:", [" 0", " 1"], " 0"),
        ("{name: similarity}", {"text_a": "a", "text_b": "b", "label": 0},
         "a\nb\nLabel:", [" 0", " 1"], " 0"),
        ("{name: multiple_choice, question: q}",
         {"context": "a", "q": "b", "options": ["c", "d"], "label": 1}, "a b", [" c", " d"], " d"),
        ("{name: cpm_ant_nlu}", {"input": "a", "options": ["c", "d"], "target": 0},
         "a", ["c", "d"], "c"),
        ("{name: cpm_ant_nlg}", {"input": "a", "target": "z"}, "a", [], "z"),
    ],
)  # fmt: skip
def test_prompt_of_every_task_by_default(
    tmp_path: Path, objective: str, row: dict, prompt: str, answers: list[str], right: str
) -> None:
    rows = [row]
    if row.get("label") in (0, 1):
        rows.append({**row, "label": 1 - row["label"]})
    data = _tiny_tasks.write_rows(tmp_path / "d.jsonl", rows)
    recipe = tmp_path / "d.yaml"
    recipe.write_text(
        f"name: d\ninit_from: nowhere\ndata: {{train: [{data}], valid: [{data}]}}\n"
        f"objective: {objective}\n"
        "train: {steps: 1, tokens_per_step: 64, tokens_per_batch: 64, warmup_steps: 1}\n",
        encoding="utf-8",
    )
    first = prompts.load(str(recipe), [], [], 0).rows[0]
    assert (first.prompt, list(first.answers), first.right) == (prompt, answers, right)


def test_template_takes_numbers_and_braces_and_refuses_other_columns() -> None:
    row = Row({"a": "x", "n": 3, "list": ["y"]}, "f", 1)
    assert prompts.fill("{{{a}}} {n}", row) == "{x} 3"
    with pytest.raises(RowError, match='no "b"'):
        prompts.fill("{b}", row)
    with pytest.raises(RowError, match="neither text nor a number"):
        prompts.fill("{list}", row)


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--shots", "9"], 2, "--shots 9: FOLDER/r.yaml has 5 training rows"),
        (
            ["--shots", "5"],
            2,
            "--shots 5: FOLDER/valid.jsonl:1: 4 of 5 training rows can be its examples; the rest "
            "are this row itself",
        ),
        (["--seeds", "2"], 2, "--seeds: without examples (--shots 0) nothing is drawn"),
        (["--set", "eval.prompt.template={txt}"], 3, 'no "txt"'),
        (["--set", "eval.prompt.template=text"], 2, "eval.prompt.template: it has no {COLUMN}"),
        (["--set", "eval.prompt.template='a {text'"], 2, "template: has a single brace, opened"),
        (["--set", "eval.prompt.labels={good: bad}"], 2, "labels: several classes are 'bad'; give"),
        (
            ["--set", "eval.prompt.labels={worse: x}"],
            2,
            "--set eval.prompt.labels: no class 'worse'; the classes are bad",
        ),
        (["--set", "eval.prompt.sep=x"], 2, "eval.prompt.sep: unknown setting"),
        (["--set", "eval.prompt.option_score=mean"], 2, "expected one of sum, token, neutral"),
        (["--method", "pll"], 2, "has log-probability"),
        (["--metrics", "accurcy"], 2, "did you mean accuracy?"),
        (["--metrics", "pearson"], 2, "--metrics pearson cannot score answers such as "),
        (
            ["--set", "eval.metrics=[pearson]"],
            2,
            "--set eval.metrics: pearson cannot score answers such ",
        ),
        (["--data", ""], 2, "--data: a name is empty"),
    ],
)
def test_shots_refuses_in_one_line(
    folder: Path, capsys: pytest.CaptureFixture, arguments: list[str], code: int, said: str
) -> None:
    found, out, err = _run(capsys, folder / "gpt", folder / "r.yaml", *arguments)
    assert (found, out) == (code, "")
    assert said.replace("FOLDER", str(folder)) in err.splitlines()[-1]


def test_rows_that_are_left_out_are_counted_and_stdin_is_jsonl(
    folder: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    rows = [*ROWS[:2], {"text": "Hm.", "label": "-"}, {"label": "good"}]
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    file = tmp_path / "rows.jsonl"
    file.write_text(lines)
    choices = "objective.choices={good: good, bad: bad, '-': null}"
    settings = ("--set", choices, "--set", "data.on_error=skip")
    code, out, err = _run(capsys, folder / "gpt", folder / "r.yaml", *settings, "--data", file)
    assert code == 0, err
    assert re.search(r"^rows +2$", out, re.MULTILINE)
    beams = ("--beam", 2, "--set", choices, "--set", "data.on_error=skip")
    assert (
        "--beam: has no effect: answers are chosen"
        in _run(capsys, folder / "gpt", folder / "r.yaml", *beams, "--data", file)[2]
    )
    assert "left out of what is evaluated: 1 malformed row, 1 row that choices leave out" in err
    assert f"skipped {file}:4: " in err
    # Without examples, training rows give the names of classes alone.
    named = tmp_path / "named.jsonl"
    named.write_text(json.dumps({"words": "Good.", "label": "good"}) + "\n")
    template = ("--set", "eval.prompt.template={words}", "--data", named)
    assert _done(capsys, folder / "gpt", folder / "r.yaml", *template)["rows"] == 1
    monkeypatch.setattr("sys.stdin", SimpleNamespace(
        buffer=io.BytesIO(lines.encode()), closed=False, isatty=lambda: False
    ))  # fmt: skip
    assert _done(capsys, folder / "gpt", folder / "r.yaml", *settings, "--data", "-")["rows"] == 2
    file.write_text(json.dumps(rows[2]) + "\n")
    code, _, err = _run(capsys, folder / "gpt", folder / "r.yaml", *settings, "--data", file)
    assert code == 3
    assert err.splitlines()[-1].endswith("no rows to score; left out of what is evaluated: 1 row "
                                         "that choices leave out")  # fmt: skip


def test_shots_of_an_objective_on_text_are_refused(
    folder: Path, capsys: pytest.CaptureFixture
) -> None:
    code, _, err = _run(capsys, folder / "gpt", "gpt1")
    assert code == 2
    assert "objective clm is no task" in err
