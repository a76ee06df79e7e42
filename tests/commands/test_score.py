"""`nlpkit score`: what it prints, sacrebleu's options and output, help.

Expected scores are sacrebleu's (called as a program), or those of a metric written for the tests.
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
from nlpkit.contracts.metric import Score
from nlpkit.score import output, parsing
from tests._scores import make_folder, process, score


@pytest.fixture
def folder(tmp_path, monkeypatch):
    return make_folder(tmp_path, monkeypatch)


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


def test_score_name_is_the_score_though_a_file_is_called_so(folder, capsys):
    Path("bleu").write_text("12.3\n")
    assert score(capsys, "bleu hyp hyp -b")[:2] == (0, "100.0\n")


def test_score_metrics_of_the_same_last_name_have_options_each(folder, capsys):
    (folder / "other").mkdir()
    (folder / "other" / "equal.py").write_text((folder / "mylab" / "equal.py").read_text())
    line = "mylab.equal,other.equal hyp ref -b --level 0.5 --other.equal-level 0.25"
    assert score(capsys, line)[:2] == (0, "16.7\n8.3\n")


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


def test_score_several_systems_have_a_row_for_each_class_if_asked(folder, capsys):
    Path("ref").write_text("a\nb\nb\n")
    out = score(capsys, "f1 ref -i ref --per-class")[1]
    assert "ref: F1" not in out  # one system has them below its line
    Path("hyp").write_text("a\nb\na\n")
    out = score(capsys, "f1 ref -i hyp ref --per-class")[1]
    table = out.partition("\n\nhyp: F1\n")[2].partition("\n\nref: F1\n")[0].splitlines()
    assert [line.split()[0] for line in table] == ["class", "a", "b"]


def test_score_far_length_ratio_is_a_warning_even_with_q(folder, capsys):
    Path("hyp").write_text("a\nb\nc\n")
    code, _, err = score(capsys, "mylab.equal hyp ref -q")
    assert code == 0
    assert err.startswith("warning: hyp: the hypotheses are 0.0769 times as long as the ")
    assert "times as long" in score(capsys, "mylab.equal ref hyp -q")[2]
    assert "times as long" not in score(capsys, "mylab.equal hyp hyp -q")[2]
    Path("blank").write_text("\n" * 3)
    assert score(capsys, "bleu hyp blank -q")[2] == ""  # no words to compare lengths with


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


@pytest.mark.fast_cases(2)
@pytest.mark.parametrize(
    "line",
    [
        "ref1 ref2 -i sys1 -f text -w 4 -tok char -lc",
        "ref1.gz -i sys1 -f text -b -w 3 -s floor -sv 0.5",
        "refs.tsv -nr 2 -i sys1 -f json --tok zh --smooth-method add-k",
        "ref1 -i sys1 -f json -m ter chrf bleu --chrf-word-order 2 --chrf-lowercase",
        "ref1 ref2 -i sys1 -sl -w 3",
        "ref1 -i sys1 sys2 -f json -m bleu chrf -w 2",
        "ref1 -i sys1 -f text -ci -cin 30",
        *(
            pytest.param(line, marks=pytest.mark.slow)
            for line in (
                "ref1 -i sys1 -f text",
                "ref1 -i sys1 -f text -m ter bleu --ter-no-punct -sh",
                "ref1 -i sys1 -sl -b",
                "ref1 -i sys1 -m chrf --chrf-beta 3 -cc 4 -b -w 5",
                "ref1 -i sys1 -f json -ci -cin 30 -m bleu",
            )
        ),
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


@pytest.mark.fast_cases(1)
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
    docs = Path(__file__).resolve().parents[2] / "docs"
    page = (docs / "reference/json.md").read_text(encoding="utf-8")
    table = page.partition("<!-- score keys")[2].partition("\n\n")[0]
    rows = re.findall(r"^\| (`.*?`) \|", table, re.MULTILINE)
    documented = {key for row in rows for key in re.findall("`(.+?)`", row)}
    line = "bleu ref1 -i sys1 sys2 --json -pbs -pbsn 10"
    assert set(json.loads(process(*line.split(), cwd=corpus).stdout)[1]) == documented
    line = "bleu ref1 -i sys1 --json -sl -q"
    lines = process(*line.split(), cwd=corpus).stdout.splitlines()
    assert [json.loads(each)["line"] for each in lines] == [*range(1, 61)]
    assert set(json.loads(lines[0])) < {"line"} | documented


@pytest.mark.slow
def test_score_environment_of_sacrebleu_is_read(corpus):
    def run(**environment):
        line = "bleu ref1 -i sys1 -f text -ci -cin 20"
        done = process(*line.split(), cwd=corpus, env=environment)
        return done.returncode, done.stdout, done.stderr

    assert json.loads(run(SACREBLEU_FORMAT="json")[1])["seed"] == "12345"
    assert "|seed:7|" in run(SACREBLEU_SEED="7")[1]
    assert run(SACREBLEU_SEED="7")[1] != run(SACREBLEU_SEED="8")[1].replace("seed:8", "seed:7")
    assert run(SACREBLEU_SEED="x")[0] == 2


# Help


def test_score_help_lists_every_score_and_imports_none(folder):
    done = process("--help")
    assert (done.returncode, done.stderr) == (0, "")
    listed = done.stdout.partition("Scores:\n")[2].partition("\n\n")[0]
    # A name, two blanks or more, and the first line of its docstring, filled.
    rows = re.split(r"^  (?=\w)", listed, flags=re.MULTILINE)[1:]
    assert [row.split()[0] for row in rows] == registry.names("score/metrics")
    for row in rows:
        name, about = row.split(maxsplit=1)
        assert (registry.load("score/metrics", name).__doc__ or "").startswith(
            " ".join(about.split())
        )
    alone = process()
    assert (alone.returncode, alone.stdout) == (2, "")
    assert alone.stderr == done.stdout + "nlpkit: no METRIC\n"


def test_score_is_the_same_behind_two_dashes(folder, capsys):
    expected = score(capsys, "--help")[1]
    assert cli.run(["--", "score", "--help"]) == 0
    assert capsys.readouterr().out == expected
    assert cli.run(["--", "score", "mylab.equal", "hyp", "ref", "-b"]) == 0
    assert capsys.readouterr().out == "33.3\n"


@pytest.mark.parametrize("columns", ["60", "100"])
def test_score_help_of_a_metric_has_its_options_and_fits(folder, capsys, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", columns)
    code, out, err = score(capsys, "mylab.equal --help")
    assert (code, err) == (0, "")
    assert out.startswith("Usage: nlpkit score mylab.equal ")
    assert "Lines that are equal, in per cent.\n\nOf the tests." in out
    assert "--fold" in out
    assert "100 % without case" in " ".join(out.split())
    assert "what a line counts [default: 1.0]" in " ".join(out.split())
    assert max(map(len, out.splitlines())) <= int(columns)


@pytest.mark.parametrize("columns", ["", "wide", "-5", "0", "1"])
def test_score_takes_any_width_of_the_terminal(folder, capsys, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", columns)
    assert score(capsys, "mylab.equal hyp ref -b")[:2] == (0, "33.3\n")
    assert score(capsys, "mylab.equal --help")[0] == 0


def test_score_every_pair_of_metrics_has_one_parser():
    found = {name: registry.load("score/metrics", name) for name in registry.names("score/metrics")}
    metrics = {name: module for name, module in found.items() if "score" in vars(module)}
    assert len(metrics) > 5
    for pair in itertools.combinations(metrics, 2):
        parser = parsing.make_metric_parser({name: metrics[name] for name in pair})
        parser.format_help()
        read = parser.parse_args(["a", "b"])
        for name in pair:
            options = parsing.get_options(name, metrics[name], read)
            assert options == {each.name: each.default for each in metrics[name].OPTIONS}


def test_score_shared_option_is_the_first_ones_and_prefixed_everyones():
    modules = {name: registry.load("score/metrics", name) for name in ("chrf", "bleu")}
    read = parsing.make_metric_parser(modules).parse_args(["h", "r", "-lc"])
    assert parsing.get_options("bleu", modules["bleu"], read)["lowercase"] is True
    assert parsing.get_options("chrf", modules["chrf"], read)["lowercase"] is False
    read = parsing.make_metric_parser(modules).parse_args(["h", "r", "--chrf-lowercase"])
    assert parsing.get_options("bleu", modules["bleu"], read)["lowercase"] is False
    assert parsing.get_options("chrf", modules["chrf"], read)["lowercase"] is True


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
    assert output.shorten(name, signature) == short


def test_output_rounds_per_cent_to_one_decimal_and_others_to_four():
    percent, share = Score("a", 12.3456, ""), Score("b", 0.123456, "", percent=False)
    assert output.round_score(percent, percent.score, None) == "12.3"
    assert output.round_score(share, share.score, None) == "0.1235"
    assert output.round_score(share, share.score, 2) == "0.12"
    assert output.round_score(share, math.nan, 2) == "nan"
