"""`nlpkit data contains` through the command line."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from nlpkit import cli
from nlpkit.contracts.reader import Counts
from nlpkit.data.files import find_inputs
from nlpkit.data.items import read_rows
from nlpkit.data.settings import Config

SENTENCE = "the old man sat by the river and told us of ships that never came back"
OTHER = "a quick red fox is not the one who jumps over this very lazy dog here"


@pytest.fixture
def texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    rows = [
        {"q": "Is it so?", "a": f"Yes: {SENTENCE.upper()}!"},
        {"q": OTHER, "a": "no"},
        {"q": "too short", "a": "no"},
    ]
    Path("eval.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    Path("train.txt").write_text(f"nothing\n\nHe said that {SENTENCE}.\n")
    return tmp_path


def run(*arguments: str) -> int:
    return cli.run(["data", "contains", *arguments])


def test_rows_are_counted_and_shown_with_both_places(texts, capsys):
    assert run("eval.jsonl", "--in", "train.txt") == 0
    out, err = capsys.readouterr()
    head, counts, example = out.splitlines()
    assert head.split()[:2] == ["rows", "found"]
    assert counts.split() == ["eval.jsonl", "3", "1", "33.3%", "40", "16", "40.0%", "1"]
    shown = " ".join(SENTENCE.split()[:13])
    assert example == f"eval.jsonl:1 is in train.txt:3: {shown}"
    assert "searched 2 rows of training text, 20 words, for 13 words in a row" in err


def test_json_has_the_same_counts(texts, capsys):
    assert run("eval.jsonl", "--in", "train.txt", "--json", "-q", "--examples", "0") == 0
    out, err = capsys.readouterr()
    assert err == ""
    file = {"name": "eval.jsonl", "rows": 3, "short": 1, "found": 1, "words": 40, "covered": 16}
    assert json.loads(out) == {
        "words": 13,
        "training_rows": 2,
        "training_words": 20,
        "files": [file | {"examples": []}],
    }


@pytest.mark.parametrize(("key", "found"), [("a", 1), ("q", 0)])
def test_text_key_looks_for_one_column(texts, capsys, key, found):
    assert run("eval.jsonl", "--in", "train.txt", "--json", "--text-key", key) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["files"][0]["found"] == found
    assert "warning" not in err


def test_text_key_of_text_files_has_no_effect_and_a_warning_says_so(texts, capsys):
    assert run("train.txt", "--in", "train.txt", "--text-key", "a") == 0
    said = "warning: --text-key: has no effect on files of the format text: train.txt"
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("ending", ["tsv", "csv"])
def test_header_is_no_row(texts, capsys, ending):
    separator = "\t" if ending == "tsv" else ","
    Path(f"x.{ending}").write_text(f"text{separator}label\n{SENTENCE}{separator}yes\n")
    assert run(f"x.{ending}", "--in", "train.txt", "--json") == 0
    assert json.loads(capsys.readouterr().out)["files"][0]["rows"] == 1
    assert run("eval.jsonl", "--in", f"x.{ending}", "--json") == 0
    assert json.loads(capsys.readouterr().out)["training_rows"] == 1


def test_recipe_names_its_training_text_without_what_it_holds_out(texts, capsys):
    Path("train.jsonl").write_text(
        "".join(json.dumps({"text": f"{SENTENCE} number {n}"}) + "\n" for n in range(60))
    )
    recipe = "extends: gpt2\ndata: {train: [train.jsonl], valid: [], valid_fraction: 0.5}\n"
    Path("r.yaml").write_text(recipe)
    assert run("eval.jsonl", "--in", "r.yaml", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert 15 < found["training_rows"] < 45
    assert found["files"][0]["found"] == 1


def test_recipe_of_a_task_has_all_texts_of_its_rows(texts, capsys):
    assert run("eval.jsonl", "--in", "gpt1_classify", "--json") == 0
    assert json.loads(capsys.readouterr().out)["training_rows"] > 10


def test_training_part_is_that_of_the_run_whatever_the_format(texts, capsys):
    rows = [(f"a text with the number {n} in it", f"class{n % 2}") for n in range(60)]
    csv = "".join(f"{text},{label}\n" for text, label in [("text", "label"), *rows])
    Path("rows.csv").write_text(csv)
    Path("r.yaml").write_text(
        "extends: gpt1_classify\ndata: {train: [rows.csv], valid: [], valid_fraction: 0.3}\n"
    )
    assert run("eval.jsonl", "--in", "r.yaml", "--json") == 0
    config = Config(train=["rows.csv"], valid_fraction=0.3)
    inputs, _ = find_inputs(config, None, Path())
    expected = len([*read_rows(inputs, config, ("text", "label"), Counts(), "train")])
    assert json.loads(capsys.readouterr().out)["training_rows"] == expected < 60


def test_chinese_is_compared_by_characters(texts, capsys):
    Path("zh.txt").write_text("他说：人生不相见，动如参与商，今夕复何夕。\n", encoding="utf-8")
    Path("poem.txt").write_text("人生不相见，动如参与商。今夕复何夕，共此灯烛光。\n", "utf-8")
    assert run("zh.txt", "--in", "poem.txt", "--json") == 0
    (file,) = json.loads(capsys.readouterr().out)["files"]
    assert (file["found"], file["words"], file["covered"]) == (1, 17, 15)


def test_short_rows_are_said_to_be_too_short(texts, capsys):
    Path("s.txt").write_text("two words\n")
    assert run("s.txt", "--in", "train.txt") == 0
    assert "s.txt: no row has 13 words in a row" in capsys.readouterr().err
    assert run("s.txt", "--in", "train.txt", "--words", "2") == 0
    assert "no row has" not in capsys.readouterr().err
    assert run("eval.jsonl", "--in", "train.txt", "--words", f"{10**12}") == 0
    assert "eval.jsonl: no row has" in capsys.readouterr().err


def test_directories_say_what_of_them_is_read(texts, capsys):
    for name in ("a.txt", "b.md"):
        Path("d", name).parent.mkdir(exist_ok=True)
        Path("d", name).write_text(SENTENCE)
    assert run("d/", "--in", "./d/") == 0
    said = capsys.readouterr().err
    for name in ("d/", "./d/"):
        assert f"data: {name}: 1 file taken (1 .txt); not taken: 1 (b.md)\n" in said


@pytest.mark.parametrize(
    ("name", "content", "code", "said"),
    [
        ("none.txt", None, 4, "no such file: none.txt"),
        ("empty.txt", b"", 3, "empty.txt: empty file"),
        ("empty.jsonl", b"", 3, "empty.jsonl: empty file"),
        ("blank.txt", b"\n \n", 3, "blank.txt: no documents"),
        ("signs.txt", b"...\n", 3, "signs.txt: no words in any row"),
        ("numbers.jsonl", b'{"n": 3}\n', 3, "numbers.jsonl: no words in any row"),
        ("binary.txt", b"a\n\xff\xfe\x00\n", 3, "binary.txt:2: byte 1 is not UTF-8"),
        ("nul.txt", b"a\0b\n", 3, "nul.txt:1: character 2 of the text is NUL"),
        ("model.bin", b"\x80\x02", 2, "the ending '.bin' tells no format"),
        ("broken.jsonl", b'{"a": "b"}\n{"a"\n', 3, "broken.jsonl:2: broken JSON"),
        (".", None, 4, "is a directory, not a file"),
    ],
)
@pytest.mark.parametrize("where", ["evaluated", "training"])
def test_wrong_files_give_one_line(texts, capsys, where, name, content, code, said):
    if content is not None:
        Path(name).write_bytes(content)
    wrong, right = (name, "train.txt") if where == "evaluated" else ("eval.jsonl", name)
    if where == "training" and "no words" in said:  # a training file may have none
        code = 0
    assert run(wrong, "--in", right) == code
    out, err = capsys.readouterr()
    if code:
        assert said in err
        assert len(err.splitlines()) == 1
        assert out == ""


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["eval.jsonl"], "--in: name the training text"),
        (["", "--in", "train.txt"], "no name is empty"),
        (["eval.jsonl", "--in", ""], "no name is empty"),
        (["-", "--in", "train.txt", "--in", "-"], "--in: stdin is FILE already, and can be read"),
        (["eval.jsonl", "--in", "train.txt", "--text-key", ""], "--text-key: is empty"),
        (["eval.jsonl", "--in", "train.txt", "--text-key", "{"], "--text-key: has a single brace"),
        (["eval.jsonl", "--in", "train.txt", "--words", "1"], "--words"),
        (["eval.jsonl", "--in", "train.txt", "--text-key", "b"], 'eval.jsonl:1: no "b"'),
        (["eval.jsonl", "--in", "none.yaml"], "none.yaml"),
    ],
)
def test_wrong_command_lines(texts, capsys, arguments, said):
    assert run(*arguments) in (2, 3, 4)
    assert said in capsys.readouterr().err


def test_stdin_is_evaluated(texts):
    command = [sys.executable, "-m", "nlpkit", "data", "contains", "-", "--in", "train.txt"]
    done = subprocess.run([*command, "--json"], input=SENTENCE, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["files"][0]["found"] == 1


def test_torch_is_not_imported(texts):
    program = (
        "import sys; from nlpkit import cli; "
        "assert cli.run(['data', 'contains', 'eval.jsonl', '--in', 'cpm_ant']) == 0; "
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], capture_output=True).returncode == 0
