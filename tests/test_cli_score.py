"""`nlpkit score`: sacrebleu's options and output, files, exit codes, and that it starts fast.

Expected scores are sacrebleu's (called as a program), or those of a metric written here.
"""

import gzip
import itertools
import json
import math
import os
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest

from nlpkit import cli, registry
from nlpkit.score import _arguments, _output
from nlpkit.score._contract import Score

# The share of lines that are equal to a reference; a line `bad` cannot be read.
METRIC = '''\
"""Lines that are equal, in per cent.

Of the tests."""
from nlpkit.score._contract import BadLine, Option, Score
OPTIONS = (
    Option("fold", False, "100 % without case", ("-lc",), type=bool),
    Option("level", 1.0, "what a line counts", type=float),
)
REFERENCES = (1, 2)

def score(hypotheses, references, *, fold, level):
    kinds = list(zip(hypotheses, *references))
    for index, lines in enumerate(kinds):
        for file, line in enumerate(lines):
            if line == "bad":
                raise BadLine(file, index, "is bad")
    if not any(hypotheses):
        return Score("equal", float("nan"), "", percent=False)
    if fold:
        kinds = [[line.lower() for line in lines] for lines in kinds]
    value = 100 * level * sum(a in more for a, *more in kinds) / len(kinds)
    ratio = sum(map(len, hypotheses)) / max(1, sum(map(len, references[0])))
    return Score("equal", value, f"nrefs:{len(references)}|fold:{fold}", "of all",
                 {"ratio": ratio, "warnings": ["mind the gap"], "odd": float("inf")})
'''
# Takes no references, and is alone in its `lines`.
COUNT = '''\
"""Number of lines."""
from nlpkit.score._contract import Score
OPTIONS = ()
REFERENCES = (0, 0)
LOWER_IS_BETTER = True

def score(hypotheses, references):
    assert references == []
    return Score("lines", len(hypotheses), "", percent=False)
'''
TOOL = '''\
"""Sums numbers."""
def add_arguments(parser):
    parser.add_argument("numbers", nargs="+", type=float)
    parser.add_argument("--none", action="store_true")
    parser.add_argument("-m", nargs="+", default=[])

def run(arguments):
    print(sum(arguments.numbers), *arguments.m)
    return None if arguments.none else sum(arguments.numbers)
'''
HYP = "The cat is on the desk.\nIt is a dog\nhello\n"
REF = "The cat is on the desk.\nit is a dog\nhullo\n"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    package = tmp_path / "mylab"
    package.mkdir()
    for name, text in (("equal", METRIC), ("count", COUNT), ("total", TOOL)):
        (package / f"{name}.py").write_text(text)
    for name in [name for name in sys.modules if name.startswith("mylab")]:
        del sys.modules[name]
    Path("hyp").write_text(HYP)
    Path("ref").write_text(REF)
    for name in ("SACREBLEU_FORMAT", "SACREBLEU_SEED"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def score(capsys, line):
    """Return exit code, stdout and stderr of `nlpkit score LINE` in this process."""
    capsys.readouterr()
    code = cli.run(["score", *line.split()])
    return code, *capsys.readouterr()


def process(*arguments, **more):
    """Run `nlpkit score` as a process of its own."""
    given = {"capture_output": True, "text": True, "encoding": "utf-8", **more}
    given["env"] = {**os.environ, "PYTHONPATH": os.getcwd(), **given.get("env", {})}
    return subprocess.run([sys.executable, "-m", "nlpkit", "score", *arguments], **given)


# What it prints


def test_score_prints_the_score_on_stdout_and_the_files_on_stderr(folder, capsys):
    code, out, err = score(capsys, "mylab.equal hyp ref")
    # One of three lines is equal.
    assert (code, out) == (0, "equal|nrefs:1|fold:False = 33.3 of all\n")
    assert err == (
        "hypotheses: hyp (3 lines); references: ref (3 lines); length ratio: 1.000\n"
        "warning: hyp: mind the gap\n"
    )
    assert score(capsys, "mylab.equal hyp ref -q")[2] == "warning: hyp: mind the gap\n"


def test_score_options_of_the_metric_reach_it_by_short_plain_and_prefixed_name(folder, capsys):
    for flags in ("-lc", "--fold", "--equal-fold"):
        assert score(capsys, f"mylab.equal {flags} hyp ref -b")[1] == "66.7\n"
        # Between and after the files, too.
        assert score(capsys, f"mylab.equal hyp {flags} ref -b")[1] == "66.7\n"
    assert score(capsys, "mylab.equal hyp ref --level 0.5 -b -w 3")[1] == "16.667\n"
    assert score(capsys, "mylab.equal hyp ref --lev=0.5 --score -w3")[1] == "16.667\n"


def test_score_json_is_unrounded_and_has_all_that_is_known(folder, capsys):
    code, out, _ = score(capsys, "mylab.equal hyp ref --json")
    assert (code, out.count("\n")) == (0, 1)
    assert json.loads(out) == {
        "metric": "mylab.equal",
        "name": "equal",
        "score": 100 / 3,
        "signature": "nrefs:1|fold:False",
        "verbose": "of all",
        "hypotheses": "hyp",
        "references": ["ref"],
        "lines": 3,
        "details": {"ratio": 1.0, "warnings": ["mind the gap"], "odd": None},
    }
    several = json.loads(score(capsys, "mylab.equal ref -i hyp ref --json")[1])
    assert [(each["hypotheses"], each["score"]) for each in several] == [
        ("hyp", 100 / 3),
        ("ref", 100.0),
    ]


def test_score_without_limit_or_text_of_an_undefined_score_is_null_in_json(folder, capsys):
    Path("hyp").write_text("\n\n\n")
    code, out, err = score(capsys, "mylab.equal hyp ref --json")
    assert (code, json.loads(out)["score"]) == (0, None)
    assert err.startswith("hypotheses: hyp (3 lines, 3 blank); ")
    assert json.loads(score(capsys, "mylab.equal hyp ref -f json")[1])["score"] is None


def test_score_several_metrics_are_aligned_and_in_the_order_given(folder, capsys):
    code, out, _ = score(capsys, "bleu,mylab.equal hyp ref")
    first, second = out.splitlines()
    assert code == 0
    assert first.startswith("BLEU|")
    assert second.lstrip().startswith("equal|")
    assert first.index("=") == second.index("=")
    assert score(capsys, "mylab.equal,bleu hyp ref -b")[1].splitlines()[0] == "33.3"


def test_score_several_systems_are_a_table(folder, capsys):
    code, out, err = score(capsys, "mylab.equal ref -i hyp ref")
    assert (code, out) == (
        0,
        "System  equal\nhyp     33.3\nref     100.0\n\nequal|nrefs:1|fold:False\n",
    )
    assert err.count("hypotheses: ") == 2
    out = score(capsys, "mylab.equal,bleu ref -i hyp ref -b")[1]
    assert [line.split("\t")[0] for line in out.splitlines()] == ["33.3", "100.0"]
    assert all(len(line.split("\t")) == 2 for line in out.splitlines())


def test_score_far_length_ratio_is_a_warning_even_with_q(folder, capsys):
    Path("hyp").write_text("a\nb\nc\n")
    code, _, err = score(capsys, "mylab.equal hyp ref -q")
    assert code == 0
    assert err.startswith("warning: hyp: the hypotheses are 0.0769 times as long as the ")
    assert "times as long" in score(capsys, "mylab.equal ref hyp -q")[2]
    assert "times as long" not in score(capsys, "mylab.equal hyp hyp -q")[2]


# Against sacrebleu


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """Files with what differs easily: case, numbers, Chinese, spaces at ends, blank lines."""
    place = tmp_path_factory.mktemp("corpus")
    draw = random.Random(3)
    text = "the cat sat on a mat It is 3.5% of &quot;x&quot; don't e.g. 中文 句子 , ."
    words = text.split()
    files = {"ref1": [], "ref2": [], "sys1": [], "sys2": []}
    for _ in range(60):
        line = draw.choices(words, k=draw.randint(3, 14))
        for lines in files.values():
            kept = [draw.choice(words) if draw.random() < 0.3 else word for word in line]
            lines.append(" ".join(kept))
    files["sys1"][7] = ""
    files["ref1"][9] = ""
    for name, lines in files.items():
        (place / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    tabbed = [f"{a}\t{b}\n" for a, b in zip(files["ref1"], files["ref2"], strict=True)]
    (place / "refs.tsv").write_text("".join(tabbed), encoding="utf-8")
    (place / "ref1.gz").write_bytes(gzip.compress((place / "ref1").read_bytes()))
    return place


def both(corpus, line, **more):
    """Return stdout of `sacrebleu LINE` and of `nlpkit score bleu LINE`."""
    outs = []
    for program in (["sacrebleu"], ["nlpkit", "score", "bleu"]):
        done = subprocess.run(
            [sys.executable, "-m", *program, *line.split()],
            **{"cwd": corpus, "capture_output": True, "text": True, "encoding": "utf-8", **more},
        )
        assert done.returncode == 0, done.stderr
        outs.append(done.stdout)
    return outs


@pytest.mark.parametrize(
    "line",
    [
        "ref1 -i sys1 -f text",
        "ref1 ref2 -i sys1 -f text -w 4 -tok char -lc",
        "ref1.gz -i sys1 -f text -b -w 3 -s floor -sv 0.5",
        "refs.tsv -nr 2 -i sys1 -f json --tok zh --smooth-method add-k",
        "ref1 -i sys1 -f json -m ter chrf bleu --chrf-word-order 2 --chrf-lowercase",
        "ref1 -i sys1 -f text -m ter bleu --ter-no-punct -sh",
        "ref1 ref2 -i sys1 -sl -w 3",
        "ref1 -i sys1 -sl -b",
        "ref1 -i sys1 -m chrf --chrf-beta 3 -cc 4 -b -w 5",
        "ref1 -i sys1 sys2 -f json -m bleu chrf -w 2",
        "ref1 -i sys1 -f text -ci -cin 30",
        "ref1 -i sys1 -f json -ci -cin 30 -m bleu",
    ],
)
def test_score_moves_over_from_sacrebleu_by_the_name_of_the_program(corpus, line):
    theirs, ours = both(corpus, line, env={**os.environ, "NO_COLOR": "1"})
    if "-f json" in line:
        theirs, ours = json.loads(theirs), json.loads(ours)
    assert ours == theirs


def test_score_takes_the_hypotheses_from_stdin_as_sacrebleu_does(corpus):
    with open(corpus / "sys1", encoding="utf-8") as file:
        text = file.read()
    theirs, ours = both(corpus, "ref1 -f text", input=text)
    assert ours == theirs != ""


@pytest.mark.parametrize(("line", "digits"), [("-pbs -pbsn 60", 3), ("-par -parn 200", 12)])
def test_score_paired_test_gives_sacrebleus_numbers(corpus, line, digits):
    # Its bootstrap adds in float32, ours exactly.
    theirs, ours = map(json.loads, both(corpus, f"ref1 ref2 -i sys1 sys2 -f json {line}"))
    assert [each["system"] for each in ours] == ["Baseline: sys1", "sys2"]
    for mine, other in zip(ours, theirs, strict=True):
        assert mine.keys() == other.keys()
        for key, value in other["BLEU"].items():
            expected = value if value is None else pytest.approx(value, abs=10**-digits)
            assert mine["BLEU"][key] == expected
    text = process(*f"bleu ref1 ref2 -i sys1 sys2 {line}".split(), cwd=corpus).stdout
    assert f"(p = {ours[1]['BLEU']['p_value']:.4f})" in text
    assert f"nrefs:2|{'bs:60' if 'pbs' in line else 'ar:200'}|seed:12345|case" in text


def test_score_of_paired_test_is_in_full_json(corpus):
    line = "bleu ref1 -i sys1 sys2 --json -pbs -pbsn 40"
    first, second = json.loads(process(*line.split(), cwd=corpus).stdout)
    assert "p_value" not in first
    assert 0 < second["p_value"] <= 1
    assert second["half_width"] > 0
    assert first["signature"].startswith("nrefs:1|bs:40|seed:12345|case:mixed|")


def test_score_full_json_has_the_keys_that_are_documented(corpus):
    design = (Path(__file__).resolve().parents[1] / "docs/design.md").read_text(encoding="utf-8")
    table = design.partition("<!-- score keys")[2].partition("\n\n")[0]
    rows = re.findall(r"^\| (`.*?`) \|", table, re.MULTILINE)
    documented = {key for row in rows for key in re.findall("`(.+?)`", row)}
    line = "bleu ref1 -i sys1 sys2 --json -pbs -pbsn 10"
    assert set(json.loads(process(*line.split(), cwd=corpus).stdout)[1]) == documented
    line = "bleu ref1 -i sys1 --json -sl -q"
    lines = process(*line.split(), cwd=corpus).stdout.splitlines()
    assert [json.loads(each)["line"] for each in lines] == [*range(1, 61)]
    assert set(json.loads(lines[0])) < {"line"} | documented


def test_score_environment_of_sacrebleu_is_read(corpus):
    def run(**environment):
        line = "bleu ref1 -i sys1 -f text -ci -cin 20"
        done = process(*line.split(), cwd=corpus, env=environment)
        return done.returncode, done.stdout, done.stderr

    assert json.loads(run(SACREBLEU_FORMAT="json")[1])["seed"] == "12345"
    assert "|seed:7|" in run(SACREBLEU_SEED="7")[1]
    assert run(SACREBLEU_SEED="7")[1] != run(SACREBLEU_SEED="8")[1].replace("seed:8", "seed:7")
    assert run(SACREBLEU_SEED="x")[0] == 2


# Files


def test_score_reads_stdin_once(folder, capsys):
    with open("hyp") as file:
        done = process("mylab.equal", "-", "ref", "-b", stdin=file)
    assert (done.returncode, done.stdout) == (0, "33.3\n")
    assert done.stderr.startswith("hypotheses: stdin (3 lines); references: ref (3 lines)")
    with open("ref") as file:
        assert process("mylab.equal", "hyp", "-", "-b", stdin=file).stdout == "33.3\n"
    code, out, err = score(capsys, "mylab.equal - -")
    assert (code, out, err) == (2, "", "nlpkit: stdin (-) can be read once only\n")


def test_score_with_closed_stdin_gives_3(folder):
    command = f"{sys.executable} -m nlpkit score mylab.equal - ref <&-"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr == "nlpkit: stdin: no lines\n"


def test_score_tabs_on_implied_stdin_are_refused_for_they_are_systems_in_sacrebleu(folder):
    done = process("mylab.equal", "ref", input="a\tb\nc\td\ne\tf\n")
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr.startswith("nlpkit: stdin:1: a tab: give several systems as files to -i")


def test_score_reads_gzip_bom_crlf_and_other_encodings_alike(folder, capsys):
    expected = score(capsys, "mylab.equal hyp ref")[1]
    Path("hyp.txt").write_bytes(gzip.compress(b"\xef\xbb\xbf" + HYP.replace("\n", "\r\n").encode()))
    assert score(capsys, "mylab.equal hyp.txt ref")[1] == expected
    for encoding in ("utf-16", "gb18030", "utf-32"):
        Path("h").write_text(HYP + "春\n", encoding=encoding)
        Path("r").write_text(REF + "春\n", encoding=encoding)
        assert score(capsys, f"mylab.equal h r -b -e {encoding}")[1] == "50.0\n"
    code, _, err = score(capsys, "mylab.equal hyp ref -e utf-9")
    assert (code, err) == (
        2,
        "nlpkit: no encoding 'utf-9'; known are Python's, such as gb18030\n",
    )


def test_score_references_between_tabs(folder, capsys):
    Path("refs").write_text("a\tb\nc\td\ne\t\n")
    Path("hyp").write_text("b\nx\ne\n")
    assert score(capsys, "mylab.equal hyp refs -nr 2")[1] == (
        "equal|nrefs:2|fold:False = 66.7 of all\n"
    )
    Path("refs").write_text("a\tb\nc\ne\tf\n")
    code, out, err = score(capsys, "mylab.equal hyp refs -nr 2")
    assert (code, out) == (3, "")
    assert err == "nlpkit: refs:2: 1 field between tabs, expected 2 (-nr)\n"
    assert score(capsys, "mylab.equal hyp refs ref -nr 2")[0] == 2


@pytest.mark.parametrize(
    ("hyp", "said"),
    [
        (
            HYP + "more\n",
            "hyp has 4 lines, ref has 3: line i of one belongs to line i of the other",
        ),
        (
            HYP + "\n \n",
            "hyp has 5 lines, ref has 3 (the last 2 of hyp are blank): line i of one belongs to "
            "line i of the other",
        ),
        ("", "hyp: no lines"),
        ("a\nb\nbad\n", "hyp:3: is bad"),
    ],
)
def test_score_files_that_do_not_fit_give_3_and_an_empty_stdout(folder, capsys, hyp, said):
    Path("hyp").write_text(hyp)
    assert score(capsys, "mylab.equal hyp ref") == (3, "", f"nlpkit: {said}\n")


def test_score_a_bad_reference_line_is_named(folder, capsys):
    Path("bad").write_text("a\nbad\nc\n")
    assert score(capsys, "mylab.equal hyp ref bad")[2] == "nlpkit: bad:2: is bad\n"


def test_score_bytes_that_are_no_text_give_3_with_the_line(folder, capsys):
    Path("hyp").write_bytes(b"a\nb\n\xff\n")
    said = "nlpkit: hyp:3: not utf-8 text: invalid start byte\n"
    assert score(capsys, "mylab.equal hyp ref") == (3, "", said)


def test_score_damaged_gzip_gives_3(folder, capsys):
    whole = gzip.compress(random.Random(1).randbytes(5000).hex().encode())
    for damaged in (whole[:-500], whole[:900] + b"xxxx" + whole[904:], whole[:-6] + b"abcdef"):
        Path("hyp").write_bytes(damaged)
        code, out, err = score(capsys, "mylab.equal hyp ref")
        assert (code, out) == (3, "")
        assert err.startswith("nlpkit: hyp:1: ")


def test_score_files_that_cannot_be_opened_give_4(folder, capsys):
    assert score(capsys, "mylab.equal hyp none") == (4, "", "nlpkit: none: no such file\n")
    code, _, err = score(capsys, "mylab.equal mylab ref")
    assert (code, err) == (4, "nlpkit: mylab: cannot be read: Is a directory\n")


def test_score_metric_without_references_takes_one_file(folder, capsys):
    code, out, err = score(capsys, "mylab.count hyp")
    assert (code, out, err) == (0, "lines = 3.0000\n", "hypotheses: hyp (3 lines)\n")
    assert score(capsys, "mylab.count,mylab.equal hyp ref -b")[1] == "3.0000\n33.3\n"
    assert score(capsys, "mylab.count hyp ref")[0] == 2


# Exit codes


def test_score_below_the_limit_gives_6_after_the_score(folder, capsys):
    code, out, err = score(capsys, "mylab.equal hyp ref -b --fail-under 33.4")
    assert (code, out) == (6, "33.3\n")
    assert err.endswith("nlpkit: equal is 33.3333: below --fail-under 33.4\n")
    assert score(capsys, "mylab.equal hyp ref --fail-under 33.3")[0] == 0
    # Any of several: hyp is, ref is not.
    assert score(capsys, "mylab.equal ref -i ref hyp --fail-under 50")[2].endswith(
        "nlpkit: equal of hyp is 33.3333: below --fail-under 50\n"
    )
    Path("hyp").write_text("\n\n\n")
    code, out, err = score(capsys, "mylab.equal hyp ref -b --fail-under -5")
    assert (code, out) == (6, "nan\n")
    assert err.endswith("nlpkit: equal is undefined: below --fail-under -5\n")


def test_score_of_an_error_rate_has_its_limit_above(folder, capsys):
    assert score(capsys, "mylab.count hyp --fail-over 3")[0] == 0
    code, _, err = score(capsys, "mylab.count hyp --fail-over 2.5")
    assert (code, err.splitlines()[-1]) == (6, "nlpkit: lines is 3: above --fail-over 2.5")
    assert score(capsys, "mylab.count hyp --fail-under 2")[0] == 2
    assert score(capsys, "mylab.equal hyp ref --fail-over 2")[0] == 2
    both_limits = "mylab.count,mylab.equal hyp ref --fail-under 30 --fail-over"
    assert score(capsys, f"{both_limits} 3")[0] == 0
    assert score(capsys, f"{both_limits} 2")[0] == 6


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("belu hyp ref", "no 'belu', did you mean bleu?"),
        ("BLEU hyp ref", "no 'BLEU', did you mean bleu?"),
        ("hyp ref", "hyp is a file; METRIC comes first"),
        ("hypo ref", "no 'hypo'"),
        ("mylab.nothing hyp ref", "cannot import 'mylab.nothing'"),
        ("nlpkit.errors hyp ref", "nlpkit.errors is no score"),
        ("bleu,bleu hyp ref", "bleu: given twice"),
        ("bleu,mylab.total hyp ref", "mylab.total reads files of its own kind"),
        ("-b bleu hyp ref", "METRIC comes first"),
        ("bleu", "no files"),
        ("bleu -i hyp ref", "no references: they stand before -i"),
        ("bleu ref -i hyp hyp", "hyp: given twice to -i"),
        ("mylab.equal hyp ref ref ref", "mylab.equal: takes 1 to 2 references, not 3"),
        ("bleu hyp ref --lowercas --wdth 3", "no option --wdth, did you mean --width?"),
        ("bleu ref -i hyp -l en-de", "no option -l"),
        ("bleu hyp ref -w x", "argument -w/--width: invalid integer value: 'x'"),
        ("bleu hyp ref -nr 0", "argument -nr/--num-refs: 0 is less than 1"),
        ("bleu hyp ref -s exq", "argument -s/--smooth-method/--bleu-smooth-method: invalid choice"),
        ("bleu hyp ref --json -b", "--json and --score-only exclude each other"),
        ("bleu hyp ref -pbs", "a paired test needs several systems"),
        ("bleu ref -i hyp ref -ci", "-ci is for one system"),
        ("bleu ref -i hyp ref -sl", "--sentence-level takes one system"),
        ("bleu,chrf hyp ref -sl", "--sentence-level takes one metric"),
        ("bleu hyp ref -sl --fail-under 3", "--sentence-level has no one score"),
        ("mylab.equal hyp ref -sl", "mylab.equal has no score of a single line"),
        ("mylab.equal hyp ref -ci", "no sums over lines decide it"),
        ("bleu ref -i hyp ref -par -pbs", "not allowed with argument"),
    ],
)
def test_score_wrong_usage_is_one_line_and_gives_2(folder, capsys, line, said):
    code, out, err = score(capsys, line)
    assert (code, out) == (2, "")
    assert err.startswith("nlpkit: ")
    assert said in err
    assert err.count("\n") == 1


def test_score_tool_gets_its_own_arguments_and_the_limit(folder, capsys):
    assert score(capsys, "mylab.total 1 2.5 -m of two") == (0, "3.5 of two\n", "")
    code, out, err = score(capsys, "mylab.total 1 2.5 --fail-under 4")
    assert (code, out, err) == (6, "3.5\n", "nlpkit: mylab.total is 3.5: below --fail-under 4\n")
    assert score(capsys, "mylab.total 1 2 --none --fail-under 0")[0] == 2
    assert score(capsys, "mylab.total x")[0] == 2
    code, out, _ = score(capsys, "mylab.total --help")
    assert code == 0
    assert "Sums numbers." in out
    assert "--fail-under X" in out


# Help


def test_score_help_lists_every_score_and_imports_none(folder):
    done = process("--help")
    assert (done.returncode, done.stderr) == (0, "")
    listed = done.stdout.partition("Scores:\n")[2].splitlines()
    assert [line.split()[0] for line in listed] == registry.names("score")
    for line in listed:
        name, about = line.split(maxsplit=1)
        assert (registry.load("score", name).__doc__ or "").startswith(about)
    alone = process()
    assert (alone.returncode, alone.stdout) == (2, "")
    assert alone.stderr == done.stdout + "nlpkit: no METRIC\n"


def test_score_help_is_the_same_through_the_typer_application(folder, capsys):
    from nlpkit import verbs

    expected = score(capsys, "--help")[1]
    assert verbs.run(["score", "--help"]) == 0
    assert capsys.readouterr().out == expected
    assert verbs.run(["score", "mylab.equal", "hyp", "ref", "-b"]) == 0
    assert capsys.readouterr().out == "33.3\n"


@pytest.mark.parametrize("columns", ["60", "100"])
def test_score_help_of_a_metric_has_its_options_and_fits(folder, capsys, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", columns)
    code, out, err = score(capsys, "mylab.equal --help")
    assert (code, err) == (0, "")
    assert "Lines that are equal, in per cent.\n\nOf the tests." in out
    assert "--fold" in out
    assert "100 % without case" in " ".join(out.split())
    assert "what a line counts (default: 1.0)" in " ".join(out.split())
    options = out.partition("options:")[2].splitlines()
    assert max(map(len, options)) <= int(columns)


def test_score_every_pair_of_metrics_has_one_parser():
    found = {name: registry.load("score", name) for name in registry.names("score")}
    metrics = {name: module for name, module in found.items() if "score" in vars(module)}
    assert len(metrics) > 5
    for pair in itertools.combinations(metrics, 2):
        parser = _arguments.for_metrics({name: metrics[name] for name in pair})
        parser.format_help()
        read = parser.parse_args(["a", "b"])
        for name in pair:
            options = _arguments.options_of(name, metrics[name], read)
            assert options == {each.name: each.default for each in metrics[name].OPTIONS}


def test_score_shared_option_is_the_first_ones_and_prefixed_everyones():
    modules = {name: registry.load("score", name) for name in ("chrf", "bleu")}
    read = _arguments.for_metrics(modules).parse_args(["h", "r", "-lc"])
    assert _arguments.options_of("bleu", modules["bleu"], read)["lowercase"] is True
    assert _arguments.options_of("chrf", modules["chrf"], read)["lowercase"] is False
    read = _arguments.for_metrics(modules).parse_args(["h", "r", "--chrf-lowercase"])
    assert _arguments.options_of("bleu", modules["bleu"], read)["lowercase"] is False
    assert _arguments.options_of("chrf", modules["chrf"], read)["lowercase"] is True


# Surroundings


def test_score_needs_no_locale_no_home_and_no_writable_folder(folder):
    Path("hyp").write_text("春天\n")
    os.chmod(".", 0o555)
    try:
        env = {"PATH": os.environ["PATH"], "LC_ALL": "C", "LANG": "C", "PYTHONPATH": os.getcwd()}
        done = subprocess.run(
            [sys.executable, "-m", "nlpkit", "score", "bleu", "hyp", "hyp", "-tok", "zh", "--json"],
            env={**env, "PYTHONIOENCODING": "ascii"},
            capture_output=True,
        )
    finally:
        os.chmod(".", 0o755)
    assert done.returncode == 0
    found = json.loads(done.stdout.decode("utf-8"))
    assert found["details"]["sys_len"] == 2


def test_score_reader_that_has_gone_gives_141_quietly(folder):
    Path("hyp").write_text(HYP * 5000)
    with subprocess.Popen(
        [sys.executable, "-m", "nlpkit", "score", "bleu", "hyp", "hyp", "-sl", "-q"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as running:
        assert running.stdout.readline().startswith(b"BLEU|")
        running.stdout.close()
        assert running.stderr.read() == b""
        assert running.wait() == 141


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("arguments", ["mylab.equal hyp ref", "mylab.total 1", "--help"])
def test_score_that_cannot_be_written_gives_4(folder, arguments):
    with open("/dev/full", "w") as full:
        done = process(
            *arguments.split(), capture_output=False, stdout=full, stderr=subprocess.PIPE
        )
    assert done.returncode == 4
    assert done.stderr.endswith("nlpkit: stdout: no space left on device\n")


def test_score_with_closed_stdout_gives_4(folder):
    command = f"{sys.executable} -m nlpkit score mylab.equal hyp ref >&-"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True)
    assert done.returncode == 4
    assert "nlpkit: stdout: " in done.stderr


def test_score_with_a_full_stderr_prints_the_score(folder):
    if not Path("/dev/full").exists():
        pytest.skip("needs /dev/full")
    with open("/dev/full", "w") as full:
        done = process(
            "mylab.equal",
            "hyp",
            "ref",
            "-b",
            capture_output=False,
            stdout=subprocess.PIPE,
            stderr=full,
        )
    assert done.stdout == "33.3\n"


def test_score_imports_only_what_it_needs(folder):
    program = (
        "import sys\nfrom nlpkit import cli\n"
        "assert cli.run(['score', 'bleu', 'hyp', 'ref', '-q']) == 0\n"
        "print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.startswith("BLEU|")
    loaded = set(done.stdout.splitlines()[1].split())
    assert "nlpkit.score.bleu" in loaded
    heavy = "torch transformers pydantic typer click numpy scipy sklearn sacrebleu rich yaml"
    slow = "dataclasses inspect pathlib difflib ast json shutil asyncio importlib.metadata"
    assert loaded.isdisjoint(heavy.split())
    assert loaded.isdisjoint(slow.split())


def test_score_starts_in_less_than_six_tenths_of_sacrebleus_time(folder):
    Path("hyp").write_text(HYP * 3)
    Path("ref").write_text(REF * 3)
    ours = ["nlpkit", "score", "bleu", "hyp", "ref", "-q"]
    theirs = ["sacrebleu", "ref", "-i", "hyp", "-q"]

    def seconds(arguments):
        before = os.times()
        subprocess.run([sys.executable, "-m", *arguments], check=True, capture_output=True)
        after = os.times()
        used = after.children_user + after.children_system
        return used - before.children_user - before.children_system

    # The least of several: of processor time, which others on the machine only lengthen.
    pairs = [(seconds(ours), seconds(theirs)) for _ in range(5)]
    mine, other = (min(each) for each in zip(*pairs, strict=True))
    assert mine <= 0.6 * other


def test_score_prints_what_the_readme_shows(folder):
    readme = (Path(__file__).resolve().parents[1] / "README.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```console\n(.*?)```", readme, re.DOTALL)
    (block,) = [block for block in blocks if "$ nlpkit score" in block]
    commands = [line[2:] for line in block.splitlines() if line.startswith("$ ")]
    shown = [line for line in block.splitlines() if not line.startswith("$ ")]
    assert len(commands) > 5
    shell = f'set -o pipefail; nlpkit() {{ "{sys.executable}" -m nlpkit "$@"; }}; '
    done = subprocess.run(
        ["bash", "-c", shell + "\n".join(commands)], capture_output=True, encoding="utf-8"
    )
    assert done.returncode == 0
    assert [line.rstrip() for line in done.stdout.splitlines()] == shown


# Output, by itself


@pytest.mark.parametrize(
    ("name", "signature", "short"),
    [
        ("BLEU", "nrefs:1|bs:9|seed:2|case:lc|eff:no|tok:13a|smooth:exp|version:2",
         "#:1|bs:9|rs:2|c:lc|e:no|tok:13a|s:exp|v:2"),
        ("chrF2++", "nrefs:1|case:lc|eff:yes|nc:6|nw:2|space:no|version:2",
         "#:1|c:lc|e:yes|nc:6|nw:2|s:no|v:2"),
        ("TER", "nrefs:1|case:lc|tok:tercom|norm:no|punct:yes|asian:no|version:2",
         "#:1|c:lc|t:tercom|nr:no|pn:yes|as:no|v:2"),
        ("WER", "", ""),
    ],
)  # fmt: skip
def test_output_short_signature_is_sacrebleus(name, signature, short):
    # The short names: `_abbr` in sacrebleu 2.6.0, metrics/*.py.
    assert _output.shortened(name, signature) == short


def test_output_rounds_per_cent_to_one_decimal_and_others_to_four():
    percent, share = Score("a", 12.3456, ""), Score("b", 0.123456, "", percent=False)
    assert _output.rounded(percent, percent.score, None) == "12.3"
    assert _output.rounded(share, share.score, None) == "0.1235"
    assert _output.rounded(share, share.score, 2) == "0.12"
    assert _output.rounded(share, math.nan, 2) == "nan"
