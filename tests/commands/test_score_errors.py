"""`nlpkit score`: its files, exit codes and surroundings, and that it starts fast."""

import gzip
import json
import os
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest

from nlpkit import cli, registry
from tests._scores import HYP, REF, make_folder, process, score


@pytest.fixture
def folder(tmp_path, monkeypatch):
    return make_folder(tmp_path, monkeypatch)


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
    for encoding in ("utf-9", "undefined"):  # Python's tests have one of this name
        code, _, err = score(capsys, f"mylab.equal hyp ref -e {encoding}")
        said = f"nlpkit: no encoding {encoding!r}; known are Python's, such as gb18030\n"
        assert (code, err) == (2, said)


def test_score_line_that_is_no_text_in_utf_16_is_named_and_long_labels_are_read(folder, capsys):
    good = "".join(f"{n}\n" for n in range(50)).encode("utf-16-le")
    Path("h").write_bytes(good + b"\x00\xd8x\x00\n\x00")
    code, _, err = score(capsys, "accuracy h h -e utf-16-le")
    assert code == 3
    assert err.startswith("nlpkit: h:51: not utf-16-le text: ")
    Path("h").write_text("9" * 5000 + "\n")
    assert score(capsys, "accuracy h h -b")[:2] == (0, "1.0000\n")


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
    ("metric", "option"),
    [
        (metric, option.name)
        for metric in registry.names("score/metrics")
        for option in getattr(registry.load("score/metrics", metric), "OPTIONS", ())
        if option.choices
    ],
)
def test_score_value_that_is_no_choice_is_refused(folder, capsys, metric, option):
    dashed = option.replace("_", "-")
    code, out, err = score(capsys, f"{metric} hyp ref --{dashed} nope")
    assert (code, out) == (2, "")
    assert f"--{dashed}" in err
    assert "invalid choice: 'nope'" in err


@pytest.mark.parametrize("option", ["--fail-under", "--fail-over"])
def test_score_limit_that_is_no_number_is_refused(folder, capsys, option):
    metric = "mylab.equal" if option == "--fail-under" else "mylab.count"
    code, out, err = score(capsys, f"{metric} hyp ref {option} high")
    assert (code, out) == (2, "")
    assert f"argument {option}: invalid float value: 'high'" in err


@pytest.mark.parametrize("option", ["-l", "--language-pair", "-t", "--test-set"])
def test_score_options_of_sacrebleus_test_sets_are_named(folder, capsys, option):
    code, _, err = score(capsys, f"bleu ref -i hyp {option} en-zh")
    assert code == 2
    assert f"nlpkit: no option {option}: test sets of sacrebleu are not downloaded; give " in err
    assert "--tokenize zh for Chinese" in err


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
    assert cli.run(["score", "mylab.equal", "hyp", ""]) == 4
    assert capsys.readouterr().err == "nlpkit: '': no such file\n"
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
        ("mylab.absent hyp ref", "cannot import 'mylab.absent'"),
        ("mylab.nothing hyp ref", "nothing.py: has no 'score'; it has 'scores'"),
        ("mylab.misspelt hyp", "has 'LOWER_IS_BETER'; did you mean 'LOWER_IS_BETTER'?"),
        ("nlpkit.errors hyp ref", "errors.py: has no 'score'"),
        ("bleu,bleu hyp ref", "bleu: given twice"),
        ("bleu,mylab.total hyp ref", "mylab.total reads files of its own kind"),
        ("-b bleu hyp ref", "METRIC comes first"),
        ("bleu", "no files"),
        ("bleu -i hyp ref", "no references: they stand before -i"),
        ("bleu ref -i hyp hyp", "hyp: given twice to -i"),
        ("mylab.equal hyp ref ref ref", "mylab.equal: takes 1 to 2 references, not 3"),
        ("bleu hyp ref --lowercas --wdth 3", "no option --wdth, did you mean --width?"),
        ("bm25 hyp ref --index kept", "no option --index (see nlpkit score bm25 --help)"),
        ("bm25 hyp ref more --top 3", "more: one file too many (see nlpkit score bm25 --help)"),
        ("bleu ref -i hyp -l en-de", "no option -l"),
        ("bleu hyp ref -w x", "argument -w/--width: invalid integer value: 'x'"),
        (
            "bleu hyp ref -w 99999999999",
            "argument -w/--width: invalid integer value: '99999999999'",
        ),
        ("ir hyp ref -w -1", "argument -w/--width: invalid integer value: '-1'"),
        ("ir hyp ref -w 9999999999", "argument -w/--width: invalid integer value: '9999999999'"),
        ("bleu hyp ref -nr 0", "takes 1 or more references, not 0"),
        ("bleu hyp ref -s exq", "argument -s/--smooth-method/--bleu-smooth-method: invalid choice"),
        ("bleu hyp ref --json -b", "--json and --score-only exclude each other"),
        ("bleu hyp ref -pbs", "a paired test needs several systems"),
        ("bleu ref -i hyp ref -ci", "-ci is for one system"),
        ("bleu ref -i hyp ref -sl", "--sentence-level is for one system"),
        ("bleu,chrf hyp ref -sl", "--sentence-level takes one metric"),
        ("bleu hyp ref -sl --fail-under 3", "no test or limit of its score"),
        ("mylab.equal hyp ref -sl", "mylab.equal has no score of a single line"),
        ("mylab.equal hyp ref -ci", "is not computed from sums over lines"),
        ("mylab.half hyp -ci", "is not computed from sums over lines"),
        ("bleu ref -i hyp ref -par -pbs", "exclude each other"),
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


# Surroundings


def test_score_that_has_no_memory_gives_7(folder, capsys, monkeypatch):
    def compute_results(*_):
        raise MemoryError

    monkeypatch.setattr("nlpkit.commands.score.compute_results", compute_results)
    said = "nlpkit: out of memory: all lines of the files must fit into it\n"
    assert score(capsys, "mylab.equal hyp ref") == (7, "", said)


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
    assert "nlpkit.score.metrics.bleu" in loaded
    heavy = "torch transformers pydantic typer click numpy scipy sklearn sacrebleu rich yaml"
    slow = "dataclasses inspect pathlib difflib ast json shutil asyncio importlib.metadata"
    assert loaded.isdisjoint(heavy.split())
    assert loaded.isdisjoint(slow.split())


def test_score_prints_what_readme_and_page_show(folder):
    root = Path(__file__).resolve().parents[2]
    text = "".join((root / page).read_text("utf-8") for page in ("README.md", "docs/score.md"))
    blocks = re.findall(r"```console\n(.*?)```", text, re.DOTALL)
    block = "".join(block for block in blocks if "$ printf" in block and "$ nlpkit score" in block)
    commands = [line[2:] for line in block.splitlines() if line.startswith("$ ")]
    shown = [line for line in block.splitlines() if not line.startswith("$ ")]
    assert len(commands) == 12
    shell = f'set -o pipefail; nlpkit() {{ "{sys.executable}" -m nlpkit "$@"; }}; '
    done = subprocess.run(
        ["bash", "-c", shell + "\n".join(commands)], capture_output=True, encoding="utf-8"
    )
    assert done.returncode == 0
    assert [line.rstrip() for line in done.stdout.splitlines()] == shown
