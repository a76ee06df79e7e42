"""`nlpkit generate` as people and scripts use it: lines, pipes, terminals, mistakes."""

import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from threading import Thread

import pytest

from nlpkit import cli
from nlpkit.generate import inputs as reader
from nlpkit.generate.texts import Writer
from tests import _server, _tiny

TEXTS = ["天地人山", "春夏秋冬日月星云", "", "风", "红<blank>白<blank:2>多少"]
SHORT = ("--max-new-tokens", "6", "--min-new-tokens", "3", "--device", "cpu")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("generate")
    _tiny.pretrain(_tiny.write(folder), folder / "run", "train.steps=8", "train.eval_every=4")
    return folder / "run"


@pytest.fixture
def inputs(tmp_path: Path) -> Path:
    path = tmp_path / "inputs.txt"
    path.write_text("".join(f"{text}\n" for text in TEXTS), encoding="utf-8")
    return path


@pytest.fixture
def command(run: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Return what calls the command line in this process: (code, stdout, stderr)."""

    def call(*arguments: str | Path) -> tuple[int, str, str]:
        code = cli.run(["generate", str(run), *SHORT, *map(str, arguments)])
        out, err = capsys.readouterr()
        return code, out, err

    return call


@pytest.mark.fast_cases(3)
@pytest.mark.parametrize(
    ("options", "warned"),
    [
        ((), []),
        (("--length-penalty", "1.0", "--seed", "0"), []),  # the defaults
        (("--beam", "2", "--length-penalty", "2"), []),
        (("--beam", "2", "--length-penalty-form", "gnmt"), []),
        (
            ("--length-penalty-form", "gnmt"),
            ["--length-penalty-form: has no effect without --beam"],
        ),
        (("--top-k", "2", "--seed", "3"), []),
        (("--blank", "<x>"), []),
        (("--repetition-penalty", "2", "--repetition-window", "3"), []),
        (("--repetition-window", "3"), ["--repetition-window: has no effect without "
                                        "--repetition-penalty"]),
        (
            ("--length-penalty", "2", "--seed", "3"),
            ["--length-penalty: has no effect without --beam",
             "--seed: has no effect without --temperature, --top-k or --top-p"],
        ),
    ],
)  # fmt: skip
def test_options_without_effect_are_warned_of(command, inputs: Path, options, warned) -> None:
    code, _, err = command(inputs, "-q", *options)
    assert code == 0
    lines = [line.partition("warning: ")[2] for line in err.splitlines()]
    assert [line for line in lines if "has no effect" in line] == warned


def test_generate_gives_a_line_for_each_line_in_order(command, inputs: Path) -> None:
    code, out, err = command(inputs)
    assert code == 0
    lines = out.split("\n")
    assert lines.pop() == ""
    assert len(lines) == len(TEXTS)
    assert lines[4][0] == "红"
    assert lines[4].endswith("多少")
    assert "its best checkpoint, step-0000000" in err
    assert "5 inputs, " in err
    for batch in ("1", "2"):
        assert command(inputs, "--batch", batch)[1] == out


def test_generate_json_has_an_object_a_line_with_the_same_outputs(command, inputs: Path) -> None:
    _, text, _ = command(inputs)
    code, out, _ = command(inputs, "--json")
    objects = [json.loads(line) for line in out.splitlines()]
    assert code == 0
    assert [each["input"] for each in objects] == TEXTS
    assert [each["output"] for each in objects] == text.split("\n")[:-1]
    assert all(each["finish"] in ("stop", "length") for each in objects)
    assert all(each["score"] < 0 for each in objects)
    assert [each["tokens"] for each in objects][4] == 3
    assert not any("nbest" in each for each in objects)


def test_generate_nbest_gives_columns_or_a_list(command, inputs: Path) -> None:
    _, out, _ = command(inputs, "--beam", "4", "--nbest", "3")
    rows = [line.split("\t") for line in out.split("\n")[:-1]]
    assert [len(row) for row in rows] == [3] * len(TEXTS)
    _, out, _ = command(inputs, "--beam", "4", "--nbest", "3", "--json")
    for row, line in zip(rows, out.splitlines(), strict=True):
        each = json.loads(line)
        assert [best["output"] for best in each["nbest"]] == row
        scores = [best["score"] for best in each["nbest"]]
        assert scores == sorted(scores, reverse=True)
        assert (each["output"], each["score"]) == (row[0], scores[0])


def test_generate_samples_differ_by_seed_alone(command, inputs: Path) -> None:
    one = command(inputs, "--top-p", "0.95", "--seed", "1")[1]
    assert one == command(inputs, "--top-p", "0.95", "--seed", "1", "--batch", "2")[1]
    assert one != command(inputs, "--top-p", "0.95", "--seed", "2")[1]


def test_generate_echo_escapes_what_would_end_a_line_or_column(command, tmp_path: Path) -> None:
    path = tmp_path / "in.json"
    text = "天\n地\t人\\n\r山"
    path.write_text(json.dumps({"input": text}) + "\n\n" + '{"input": "风"}', encoding="utf-8")
    code, out, err = command(path, "--echo")
    assert code == 0
    first, second, end = out.split("\n")
    assert first.startswith(r"天\n地\t人\\n\r山")
    assert second.startswith("风")
    assert end == ""
    assert f"{path}: 1 empty line between the objects was skipped" in err
    _, plain, _ = command(path)
    assert [r"天\n地\t人\\n\r山" + plain.split("\n")[0], "风" + plain.split("\n")[1]] == [
        first,
        second,
    ]


def test_generate_echo_of_filled_blanks_shows_the_text_once(command, tmp_path: Path) -> None:
    path = tmp_path / "in.txt"
    path.write_text("红<blank>白", encoding="utf-8")
    assert command(path, "--echo")[1] == command(path)[1]


def test_generate_echoes_on_a_terminal_alone(
    command, inputs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, plain, _ = command(inputs)
    _, echoed, _ = command(inputs, "--echo")
    assert plain != echoed
    _, as_json, _ = command(inputs, "--json")
    monkeypatch.setattr(cli.sys.stdout, "isatty", lambda: True, raising=False)
    assert command(inputs)[1] == echoed
    assert command(inputs, "--no-echo")[1] == plain
    assert command(inputs, "--json")[1] == as_json


def test_generate_on_a_terminal_echoes_no_source(
    command, inputs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, plain, _ = command(inputs)
    # As if it were a translation.
    source = property(lambda writer: True, lambda writer, value: None)
    monkeypatch.setattr(Writer, "reads_source", source, raising=False)
    monkeypatch.setattr(cli.sys.stdout, "isatty", lambda: True, raising=False)
    assert command(inputs)[1] == plain


def test_generate_key_names_where_the_text_is(command, tmp_path: Path) -> None:
    path = tmp_path / "in.txt"
    path.write_text('{"q": "天地"}\n{"a": 1, "q": "人"}\n', encoding="utf-8")
    assert command(path, "--key", "")[::2] == (2, "nlpkit: --key: is empty\n")
    code, out, _ = command(path, "--key", "q", "--json")
    assert code == 0
    assert [json.loads(line)["input"] for line in out.splitlines()] == ["天地", "人"]


@pytest.mark.parametrize(
    ("second", "message"),
    [
        (b'{"inptu": "x"}', 'in.jsonl:2: no "input", did you mean inptu?'),
        (b'{"input": 3}', 'in.jsonl:2: "input" is a number (3), not a string'),
        (b"{", "in.jsonl:2: broken JSON at column 2"),
        (b'{"input": "\xff"}', "in.jsonl:2: byte 12 is not UTF-8 (0xff)"),
    ],
)
def test_generate_malformed_line_ends_after_the_answers_before_it(
    command, tmp_path: Path, second: bytes, message: str
) -> None:
    path = tmp_path / "in.jsonl"
    path.write_bytes(b'{"input": "x"}\n' + second + b'\n{"input": "y"}\n')
    code, out, err = command(path)
    assert code == 3
    assert out.count("\n") == 1
    assert message in err
    assert "Traceback" not in err


def test_generate_says_what_was_cut_and_unknown(command, tmp_path: Path) -> None:
    path = tmp_path / "in.txt"
    path.write_text("天" * 100 + "\n" + "天Ω地\n", encoding="utf-8")
    code, out, err = command(path)
    assert code == 0
    assert out.count("\n") == 2
    # 64 - 4 prompt tokens - <s> = 59 with 6 new ones.
    assert "1 input was too long and cut by 47 tokens; the model takes 59" in err
    assert "1 unknown token of the inputs was left out" in err
    assert "warning" not in command(path, "-q")[2].replace("warning: 1 ", "")


def test_generate_blanks_too_far_apart_are_answered_with_an_empty_line(
    command, tmp_path: Path
) -> None:
    path = tmp_path / "in.txt"
    path.write_text("天<blank>" + "地" * 70 + "<blank>\n风\n", encoding="utf-8")
    code, out, err = command(path)
    assert code == 0
    assert out.startswith("\n")
    assert out.count("\n") == 2
    assert "input 1: 72 tokens from the first blank to the last; at most 58 fit" in err


def test_generate_of_an_empty_file_says_that_there_is_no_input(command, tmp_path: Path) -> None:
    (tmp_path / "empty.txt").touch()
    code, out, err = command(tmp_path / "empty.txt")
    assert (code, out) == (0, "")
    assert "0 inputs, 0 tokens" in err


def test_generate_chat_with_a_model_that_is_no_decoder_is_one_line(command, inputs: Path) -> None:
    code, out, err = command("--chat", inputs)
    assert (code, out) == (2, "")
    assert err.splitlines()[-1].endswith(
        "it needs a decoder (causal attention), which this model is not"
    )


def test_generate_stop_text_ends_before_it(command, inputs: Path) -> None:
    plain = command(inputs)[1].split("\n")[0]
    assert len(plain) > 2
    given = ("--stop", plain[1])
    stopped = command(inputs, *given, "--min-new-tokens", "0")[1].split("\n")[0]
    assert stopped == plain[: plain.index(plain[1])]
    assert command(inputs, *given)[1].split("\n")[0][:3] == plain[:3]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--beam", "0"), "--beam 0: must be at least 1"),
        (("--nbest", "2"), "--nbest: 2 answers need a beam of at least 2, or sampling"),
        (("--beam", "2", "--top-k", "3"), "--beam: excludes --temperature"),
        (("--min-new-tokens", "7"), "--min-new-tokens: 7 is more than --max-new-tokens 6"),
        (("--beam", "2000"), "beam: 2000 is too many"),
        (("--temperature", "1e-40"), "--temperature 1e-40: must be at least 1e-10"),
        (("--temperature", "1e39"), "--temperature 1e+39: must be at most 10000000000"),
        (("--top-p", "1e-46"), "--top-p 1e-46: must be at least 1e-10"),
        (("--beam", "2", "--length-penalty", "500"), "--length-penalty 500.0: must be at most 20"),
        (("--repetition-penalty", "1e39"), "--repetition-penalty 1e+39: must be at most"),
    ],
)
def test_generate_options_that_make_no_sense_are_one_line(
    command, inputs: Path, arguments: tuple[str, ...], message: str
) -> None:
    code, out, err = command(inputs, *arguments)
    assert (code, out) == (2, "")
    (line,) = [line for line in err.splitlines() if line.startswith("nlpkit: ")]
    assert message in line


def test_generate_wrong_options_are_told_before_torch_is_imported(run: Path) -> None:
    program = (
        "import sys\nfrom nlpkit import cli\n"
        f"code = cli.run(['generate', {str(run)!r}, '--beam', '2', '--top-p', '0.5'])\n"
        "print(code, 'torch' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "2 False\n"


def test_generate_without_a_checkpoint_or_input_exits_4(
    tmp_path: Path, command, capsys: pytest.CaptureFixture[str]
) -> None:
    code = cli.run(["generate", str(tmp_path / "none"), str(tmp_path)])
    assert code == 4
    assert f"nlpkit: {tmp_path / 'none'}: no such directory" in capsys.readouterr().err
    code, out, err = command(tmp_path / "none.txt")
    assert (code, out) == (4, "")
    assert err.startswith("nlpkit: ")  # before the checkpoint is opened
    assert err.endswith("none.txt: no such file\n")


def test_generate_names_an_empty_name(capsys) -> None:
    assert cli.run(["generate", "x", ""]) == 4
    assert capsys.readouterr().err == "nlpkit: '': no such file\n"


@pytest.mark.parametrize("name", ["x.csv", "x.tsv.gz", "x.parquet"])
def test_generate_refuses_a_table(name: str, tmp_path: Path, capsys) -> None:
    (tmp_path / name).touch()
    assert cli.run(["generate", "x", str(tmp_path / name)]) == 2
    what = f"{name.split('.')[1]} is not read here; an input is a line of txt or jsonl"
    assert capsys.readouterr().err == f"nlpkit: {tmp_path / name}: {what}\n"


def _started(run: Path, *arguments: str, **streams) -> subprocess.Popen:
    return subprocess.Popen(
        [*_server.nlpkit(), "generate", str(run), *SHORT, *arguments],
        stderr=subprocess.PIPE,
        **streams,
    )


def _line(stream, seconds: float = 300) -> bytes:
    """Return the next line of an unbuffered stream, or what there is of it in time."""
    found = b""
    end = time.monotonic() + seconds
    while not found.endswith(b"\n") and time.monotonic() < end:
        if select.select([stream], [], [], 0.1)[0]:
            byte = os.read(stream.fileno(), 1)
            if not byte:
                break
            found += byte
    return found


def test_generate_answers_a_pipe_that_stays_open_then_stops_by_signal(run: Path) -> None:
    pipe = subprocess.PIPE
    process = _started(run, "--quiet", stdin=pipe, stdout=pipe, bufsize=0)
    try:
        answers = []
        for text in ("天地人", "", "春夏"):
            process.stdin.write(f"{text}\n".encode())
            answers.append(_line(process.stdout))
            assert answers[-1].endswith(b"\n"), process.stderr.read()
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130
        err = process.stderr.read().decode()
        assert err == "nlpkit: interrupted\n"
    finally:
        process.kill()


def test_generate_of_a_pipe_does_not_wait_behind_an_empty_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reading, writing = os.pipe()
    monkeypatch.setattr(reader, "_STDIN", reading)
    try:
        inputs = reader.Inputs("-", "q")
        texts = iter(inputs)
        os.write(writing, b'{"q": "a"}\n\n \r\n')
        assert inputs.ready()
        assert next(texts) == "a"
        assert not inputs.ready()
        os.write(writing, b'{"q": "b"}\n\n{"q": 1}\n')
        assert inputs.ready()
        assert next(texts) == "b"
        assert inputs.ready()
        assert list(texts) == []
        assert str(inputs.error) == 'stdin:6: "q" is a number (1), not a string'
        assert inputs.blank == 3
        plain = reader.Inputs("-", None)  # an empty line is an input
        os.write(writing, b"\n")
        assert plain.ready()
        os.close(writing)
        assert list(plain) == [""]
    finally:
        os.close(reading)


def test_generate_reader_that_leaves_ends_it_quietly(run: Path, tmp_path: Path) -> None:
    path = tmp_path / "many.txt"
    path.write_text("天地人\n" * 2000, encoding="utf-8")
    process = _started(run, "--quiet", str(path), stdout=subprocess.PIPE, bufsize=0)
    try:
        assert _line(process.stdout).endswith(b"\n")
        process.stdout.close()
        assert process.wait(60) == 141
        assert process.stderr.read() == b""
    finally:
        process.kill()


def test_generate_on_a_terminal_answers_each_line_at_once(run: Path) -> None:
    ours, theirs = pty.openpty()
    process = _started(run, stdin=theirs, stdout=subprocess.PIPE, bufsize=0)
    try:
        for text in ("天地人", "春夏"):
            os.write(ours, f"{text}\n".encode())
            assert _line(process.stdout).endswith(b"\n")
        os.write(ours, b"\x04")  # Ctrl-D
        assert process.wait(30) == 0
        assert b"one input a line; Ctrl-D ends" in process.stderr.read()
    finally:
        process.kill()
        os.close(ours)
        os.close(theirs)


def test_generate_stdin_with_mark_crlf_and_no_last_newline(run: Path, command, inputs) -> None:
    expected = command(inputs)[1]
    done = subprocess.run(
        [*_server.nlpkit(), "generate", str(run), "-", *SHORT],
        input=("\ufeff" + "\r\n".join(TEXTS)).encode(),
        capture_output=True,
    )
    assert done.returncode == 0
    assert done.stdout.decode() == expected


def test_generate_reads_a_pipe_that_has_a_name(command, inputs: Path, tmp_path: Path) -> None:
    expected = command(inputs)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = Thread(target=lambda: pipe.write_bytes(inputs.read_bytes()))
    writer.start()
    found = command(pipe)
    writer.join()
    assert found[:2] == expected[:2]
