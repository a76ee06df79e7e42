"""The command line: exit codes, what is on stdout and stderr, pipes, and the small verbs."""

import errno
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from nlpkit import __version__, cli, errors, registry, units
from nlpkit.commands._options import Common, RecipeName, RunOptions, shared
from nlpkit.recipe import load, packaged
from tests import _server

RECIPE = """\
# A recipe of the tests
name: x
model: {family: cpm_ant}
tokenizer: {kind: cpm_ant, vocab_size: 40}
data: {train: a.txt}
objective: {name: cpm_ant}
train: {steps: 3, warmup_steps: 1}
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("r.yaml").write_text(RECIPE)
    Path("a.txt").write_text("春天来了\n花开了\n春天的花开了\n", encoding="utf-8")
    return tmp_path


def nlpkit(*arguments, own=False, **more):
    """Run the command line; with `own`, in an interpreter of its own, which has its own locale."""
    program = (sys.executable, "-m", "nlpkit") if own else _server.nlpkit()
    return subprocess.run(
        [*program, *arguments],
        **{"capture_output": True, "text": True, "encoding": "utf-8", **more},
    )


def verb(monkeypatch, function):
    """Make `function` the verb `recipes`."""
    module = registry.load("commands", "recipes")
    monkeypatch.setattr(module, "command", function)


def raising(error):
    @shared()
    def command(common: Common) -> None:
        """Fail."""
        raise error

    return command


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (errors.UsageError("no"), 2, "nlpkit: no\n"),
        (errors.RecipeError(["r:1:1: a", "r:2:1: b"]), 2, "r:1:1: a\nr:2:1: b\n"),
        (errors.DataError("d:3: bad"), 3, "nlpkit: d:3: bad\n"),
        (errors.FileError("f"), 4, "nlpkit: f\n"),
        (errors.DivergedError("nan"), 5, "nlpkit: nan\n"),
        (errors.TryAgain("in use"), 75, "nlpkit: in use\n"),
        (errors.Stopped("saved", 15), 143, "nlpkit: saved\n"),
        (
            OSError(errno.ENOSPC, "No space left on device", "d/f"),
            4,
            "d/f: no space left on device",
        ),
        (PermissionError(13, "Permission denied", "d"), 4, "nlpkit: d: permission denied\n"),
        (RuntimeError("x: No space left on device (os error 28)"), 4, "nlpkit: x: No space left"),
        (KeyboardInterrupt(), 130, "nlpkit: interrupted\n"),
        (BrokenPipeError(errno.EPIPE, "Broken pipe"), 141, ""),
        (MemoryError(), 7, "nlpkit: out of memory: lower train.tokens_per_batch"),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), 7, "nlpkit: out of memory: lower"),
        (RuntimeError("mmap: Cannot allocate memory (12)"), 7, "nlpkit: out of memory: lower"),
        (RuntimeError("std::bad_alloc"), 7, "nlpkit: out of memory: lower"),
        (type("OutOfMemoryError", (RuntimeError,), {})("CUDA"), 7, "nlpkit: out of memory: lower"),
        (typer.BadParameter("bad"), 2, "nlpkit: invalid value: bad (see nlpkit recipes --help)\n"),
        (typer.Exit(7), 7, ""),
    ],
)
def test_cli_error_gives_its_exit_code_and_no_traceback(error, code, said, monkeypatch, capsys):
    verb(monkeypatch, raising(error))
    assert cli.run(["recipes"]) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert said in err
    assert (err == "") == (said == "")
    assert "Traceback" not in err


def test_cli_library_that_a_memory_limit_keeps_out_is_lack_of_memory(monkeypatch, capsys):
    ended = []
    for error in (
        MemoryError(),
        ImportError("libtorch_cpu.so: failed to map segment from shared object"),
    ):
        verb(monkeypatch, raising(error))
        ended.append((cli.run(["recipes"]), capsys.readouterr().err))
    assert ended[0] == ended[1]


def test_cli_prints_the_first_fifty_of_many_mistakes_and_counts_the_rest(monkeypatch, capsys):
    problems = [f"r:{line}:1: a" for line in range(1, 1235)]
    verb(monkeypatch, raising(errors.RecipeError(problems)))
    assert cli.run(["recipes"]) == 2
    err = capsys.readouterr().err
    assert err.splitlines() == [*problems[:50], "nlpkit: and 1,184 more mistakes"]


@pytest.mark.parametrize(
    ("processes", "code", "said"),
    [("2", 75, "another process of this run has ended"), ("1", 1, "this is a bug of nlpkit")],
)
def test_cli_lost_process_is_no_bug_where_there_are_others(
    processes, code, said, monkeypatch, capsys
):
    monkeypatch.setenv("WORLD_SIZE", processes)
    gloo = "[gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:59020"
    verb(monkeypatch, raising(RuntimeError(gloo)))
    assert cli.run(["recipes"]) == code
    assert said in capsys.readouterr().err


def test_cli_bug_gives_1_and_a_traceback(monkeypatch, capsys):
    verb(monkeypatch, raising(ZeroDivisionError("oops")))
    assert cli.run(["recipes"]) == 1
    err = capsys.readouterr().err
    assert "Traceback" in err
    assert err.endswith("nlpkit: this is a bug of nlpkit; please report it with the lines above\n")


def test_cli_traceback_option_shows_where_an_error_of_the_user_was_raised(monkeypatch, capsys):
    verb(monkeypatch, raising(errors.DataError("d:3: bad")))
    assert cli.run(["recipes", "--traceback"]) == 3
    err = capsys.readouterr().err
    assert "Traceback" in err
    assert err.endswith("nlpkit: d:3: bad\n")


def test_cli_on_several_processes_tells_a_usage_error_once(monkeypatch, capsys):
    monkeypatch.setenv("RANK", "1")
    verb(monkeypatch, raising(errors.RecipeError(["r:1:1: a"])))
    assert cli.run(["recipes"]) == 2
    assert capsys.readouterr().err == ""
    verb(monkeypatch, raising(errors.FileError("f")))
    assert cli.run(["recipes"]) == 4
    assert capsys.readouterr().err == "nlpkit: process 1: f\n"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["tokenizer", "shwo"], "no command shwo, did you mean show? (see nlpkit"),
        (["recipe"], "no command recipe, did you mean recipes? (see nlpkit --help)\n"),
        (
            ["recipes", "--jsn"],
            "no option --jsn, did you mean --json? (see nlpkit recipes --help)\n",
        ),
        (["recipes", "-x"], "no option -x (see nlpkit recipes --help)\n"),
        (["-q", "recipes"], "no option -q (see nlpkit --help)\n"),
        (["tokenizer", "train"], "missing argument 'RECIPE' (see nlpkit tokenizer train --help)\n"),
        (["convert", "runs/x"], "missing argument 'CKPT… OUT' (see nlpkit convert --help)\n"),
        (["tokenizer", "train", "r.yaml", "--set"], "requires an argument\n"),
        (["recipes", "a", "b"], "got unexpected extra argument"),
        # As `nlpkit score` says it.
        (
            ["score", "bleu", "--jsn"],
            "no option --jsn, did you mean --json? (see nlpkit score bleu",
        ),
    ],
)
def test_cli_wrong_usage_gives_2_on_stderr(arguments, said, capsys):
    assert cli.run(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("nlpkit: ")
    assert said in err
    assert err.count("\n") == 1


def test_cli_alone_says_what_to_try_first(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert cli.run([]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.endswith("nlpkit: no COMMAND\n")
    assert len(err.splitlines()) <= 16
    assert max(map(len, err.splitlines())) <= 80
    tried = re.findall(r"^  nlpkit (\S+) (\S+)", err, re.MULTILINE)
    assert [verb for verb, _ in tried][:3] == ["pretrain", "eval", "generate"]
    assert tried[0][1] in packaged()
    assert load(tried[0][1]).recipe.out == tried[1][1] == tried[2][1]


@pytest.mark.parametrize("arguments", [["tokenizer"], ["data"], ["score"]])
def test_cli_without_arguments_gives_2_and_the_help_on_stderr(arguments, capsys):
    assert cli.run([*arguments, "--help"]) == 0
    page = capsys.readouterr().out
    assert cli.run(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    what = "METRIC" if arguments == ["score"] else "COMMAND"
    assert err == f"{page}nlpkit: no {what}\n"


PAGES = [[], *([name] for name in registry.names("commands"))]
PAGES += [["tokenizer", "train"], ["tokenizer", "show"], ["data", "contains"]]


@pytest.mark.parametrize("verb", PAGES, ids=" ".join)
def test_cli_help_of_every_verb_has_one_look(verb, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert cli.run([*verb, "--help"]) == 0
    page, err = capsys.readouterr()
    assert err == ""
    usage, about, *sections = page.rstrip("\n").split("\n\n")
    assert usage.startswith(" ".join(["Usage: nlpkit", *verb]))
    assert "[OPTIONS]" in usage
    assert about.startswith("  ")
    assert "{" not in usage
    assert not re.search(r" <(str|int|list)", page)  # typer's types
    # Paragraphs are indented; then sections, each a title and rows.
    titled = [section for section in sections if not section.startswith("  ")]
    assert sections[-len(titled) :] == titled
    for section in titled:
        title, *rows = section.splitlines()
        assert re.fullmatch(r"[A-Z][\w ()%.]*:", title)
        assert all(row.startswith("  ") for row in rows)
        assert max(map(len, rows)) <= 80
    assert titled[-1].startswith("Options:\n")
    name, text = sections[-1].splitlines()[-1].split("  show")
    assert (name.strip(), text) == ("-h, --help", " this help")


@pytest.mark.parametrize("columns", [40, 80])
def test_cli_help_is_no_wider_than_the_terminal(columns, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(columns))
    for words in [*PAGES, *(["score", name] for name in registry.names("score/metrics"))]:
        assert cli.run([*words, "--help"]) == 0
        for line in capsys.readouterr().out.splitlines():
            # A long word, such as a formula, is not broken.
            assert len(line) <= columns or len(line.split()) == 1, (words, line)


@pytest.mark.parametrize("columns", ["80", "120"])
def test_cli_help_is_plain_and_has_verbs_and_exit_codes(columns):
    done = nlpkit("--help", own=True, env={**os.environ, "COLUMNS": columns, "NO_COLOR": "1"})
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.isascii()
    assert "\x1b" not in done.stdout
    assert all(len(line) <= int(columns) for line in done.stdout.splitlines())
    for name in registry.names("commands"):
        assert f"\n  {name} " in done.stdout
    for code in (0, 1, 2, 3, 4, 5, 6, 75, 130):
        assert f"{code}" in done.stdout
    assert "\n     75  try again" in done.stdout


def test_cli_version_is_printed(capsys):
    assert cli.run(["--version"]) == 0
    assert capsys.readouterr().out == f"nlpkit {__version__}\n"


def test_cli_every_verb_has_help_and_takes_traceback(capsys):
    for name in registry.names("commands"):
        module = registry.load("commands", name)
        if "main" not in vars(module) and not isinstance(module.command, typer.Typer):
            assert cli.run([name, "--help"]) == 0
            assert "--traceback" in capsys.readouterr().out


# Not of `score`, which has sacrebleu's options, nor of a group.
TALKING = [
    verb for verb in PAGES[1:] if verb[0] != "score" and verb not in (["data"], ["tokenizer"])
]


@pytest.mark.parametrize("verb", TALKING, ids=" ".join)
def test_cli_every_verb_takes_quiet_and_verbose(verb, capsys):
    assert cli.run([*verb, "--help"]) == 0
    page = capsys.readouterr().out
    assert re.search(r"^  .*-q\b", page, re.MULTILINE)
    assert re.search(r"^  .*-v\b", page, re.MULTILINE)


MODULES = 500  # today 302; torch alone has 1,123


def test_cli_help_imports_nothing_heavy():
    program = (
        "import sys\nfrom nlpkit import cli\n"
        "sys.argv[1:] = ['--help']\n"
        "try: cli.main()\n"
        "except SystemExit: pass\n"
        "heavy = {'torch', 'transformers', 'numpy', 'tokenizers', 'pydantic'}\n"
        "print(sorted(heavy & set(sys.modules)), len(sys.modules), sep='\\n', file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    names, count = done.stderr.splitlines()
    assert set(json.loads(names.replace("'", '"'))) <= {"pydantic"}  # typer's own, since 0.26
    assert int(count) < MODULES


def test_cli_bad_recipe_gives_2_an_empty_stdout_and_each_mistake_on_its_line(folder):
    Path("r.yaml").write_text(RECIPE.replace("steps: 3", "stepz: 3").replace("x\n", "x/y\n"))
    done = nlpkit("tokenizer", "train", "r.yaml")
    assert (done.returncode, done.stdout) == (2, "")
    assert [line.split(": ")[0] for line in done.stderr.splitlines()] == [
        *("r.yaml:2:7", "r.yaml:7:1", "r.yaml:7:9")
    ]


@pytest.mark.parametrize(
    "arguments",
    [
        ("pretrain", "r.yaml", "--out", "~nosuchuser/x"),
        ("pretrain", "r.yaml", "--set", "out=~nosuchuser/x"),
        ("plan", "r.yaml", "--set", "out=~nosuchuser/x"),
        ("tokenizer", "train", "r.yaml", "--out", "~nosuchuser/x"),
        ("eval", "~nosuchuser/x"),
        ("generate", "~nosuchuser/x", "r.yaml"),
        ("convert", "~nosuchuser/x", "out"),
    ],
)
def test_cli_home_of_nobody_is_one_line(folder, capsys, arguments):
    Path("r.yaml").write_text(RECIPE)
    assert cli.run(list(arguments)) == 2
    out, err = capsys.readouterr()
    said = "~nosuchuser/x: no such user; for a directory of this name, write ./~nosuchuser/x"
    assert (out, err) == ("", f"nlpkit: {said}\n")


@pytest.mark.parametrize("key", ["out", "init_from", "data.cache", "data.train"])
def test_cli_nul_in_a_setting_is_one_line(folder, capsys, key):
    Path("r.yaml").write_text(RECIPE)
    assert cli.run(["pretrain", "r.yaml", "--set", f'{key}="a\\0b"']) == 2
    out, err = capsys.readouterr()
    assert (out, err) == ("", f"--set {key}: contains a NUL character, which no setting can have\n")


@pytest.mark.parametrize(
    "arguments", [("report", "x.txt"), ("data", "contains", "x.txt", "--in", "x.txt")]
)
def test_cli_circle_of_links_is_one_line(tmp_path, monkeypatch, capsys, arguments):
    monkeypatch.chdir(tmp_path)
    Path("x.txt").symlink_to("x.txt")
    assert cli.run(arguments) == 4
    out, err = capsys.readouterr()
    assert (out, err.count("\n"), "x.txt" in err) == ("", 1, True)


def test_cli_missing_recipe_gives_4(folder):
    done = nlpkit("tokenizer", "train", "cpm_amt")
    said = "nlpkit: cpm_amt: no such recipe, did you mean the packaged recipe cpm_ant?\n"
    assert (done.returncode, done.stdout, done.stderr) == (4, "", said)


def test_cli_reader_that_goes_away_gives_141_and_silence(folder):
    with subprocess.Popen(
        [sys.executable, "-m", "nlpkit", "recipes", "schema"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait() == 141


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize(
    "words", [("recipes", "schema"), ("recipes",), ("--help",), ("pretrain", "--help")]
)
def test_cli_stdout_on_a_full_disk_gives_4(words):
    with open("/dev/full", "w") as full:
        done = nlpkit(*words, capture_output=False, stdout=full, stderr=subprocess.PIPE)
    assert done.returncode == 4
    assert done.stderr == "nlpkit: stdout: no space left on device\n"


def test_cli_writes_utf8_in_every_locale(folder):
    nlpkit("tokenizer", "train", "r.yaml", "--out", "t")
    env = {**os.environ, "LC_ALL": "C", "PYTHONIOENCODING": "ascii"}
    done = nlpkit("tokenizer", "show", "t", "花", own=True, env=env)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split("\t")[1] == "花\n"


def test_recipes_as_json_have_name_first_comment_and_duration(capsys):
    assert cli.run(["recipes", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [each["name"] for each in found] == list(packaged())
    assert all(each["about"] for each in found)
    assert {each["name"]: each["takes"] for each in found}[
        "deberta"
    ] == "2 minutes of one core; 1 GB"
    assert cli.run(["recipes", "papers", "--json"]) == 0
    inside = [name for name in packaged() if name.startswith("papers/")]
    assert [each["name"] for each in json.loads(capsys.readouterr().out)] == inside


def test_recipes_prints_one_word_for_word_and_the_schema(capsys):
    assert cli.run(["recipes", "cpm_ant"]) == 0
    assert capsys.readouterr().out == packaged()["cpm_ant"].read_text(encoding="utf-8")
    assert cli.run(["recipes", "schema"]) == 0
    assert json.loads(capsys.readouterr().out)["title"] == "nlpkit recipe"


def test_recipes_parts_says_which_objective_trains_which_family(capsys):
    assert cli.run(["recipes", "parts"]) == 0
    table, *lists = capsys.readouterr().out.rstrip("\n").split("\n\n")
    cells = [[cell.strip(" `") for cell in row[1:-1].split("|")] for row in table.splitlines()]
    assert cells[0] == ["objective", *registry.names("models")]
    # What these train depends on their members.
    assert {"mixture", "distillation", *(row[0] for row in cells[2:])} == set(
        registry.names("objectives")
    )
    pairs = [(row[0], *pair) for row in cells[2:] for pair in zip(cells[0], row, strict=True)]
    yes = {(objective, family) for objective, family, cell in pairs if cell == "yes"}
    # CPM-Ant's mask and segments are its own (spec/families.md); GPT-1 is causal.
    assert {("cpm_ant", "cpm_ant"), ("clm", "gpt")} <= yes
    assert not {("cpm_ant", "gpt"), ("clm", "cpm_ant")} & yes
    # Dong et al. 2019: BERT, whose tokens see what the objective gives.
    marked = {(objective, family) for objective, family, cell in pairs if cell == "(yes)"}
    assert ("unilm", "bert") in marked
    assert "`unilm` × `bert`: `seen_range`" in lists[0]
    assert cli.run(["recipes", "parts", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    objectives = found.pop("objectives")
    other = found.pop("with_other_setting")
    assert other["unilm"] == {"bert": ["attention.kind=seen_range"]}
    assert other["mlm"]["lstm"] == ["model.num_directions=2"]
    assert {(name, each) for name, families in other.items() for each in families} == marked
    kinds = found.pop("kinds")
    assert [row["kind"] for row in kinds] == [f"`{n}`" for n in registry.names("attention/kinds")]
    assert {(name, each) for name, families in objectives.items() for each in families} == yes
    folders = {"attention_kinds": "attention/kinds", "attention_backends": "attention/backends",
               "tokenizers": "tokenizers", "optimizers": "train/optimizers",
               "schedules": "train/schedules",
               "scores": "score/metrics"}  # fmt: skip
    assert {title: list(parts) for title, parts in found.items()} == {
        title: registry.names(folder) for title, folder in folders.items()
    }
    for parts in found.values():
        shown = "\n".join(f"- `{name}`: {about}" for name, about in parts.items())
        assert all(parts.values())
        assert shown in lists


def test_recipes_without_that_name_gives_4_and_the_nearest(capsys):
    assert cli.run(["recipes", "cpm_amt"]) == 4
    said = "cpm_amt: no such recipe, did you mean the packaged recipe cpm_ant?\n"
    assert capsys.readouterr() == ("", f"nlpkit: {said}")
    for verb in ("recipes", "plan"):
        assert cli.run([verb, "vit_b16"]) == 4
        assert "did you mean the packaged recipe papers/vit_b16?" in capsys.readouterr().err


def test_recipes_prints_a_file(tmp_path, capsys):
    file = tmp_path / "mine.yaml"
    file.write_bytes(b"extends: cpm_ant  # \xff\n")
    assert cli.run(["recipes", str(file)]) == 0
    assert capsys.readouterr() == ("extends: cpm_ant  # \ufffd\n", "")


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["plan", "r.yaml", "--mask", "x.foo"], 2, "x.foo: give the file one of the endings .png,"),
        (["plan", "r.yaml", "--mask", "no/x.png"], 4, "no/x.png: cannot be written: no directory"),
        (["eval", "run", "--attention", "x"], 2, "x: give the file one of the endings .png,"),
        (["eval", "run", "--attention", "x.html"], 4, "run: no such directory"),
    ],
)
def test_picture_that_cannot_be_written_is_named_before_anything_is_read(
    folder, capsys, arguments, code, said
):
    Path("a.txt").unlink()
    assert cli.run(arguments) == code
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith(f"nlpkit: {said}")


def test_tokenizer_train_writes_a_directory_and_prints_it(folder, capsys):
    assert cli.run(["tokenizer", "train", "r.yaml", "--set", "out=run"]) == 0
    out, err = capsys.readouterr()
    assert out == "run/tokenizer\n"
    size = registry.load("tokenizers", "cpm_ant").Tokenizer.load("run/tokenizer").vocab_size
    assert err == f"tokenizer: cpm_ant, {size} tokens, from 3 documents\n"
    assert sorted(path.name for path in Path("run").iterdir()) == ["tokenizer"]


ROWS = """\
model: {family: gpt2}
tokenizer: {kind: wordpiece, vocab_size: 100}
data: {train: rows.jsonl}
objective: {name: generation, source: source, target: target}
train: {steps: 3, warmup_steps: 1}
"""


def test_tokenizer_train_reads_the_rows_of_a_task_as_its_run_does(folder):
    row = {"text": "zzz", "source": "abc", "target": "def"}
    Path("rows.jsonl").write_text(9 * f"{json.dumps(row)}\n")
    Path("rows.yaml").write_text("name: rows\n" + ROWS)
    program = (
        "import sys; from nlpkit import cli; "
        "assert cli.run(['tokenizer', 'train', 'rows.yaml', '--out', 'rows']) == 0; "
        "assert cli.run(['tokenizer', 'train', 'lstm_tag', '--out', 'tags']) == 0; "
        "sys.exit('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    made = registry.load("tokenizers", "wordpiece").Tokenizer.load("rows")
    assert not any(made.unk_id in made.encode(word) for word in row.values())


def test_tokenizer_train_writes_into_the_run_of_pretrain(folder, monkeypatch, capsys):
    # In the recipe's folder, another run has this name.
    Path("runs/x").mkdir(parents=True)
    Path("elsewhere").mkdir()
    monkeypatch.chdir("elsewhere")
    assert cli.run(["tokenizer", "train", "../r.yaml"]) == 0
    assert capsys.readouterr().out == "runs/x/tokenizer\n"
    assert Path("runs/x/tokenizer").is_dir()


def test_tokenizer_train_says_that_long_words_are_cut(folder, capsys):
    Path("long.txt").write_text("acgt" * 1500 + "\n", encoding="utf-8")
    sets = ["tokenizer={kind: bpe, vocab_size: 300}", "data.train=long.txt", "data.valid=[]"]
    asked = ["r.yaml", "--out", "t", *(word for each in sets for word in ("--set", each))]
    note = "from 1 document, 1 word of more than 4,096 characters cut\n"
    assert cli.run(["tokenizer", "train", *asked]) == 0
    assert capsys.readouterr().err == f"tokenizer: bpe, 270 tokens, {note}"


def test_tokenizer_train_leaves_an_existing_directory_alone(folder, capsys):
    Path("t").mkdir()
    assert cli.run(["tokenizer", "train", "r.yaml", "--out", "t", "-q", "--json"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert json.loads(out)["documents"] == 3
    before = Path("t/vocab.txt").read_bytes()
    assert cli.run(["tokenizer", "train", "r.yaml", "--out", "t"]) == 4
    assert capsys.readouterr().err == (
        "nlpkit: t: exists already; remove it, or give --out another name\n"
    )
    assert Path("t/vocab.txt").read_bytes() == before


def test_tokenizer_train_that_cannot_write_names_the_directory(folder, capsys):
    assert cli.run(["tokenizer", "train", "r.yaml", "--out", "/proc/nlpkit"]) == 4
    said = "nlpkit: /proc/nlpkit: cannot be written: No such file or directory\n"
    assert capsys.readouterr().err == said


def test_tokenizer_show_takes_the_tokenizer_of_a_run(folder, capsys):
    assert cli.run(["tokenizer", "train", "r.yaml", "--out", "run/tokenizer", "-q"]) == 0
    capsys.readouterr()
    assert cli.run(["tokenizer", "show", "run/tokenizer", "好"]) == 0
    expected = capsys.readouterr().out
    assert cli.run(["tokenizer", "show", "run", "好"]) == 0
    assert capsys.readouterr().out == expected != ""


def test_closed_stdin_is_one_line(folder, capsys, monkeypatch):
    assert cli.run(["tokenizer", "train", "r.yaml", "--out", "t", "-q"]) == 0
    capsys.readouterr()
    monkeypatch.setattr("sys.stdin", None)  # as Python has it after `<&-`
    for arguments, name in ((["tokenizer", "show", "t", "-"], "TEXT"), (["generate", "t"], "FILE")):
        assert cli.run(arguments) == 2
        assert capsys.readouterr().err == f"nlpkit: {name}: '-' is stdin, but stdin is closed\n"


@pytest.mark.parametrize("given", [["r.yaml", "--set", "tokenizer={path: t}"], ["vit"]])
def test_tokenizer_train_without_a_kind_is_refused(folder, capsys, given):
    assert cli.run(["tokenizer", "train", *given]) == 2
    assert "to be trained, and this recipe sets none" in capsys.readouterr().err


def test_tokenizer_train_on_a_bad_row_gives_3_and_no_directory(folder, capsys):
    Path("a.jsonl").write_text('{"text": "好"}\n{"text": 3}\n', encoding="utf-8")
    arguments = ["tokenizer", "train", "r.yaml", "--set", "data.train=a.jsonl", "--out", "t"]
    assert cli.run(arguments) == 3
    assert capsys.readouterr().err.startswith("nlpkit: a.jsonl:2: ")
    assert not Path("t").exists()


@pytest.mark.parametrize("kind", registry.names("tokenizers"))
def test_tokenizer_show_gives_ids_and_tokens(kind, folder, capsys):
    module = registry.load("tokenizers", kind)
    section = f"tokenizer={{kind: {kind}, vocab_size: 300}}"
    assert cli.run(["tokenizer", "train", "r.yaml", "--out", "t", "--set", section]) == 0
    capsys.readouterr()
    tokenizer = module.Tokenizer.load("t")
    ids = tokenizer.encode("春天")
    assert cli.run(["tokenizer", "show", "t", "春天"]) == 0
    lines = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert [line[0] for line in lines] == [str(i) for i in ids]
    if kind == "bpe":  # bytes
        text = "".join(token for _, token in lines)
        by_bytes = {f"<0x{byte:02X}>": bytes([byte]) for byte in "春天".encode()}
        pieces = re.findall(r"<0x..>|.", text)
        raw = b"".join(by_bytes.get(piece) or piece.encode() for piece in pieces)
        assert raw.decode() == "春天"
    else:
        assert lines == [[str(i), tokenizer.token(i)] for i in ids]
    assert cli.run(["tokenizer", "show", "t", "春天", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["text"], found["ids"]) == ("春天", ids)
    assert found["tokens"] == [tokenizer.token(i) for i in ids]
    assert cli.run(["tokenizer", "show", "t"]) == 0
    said = dict(line.split("\t", 1) for line in capsys.readouterr().out.splitlines())
    assert (said["kind"], said["vocab_size"]) == (kind, str(tokenizer.vocab_size))
    assert said["0"] == tokenizer.token(0)


def test_tokenizer_show_reads_stdin(folder):
    nlpkit("tokenizer", "train", "r.yaml", "--out", "t")
    given = nlpkit("tokenizer", "show", "t", "-", input="花开了\n")
    assert given.stdout == nlpkit("tokenizer", "show", "t", "花开了").stdout != ""
    empty = nlpkit("tokenizer", "show", "t", "-", input="")
    assert (empty.returncode, empty.stdout) == (0, "")
    broken = nlpkit("tokenizer", "show", "t", "-", input=b"a\xff", text=False, encoding=None)
    assert (broken.returncode, broken.stderr) == (3, b"nlpkit: stdin: byte 2 is not UTF-8\n")


def test_tokenizer_show_of_no_tokenizer_gives_4(folder, capsys):
    assert cli.run(["tokenizer", "show", "nowhere"]) == 4
    assert capsys.readouterr().err == ("nlpkit: nowhere: no such directory; expected a tokenizer\n")
    assert cli.run(["tokenizer", "show", "."]) == 4
    assert capsys.readouterr().err == (
        "nlpkit: .: no tokenizer here, neither encoder.json nor encoder_bpe_40000.json "
        "nor nlpkit_tokenizer.json nor sentencepiece.bpe.model nor spiece.model nor spm.model "
        "nor tokenizer.json nor tokenizer.model nor vocab.json nor vocab.txt\n"
    )


def test_options_reach_the_verb_as_one_object(folder, monkeypatch, capsys):
    seen = []

    @shared("overrides", "out", "device", "resume", "dry_run")
    def command(recipe: RecipeName, common: Common, runs: RunOptions) -> None:
        """Look."""
        seen.append((common, common.load(recipe), runs.max_time))
        common.print_result("text", path="p")

    verb(monkeypatch, command)
    line = "recipes r.yaml --set train.steps=5 --set train.lr=1 --out 010 --device cuda:1"
    line += " --resume never --dry-run --json -v --max-time 1h30m"
    assert cli.run(line.split()) == 0
    [(common, resolved, max_time)] = seen
    assert (common.device, common.resume, common.dry_run) == ("cuda:1", "never", True)
    assert (common.verbosity, max_time) == (2, 5400)
    assert (resolved.recipe.train.steps, resolved.recipe.out) == (5, "010")
    assert resolved.origin["out"] == "command line"
    assert capsys.readouterr().out == '{"path": "p"}\n'
    assert cli.run(["recipes", "r.yaml"]) == 0
    assert capsys.readouterr().out == "text\n"
    assert seen[1][0] == Common()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--device", "gpu"], "'gpu' is none of auto, cpu, cuda, cuda:1"),
        (["--max-time", "soon"], "'soon' is not a time such as 90s, 50m or 1h30m"),
        (["-q", "-v"], "-q and -v exclude each other"),
        (["--seeds", "0"], "value for '--seeds': must be greater than or equal to 2 (see"),
        (["--seeds", "x"], "value for '--seeds': must be a valid integer (see"),
    ],
)
def test_options_out_of_range_give_2(options, said, monkeypatch, capsys):
    @shared("device")
    def command(common: Common, runs: RunOptions) -> None:
        """Never run."""
        raise AssertionError

    verb(monkeypatch, command)
    assert cli.run(["recipes", *options]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    "line",
    [
        "eval x --predictions none/p.jsonl",
        "eval x --confusion none/c.png",
        "shots x y --predictions none/p.jsonl",
        "judge x y --surprisal none/s.tsv",
    ],
)
def test_file_in_a_folder_that_is_not_there_is_refused_at_once(line, folder, capsys):
    assert cli.run(line.split()) == 4
    (said,) = capsys.readouterr().err.splitlines()
    assert said == f"nlpkit: {line.split()[-1]}: cannot be written: no directory none"
    for place, why in ((".", "Is a directory"), ("/proc/p.jsonl", "")):  # nothing can be made there
        assert cli.run([*line.split()[:-1], place]) == 4
        (said,) = capsys.readouterr().err.splitlines()
        assert said.startswith(f"nlpkit: {place}: cannot be written: {why}")
    assert cli.run([*line.split()[:-1], "-"]) == 2


@pytest.mark.parametrize("what", ["--pairs", "--surprisal"])
def test_judge_refuses_an_empty_name(what, folder, capsys):
    options = [what, "s.tsv"] if what == "--surprisal" else [what]
    assert cli.run(["judge", "x", "", *options]) == 2
    assert capsys.readouterr().err == "nlpkit: FILE: a name is empty\n"


@pytest.mark.parametrize(
    ("written", "value"),
    [("90s", 90), ("50m", 3000), ("1h30m", 5400), ("2d", 172800), ("45", 45), ("0.5h", 1800)],
)
def test_options_time_is_read_in_seconds(written, value):
    assert units.parse_duration(written) == value


@pytest.mark.parametrize("written", ["", "0", "0s", "m", "5x", "-5m", "5m x", "1e3"])
def test_options_time_that_is_none_is_refused(written):
    with pytest.raises(ValueError, match="is not a time such as"):
        units.parse_duration(written)


@pytest.mark.parametrize("written", ["9" * 400 + "M", "9" * 9999, "0", "-1", "5x", ""])
def test_number_that_is_none_or_too_long_is_refused(written):
    with pytest.raises(ValueError, match=r" is not a number of words such as 15M"):
        units.parse_number(written, "words")
