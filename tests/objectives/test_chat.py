"""Conversations: the ids and the assistant's tokens are those of transformers."""

import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from transformers import AutoTokenizer

from nlpkit import cli
from nlpkit.contracts.batch import IGNORE
from nlpkit.contracts.reader import LeftOut, RowError
from nlpkit.data.files import find_inputs
from nlpkit.data.items import Row, build_items
from nlpkit.data.settings import Config as DataConfig
from nlpkit.errors import DataError
from nlpkit.models.gpt2 import Config as ModelSettings
from nlpkit.objectives.chat import Config, Objective
from nlpkit.objectives.tasks.conversations import CHATML, message, parse
from nlpkit.runs.open_checkpoint import open_checkpoint
from nlpkit.tokenizers import bpe, unigram, wordpiece
from tests import _tiny

MARKED = CHATML
# As Llama 2's and Zephyr's: tokens by their roles, spaces, no marks.
UNMARKED = (
    "{% for m in messages %}{% if m['role'] == 'user' %}{{ bos_token + '[INST] ' + m['content'] }}"
    " [/INST]{% elif m['role'] == 'system' %}{{ '<<' + m['content'] + '>>' }}"
    "{% else %}{{ ' ' + m['content'] + ' ' + eos_token }}{% endif %}{% endfor %}"
)
REFUSING = (
    "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system') }}{% endif %}"
    + UNMARKED
)
# As Qwen 3's: an earlier turn is written otherwise.
REWRITING = (
    "{% for m in messages %}{{ m['role'] }}: {{ m['content'] if loop.last else 'gone' }}\n"
    "{% endfor %}{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}"
)
TEXTS = (
    "Hello there!", " spaces  around ", "两行\n文字", "emoji 👩‍👩‍👧 é ", "", "a\tb\r\nc",
    "[INST] not a token", "The quick brown fox jumps over it.",
)  # fmt: skip
RECIPE = """\
name: tiny
model: {family: gpt2, hidden_size: 32, num_layers: 1, num_heads: 2, max_positions: 128}
tokenizer: {kind: bpe, vocab_size: 300}
data: {train: [ROWS], valid: [ROWS]}
objective: {name: chat, max_length: 96, template: chatml}
train: {steps: 30, tokens_per_step: 512, tokens_per_batch: 256, lr: 1.0e-2, warmup_steps: 2,
  eval_every: 15, save_every: 10, precision: fp32}
"""


@pytest.fixture(scope="module")
def tokenizer() -> bpe.Tokenizer:
    made = bpe.Tokenizer.train(TEXTS * 3, bpe.Config(vocab_size=300))
    return made.extended(["<|im_start|>", "<|im_end|>"])


def _bound(tokenizer: bpe.Tokenizer, template: str | None, **settings: object) -> Objective:
    tokenizer.chat_template = template
    return Objective(Config(**{"max_length": 400, **settings}), tokenizer, ModelSettings())


def _conversations() -> list[list[dict[str, str]]]:
    rng = np.random.default_rng(0)
    found = []
    for number in range(24):
        made = [{"role": "system", "content": "Be brief."}] if number % 3 == 0 else []
        for _ in range(rng.integers(1, 4)):
            made.append({"role": "user", "content": str(rng.choice(TEXTS))})
            made.append({"role": "assistant", "content": str(rng.choice(TEXTS))})
        found.append(made)
    return found


def _row(**values: object) -> Row:
    return Row(values, "rows.jsonl", 1)


@pytest.mark.parametrize("template", [MARKED, UNMARKED], ids=["marked", "unmarked"])
def test_ids_and_targets_are_those_of_transformers(template, tokenizer, tmp_path) -> None:
    objective = _bound(tokenizer, template)
    tokenizer.save(tmp_path)
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    for messages in _conversations():
        row = _row(messages=messages)
        item = objective.item(row, objective.encode([*objective.texts(row)]))
        expected = theirs.apply_chat_template(
            messages, return_dict=True, return_assistant_tokens_mask=template is MARKED
        )
        assert item.parts[0].tolist() == expected["input_ids"]
        if template is MARKED:
            assert item.label.astype(int).tolist() == expected["assistant_masks"]
        else:  # the texts of the turns, each with its end
            turns = "".join(
                f" {m['content']} <|endoftext|>" for m in messages if m["role"] == "assistant"
            )
            shown = "".join(tokenizer.token(i) for i in item.parts[0][item.label])
            plain = "".join(tokenizer.token(i) for i in tokenizer.encode_marked(turns)[0])
            assert shown.replace("Ġ", "") == plain.replace("Ġ", "")
        asked = messages[:-1]
        objective.reads_json = True
        prompt = objective.encode_input(json.dumps(asked))
        assert (
            prompt
            == theirs.apply_chat_template(asked, add_generation_prompt=True, return_dict=True)[
                "input_ids"
            ]
        )


@pytest.mark.parametrize(
    ("kind", "template"),
    [
        (unigram, MARKED),
        (unigram, UNMARKED.replace("bos_token + ", "")),
        (wordpiece, MARKED),
    ],
    ids=["unigram-marked", "unigram-unmarked", "wordpiece"],
)
def test_template_in_files_of_other_kinds_is_read(kind, template, tmp_path) -> None:
    made = kind.Tokenizer.train(TEXTS * 3, kind.Config(vocab_size=400))
    if template is MARKED:
        made = made.extended(["<|im_start|>", "<|im_end|>"])
    made.save(tmp_path)
    (tmp_path / "chat_template.jinja").write_text(template, "utf-8")
    read = kind.Tokenizer.load(tmp_path)
    objective = Objective(Config(max_length=400), read, ModelSettings())
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    for messages in _conversations():
        row = _row(messages=messages)
        item = objective.item(row, objective.encode([*objective.texts(row)]))
        expected = theirs.apply_chat_template(messages, return_dict=True)["input_ids"]
        assert item.parts[0].tolist() == expected


def test_example_predicts_the_turns_and_their_ends_alone(tokenizer) -> None:
    objective = _bound(tokenizer, MARKED)
    assert [tokenizer.token(i) for i in objective.eos_token_ids] == ["<|im_end|>", "<|endoftext|>"]
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yes"}]
    row = _row(messages=messages)
    item = objective.item(row, objective.encode([*objective.texts(row)]))
    example = objective.example(item, np.random.default_rng(0))
    targets = example["labels"][example["labels"] != IGNORE]
    assert targets.tolist() == [*tokenizer.encode("Yes"), tokenizer.special_id("<|im_end|>")]
    assert len(example["input_ids"]) == item.size
    first = int(np.argmax(example["labels"] != IGNORE))
    cut = _bound(tokenizer, MARKED, max_length=first + 1)
    short = cut.item(row, cut.encode([*cut.texts(row)]))
    assert short.size == first + 1
    assert short.cut["conversations cut"] == 1
    cut = _bound(tokenizer, MARKED, max_length=first)
    with pytest.raises(LeftOut, match="conversations left out, cut before"):
        cut.item(row, cut.encode([*cut.texts(row)]))


def test_conversations_cut_before_the_answer_are_left_out_and_counted(
    tokenizer, tmp_path: Path
) -> None:
    talks = [[message("user", "x" * n), message("assistant", "Yes")] for n in (1, 90, 90)]
    file = tmp_path / "talks.jsonl"
    file.write_text("\n".join(json.dumps({"messages": each}) for each in talks))
    config = DataConfig(train=[str(file)])
    inputs, _ = find_inputs(config, None, tmp_path)
    items = build_items(inputs, config, _bound(tokenizer, MARKED, max_length=40))
    assert len(items) == items.counts.documents == 1
    said = "conversations left out, cut before the assistant's first turn"
    assert items.cut == {said: 2}
    file.write_text(json.dumps({"messages": talks[1]}))
    with pytest.raises(DataError, match=rf"no items; .* 1 {said.replace('ations', 'ation')}; "):
        build_items(inputs, config, _bound(tokenizer, MARKED, max_length=40))


TALK = [{"role": "user", "content": "A\nB"}, {"role": "assistant", "content": "C"}]
SHARED = [{"from": "human", "value": "A\nB"}, {"from": "gpt", "value": "C"}]


@pytest.mark.parametrize(
    ("settings", "row"),
    [
        ({}, {"messages": TALK}),
        ({"layout": "sharegpt"}, {"conversations": SHARED}),
        ({"layout": "alpaca"}, {"instruction": "A", "input": "B", "output": "C"}),
        ({"layout": "alpaca"}, {"instruction": "A\nB", "output": "C"}),
        ({"column": "talk"}, {"talk": TALK}),
    ],
)
def test_layouts_give_the_same_text(settings, row, tokenizer) -> None:
    (text,) = _bound(tokenizer, MARKED, **settings).texts(_row(**row))
    assert text == "<|im_start|>user\nA\nB<|im_end|>\n<|im_start|>assistant\nC<|im_end|>\n"


@pytest.mark.parametrize(
    ("template", "messages", "what"),
    [
        (MARKED, "Hi", '"messages" is a string, not a list of messages'),
        (MARKED, [{"role": "user"}], "message 1 of .* needs role and content"),
        (MARKED, [{"role": "user", "content": "A"}], "no message is the assistant's"),
        (
            MARKED,
            [{"role": "user", "content": "<|im_end|>"}, {"role": "assistant", "content": "B"}],
            r"message 1 has the special token <\|im_end\|> in its text",
        ),
        (
            MARKED,
            [{"role": "user<|im_end|>", "content": "A"}, {"role": "assistant", "content": "B"}],
            r"message 1 has the special token <\|im_end\|> in its role",
        ),
        (
            REFUSING,
            [{"role": "system", "content": "A"}, {"role": "assistant", "content": "B"}],
            "the chat template refuses it: no system",
        ),
    ],
)
def test_wrong_conversations_are_named(template, messages, what, tokenizer) -> None:
    with pytest.raises(RowError, match=what):
        _bound(tokenizer, template).texts(_row(messages=messages))


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ('"Hi"', "a string, not a conversation, which is a list of messages"),
        ('{"message": []}', 'an object without "messages", not a conversation, which is a list of'),
        ('{"messages": "Hi"}', '"messages" is a string, not a list of messages'),
    ],
)
def test_line_that_is_no_conversation_is_named(line: str, what: str) -> None:
    with pytest.raises(RowError) as error:
        parse(line)
    assert error.value.what.startswith(what)


@pytest.mark.parametrize("wrong", ["A\0", "A\ud83d"])
@pytest.mark.parametrize(
    ("layout", "column"),
    [
        ("messages", '"messages"[0].content'),
        ("sharegpt", '"conversations"[0].value'),
        ("alpaca", '"input"'),
    ],
)
def test_character_that_no_text_has_is_named(layout, column, wrong, tokenizer) -> None:
    row = {
        "messages": [{"role": "user", "content": wrong}, *TALK],
        "conversations": [{"from": "human", "value": wrong}, *SHARED],
        **{"instruction": "A", "input": wrong, "output": "B"},
    }
    with pytest.raises(RowError) as error:
        _bound(tokenizer, MARKED, layout=layout).texts(_row(**row))
    assert error.value.what.startswith(f"character 2 of {column} is ")


@pytest.mark.parametrize(
    ("line", "what"),
    [
        (
            r'[{"role": "user", "content": "x \ud83d"}]',
            "character 3 of the content of message 1 is U+D83D, half of a surrogate pair",
        ),
        (
            r'{"messages": [{"role": "\u0000", "content": "x"}]}',
            "character 1 of the role of message 1 is NUL (U+0000)",
        ),
        ("[" * 100_000, "JSON that is nested too deeply"),
    ],
)
def test_unfit_line_is_a_problem_of_its_input(line, what, tokenizer) -> None:
    objective = _bound(tokenizer, MARKED)
    objective.reads_json = True
    with pytest.raises(ValueError, match=f"^{re.escape(what)}$"):
        objective.encode_input(line)


def test_template_that_rewrites_earlier_turns_needs_marks(tokenizer) -> None:
    talk = [{"role": role, "content": "A"} for role in ("user", "assistant") * 2]
    objective, row = _bound(tokenizer, REWRITING), _row(messages=talk)
    with pytest.raises(RowError, match="the template writes message 2 otherwise where more follow"):
        objective.item(row, objective.encode([*objective.texts(row)]))


def test_missing_template_is_named(tokenizer) -> None:
    with pytest.raises(ValueError, match=r"has no chat_template .* set objective.template: chatml"):
        _bound(tokenizer, None)
    with pytest.raises(ValueError, match="needs chatml, or a template in Jinja"):
        Config(template="chatlm")


def test_run_answers_conversations(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    talk = [
        [{"role": "user", "content": f"Say {word}"}, {"role": "assistant", "content": f"{word}!"}]
        for word in ("tea", "salt")
    ]
    rows = "".join(json.dumps({"messages": each}) + "\n" for each in talk * 8)
    (tmp_path / "rows.jsonl").write_text(rows, "utf-8")
    path = tmp_path / "tiny.yaml"
    path.write_text(RECIPE.replace("ROWS", str(tmp_path / "rows.jsonl")), "utf-8")
    _tiny.pretrain(path, tmp_path / "run")
    _tiny.pretrain_with_stops(path, tmp_path / "stopped", [20])
    assert _tiny.metrics(tmp_path / "stopped") == _tiny.metrics(tmp_path / "run")
    lines = [json.dumps(each[:1]) for each in talk] + [json.dumps({"messages": talk[0][:1]}), "{"]
    lines.insert(1, r'[{"role": "user", "content": "x \ud83d"}]')
    (tmp_path / "lines.jsonl").write_text("\n".join(lines), "utf-8")
    capsys.readouterr()
    verb = ["generate", str(tmp_path / "run"), str(tmp_path / "lines.jsonl"), "--device", "cpu"]
    assert cli.run([*verb, "--chat", "--max-new-tokens", "8"]) == 0
    shown = capsys.readouterr()
    first, wrong, *others, nothing = shown.out.split("\n")[:-1]
    assert {first, *others} <= {"tea!", "salt!"}
    assert (len(others), wrong, nothing) == (2, "", "")
    assert "input 2: character 3 of the content of message 1 is U+D83D" in shown.err
    assert "input 5: not JSON" in shown.err
    with monkeypatch.context() as patched:  # a terminal: a conversation is not echoed
        patched.setattr(sys.stdout, "isatty", lambda: True, raising=False)
        assert cli.run([*verb, "--chat", "--max-new-tokens", "8", "--blank", "<x>"]) == 0
        again = capsys.readouterr()
        (tmp_path / "asked.txt").write_text("Say tea\n", "utf-8")
        verb[2] = str(tmp_path / "asked.txt")
        assert cli.run([*verb, "--max-new-tokens", "8"]) == 0  # nor is a message
    assert capsys.readouterr().out in ("tea!\n", "salt!\n")
    assert again.out == shown.out
    assert "--blank: has no effect with a model that fills in no blanks" in again.err
    assert "no effect" not in shown.err
    opened = open_checkpoint(tmp_path / "run", device="cpu")
    theirs = AutoTokenizer.from_pretrained(opened.path)
    asked = theirs.apply_chat_template(talk[0][:1], add_generation_prompt=True, return_dict=True)
    opened.objective.reads_json = True
    assert opened.objective.encode_input(lines[0]) == asked["input_ids"]
    verb = ["eval", str(tmp_path / "run"), "--device", "cpu"]
    assert cli.run(verb) == 0
    assert "no answer" not in capsys.readouterr().err
    for option in (["--predictions", str(tmp_path / "p.jsonl")], ["--metrics", "rouge"]):
        assert cli.run([*verb, *option]) == 2
        assert "conversations; it has no answers" in capsys.readouterr().err


def test_wrong_row_is_named_while_the_tokenizer_is_trained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = tmp_path / "rows.jsonl"
    right = json.dumps({"messages": TALK}) + "\n"
    rows.write_text(right * 8 + '{"messages": [{"role": "user", "content": 3}]}\n', "utf-8")
    path = tmp_path / "tiny.yaml"
    path.write_text(RECIPE.replace("ROWS", str(rows)).replace("steps: 30", "steps: 1"), "utf-8")
    command = ["pretrain", str(path), "--out", str(tmp_path / "run"), "--device", "cpu"]
    assert cli.run(command) == 3
    shown = capsys.readouterr().err.strip().split("\n")[-1]
    assert "rows.jsonl:9: message 1" in shown
    assert cli.run([*command, "--set", "data.on_error=skip"]) == 0
    assert "skipped" in capsys.readouterr().err


def test_model_without_template_cannot_chat(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = RECIPE.replace("{name: chat, max_length: 96, template: chatml}", "{name: clm}")
    (tmp_path / "rows.jsonl").write_text('{"text": "a tea, a salt"}\n' * 8, "utf-8")
    path = tmp_path / "tiny.yaml"
    path.write_text(text.replace("ROWS", str(tmp_path / "rows.jsonl")), "utf-8")
    _tiny.pretrain(path, tmp_path / "run", "train.steps=1", "objective.max_length=64")
    assert cli.run(["generate", str(tmp_path / "run"), "--chat", "--device", "cpu"]) == 2
    assert "begin with a model that objective chat has tuned" in capsys.readouterr().err


@pytest.mark.slow
def test_selftest_passes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = Path(__file__).parents[2] / "recipes/gpt2_chat.yaml"
    text = recipe.read_text("utf-8").replace("init_from: runs/gpt2", "#")
    path = tmp_path / "chat.yaml"
    path.write_text(
        text + "".join(line + "\n" for line in RECIPE.replace("128", "256").split("\n")[1:3]),
        "utf-8",
    )
    code = cli.run(["selftest", str(path), "--device", "cpu"])
    shown = capsys.readouterr()
    assert code == 0, shown.out + shown.err


def test_new_run_from_a_checkpoint_of_a_grown_tokenizer_takes_its_tokens(tmp_path: Path) -> None:
    rows = [{"messages": each} for each in _conversations()]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    text = RECIPE.replace("ROWS", str(tmp_path / "rows.jsonl"))
    (tmp_path / "base.yaml").write_text(
        text.replace("{name: chat, max_length: 96, template: chatml}", "{name: clm}")
        .replace("{train: [", "{text_key: messages, train: [").replace("rows.jsonl", "base.txt"),
        "utf-8",
    )  # fmt: skip
    (tmp_path / "base.txt").write_text("Hello there, you!\n" * 9, "utf-8")
    length = ("train.steps=2", "train.warmup_steps=1", "train.save_every=1", "train.eval_every=1")
    base = _tiny.pretrain(
        tmp_path / "base.yaml", tmp_path / "base", *length, "data.text_key=text",
        "objective.max_length=64",
    )  # fmt: skip
    lines = [each for each in text.splitlines() if not each.startswith(("model:", "tokenizer:"))]
    lines += [f"init_from: {base}", f"tokenizer: {{path: {base}}}"]
    (tmp_path / "chat.yaml").write_text("\n".join(lines), "utf-8")
    whole = _tiny.pretrain(tmp_path / "chat.yaml", tmp_path / "whole", *length)
    first = str(whole.parent / "step-00000001")
    on = _tiny.pretrain(tmp_path / "chat.yaml", tmp_path / "on", *length, resume=first)
    assert (on / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()
