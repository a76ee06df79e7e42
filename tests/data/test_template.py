"""Running text as it comes: keys, templates, csv, JSON, directories, data sets, parquet, Arrow."""

import json
import os
import re
import struct
import sys
from pathlib import Path

import pytest

from nlpkit.contracts.reader import Counts, TextFile
from nlpkit.data import formats, store
from nlpkit.data.corpus import Corpus
from nlpkit.data.documents import describe_reading, read_documents
from nlpkit.data.files import find_inputs as resolve
from nlpkit.data.settings import Config
from nlpkit.errors import DataError, FileError, UsageError
from tests import _tiny

ROWS = [{"id": 1, "title": "A", "text": "one"}, {"id": 2, "title": "B", "text": "two"}]
JSONL = "".join(json.dumps(row) + "\n" for row in ROWS)


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def _read(*train, counts: Counts | None = None, **settings) -> list[str]:
    config = Config(train=list(train), **settings)
    inputs, _ = resolve(config, None, Path("spool"))
    found = read_documents(inputs, config, Counts() if counts is None else counts)
    return [document.text for document in found]


def _notes(*train, **settings) -> list[str]:
    inputs, _ = resolve(Config(train=list(train), **settings), None, Path("spool"))
    return [note for entry in inputs for note in entry.notes]


def _write(name: str, content: str) -> str:
    path = Path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content, encoding="utf-8")
    return name


CSV = 'id,title,text\n1,A,"one, and\nmore"\n2,B,two\n'


# Keys and templates


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.jsonl", JSONL),
        ("a.tsv", "id\ttitle\ttext\n1\tA\tone\n2\tB\ttwo\n"),
        ("a.csv", "id,title,text\n1,A,one\n2,B,two\n"),
        ("a.json", json.dumps(ROWS, indent=1)),
    ],
)
@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("text", ["one", "two"]),
        (["text"], ["one", "two"]),
        (["title", "text"], ["A\none", "B\ntwo"]),
        ("{title}: {text} ({id})", ["A: one (1)", "B: two (2)"]),
    ],
)
def test_text_is_where_the_key_or_the_template_says(name, content, key, expected) -> None:
    form = "json" if name == "a.json" else "auto"
    assert _read(_write(name, content), text_key=key, format=form) == expected


def test_each_source_may_have_a_key_of_its_own() -> None:
    _write("a.jsonl", JSONL)
    _write("b.jsonl", '{"body": {"parts": ["x", "y"]}}\n')
    sources = ["a.jsonl", {"files": "b.jsonl", "text_key": "{body.parts:-}"}]
    assert _read(*sources) == ["one", "two", "x-y"]
    assert _read({"files": "b.jsonl", "text_key": "body.parts.1"}) == ["y"]


def test_numbered_columns_of_a_file_without_a_header_are_joined() -> None:
    _write("a.tsv", "A\tone\nB\ttwo\n")
    assert _read("a.tsv", text_key=[1, 2]) == ["A\none", "B\ntwo"]
    assert _read("a.tsv", text_key="{2} {1}") == ["one A", "two B"]
    _write("a.csv", "A,one\nB,two\n")
    assert _read("a.csv", text_key=2) == ["one", "two"]


def test_csv_documents_may_hold_line_breaks_and_know_their_lines() -> None:
    _write("a.csv", CSV)
    config = Config(train=["a.csv"])
    inputs, _ = resolve(config, None, Path("spool"))
    found = list(read_documents(inputs, config, Counts()))
    assert [(each.text, each.line) for each in found] == [("one, and\nmore", 2), ("two", 4)]


@pytest.mark.parametrize(
    ("name", "content", "key", "said"),
    [
        ("a.jsonl", JSONL, "{titel}", 'a.jsonl:1: no "titel", did you mean title?'),
        ("a.jsonl", JSONL, "{title.x}", 'a.jsonl:1: "title": a string, which has no "x"'),
        ("a.jsonl", '{"text": ["a"]}\n', "{text}", 'a.jsonl:1: "text" is an array, neither text'),
        ("a.tsv", "a\tb\n1\t2\n", ["a", "c"], 'a.tsv:2: no "c"; it has: a, b'),
        ("a.tsv", "1\t2\n1\n", "{2}", "a.tsv:2: 1 column; there is no column 2"),
        ("a.csv", CSV, "txt", 'a.csv:2: no "txt", did you mean text?; it has: id, title, text'),
        ("a.csv", "text\na\nb,c\n", "text", "a.csv:3: 2 columns; the header has 1"),
        ("a.csv", '"a\nb","c\td"\n1,2\n', "x", r'a.csv:3: no "x"; it has: a\nb, c\td'),
        ("a.csv", 'text\n"a\n', "text", "a.csv:2: not csv: a quote is opened and not closed"),
        ("a.csv", "text\na\rb\n", "text", "a.csv:2: not csv: new-line character seen in unquoted"),
    ],
)
def test_row_without_the_text_is_named(name, content, key, said) -> None:
    _write(name, content)
    with pytest.raises(DataError) as caught:
        _read(name, text_key=key)
    assert str(caught.value).startswith(said)


def test_bad_rows_and_empty_texts_of_csv_are_counted() -> None:
    _write("a.csv", "title,text\nA,one\nB\nC,\n,\nD,four\n")
    counts = Counts()
    assert _read("a.csv", counts=counts, on_error="skip") == ["one", "four"]
    assert (counts.bad, counts.empty, counts.blank, counts.documents) == (1, 1, 1, 2)
    assert [str(bad) for bad in counts.first_bad] == ["a.csv:3: 1 column; the header has 2"]


# The store


class _Letters:
    """A token for each character."""

    vocab_size, unk_id = 1 << 16, None

    def encode_batch(self, texts: list[str]) -> list[list[int]]:
        return [[ord(character) for character in text] for text in texts]

    def fingerprint(self) -> str:
        return "letters"


def _stored(*train, **settings) -> Corpus:
    config = Config(train=list(train), workers=1, **settings)
    inputs, _ = resolve(config, None, Path("spool"))
    return store.build_corpus(inputs, config, store.Encoding(_Letters()), cache_dir=Path("cache"))


def test_cache_tells_another_key_source_or_template_apart() -> None:
    _write("a.csv", CSV)
    seen = {
        _stored("a.csv", text_key=key).fingerprint
        for key in ("text", "title", ["title", "text"], "{title}{text}")
    }
    assert len(seen) == 4
    assert _stored("a.csv", text_key="text").fingerprint in seen
    own = _stored({"files": "a.csv", "text_key": "title"}).fingerprint
    assert own in seen  # the same text by another setting
    _write("a.csv", CSV.replace("two", "three"))
    assert _stored("a.csv", text_key="text").fingerprint not in seen


def test_keys_of_old_stores_are_those_of_earlier_versions() -> None:
    """What these say is a part of the key of each store, so it must stay."""
    _write("a.jsonl", JSONL)
    _write("a.tsv", "id\ttitle\ttext\n1\tA\tone\n")
    none = {"column": None, "columns": None, "line_break": None}
    rows = {"format": "jsonl", "key": "text"} | none
    for name, text_key, expected in (
        ("a.jsonl", "text", rows),
        ("a.tsv", "text", {"format": "tsv", "key": "text", "column": 2, "columns": 3}),
        ("a.tsv", 2, {"format": "tsv", "key": "2", "column": 1}),
        (
            "a.tsv",
            "{id} {text}",
            {"format": "tsv", "key": "{id} {text}", "columns": 3, "names": ["id", "title", "text"]},
        ),
    ):
        config = Config(train=[name], text_key=text_key)
        ((source,), _) = resolve(config, None, Path("spool"))
        assert describe_reading(source.files[0], config) == none | expected


def test_row_of_csv_that_is_not_utf8_is_skipped_alone() -> None:
    Path("a.csv").write_bytes(b'text,b\none,1\n"x\n\xff",2\ntwo,3\n')
    counts = Counts()
    assert _read("a.csv", counts=counts, on_error="skip") == ["one", "two"]
    assert [(bad.line, bad.what) for bad in counts.first_bad] == [
        (4, "byte 1 is not UTF-8 (0xff)"),
    ]
    with pytest.raises(DataError, match=r"^a.csv:4: byte 1 is not UTF-8"):
        _read("a.csv")
    Path("b.csv").write_bytes(b"te\xfft\none\n")
    with pytest.raises(DataError, match=r"^b.csv:1: byte 3 is not UTF-8"):
        _read("b.csv", on_error="skip")


def test_text_of_rows_is_held_out_as_that_of_lines() -> None:
    _write("a.jsonl", "".join(json.dumps({"text": f"t{n}"}) + "\n" for n in range(40)))
    _write("a.csv", "text\n" + "".join(f"t{n}\n" for n in range(40)))
    parts = []
    for name in ("a.jsonl", "a.csv"):
        config = Config(train=[name], valid_fraction=0.3)
        inputs, _ = resolve(config, None, Path("spool"))
        parts.append([d.text for d in read_documents(inputs, config, Counts(), part="valid")])
    assert parts[0] == parts[1]
    assert 0 < len(parts[0]) < 40


# Directories


def test_directory_gives_what_can_be_read_and_says_what_it_leaves() -> None:
    _write("c/b.txt", "two\n")
    _write("c/a/x.jsonl", '{"text": "one"}\n')
    _write("c/README.md", "no text")
    _write("c/.git/x.txt", "hidden")
    assert _read("c/") == ["one", "two"]
    assert _notes("c/") == [
        "c/: 2 files taken (1 .jsonl, 1 .txt); not taken: 2 (.git/x.txt, README.md)"
    ]
    assert _read("c/", format="text") == ["no text", '{"text": "one"}', "two"]
    with pytest.raises(FileError, match=r"^c: is a directory, not a file; name its files: c/\*"):
        _read("c")
    with pytest.raises(UsageError, match="is named twice"):
        _read("c/", "c/b.txt")


def test_directory_is_read_with_the_directories_that_are_linked_in_it_each_once() -> None:
    _write("c/b/x.txt", "one\n")
    _write("elsewhere/deep/y.txt", "two\n")
    Path("c/a").symlink_to("b")  # is read as b
    Path("c/d").symlink_to("../elsewhere")
    Path("elsewhere/deep/up").symlink_to("..")
    assert _read("c/") == ["one", "two"]
    assert _notes("c/") == ["c/: 2 files taken (2 .txt); nothing else is in it"]


def test_directory_says_what_in_it_is_no_file_or_cannot_be_read(monkeypatch) -> None:
    _write("c/x.txt", "one\n")
    _write("c/locked/y.txt", "two\n")
    Path("c/gone.txt").symlink_to("nowhere")
    os.mkfifo("c/pipe.txt")
    scandir = os.scandir

    def refuse(place: str):  # root may read any directory
        if str(place).endswith("locked"):
            raise PermissionError(13, "Permission denied", place)
        return scandir(place)

    monkeypatch.setattr(os, "scandir", refuse)
    assert _notes("c/") == ["c/: 1 file taken (1 .txt); not taken: 3 (gone.txt, locked, pipe.txt)"]


def test_directory_without_text_says_what_is_there() -> None:
    _write("c/README.md", "x")
    with pytest.raises(FileError, match=r"^c/: no file that can be read among 1 file: README.md; "):
        _read("c/")
    with pytest.raises(FileError, match=r"^no such directory: d/; looked in "):
        _read("d/")
    _write("f", "x")
    with pytest.raises(FileError, match=r"^f/: is a file, not a directory"):
        _read("f/")


@pytest.mark.slow
def test_run_on_a_directory_says_what_is_taken_and_is_evaluated(tmp_path: Path) -> None:
    """Held-out files of two formats, which the record of the run tells apart."""
    recipe = _tiny.write(tmp_path / "r")
    _write("texts/a.txt", (tmp_path / "r/train.txt").read_text("utf-8"))
    _write("texts/notes.md", "no text")
    _write("held/a.csv", "text\n天地人山水花鸟鱼虫春夏秋冬\n")
    _write("held/b.txt", "红绿蓝白黑大小多少上下左右\n")
    sets = ("--set", "data.train=[texts/]", "--set", "data.valid=[held/]")
    planned = _tiny.command("plan", str(recipe), *sets, "--no-probe", "--json")
    assert json.loads(planned.stdout)["data"]["directories"] == [
        "texts/: 1 file taken (1 .txt); not taken: 1 (notes.md)",
        "held/: 2 files taken (1 .csv, 1 .txt); nothing else is in it",
    ]
    trained = _tiny.command("pretrain", str(recipe), *sets, "--out", "run")
    assert trained.returncode == 0, trained.stderr
    assert "data: texts/: 1 file taken (1 .txt); not taken: 1 (notes.md)" in trained.stderr
    ended = _tiny.command("eval", "run", "--json")
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout)["documents"] == 2


# Data sets of the datasets library, parquet and Arrow


def test_data_set_of_plain_files_is_read_by_split_and_no_script_is_run() -> None:
    _write("ds/train.jsonl", JSONL)
    _write("ds/data/test-00000.jsonl", '{"text": "three"}\n')
    _write("ds/ds.py", "raise SystemExit('the script was run')\n")
    assert _read({"hf": "ds"}) == ["one", "two"]
    assert _read({"hf": "ds/", "split": "test"}) == ["three"]
    assert _notes({"hf": "ds"}) == ["ds, split train: 1 file taken (train.jsonl); ds.py is not run"]
    with pytest.raises(FileError, match=r"^ds: no split 'dev'; it has: train, test; ds.py is not"):
        _read({"hf": "ds", "split": "dev"})


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ({"hf": "ds", "files": ["a"]}, "files and hf exclude each other"),
        ({"files": ["a"], "split": "train"}, "split: only of hf"),
        ({"files": ["a"], "text_key": "{a"}, "has a single brace"),
    ],
)
def test_settings_of_a_source_that_contradict_are_refused(source: dict, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Config(train=[source])


def test_source_of_a_data_set_written_out_reads_back_the_same() -> None:
    config = Config(train=[{"hf": "ds", "split": "test"}], text_key=["a", "b"])
    assert Config(**config.model_dump()) == config


@pytest.mark.parametrize("name", ["a.parquet", "a.arrow"])
def test_without_pyarrow_one_line_says_how_to_get_it(name: str, monkeypatch) -> None:
    _write(name, "x")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(UsageError) as caught:
        _read(name)
    assert str(caught.value) == f"{name}: pyarrow is not installed (pip install pyarrow)"


def _save(kind: str, rows: list[dict], path: str) -> str:
    """Write rows with pyarrow, the Arrow stream as `save_to_disk` of the datasets library does."""
    pyarrow = pytest.importorskip("pyarrow")
    table = pyarrow.Table.from_pylist(rows)
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    if kind == "parquet":
        from pyarrow import parquet

        parquet.write_table(table, path, row_group_size=2)
        return path
    from pyarrow import ipc

    new = ipc.new_stream if kind == "stream" else ipc.new_file
    with new(path, table.schema) as writer:
        writer.write_table(table, max_chunksize=2)
    return path


MANY = [{"text": f"t{n}", "meta": {"k": [f"a{n}", "b"]}, "n": n} for n in range(5)]


@pytest.mark.parametrize(
    ("kind", "name"), [("parquet", "a.parquet"), ("stream", "a.arrow"), ("file", "b.arrow")]
)
def test_parquet_and_arrow_give_their_rows(kind: str, name: str) -> None:
    _save(kind, MANY, name)
    assert _read(name) == [f"t{n}" for n in range(5)]
    assert _read(name, text_key="{meta.k:+}/{n}")[4] == "a4+b/4"
    with pytest.raises(DataError, match=rf'^{name}:1: no "txt", did you mean text\?; it has: text'):
        _read(name, text_key="txt")
    assert _stored(name).tokens == 10


@pytest.mark.parametrize("name", ["a.parquet", "a.arrow"])
def test_damaged_file_is_one_line(name: str) -> None:
    pytest.importorskip("pyarrow")
    _write(name, "no table at all")
    said = f"cannot be read as {name[2:]}: "
    with pytest.raises(DataError, match=f"^{name}: {said}"):
        _read(name)
    with pytest.raises(DataError, match=f"^{name}.gz: {said}gunzip it first$"):
        _read(str(Path(name).rename(f"{name}.gz")))


def test_arrow_stream_cut_between_its_batches_is_named() -> None:
    pyarrow = pytest.importorskip("pyarrow")
    whole = _save("stream", MANY, "a.arrow")
    with pyarrow.memory_map(whole) as source:
        stream = pyarrow.ipc.open_stream(source)
        stream.read_next_batch()
        Path("b.arrow").write_bytes(Path(whole).read_bytes()[: source.tell()])
    with pytest.raises(DataError, match=r"^b.arrow: is cut: it lacks the mark that ends an Arrow"):
        _read("b.arrow")


@pytest.mark.parametrize("kind", ["stream", "file"])
def test_arrow_text_that_ends_beyond_the_file_is_one_line(kind: str) -> None:
    """Reading it would end the process."""
    path = Path(_save(kind, [{"text": "ab"}, {"text": "c"}], "a.arrow"))
    ends = struct.pack("<3i", 0, 2, 3)
    assert path.read_bytes().count(ends) == 1
    path.write_bytes(path.read_bytes().replace(ends, struct.pack("<3i", 0, 2, 1 << 30)))
    with pytest.raises(DataError, match=r"^a.arrow: cannot be read as arrow: In column 0: Invalid"):
        _read("a.arrow")


@pytest.mark.parametrize("name", ["parquet", "arrow", "jsonl"])
def test_file_that_cannot_be_opened_is_an_error_of_files(name: str) -> None:
    pytest.importorskip("pyarrow")
    file = TextFile("gone", "gone", name)
    with pytest.raises(FileError, match=r"^gone: no such file$"):
        list(formats.reader(name).rows(file, (), Counts()))


def test_data_set_that_save_to_disk_wrote_is_read_by_split() -> None:
    _save("stream", MANY, "ds/train/data-00000-of-00001.arrow")
    state = {"_data_files": [{"filename": "data-00000-of-00001.arrow"}], "_split": "train"}
    _write("ds/train/state.json", json.dumps(state))
    _write("ds/dataset_dict.json", json.dumps({"splits": ["train"]}))
    assert _read({"hf": "ds", "split": "train"}) == [f"t{n}" for n in range(5)]
    assert _read({"hf": "ds/train"}) == [f"t{n}" for n in range(5)]
    with pytest.raises(FileError, match=r"^ds: no split 'test'; it has: train"):
        _read({"hf": "ds", "split": "test"})
    _write("ds/train/state.json", json.dumps({**state, "_indices_data_files": [{"filename": "i"}]}))
    with pytest.raises(FileError, match=r"state.json: .* after flatten_indices\(\)"):
        _read({"hf": "ds"})


def test_data_sets_in_one_directory_are_not_mixed() -> None:
    for name in ("cola", "sst2"):
        _write(f"glue/{name}/train-00000-of-00001.jsonl", JSONL)
    said = r"^glue: no split 'train'; nor any other; .*; name a directory in it: cola, sst2$"
    with pytest.raises(FileError, match=said):
        _read({"hf": "glue"})
    _write("ocnli/train.json", JSONL)
    _write("ocnli/train.3k.json", JSONL)
    assert _notes({"hf": "ocnli"}) == ["ocnli, split train: 1 file taken (train.json)"]


def test_data_set_with_a_part_of_its_shards_is_refused() -> None:
    _write("ds/data/train-00000-of-00003.jsonl", JSONL)
    _write("ds/data/test-00000-of-00001.jsonl", JSONL)
    said = (
        r"^ds: split train has 1 of its 3 shards; there is no train-00001, 00002; to train on these"
        r" alone, name them: files: (.*/ds/data/train-\*)$"
    )
    with pytest.raises(FileError, match=said) as refused:
        _notes({"hf": "ds"})
    named = re.match(said, str(refused.value))[1]
    assert _read(named) == _read("ds/data/test-00000-of-00001.jsonl")
    assert "1 file taken" in _notes({"hf": "ds", "split": "test"})[0]
    for number in (1, 2):
        _write(f"ds/data/train-0000{number}-of-00003.jsonl", JSONL)
    assert "3 files taken" in _notes({"hf": "ds"})[0]
    for number in (1, 2):  # some number them from 1
        _write(f"other/data/train-0000{number}-of-00002.jsonl", JSONL)
    assert "2 files taken" in _notes({"hf": "other"})[0]


def test_parquet_of_a_hub_copy_is_read_by_its_names() -> None:
    _save("parquet", MANY[:2], "ds/data/train-00000-of-00002.parquet")
    _save("parquet", MANY[2:], "ds/data/train-00001-of-00002.parquet")
    _save("parquet", MANY[:1], "ds/data/validation-00000-of-00001.parquet")
    assert _read({"hf": "ds"}) == [f"t{n}" for n in range(5)]
    assert _read({"hf": "ds", "split": "validation"}) == ["t0"]
