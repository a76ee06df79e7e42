"""The shipped Chinese data: form, arithmetic, held-out texts, and that make.py rewrites it."""

import ast
import gzip
import hashlib
import importlib.util
import json
import random
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

DATA = Path(__file__).resolve().parents[2] / "data"
ZH = DATA / "zh"
KINDS = ["prose", "dialogue", "arithmetic", "explain"]
TEXT_FILES = [f"{split}/{kind}.jsonl" for split in ("train", "valid") for kind in KINDS]
TASK_FILES = [f"{task}/{split}.jsonl" for task in ("nlg", "nlu") for split in ("train", "valid")]
EQUATION = re.compile(r"([\d.()+\-×÷]*[+\-×÷][\d.()+\-×÷]*)=(-?[\d.]*\d)(……\d+)?")
OPERATORS = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
    ast.Div: lambda a, b: a / b,
}


def rows(name: str) -> list[dict]:
    return [json.loads(line) for line in (ZH / name).read_text("utf-8").splitlines()]


def documents(split: str, kind: str) -> list[str]:
    return [row["text"] for row in rows(f"{split}/{kind}.jsonl")]


def value(expression: str) -> float:
    """Value of an expression of numbers, + - × ÷ and brackets, by a parser of its own."""

    def walk(node: ast.expr) -> float:
        if isinstance(node, ast.Constant):
            return node.value
        assert isinstance(node, ast.BinOp), expression
        return OPERATORS[type(node.op)](walk(node.left), walk(node.right))

    return walk(ast.parse(expression.replace("×", "*").replace("÷", "/"), mode="eval").body)


def long_sentences(text: str) -> list[str]:
    return [s for s in map(str.strip, re.split(r"[。！？\n]", text)) if len(s) >= 20]


@pytest.fixture(scope="module")
def corpus() -> list[str]:
    return [text for kind in KINDS for text in documents("train", kind)]


@pytest.mark.parametrize("name", TEXT_FILES + TASK_FILES)
def test_file_bytes_are_plain_utf8_lines(name):
    data = (ZH / name).read_bytes()
    assert not data.startswith(b"\xef\xbb\xbf")
    assert b"\r" not in data
    assert b"\\r" not in data
    assert data.endswith(b"}\n")
    assert "\ufffd" not in data.decode("utf-8")
    lines = data.decode().split("\n")[:-1]
    assert all(line == line.strip() for line in lines)


@pytest.mark.parametrize("name", TEXT_FILES)
def test_text_rows_hold_one_clean_text_each(name):
    for row in rows(name):
        assert list(row) == ["text"]
        text = row["text"]
        assert isinstance(text, str)
        assert len(text) >= 10
        assert all(line == line.rstrip() for line in text.split("\n")), text
        assert not re.search(r"[{}|]|。。|，，|\?\?", text.replace("{}", "")), text


def test_text_sizes_and_lengths_meet_what_the_readme_promises(corpus):
    train = sum(len(text.encode()) for text in corpus)
    valid = sum(len(text.encode()) for kind in KINDS for text in documents("valid", kind))
    assert 400_000 <= train <= 800_000
    assert valid >= 40_000
    assert sum(path.stat().st_size for path in ZH.glob("sources/*_*.txt")) >= 80_000
    lengths = sorted(map(len, corpus))
    assert lengths[0] <= 20
    assert 100 <= lengths[len(lengths) // 2] <= 200
    assert sum(length >= 1500 for length in lengths) >= 3


def test_texts_are_not_a_dump_of_templates(corpus):
    grams = Counter(text[i : i + 4] for text in corpus for i in range(len(text) - 3))
    assert len(grams) / grams.total() >= 0.35
    raw = "\n".join(corpus).encode()
    assert len(gzip.compress(raw, 9)) / len(raw) >= 0.22
    assert len(set("".join(corpus))) >= 1800


def test_documents_occur_once_over_both_splits():
    texts = [t for split in ("train", "valid") for kind in KINDS for t in documents(split, kind)]
    assert not [text for text, count in Counter(texts).items() if count > 1]


@pytest.mark.parametrize("kind", ["prose", "explain"])
def test_valid_long_sentences_are_new(kind):
    seen = {s for text in documents("train", kind) for s in long_sentences(text)}
    held_out = [s for text in documents("valid", kind) for s in long_sentences(text)]
    assert len(held_out) >= 40
    assert sum(s in seen for s in held_out) / len(held_out) <= 0.01


@pytest.mark.parametrize("split", ["train", "valid"])
def test_arithmetic_every_equation_is_right(split):
    equations = 0
    for text in documents(split, "arithmetic"):
        found = EQUATION.findall(text)
        assert found, text
        for left, right, rest in found:
            equations += 1
            if rest:
                dividend, divisor = map(int, left.split("÷"))
                assert divmod(dividend, divisor) == (int(right), int(rest[2:])), text
            else:
                assert value(left) == pytest.approx(float(right)), text
        # No equals sign after a number may escape the pattern above.
        assert len(re.findall(r"[\d)]=\d", text)) == len(found), text
    assert equations >= {"train": 800, "valid": 80}[split]


def test_arithmetic_answers_are_results_and_givens_are_in_the_question():
    answers = 0
    for text in documents("train", "arithmetic"):
        for problem in re.findall(r"[^\n]*？\n(?:(?!答：)[^\n]*\n)+答：[^\n]*", text):
            body, answer = problem.split("答：")
            results = {
                number for _, right, rest in EQUATION.findall(body) for number in (right, rest[2:])
            }
            assert results & set(re.findall(r"\d+(?:\.\d+)?", answer)), problem
            first = re.findall(r"\d+(?:\.\d+)?", EQUATION.search(body)[1])
            question = body.split("？\n")[0]
            known = re.findall(r"\d+(?:\.\d+)?", question + " 1 2 4 10 60 100 1000")
            assert set(first) <= set(known), problem
            answers += 1
    assert answers >= 300


@pytest.mark.parametrize("split", ["train", "valid"])
def test_sums_in_dialogues_are_right(split):
    found = [
        match
        for text in documents(split, "dialogue")
        for match in re.findall(r"(\d+)乘(\d+)，(\d+)元", text)
    ]
    assert all(int(a) * int(b) == int(c) for a, b, c in found)
    assert found or split == "valid"


def test_python_examples_in_explanations_give_the_result_stated():
    found = [
        match
        for text in documents("train", "explain")
        for match in re.findall(r"例子：(.+)\n结果：(.+)|例如 (.+?)，结果是 (.+?)。", text)
    ]
    checked = 0
    for match in found:
        example, result = (part for part in match if part)
        if "一共" not in result:
            assert str(eval(example)) == result.strip("'") or repr(eval(example)) == result
            checked += 1
    assert checked >= 10


@pytest.mark.parametrize(("split", "least"), [("train", 1200), ("valid", 150)])
def test_nlg_rows_hold_an_input_and_a_target(split, least):
    items = rows(f"nlg/{split}.jsonl")
    assert len(items) >= least
    for item in items:
        assert list(item) == ["input", "target"]
        assert all(isinstance(text, str) and text == text.strip() != "" for text in item.values())
    assert len({item["input"] for item in items}) == len(items)


@pytest.mark.parametrize("split", ["train", "valid"])
def test_nlg_targets_follow_from_their_inputs(split):
    checked: Counter[str] = Counter()
    for item in rows(f"nlg/{split}.jsonl"):
        task, _, rest = item["input"].partition("：")
        numbers = [int(n) for n in re.findall(r"\d+", rest)]
        target = item["target"]
        if task == "列式":
            assert [int(n) for n in re.findall(r"\d+", target)] == numbers, item
            assert value(target) >= 0
        elif task == "从小到大":
            assert target == "、".join(map(str, sorted(numbers))), item
        elif task == "倒过来写":
            assert target == "、".join(reversed(rest.split("、"))), item
        elif task == "找规律":
            assert int(target) == numbers[2] + numbers[1] - numbers[0], item
        elif task == "写成24小时制":
            hour = numbers[0] + 12 * rest.startswith("下午")
            assert target == f"{hour}:{numbers[1]}", item
        elif "问：" in item["input"]:
            task = "问"
            assert target in item["input"].split("问：")[0], item
        else:
            continue
        checked[task] += 1
    assert len(checked) == 6


@pytest.mark.parametrize(("split", "least"), [("train", 1200), ("valid", 150)])
def test_nlu_rows_hold_options_and_the_index_of_one(split, least):
    items = rows(f"nlu/{split}.jsonl")
    assert len(items) >= least
    for item in items:
        assert list(item) == ["input", "target", "options"]
        assert isinstance(item["input"], str)
        assert type(item["target"]) is int
        assert 0 <= item["target"] < len(item["options"])
        assert len(set(item["options"])) == len(item["options"])
        assert all(isinstance(option, str) and option for option in item["options"])
    assert {len(item["options"]) for item in items} == {2, 3, 4}
    assert len({item["input"] for item in items}) == len(items)


@pytest.mark.parametrize("split", ["train", "valid"])
@pytest.mark.parametrize(("count", "bound"), [(2, 0.55), (3, 0.4), (4, 0.3)])
def test_nlu_targets_are_balanced_over_the_positions(split, count, bound):
    targets = [i["target"] for i in rows(f"nlu/{split}.jsonl") if len(i["options"]) == count]
    assert len(targets) >= 40
    assert Counter(targets).most_common(1)[0][1] / len(targets) <= bound


@pytest.mark.parametrize("task", ["nlg", "nlu"])
def test_task_valid_inputs_are_not_in_train(task):
    train = {item["input"] for item in rows(f"{task}/train.jsonl")}
    assert not [i for i in rows(f"{task}/valid.jsonl") if i["input"] in train]


def test_make_writes_the_committed_files_byte_for_byte(tmp_path):
    subprocess.run(
        [sys.executable, "-B", ZH / "make.py", tmp_path], check=True, capture_output=True
    )
    written = {str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*") if p.is_file()}
    assert written == set(TEXT_FILES + TASK_FILES)
    assert written == {str(p.relative_to(ZH)) for p in ZH.rglob("*.jsonl")}
    for name in written:
        assert (tmp_path / name).read_bytes() == (ZH / name).read_bytes(), name


def test_readme_table_gives_sizes_and_digests_of_every_file():
    table = {
        name: (int(size), int(lines), digest)
        for name, size, lines, digest in re.findall(
            r"^\| zh/(\S+) \| (\d+) \| (\d+) \| `(\w{64})` \|$",
            (DATA / "README.md").read_text("utf-8"),
            re.MULTILINE,
        )
    }
    assert set(table) == set(TEXT_FILES + TASK_FILES)
    for name, stated in table.items():
        data = (ZH / name).read_bytes()
        assert stated == (len(data), data.count(b"\n"), hashlib.sha256(data).hexdigest()), name


@pytest.fixture(scope="module")
def grammar():
    spec = importlib.util.spec_from_file_location("zh_grammar", ZH / "grammar.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_grammar_deals_every_alternative_once_before_any_twice(grammar):
    writer = grammar.Grammar(grammar.read_rules(["[a]\nx\ny\nz\n"]), random.Random(0))
    dealt = [writer.write("a") for _ in range(9)]
    assert [sorted(dealt[i : i + 3]) for i in (0, 3, 6)] == [["x", "y", "z"]] * 3


def test_grammar_remembers_values_columns_and_results(grammar):
    rules = "[s]\n{!n=#7-7}{f=fruit}{f.1}{n}×3={=n*3}，{=n/2}\n[fruit]\n梨|个\n"
    writer = grammar.Grammar(grammar.read_rules([rules]), random.Random(0))
    assert writer.write("s") == "梨个7×3=21，3.5"


def test_grammar_gives_two_people_of_one_text_different_names(grammar):
    rules = grammar.read_rules(["[s]\n{a=name}{b=name}\n[name]\n甲\n乙\n"])
    writer = grammar.Grammar(rules, random.Random(0))
    assert {writer.write("s") for _ in range(50)} == {"甲乙", "乙甲"}


def test_grammar_with_an_unknown_symbol_names_it(grammar):
    writer = grammar.Grammar(grammar.read_rules(["[s]\n{nobody}\n"]), random.Random(0))
    with pytest.raises(KeyError, match="nobody"):
        writer.write("s")
