"""Files -> documents: settings, names of files, the four formats, and what is said of bad rows."""

import bz2
import gzip
import io
import json
import lzma
import os
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from pydantic import ValidationError

from nlpkit.contracts.reader import Counts
from nlpkit.data import lines, streams
from nlpkit.data.documents import describe_reading, is_held_out, read_documents
from nlpkit.data.files import find_inputs as resolve
from nlpkit.data.settings import Config, Source
from nlpkit.errors import DataError, FileError, UsageError

GREETING = "床前明月光"


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """Every test works in a folder of its own."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def read(tmp_path, *names, counts=None, part="all", **settings):
    """Return (text, line) of every document."""
    config = Config(train=list(names), **settings)
    train, _ = resolve(config, None, tmp_path / "spool")
    found = read_documents(train, config, counts if counts is not None else Counts(), part=part)
    return [(document.text, document.line) for document in found]


def names_of(inputs):
    return [[file.name for file in entry.files] for entry in inputs]


def write(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


# Settings


def test_config_plain_strings_become_sources_of_weight_one():
    config = Config(train="a.txt", valid=[{"files": "b.txt", "weight": 2, "format": "tsv"}])
    assert config.train == [Source(files=["a.txt"])]
    assert config.train[0].weight == 1.0
    assert config.valid == [Source(files=["b.txt"], weight=2.0, format="tsv")]


def test_config_written_out_reads_back_the_same():
    config = Config(train=["a.txt", {"files": ["b.txt"], "weight": 0.5}], text_key=2)
    assert Config(**config.model_dump()) == config


@pytest.mark.parametrize(
    ("settings", "where", "what"),
    [
        ({"train": []}, ("train",), "at least 1 item"),
        ({"train": [3]}, ("train", 0), "needs a path, a glob or {files: [...], weight: ...}"),
        ({"train": [""]}, ("train", 0), "needs a path"),
        ({"train": [{"files": ["a"], "wieght": 1}]}, ("train", 0, "wieght"), "not permitted"),
        ({"train": [{"files": ["a"], "weight": 0}]}, ("train", 0, "weight"), "greater than 0"),
        ({"train": [{"files": ["a"], "weight": "2"}]}, ("train", 0, "weight"), "valid number"),
        ({"train": [{"weight": 1.0}]}, ("train", 0), "needs files: [...], or hf: DIRECTORY"),
        ({"train": [{"files": []}]}, ("train", 0), "needs files: [...], or hf: DIRECTORY"),
        ({"train": "a", "format": "xml"}, ("format",), "'auto', 'text'"),
        ({"train": "a", "valid_fraction": 1.0}, ("valid_fraction",), "less than 1"),
        ({"train": "a", "valid_fraction": -0.1}, ("valid_fraction",), "greater than or equal"),
        ({"train": "a", "text_key": True}, ("text_key",), "valid string"),
        ({"train": "a", "text_key": ["a", 1.5]}, ("text_key",), "the entry 1.5 is not text"),
        ({"train": "a", "text_key": ["a", None]}, ("text_key",), "the entry null is not text"),
        ({"train": "a", "text_key": []}, ("text_key",), "valid string"),
        ({"train": "a", "text_key": ""}, ("text_key",), "at least 1 character"),
        ({"train": "a", "line_break": ""}, ("line_break",), "at least 1 character"),
        ({"train": "a", "on_error": "ignore"}, ("on_error",), "'stop' or 'skip'"),
        ({"train": "a", "workers": 0}, ("workers",), "greater than or equal to 1"),
        ({"train": "a", "valid": "b", "valid_fraction": 0.1}, (), "exclude each other"),
    ],
)
def test_config_mistake_gives_one_error_at_its_place(settings, where, what):
    with pytest.raises(ValidationError) as caught:
        Config(**settings)
    (error,) = caught.value.errors()
    assert error["loc"] == where
    assert what in error["msg"]


def test_config_schema_takes_what_validation_takes():
    schema = Config.model_json_schema()["properties"]
    kinds = [kind.get("type", "source") for kind in schema["train"]["anyOf"]]
    assert kinds == ["string", "source", "array"]
    assert {kind["type"] for kind in schema["text_key"]["anyOf"]} == {"string", "integer", "array"}
    assert all("description" in setting for setting in schema.values())


def test_corpus_import_does_not_import_torch():
    code = "import nlpkit.data.store, sys; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=os.sep)
    assert done.stdout == "False\n", done.stderr


# Names of files


def test_resolve_glob_is_sorted_and_looks_into_folders(tmp_path, here):
    for name in ("data/b.txt", "data/a.txt", "data/deep/er/c.txt", "data/x.jsonl"):
        write(here / name, "one\n")
    (here / "data/folder.txt").mkdir()
    train, valid = resolve(Config(train=["data/**/*.txt"]), None, tmp_path)
    assert names_of(train) == [["data/a.txt", "data/b.txt", "data/deep/er/c.txt"]]
    assert valid == []
    assert [f.format for f in train[0].files] == ["text"] * 3


def test_resolve_working_directory_wins_over_recipe_folder(tmp_path, here):
    write(here / "both.txt", "here")
    write(tmp_path / "recipes/both.txt", "there")
    write(tmp_path / "recipes/only.txt", "there")
    config = Config(train=["both.txt", "only.txt"])
    train, _ = resolve(config, tmp_path / "recipes", tmp_path)
    assert names_of(train) == [["both.txt"], [str(tmp_path / "recipes/only.txt")]]
    assert [d.text for d in read_documents(train, config, Counts())] == ["here", "there"]


def test_resolve_shipped_data_is_found_from_anywhere(tmp_path, here):
    train, _ = resolve(Config(train=["data/zh/train/*.jsonl"]), None, tmp_path)
    files = sorted((Path(__file__).parents[2] / "data/zh/train").glob("*.jsonl"))
    assert [Path(file.path) for file in train[0].files] == files


def test_resolve_does_not_look_for_other_files_where_nlpkit_lies(tmp_path, here):
    with pytest.raises(FileError, match=r"^no such file: pyproject.toml; looked in "):
        resolve(Config(train=["pyproject.toml"], format="text"), None, tmp_path)


def test_resolve_home_and_tilde_are_expanded_other_variables_not(tmp_path, monkeypatch):
    write(tmp_path / "home/a.txt", "a")
    write(tmp_path / "home/b.txt", "b")
    write(tmp_path / "home/c.txt", "c")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    names = ["~/a.txt", "$HOME/b.txt", "${HOME}/c.tx?"]
    train, _ = resolve(Config(train=names), None, tmp_path)
    home = str(tmp_path / "home")
    assert names_of(train) == [[f"{home}/a.txt"], [f"{home}/b.txt"], [f"{home}/c.txt"]]
    with pytest.raises(FileError, match=r"no such file: \$USER/a.txt"):
        resolve(Config(train="$USER/a.txt"), None, tmp_path)


def test_resolve_no_match_names_pattern_and_folders(tmp_path, here):
    with pytest.raises(FileError) as caught:
        resolve(Config(train="no/*.txt"), tmp_path / "recipes", tmp_path)
    message = str(caught.value)
    assert message.startswith("no file matches 'no/*.txt'; looked in ")
    assert str(here) in message
    assert str(tmp_path / "recipes") in message
    assert "\n" not in message
    with pytest.raises(FileError, match=r"^no such file: /nowhere/x.txt$"):
        resolve(Config(train="/nowhere/x.txt"), None, tmp_path)


def test_resolve_directory_says_how_to_name_its_files(tmp_path, here):
    write(here / "texts/sub/a.txt", "a")
    with pytest.raises(FileError, match=r"^texts: is a directory.*: texts/\*, or .* texts/$"):
        resolve(Config(train="texts"), None, tmp_path)
    with pytest.raises(FileError, match=r"^no file matches 'texts/\*'; looked in"):
        resolve(Config(train="texts/*"), None, tmp_path)


def test_resolve_dangling_link_or_impossible_name_is_a_file_error(tmp_path, here):
    (here / "a.txt").symlink_to("nowhere")
    with pytest.raises(FileError, match=r"^a.txt: no such file$"):
        resolve(Config(train="a.txt"), None, tmp_path)
    with pytest.raises(FileError, match="name too long"):
        resolve(Config(train="a" * 300), None, tmp_path)
    with pytest.raises(FileError, match="no such file"):
        resolve(Config(train="a\0.txt"), None, tmp_path)


@pytest.mark.parametrize("name", ["a.txt", "?.txt"])
def test_resolve_circle_of_links_is_a_file_error(tmp_path, here, name):
    (here / "a.txt").symlink_to("b.txt")
    (here / "b.txt").symlink_to("a.txt")
    with pytest.raises(FileError, match=r"^a.txt: cannot be read: Too many levels of symbolic"):
        resolve(Config(train=name), None, tmp_path)


def test_resolve_name_with_glob_characters_is_taken_literally_first(tmp_path, here):
    write(here / "a[1].txt", "literal")
    write(here / "a1.txt", "other")
    assert read(tmp_path, "a[1].txt") == [("literal", 1)]


@pytest.mark.parametrize("second", ["a.txt", "*.txt", "link.txt", "./a.txt"])
def test_resolve_same_file_twice_is_an_error(tmp_path, here, second):
    write(here / "a.txt", "a")
    write(here / "b.txt", "b")
    (here / "link.txt").symlink_to("a.txt")
    with pytest.raises(UsageError, match=r"a.txt is named twice.*; name it once"):
        resolve(Config(train=["a.txt", second]), None, tmp_path)
    with pytest.raises(UsageError, match=r"is named twice"):
        resolve(Config(train=["b.txt"], valid=["a.txt", second]), None, tmp_path)


def test_resolve_unknown_ending_names_the_formats(tmp_path, here):
    write(here / "train.en", "a")
    with pytest.raises(UsageError, match=r"^train.en: the ending '.en' tells no format; rename it"):
        resolve(Config(train="train.en"), None, tmp_path)
    assert read(tmp_path, "train.en", format="text") == [("a", 1)]


def test_resolve_source_format_goes_before_the_common_one(tmp_path, here):
    write(here / "a.x", "a\nb\n")
    write(here / "b.x", '{"text": "c"}\n')
    config = Config(train=["a.x", {"files": "b.x", "format": "jsonl"}], format="text")
    train, _ = resolve(config, None, tmp_path)
    assert [d.text for d in read_documents(train, config, Counts())] == ["a", "b", "c"]


def test_resolve_weights_are_kept(tmp_path, here):
    write(here / "a.txt", "a")
    write(here / "b.txt", "b")
    train, _ = resolve(Config(train=["a.txt", {"files": "b.txt", "weight": 2.5}]), None, tmp_path)
    assert [entry.weight for entry in train] == [1.0, 2.5]


def test_max_rows_reads_the_first_documents_of_each_file(tmp_path, here):
    (here / "a.txt").write_text("a\n\nb\nc\n", "utf-8")
    (here / "b.jsonl").write_text('{"text": "d"}\n{"text": "e"}\nbroken\n', "utf-8")
    few = {"files": ["a.txt", "b.jsonl"], "max_rows": 2}
    assert read(tmp_path, few) == [("a", 1), ("b", 3), ("d", 1), ("e", 2)]


# Standard input and pipes


class Terminal(io.StringIO):
    def isatty(self):
        return True


def stdin_of(monkeypatch, content):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))


def test_stdin_is_read_once_and_can_be_read_again(tmp_path, monkeypatch):
    stdin_of(monkeypatch, f"{GREETING}\r\ntwo\n".encode())
    config = Config(train="-")
    train, _ = resolve(config, None, tmp_path / "spool")
    for _ in range(2):
        found = [(d.text, d.file, d.line) for d in read_documents(train, config, Counts())]
        assert found == [(GREETING, "stdin", 1), ("two", "stdin", 2)]


def test_stdin_same_content_is_kept_once(tmp_path, monkeypatch):
    for _ in range(2):
        stdin_of(monkeypatch, b"one\n")
        resolve(Config(train="-"), None, tmp_path / "spool")
    assert len(list((tmp_path / "spool").iterdir())) == 1


def test_stdin_gzip_and_jsonl_are_read(tmp_path, monkeypatch):
    stdin_of(monkeypatch, gzip.compress(b'{"text": "a"}\n'))
    assert read(tmp_path, "-", format="jsonl") == [("a", 1)]


def test_stdin_bad_row_names_stdin_and_line(tmp_path, monkeypatch):
    stdin_of(monkeypatch, b"a\n\xb9\n")
    with pytest.raises(DataError, match=r"^stdin:2: byte 1 is not UTF-8"):
        read(tmp_path, "-")


def test_stdin_terminal_or_closed_or_twice_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "stdin", Terminal())
    with pytest.raises(UsageError, match="stdin is a terminal; pipe a file into it"):
        resolve(Config(train="-"), None, tmp_path)
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(UsageError, match="stdin is closed"):
        resolve(Config(train="-"), None, tmp_path)
    stdin_of(monkeypatch, b"one\n")
    for both in ({"train": ["-", "-"]}, {"train": "-", "valid": "-"}):
        with pytest.raises(UsageError, match="stdin is named twice, and can be read only once"):
            resolve(Config(**both), None, tmp_path)
        stdin_of(monkeypatch, b"one\n")


def test_stdin_stopped_or_unkept_leaves_nothing(tmp_path, monkeypatch):
    def stop():
        raise KeyboardInterrupt

    stdin_of(monkeypatch, b"one\n")
    with pytest.raises(KeyboardInterrupt):
        resolve(Config(train="-"), None, tmp_path / "spool", stop)
    assert list((tmp_path / "spool").iterdir()) == []
    stdin_of(monkeypatch, b"one\n")
    write(tmp_path / "file", "")
    with pytest.raises(FileError, match="cannot keep stdin: not a directory"):
        resolve(Config(train="-"), None, tmp_path / "file/spool")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_pipe_is_read_once_and_can_be_read_again(tmp_path, here):
    os.mkfifo(here / "pipe")
    writer = threading.Thread(target=lambda: (here / "pipe").write_text("one\ntwo\n"))
    writer.start()
    config = Config(train="pipe")
    train, _ = resolve(config, None, tmp_path / "spool")
    writer.join()
    for _ in range(2):
        assert [d.text for d in read_documents(train, config, Counts())] == ["one", "two"]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_pipe_is_read_as_its_ending_says(tmp_path, here):
    os.mkfifo(here / "pipe.jsonl")
    threading.Thread(target=(here / "pipe.jsonl").write_text, args=['{"text": "one"}\n']).start()
    assert read(tmp_path, "pipe.jsonl") == [("one", 1)]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_pipe_into_which_nobody_writes_is_an_error(tmp_path, here, monkeypatch):
    os.mkfifo(here / "pipe")
    monkeypatch.setattr(streams, "_WAIT_SECONDS", 0.2)
    with pytest.raises(FileError, match=r"^pipe: no program writes into this pipe for 0\.2 s$"):
        resolve(Config(train="pipe"), None, tmp_path / "spool")

    def stop():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        resolve(Config(train="pipe"), None, tmp_path / "spool", stop)


@pytest.mark.parametrize("device", ["/dev/zero", "/dev/urandom", "/dev/null"])
def test_device_is_no_file(tmp_path, device):
    with pytest.raises(FileError, match=f"^{device}: is a device, not a file; - is stdin$"):
        resolve(Config(train=device), None, tmp_path / "spool")


# Lines


@pytest.mark.parametrize("form", ["text", "jsonl", "csv", "parallel"])
def test_line_that_is_too_long_is_named(tmp_path, here, monkeypatch, form):
    assert lines.LONGEST_LINE == 32 * 2**20
    monkeypatch.setattr(lines, "LONGEST_LINE", 2**20)
    row = '{"text": "a"}' if form == "jsonl" else "text"
    for name in ("a", "b"):
        (here / name).write_text(f"{row}\n{row}\n" + "ab " * 2**19)
    config = Config(train={"files": ["a", "b"]} if form == "parallel" else "a", format=form)
    train, _ = resolve(config, None, tmp_path / "spool")
    with pytest.raises(DataError, match=r"^a:3: a line of more than 1 MB; .*fold -s -w 1000000\)$"):
        list(read_documents(train, config, Counts()))
    for start in (0, 2 * len(row) + 2):  # the file is divided before the line
        rest = replace(train[0].files[0], start=start, second=None)
        with pytest.raises(DataError, match=r"^a:3: a line of more than 1 MB; "):
            list(lines.lines(rest))


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"a\nb", [("a", 1), ("b", 2)]),
        (b"a\r\nb\r\n", [("a", 1), ("b", 2)]),
        (b"\xef\xbb\xbfa\nb\n", [("a", 1), ("b", 2)]),
        (b"\n \n\xe3\x80\x80\na\n\t\r\n", [("a", 4)]),
        (b" a \n", [(" a ", 1)]),
        ("a\u2028b\u2029c\x85d\x0be\x0cf\x1cg\rh\n".encode(), None),
        (b"a\r", [("a\r", 1)]),
    ],
    ids=["no-last-end", "crlf", "bom", "blank", "spaces-kept", "other-separators", "lone-cr"],
)
def test_text_only_newline_ends_a_line(tmp_path, here, content, expected):
    write(here / "a.txt", content)
    if expected is None:
        expected = [(content.decode()[:-1], 1)]
    assert read(tmp_path, "a.txt") == expected


def test_text_counts_what_is_no_document(tmp_path, here):
    # Lines: text, blank, blank (spaces), U+3000 alone (a text, but an empty one), text.
    write(here / "a.txt", f"{GREETING}\n\n  \n\u3000\nab\n")
    counts = Counts()
    read(tmp_path, "a.txt", counts=counts)
    expected = Counts(lines=5, documents=2, blank=2, empty=1, characters=5 + 2, bytes=15 + 2)
    assert counts == expected


def test_text_ten_megabyte_line_is_one_document(tmp_path, here):
    line = GREETING * 700_000
    write(here / "a.txt", f"a\n{line}\nb\n")
    (a, long, b) = read(tmp_path, "a.txt")
    assert len(line.encode()) > 10_000_000
    assert (a, b) == (("a", 1), ("b", 3))
    assert long == (line, 2)


def test_text_line_break_mark_stands_for_a_newline(tmp_path, here):
    write(here / "a.txt", "one<n>two\n<n>\nthree\n")
    counts = Counts()
    found = read(tmp_path, "a.txt", line_break="<n>", counts=counts)
    assert found == [("one\ntwo", 1), ("three", 3)]
    assert counts.empty == 1


def test_paragraphs_lines_are_joined_and_start_is_named(tmp_path, here):
    write(here / "a.txt", "\n\none\r\ntwo\r\n\r\n \t\nthree\n\n\n")
    expected = [("one\ntwo", 3), ("three", 7)]
    assert read(tmp_path, "a.txt", format="paragraphs") == expected
    write(here / "a.txt", "one\ntwo")
    assert read(tmp_path, "a.txt", format="paragraphs") == [("one\ntwo", 1)]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\xb9\nb\nc\n", "a.txt:1: byte 1 is not UTF-8 (0xb9)"),
        (b"a\nbc\xff\nc\n", "a.txt:2: byte 3 is not UTF-8 (0xff)"),
        (b"a\nb\nc\xe5\xba", "a.txt:3: byte 2 is not UTF-8 (0xe5)"),
        ("a\n中文abc\n".encode("gb18030"), "a.txt:2: byte 1 is not UTF-8 (0xd6); the line looks"),
        ("un café\n".encode("latin-1"), "a.txt:1: byte 7 is not UTF-8 (0xe9)"),
        ("a\n".encode("utf-16"), "a.txt:1: UTF-16 or UTF-32 text"),
        ("不\n".encode("utf-16"), "a.txt:1: UTF-16 or UTF-32 text"),  # has the byte of \r
        (b"a\rb\r", "a.txt:1: its lines end with a carriage return alone"),
        (b"a\rb", "a.txt:1: its lines end with a carriage return alone"),
        (b"a\rb\rc\n", "a.txt:1: its lines end with a carriage return alone"),
        (b"a\rb\rc\r\n", "a.txt:1: its lines end with a carriage return alone"),
        ("a\n".encode("utf-16-be"), "a.txt:1: character 1 of the text is NUL (U+0000)"),
        (b"a\rb\0", "a.txt:1: character 4 of the text is NUL (U+0000)"),
        (b"\x1f\x8b\r\0", "a.txt:1: byte 2 is not UTF-8 (0x8b); it looks like a gzip"),
        (b"a\nbc\0d\n", "a.txt:2: character 3 of the text is NUL (U+0000)"),
        (
            gzip.compress(b"a\n", mtime=0),
            "a.txt:1: byte 2 is not UTF-8 (0x8b); it looks like a gzip",
        ),
        (b"", "a.txt: empty file"),
        (b"\xef\xbb\xbf", "a.txt: no documents: 1 blank line, 0 empty texts"),
        (b"\n \n", "a.txt: no documents: 2 blank lines, 0 empty texts"),
    ],
)
def test_text_bad_content_is_named_with_its_line(tmp_path, here, content, message):
    write(here / "a.txt", content)
    with pytest.raises(DataError) as caught:
        read(tmp_path, "a.txt")
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def test_text_gb18030_is_recognised_and_latin1_is_not_called_that(tmp_path, here):
    write(here / "a.txt", "他说的话\n".encode("gb18030"))
    with pytest.raises(DataError, match="looks like GB18030"):
        read(tmp_path, "a.txt")
    # 0xe9 0x74 is a valid GBK pair; two high bytes over two characters are not Chinese.
    write(here / "a.txt", "détérioré\n".encode("latin-1"))
    with pytest.raises(DataError) as caught:
        read(tmp_path, "a.txt")
    assert "GB18030" not in str(caught.value)


def test_paragraphs_bad_byte_is_named_with_its_own_line(tmp_path, here):
    write(here / "a.txt", b"one\n\ntwo\nthr\xffee\nfour\n\nfive\0\n")
    with pytest.raises(DataError, match=r"^a.txt:4: byte 4 is not UTF-8 \(0xff\)$"):
        read(tmp_path, "a.txt", format="paragraphs")
    counts = Counts()
    found = read(tmp_path, "a.txt", format="paragraphs", on_error="skip", counts=counts)
    assert found == [("one", 1)]
    assert [str(bad) for bad in counts.first_bad] == [
        "a.txt:4: byte 4 is not UTF-8 (0xff)",
        "a.txt:7: character 5 of the text is NUL (U+0000)",
    ]


# jsonl


def test_jsonl_takes_the_key_and_keeps_newlines(tmp_path, here):
    write(here / "a.jsonl", '{"text": "a\\nb", "id": NaN}\r\n\n{"id": 1, "text": "\\ud83d\\ude00"}')
    assert read(tmp_path, "a.jsonl") == [("a\nb", 1), ("\U0001f600", 3)]
    write(here / "b.ndjson", '{"body": "x", "text": 3}\n')
    assert read(tmp_path, "b.ndjson", text_key="body") == [("x", 1)]


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ('{"text": "a"', "broken JSON at column 13: Expecting ',' delimiter"),
        ('{"text": "a}', "broken JSON at column 10: Unterminated string"),
        ("{'text': 'a'}", "broken JSON at column 2: Expecting property name"),
        ('{"text": "a"}{"text": "b"}', "broken JSON at column 14: Extra data"),
        ("{", "broken JSON at column 2: Expecting property name enclosed in double quotes; one ob"),
        ("plain text", "broken JSON at column 1: Expecting value"),
        ("[" * 100_000, "broken JSON"),
        (
            '["a"]',
            'an array, not an object like {"text": "..."}; one object a line is needed',
        ),
        ('"a"', 'a string, not an object like {"text": "..."}'),
        ("3", "a number (3), not an object"),
        ("null", "null, not an object"),
        ('{"content": "a", "title": "b"}', 'no "text"; it has: content, title'),
        ('{"txt": "a"}', 'no "text", did you mean txt?; it has: txt'),
        ("{}", 'no "text"; the object is empty'),
        ('{"text": null}', '"text" is null, not a string'),
        ('{"text": 3}', '"text" is a number (3), not a string'),
        ('{"text": NaN}', '"text" is NaN, not a string'),
        ('{"text": -Infinity}', '"text" is a number, not a string'),
        ('{"text": true}', '"text" is true, not a string'),
        ('{"text": ["a"]}', '"text" is an array, not a string'),
        ('{"text": {"a": 1}}', '"text" is an object, not a string'),
        ('{"text": "a", "text": "b"}', '"text" is there twice'),
        ('{"text": "ab\\ud800"}', "character 3 of the text is U+D800, half of a surrogate pair"),
        ('{"text": "ab\\u0000"}', "character 3 of the text is NUL (U+0000)"),
        ('{"text": ' + "9" * 5000 + "}", "broken JSON: a number with too many digits"),
    ],
)
def test_jsonl_bad_row_says_what_is_wrong(tmp_path, here, line, what):
    write(here / "a.jsonl", '{"text": "good"}\n' + line + "\n")
    with pytest.raises(DataError) as caught:
        read(tmp_path, "a.jsonl")
    assert str(caught.value).startswith(f"a.jsonl:2: {what}")
    assert "\n" not in str(caught.value)
    counts = Counts()
    assert read(tmp_path, "a.jsonl", on_error="skip", counts=counts) == [("good", 1)]
    assert counts.bad == 1


def test_jsonl_key_twice_in_nested_objects_is_fine(tmp_path, here):
    write(here / "a.jsonl", '{"meta": {"text": 1}, "text": "a"}\n')
    assert read(tmp_path, "a.jsonl") == [("a", 1)]


def test_jsonl_empty_texts_are_counted(tmp_path, here):
    write(here / "a.jsonl", '{"text": ""}\n{"text": "a"}\n{"text": " \\n"}\n')
    counts = Counts()
    assert read(tmp_path, "a.jsonl", counts=counts) == [("a", 2)]
    assert (counts.documents, counts.empty, counts.lines) == (1, 2, 3)


# tsv


def test_tsv_column_by_name_or_number(tmp_path, here):
    write(here / "a.tsv", '\ufeffid\ttext\r\n1\thello, "you"\r\n2\tthere\r\n')
    assert read(tmp_path, "a.tsv") == [('hello, "you"', 2), ("there", 3)]
    assert read(tmp_path, "a.tsv", text_key=2)[0] == ("text", 1)
    assert read(tmp_path, "a.tsv", text_key="1") == [("id", 1), ("1", 2), ("2", 3)]


@pytest.mark.parametrize(
    ("content", "key", "message"),
    [
        ("id\ttext\n1\ta\n2\n", "text", "a.tsv:3: 1 column; the header has 2"),
        ("id\ttext\n1\ta\tb\n", "text", "a.tsv:2: 3 columns; the header has 2"),
        ("1\ta\n2\n", 2, "a.tsv:2: 1 column; there is no column 2"),
        ("id\tbody\n1\ta\n", "text", 'a.tsv:2: no "text"; it has: id, body'),
        ("text\ttext\na\tb\n", "text", 'a.tsv:1: column "text" is there twice'),
        (b"te\xfft\n", "text", "a.tsv:1: byte 3 is not UTF-8 (0xff)"),
        ("", "text", "a.tsv: empty file"),
        ("text\t\t\na\tb\tc\n", "text", "a.tsv:1: 2 columns have no name; give each one"),
        ("id\ttext\n", "text", "a.tsv: no rows"),
    ],
)
def test_tsv_bad_content_is_named_with_its_line(tmp_path, here, content, key, message):
    write(here / "a.tsv", content)
    with pytest.raises(DataError) as caught:
        read(tmp_path, "a.tsv", text_key=key)
    assert str(caught.value) == message


def test_tsv_without_header_may_begin_with_a_bad_line(tmp_path, here):
    write(here / "a.tsv", b"1\tte\xfft\n2\tb\n")
    config = Config(train=["a.tsv"], text_key="2", on_error="skip")
    (file,) = resolve(config, here, tmp_path)[0][0].files
    assert describe_reading(file, config)["column"] == 1
    assert read(tmp_path, "a.tsv", text_key="2", on_error="skip") == [("b", 2)]


# gzip, and files that cannot be read


@pytest.mark.parametrize("name", ["a.txt.gz", "a.jsonl.gz", "a.tsv.GZ"])
def test_gzip_is_looked_through(tmp_path, here, name):
    rows = {"a.txt.gz": "a\nb\n", "a.jsonl.gz": '{"text": "a"}\n{"text": "b"}\n'}
    write(here / name, gzip.compress(b"\xef\xbb\xbf" + rows.get(name, "text\na\nb\n").encode()))
    start = 2 if "tsv" in name else 1
    assert read(tmp_path, name) == [("a", start), ("b", start + 1)]


@pytest.mark.slow
def test_gzip_damage_names_the_file(tmp_path, here):
    rows = b"".join(b"%d\n" % i for i in range(100_000))
    whole = gzip.compress(rows, mtime=0)
    write(here / "a.txt.gz", whole[: len(whole) // 2])
    with pytest.raises(DataError, match=r"^a.txt.gz: the gzip file is damaged: Compressed"):
        read(tmp_path, "a.txt.gz")
    # It is the file that is damaged, not a row: not to be skipped.
    with pytest.raises(DataError, match="is damaged"):
        read(tmp_path, "a.txt.gz", on_error="skip")
    damaged = bytearray(whole)
    damaged[len(whole) // 2] ^= 0xFF
    write(here / "a.txt.gz", bytes(damaged))
    with pytest.raises(DataError, match=r"^a.txt.gz: the gzip file is damaged: "):
        read(tmp_path, "a.txt.gz")
    write(here / "a.txt.gz", b"plain text\n")
    with pytest.raises(DataError, match=r"^a.txt.gz: the gzip file is damaged: .*[Nn]ot a gzip"):
        read(tmp_path, "a.txt.gz")
    write(here / "a.txt.gz", gzip.compress(b""))
    with pytest.raises(DataError, match=r"^a.txt.gz: empty file$"):
        read(tmp_path, "a.txt.gz")


@pytest.mark.parametrize(
    ("ending", "pack", "tool"), [("bz2", bz2.compress, "bzip2"), ("xz", lzma.compress, "xz")]
)
def test_other_compressed_file_is_refused_by_name_and_by_content(
    tmp_path, here, ending, pack, tool
):
    name = f"a b.txt.{ending}"
    write(here / name, pack(b"a text\n"))
    remedy = rf"only those of gzip are read: {tool} -dc 'a b.txt.{ending}' \| gzip > 'a b.txt.gz'$"
    with pytest.raises(UsageError, match=remedy):
        read(tmp_path, name)
    with pytest.raises(DataError, match=rf"not UTF-8 .*; it looks like a file of {tool}, and of"):
        read(tmp_path, name, format="text")


def test_unreadable_file_is_a_file_error(tmp_path, here):
    # Root may read anything, so a file that vanishes and one that cannot be read by anybody.
    write(here / "a.txt", "a")
    config = Config(train="a.txt")
    train, _ = resolve(config, None, tmp_path)
    (here / "a.txt").unlink()
    with pytest.raises(FileError, match=r"^a.txt: no such file$"):
        list(read_documents(train, config, Counts()))
    (here / "a.txt").mkdir()
    with pytest.raises(FileError, match=r"^a.txt: is a directory"):
        list(read_documents(train, config, Counts()))


# Skipping


def test_skip_counts_all_and_keeps_the_first_twenty(tmp_path, here):
    rows = ['{"text": "good"}' if i % 2 else f'{{"text": {i}}}' for i in range(100)]
    write(here / "a.jsonl", "\n".join(rows))
    counts = Counts()
    assert len(read(tmp_path, "a.jsonl", on_error="skip", counts=counts)) == 50
    assert (counts.bad, counts.documents, len(counts.first_bad)) == (50, 50, 20)
    assert str(counts.first_bad[-1]) == 'a.jsonl:39: "text" is a number (38), not a string'


def test_skip_all_rows_bad_is_an_error(tmp_path, here):
    write(here / "a.jsonl", '{"body": "a"}\n{"body": "b"}\n')
    with pytest.raises(DataError) as caught:
        read(tmp_path, "a.jsonl", on_error="skip")
    expected = 'a.jsonl: all 2 rows are malformed; the first: a.jsonl:1: no "text"; it has: body'
    assert str(caught.value) == expected


def test_skip_empty_shard_is_counted(tmp_path, here):
    write(here / "0.txt", "a\n")
    write(here / "1.txt", "")
    counts = Counts()
    assert read(tmp_path, "*.txt", on_error="skip", counts=counts) == [("a", 1)]
    assert [str(bad) for bad in counts.first_bad] == ["1.txt:1: empty file"]


# Held-out share


def test_valid_fraction_parts_are_disjoint_whole_and_free_of_order(tmp_path, here):
    texts = [f"text {i}" for i in range(2000)]
    write(here / "a.txt", "\n".join(texts))
    write(here / "b.txt", "\n".join(reversed(texts)))
    parts = {}
    for part in ("train", "valid"):
        counts = Counts()
        found = read(tmp_path, "a.txt", valid_fraction=0.1, part=part, counts=counts)
        parts[part] = {text for text, _ in found}
        assert counts.documents + counts.held_out == 2000
        other = read(tmp_path, "b.txt", valid_fraction=0.1, part=part)
        assert {text for text, _ in other} == parts[part]
    assert parts["train"] | parts["valid"] == set(texts)
    assert not parts["train"] & parts["valid"]
    # Binomial(2000, 0.1): mean 200, standard deviation 13.4.
    assert 150 < len(parts["valid"]) < 250


def test_valid_fraction_grows_by_adding(tmp_path, here):
    small = {i for i in range(1000) if is_held_out(b"%d" % i, 0.1)}
    large = {i for i in range(1000) if is_held_out(b"%d" % i, 0.3)}
    assert small < large


def test_documents_should_stop_is_called_and_may_raise(tmp_path, here):
    def stop():
        raise KeyboardInterrupt

    write(here / "a.txt", "a\nb\n")
    config = Config(train="a.txt")
    train, _ = resolve(config, None, tmp_path)
    with pytest.raises(KeyboardInterrupt):
        list(read_documents(train, config, Counts(), should_stop=stop))


REAL = os.path.join(os.path.dirname(__file__), "../../../shared/data")


@pytest.mark.real_data
@pytest.mark.parametrize(
    ("name", "settings", "expected"),
    [
        # Lines as in shared/data/README.md; clue_small_bert holds clue_small's documents.
        ("zh_lm/poetry_songci.txt", {}, 3992),
        ("zh_lm/poetry_tang.jsonl", {}, 3001),
        ("zh_lm/clue_small.txt", {}, 2500),
        ("zh_lm/clue_small_bert.txt", {"format": "paragraphs"}, 2500),
        ("zh_lm/wiki_cmrc_contexts.jsonl", {}, 848),
        ("zh_lm/cpm_ant_data_sample.txt", {"line_break": "<n>"}, 10),
        ("en_lm/c4_demo.jsonl", {}, 300),
        ("zh_task/csl_title.train.jsonl", {"text_key": "input"}, 1000),
    ],
)
def test_real_data_documents_are_as_many_as_stated(tmp_path, name, settings, expected):
    counts = Counts()
    read(tmp_path, os.path.abspath(os.path.join(REAL, name)), counts=counts, **settings)
    assert counts.documents == expected
    assert (counts.bad, counts.empty) == (0, 0)
    rows = json.dumps([bad.what for bad in counts.first_bad])
    assert rows == "[]"
