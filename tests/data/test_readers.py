"""Readers of rows: parallel text, idx, pictures, pixels as csv; what is wrong in such files."""

import gzip
import json
import struct
from pathlib import Path

import numpy as np
import pytest

from nlpkit.contracts.reader import Counts, RowError
from nlpkit.contracts.task import Item, Task
from nlpkit.data.documents import read_documents
from nlpkit.data.files import find_inputs
from nlpkit.data.images import image_in
from nlpkit.data.items import Row, build_items, read_rows
from nlpkit.data.settings import Config as DataConfig
from nlpkit.data.store import Callbacks
from nlpkit.errors import DataError, FileError, UsageError
from tests.conftest import REAL_DATA

IMAGES = np.arange(5 * 2 * 3, dtype=np.uint8).reshape(5, 2, 3)  # five of height 2, width 3
LABELS = [3, 1, 4, 1, 5]
HELD_OUT = {"valid_fraction": 0.3}


class Pixels(Task):
    """A task that reads no text: an item a picture."""

    @classmethod
    def named_columns(cls, config: object) -> tuple[str, ...]:
        return "image", "label"

    def texts(self, row: Row) -> tuple[str, ...]:
        image_in(row, "image")
        return ()

    def item(self, row: Row, ids: list) -> Item:
        image = image_in(row, "image")
        return Item((image,), row.value("label"), image.size)

    def num_targets(self, batch):
        raise AssertionError("no test of the readers makes a batch")

    def loss(self, model, hidden, batch):
        raise AssertionError("no test of the readers computes a loss")


def _rows(source, columns=(), counts=None, part="all", **settings) -> list[Row]:
    config = DataConfig(train=source, **settings)
    inputs, _ = find_inputs(config, None, Path("spool"))
    return list(read_rows(inputs, config, columns, counts or Counts(), part))


def _idx(folder: Path, zipped: bool = False) -> list[str]:
    """Write the images as MNIST's authors do; return both names."""
    images = struct.pack(">IIII", 2051, *IMAGES.shape) + IMAGES.tobytes()
    labels = struct.pack(">II", 2049, len(LABELS)) + bytes(LABELS)
    names = []
    for name, content in (("x-images-idx3-ubyte", images), ("x-labels-idx1-ubyte", labels)):
        path = folder / (f"{name}.gz" if zipped else name)
        path.write_bytes(gzip.compress(content) if zipped else content)
        names.append(str(path))
    return names


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


# Parallel text


@pytest.mark.parametrize("zipped", [False, True])
def test_parallel_rows_are_pairs_of_lines(tmp_path: Path, zipped: bool) -> None:
    (tmp_path / "a.en").write_text("one\ntwo\u00a0x\n\n \nfive\n", encoding="utf-8")
    (tmp_path / "a.de").write_bytes("eins\r\nzwei\r\ndrei\r\n\r\nfünf".encode())
    names = ["a.en", "a.de"]
    if zipped:
        (tmp_path / "a.de.gz").write_bytes(gzip.compress((tmp_path / "a.de").read_bytes()))
        names[1] = "a.de.gz"
    counts = Counts()
    rows = _rows([{"files": names, "format": "parallel"}], counts=counts)
    assert [(row.line, row.values) for row in rows] == [
        (1, {"source": "one", "target": "eins"}),
        (2, {"source": "two\u00a0x", "target": "zwei"}),
        (5, {"source": "five", "target": "fünf"}),
    ]
    # Line 3 is empty on one side, line 4 on both: both are reported as empty texts.
    assert (counts.lines, counts.empty, counts.bad) == (5, 2, 0)


def test_parallel_files_of_other_lengths_name_both_counts(tmp_path: Path) -> None:
    (tmp_path / "a.en").write_text("one\ntwo\nthree\n")
    (tmp_path / "a.de").write_text("eins\nzwei\n")
    for names, said in (
        (["a.en", "a.de"], "a.en has 3 lines and a.de has 2; line n of one file must belong"),
        (["a.de", "a.en"], "a.de has 2 lines and a.en has 3; line n of one file must belong"),
    ):
        with pytest.raises(DataError, match=said):
            _rows([{"files": names, "format": "parallel"}])


def test_parallel_line_that_is_no_text_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.en").write_text("one\ntwo\n")
    (tmp_path / "a.de").write_bytes(b"eins\n\xff\n")
    source = [{"files": ["a.en", "a.de"], "format": "parallel"}]
    with pytest.raises(DataError, match=r"^a.en:2: in a.de: byte 1 is not UTF-8"):
        _rows(source)
    counts = Counts()
    assert len(_rows(source, counts=counts, on_error="skip")) == 1
    assert counts.bad == 1
    (tmp_path / "a.de").write_bytes(b"eins\nz\0\n")
    with pytest.raises(DataError, match=r"^a.en:2: in a.de: character 2 of the text is NUL"):
        _rows(source)


@pytest.mark.parametrize(
    ("files", "got"), [(["a.en"], "a.en"), (["a.en", "a.de", "b.en"], "a.en, a.de, b.en")]
)
def test_parallel_takes_two_files(tmp_path: Path, files: list[str], got: str) -> None:
    for name in ("a.en", "a.de", "b.en"):
        (tmp_path / name).write_text("x\n")
    with pytest.raises(UsageError) as caught:
        _rows([{"files": files, "format": "parallel"}])
    assert str(caught.value) == (
        f"data: format parallel takes 2 files, source and target, as files: [..., ...]; got {got}"
    )


def test_parallel_fingerprint_tells_changes_of_the_second_file(tmp_path: Path) -> None:
    class Pairs(Pixels):
        @classmethod
        def named_columns(cls, config: object) -> tuple[str, ...]:
            return "source", "target"

        def texts(self, row: Row) -> tuple[str, ...]:
            return ()

        def item(self, row: Row, ids: list) -> Item:
            return Item((), None, 1)

    def fingerprint() -> str:
        config = DataConfig(train=[{"files": ["a.en", "a.de"], "format": "parallel"}])
        inputs, _ = find_inputs(config, None, tmp_path)
        task = Pairs(None, None, None)
        return build_items(inputs, config, task).fingerprint

    (tmp_path / "a.en").write_text("one\n")
    (tmp_path / "a.de").write_text("eins\n")
    before = fingerprint()
    assert fingerprint() == before
    (tmp_path / "a.de").write_text("zwei\n")
    assert fingerprint() != before


@pytest.mark.real_data
def test_parallel_reads_multi30k_as_it_is() -> None:
    folder = REAL_DATA / "parallel"
    names = [str(folder / f"multi30k.train.{language}") for language in ("en", "de")]
    rows = _rows([{"files": names, "format": "parallel"}])
    assert len(rows) == 10_000  # as ../shared/data/README.md says
    english = (folder / "multi30k.train.en").read_text("utf-8").split("\n")
    german = (folder / "multi30k.train.de").read_text("utf-8").split("\n")
    assert rows[-1].values == {"source": english[9999], "target": german[9999]}


# idx


@pytest.mark.parametrize("zipped", [False, True])
def test_idx_rows_are_images_with_labels(tmp_path: Path, zipped: bool) -> None:
    rows = _rows([{"files": _idx(tmp_path, zipped)}])  # the ending tells the format
    assert [row.values["label"] for row in rows] == LABELS
    assert all(type(row.values["label"]) is int for row in rows)
    for row, image in zip(rows, IMAGES, strict=True):
        found = np.asarray(row.value("image"))
        assert (found.dtype, found.shape) == (np.uint8, (2, 3))
        assert np.array_equal(found, image)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda i, n: (i[:-1], n), r"images.*: cut short in image 5 of 5: 5 of 6 bytes"),
        (lambda i, n: (i, n[:-1]), r"labels.*: cut short in label 5 of 5: 0 of 1 byte"),
        (lambda i, n: (i[:9], n), r"images.*: cut short in the header: 5 of 12 bytes"),
        (lambda i, n: (b"", n), r"images.*: cut short in the header: 0 of 4 bytes"),
        (lambda i, n: (i + b"x", n), r"images.*: its header says 5, but there are more bytes"),
        (lambda i, n: (i, n + b"x"), r"labels.*: its header says 5, but there are more bytes"),
        (lambda i, n: (n, i), r"not an idx file of images \(2051\) but of labels; name images f"),
        (lambda i, n: (b"\0\0\x0c\x03" + i[4:], n), r"images \(2051\); it begins with 3075"),
        (lambda i, n: (gzip.compress(i), n), r"looks like a gzip file, which must be named .gz"),
        (
            lambda i, n: (i, n[:4] + struct.pack(">I", 4) + n[8:]),
            r"images.* has 5 images and .*labels.* 4 labels",
        ),
        (lambda i, n: (i[:8] + b"\xff" * 8, n), r"header gives images of 4294967295 x 4294967295"),
        (lambda i, n: (i[:8] + b"\0" * 8, n), r"header gives images of 0 x 0 pixels"),
    ],
)
def test_idx_file_that_is_broken_says_what_is_wrong(tmp_path: Path, change, message: str) -> None:
    names = _idx(tmp_path)
    contents = change(*(Path(name).read_bytes() for name in names))
    for name, content in zip(names, contents, strict=True):
        Path(name).write_bytes(content)
    with pytest.raises(DataError, match=message) as caught:
        _rows([{"files": names}])
    assert "\n" not in str(caught.value)


def test_idx_gzip_file_cut_short_is_named(tmp_path: Path) -> None:
    names = _idx(tmp_path, zipped=True)
    Path(names[0]).write_bytes(Path(names[0]).read_bytes()[:-12])
    with pytest.raises(DataError, match=r"images-idx3-ubyte.gz: the gzip file is damaged"):
        _rows([{"files": names}])


def test_rows_with_arrays_are_held_out_by_their_content(tmp_path: Path) -> None:
    source = [{"files": _idx(tmp_path)}]
    parts = [_rows(source, part=p, valid_fraction=0.4) for p in ("train", "valid")]
    lines = [[row.line for row in rows] for rows in parts]
    assert sorted(lines[0] + lines[1]) == [1, 2, 3, 4, 5]
    assert all(lines)
    # The same rows in another order: each goes where it went.
    images = struct.pack(">IIII", 2051, *IMAGES.shape) + IMAGES[::-1].tobytes()
    Path(source[0]["files"][0]).write_bytes(images)
    labels = struct.pack(">II", 2049, 5) + bytes(LABELS[::-1])
    Path(source[0]["files"][1]).write_bytes(labels)
    again = [row.line for row in _rows(source, part="valid", valid_fraction=0.4)]
    assert sorted(6 - line for line in again) == lines[1]


def test_rows_of_a_group_are_held_out_together(tmp_path: Path) -> None:
    file = tmp_path / "x.tsv"
    rows = [f"p{n % 20}\th{n}" for n in range(200)]
    file.write_text("\n".join(["premise\thypothesis", *rows]) + "\n")
    names = ("premise", "hypothesis")
    both = {"valid_fraction": 0.3, "valid_group": "premise"}
    parts = [_rows([str(file)], names, part=part, **both) for part in ("train", "valid")]
    groups = [{row.values["premise"] for row in part} for part in parts]
    assert sum(map(len, parts)) == 200
    assert all(groups)
    assert not groups[0] & groups[1]
    by_row = _rows([str(file)], names, part="valid", valid_fraction=0.3)
    assert len({row.values["premise"] for row in by_row}) == 20
    with pytest.raises(DataError, match=r"x.tsv:2: "):
        _rows([str(file)], names, part="train", valid_fraction=0.3, valid_group="premises")


def test_rows_with_the_same_choices_in_another_order_are_one_group(tmp_path: Path) -> None:
    pairs = [[f"a{n}", f"b{n}"] for n in range(40)]
    rows = [{"text": str(n), "options": p[:: (-1) ** n]} for n, p in enumerate(pairs + pairs[::-1])]
    file = tmp_path / "x.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    both = {"valid_fraction": 0.4, "valid_group": "options"}
    parts = [_rows([str(file)], ("text",), part=part, **both) for part in ("train", "valid")]
    groups = [{frozenset(row.values["options"]) for row in part} for part in parts]
    assert all(groups)
    assert not groups[0] & groups[1]


@pytest.mark.real_data
def test_idx_reads_mnist_as_it_is() -> None:
    folder = REAL_DATA / "images"
    names = [
        str(folder / f"mnist.train-{what}-ubyte.gz") for what in ("images-idx3", "labels-idx1")
    ]
    rows = _rows([{"files": names}])
    assert len(rows) == 3000  # as ../shared/data/README.md says
    # The bytes of the file itself, after headers of 16 and 8 bytes.
    pixels = gzip.decompress(Path(names[0]).read_bytes())[16:]
    labels = gzip.decompress(Path(names[1]).read_bytes())[8:]
    assert b"".join(np.asarray(row.value("image")).tobytes() for row in rows) == pixels
    assert bytes(row.values["label"] for row in rows) == labels
    assert image_in(rows[0], "image").shape == (28, 28, 1)


# Pictures


def _png(path: Path, pixels: np.ndarray, mode: str | None = None) -> Path:
    image = pytest.importorskip("PIL.Image", reason="pillow is not installed")
    path.parent.mkdir(parents=True, exist_ok=True)
    picture = image.fromarray(pixels)
    (picture.convert(mode) if mode else picture).save(path)
    return path


@pytest.mark.parametrize(
    "source", ["digits/*/*.png", {"files": "digits", "format": "images"}], ids=["glob", "folder"]
)
def test_images_are_read_from_a_folder_a_class(tmp_path: Path, source) -> None:
    colours = np.arange(2 * 3 * 3, dtype=np.uint8).reshape(2, 3, 3)
    _png(tmp_path / "digits/3/a.png", IMAGES[0])
    _png(tmp_path / "digits/3/b.png", colours)
    _png(tmp_path / "digits/10/a.png", IMAGES[1], "LA")
    rows = _rows([source])
    assert [row.values["label"] for row in rows] == ["10", "3", "3"]
    for row, pixels in zip(rows, (IMAGES[1], IMAGES[0], colours), strict=True):
        found = np.asarray(row.value("image"))
        assert found.dtype == np.uint8
        assert np.array_equal(found, pixels)  # PNG loses nothing


def test_folder_of_images_with_a_file_that_is_not_read_is_refused(tmp_path: Path) -> None:
    _png(tmp_path / "digits/3/a.png", IMAGES[0])
    (tmp_path / "digits/3/.b.jpg").write_text("hidden")
    (tmp_path / "digits/README").write_text("of no class")
    source = {"files": "digits", "format": "images"}
    assert len(_rows([source])) == 1
    (tmp_path / "digits/5").mkdir()
    (tmp_path / "digits/5/a.PNG").write_text("x")
    said = rf"^{tmp_path}/digits/5/a.PNG: is not read; name those that are: digits/\*/\*.png$"
    with pytest.raises(FileError, match=said):
        _rows([source])
    assert len(_rows(["digits/*/*.png"])) == 1


def test_image_that_is_no_picture_is_named(tmp_path: Path) -> None:
    _png(tmp_path / "a/good.png", IMAGES[0])
    (tmp_path / "a/bad.png").write_text("no picture")
    (tmp_path / "a/cut.png").write_bytes((tmp_path / "a/good.png").read_bytes()[:50])
    for name, said in (("bad", r"not a PNG file$"), ("cut", "not a PNG file: .*[Tt]runcated")):
        with pytest.raises(DataError, match=rf"^a/{name}.png:1: {said}"):
            _rows([f"a/{name}.png"])
    deep = IMAGES[0].astype(np.uint16) * 256
    _png(tmp_path / "a/deep.png", deep)
    with pytest.raises(DataError, match=r"a/deep.png:1: pixels of kind I;16; 8 bits a colour"):
        _rows(["a/deep.png"])
    counts = Counts()
    assert len(_rows(["a/*.png"], counts=counts, on_error="skip")) == 1
    assert counts.bad == 3


def test_images_without_pillow_say_how_to_get_it(tmp_path: Path, monkeypatch) -> None:
    _png(tmp_path / "a/good.png", IMAGES[0])
    monkeypatch.setitem(__import__("sys").modules, "PIL", None)
    with pytest.raises(UsageError, match=r": pillow is not installed \(pip install pillow\)$"):
        _rows(["a/good.png"])


def test_folder_of_images_without_any_is_named(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileError, match=r"no file matches '.*empty/\*/\*.png'"):
        _rows([{"files": "empty", "format": "images"}])
    with pytest.raises(FileError, match="empty: is a directory, not a file"):
        _rows(["empty"])
    _png(tmp_path / "digits/3/good.png", IMAGES[0])
    said = r"^digits: is a directory, not a file; name its files: digits/\*/\*\.png$"
    with pytest.raises(FileError, match=said):
        _rows(["digits"])
    assert len(_rows(["digits/*/*.png"])) == 1


# Pixels as csv


def test_csv_columns_of_pixels_are_read_by_number(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("0,16,7,2\n1,2,3,0\n")
    rows = _rows(["a.csv"], columns=("1", "2", "3", "4"))
    pixels = [[int(row.text(str(i))) for i in range(1, 4)] for row in rows]
    assert pixels == [[0, 16, 7], [1, 2, 3]]
    assert [row.text("4") for row in rows] == ["2", "0"]


def test_csv_cell_may_be_a_long_document(tmp_path: Path) -> None:
    text = "word " * 50_000
    (tmp_path / "a.csv").write_text(f'source,target\n"{text}",short\n')
    (row,) = _rows(["a.csv"], columns=("source", "target"))
    assert row.text("source") == text


def test_csv_cell_keeps_its_spaces(tmp_path: Path) -> None:
    # RFC 4180, sec. 2, rule 4: spaces are part of a field.
    (tmp_path / "a.csv").write_text('source,target\na , b\n" c",d\n')
    rows = _rows(["a.csv"], columns=("source", "target"))
    assert [(r.text("source"), r.text("target")) for r in rows] == [("a ", " b"), (" c", "d")]


@pytest.mark.real_data
def test_csv_reads_optdigits_as_it_is() -> None:
    columns = tuple(str(i) for i in range(1, 66))
    rows = _rows([str(REAL_DATA / "images/optdigits.tes.csv")], columns=columns)
    assert len(rows) == 1797  # as ../shared/data/README.md says
    # The first digit of scikit-learn's copy of the set, `load_digits().data[0][:8]`, is a 0.
    assert [int(rows[0].text(str(i))) for i in range(1, 9)] == [0, 0, 5, 13, 9, 1, 0, 0]
    assert rows[0].text("65") == "0"


# Items without text, and formats


def test_items_of_images_need_no_tokenizer(tmp_path: Path) -> None:
    config = DataConfig(train=[{"files": _idx(tmp_path)}])
    inputs, _ = find_inputs(config, None, tmp_path)
    notes: list[str] = []
    callbacks = Callbacks(note=notes.append)
    task = Pixels(None, None, None)
    items = build_items(inputs, config, task, callbacks=callbacks)
    assert [item.label for item in items.items] == LABELS
    assert items.lengths.tolist() == [6] * 5
    names = f"{tmp_path}/x-images-idx3-ubyte, {tmp_path}/x-labels-idx1-ubyte"
    assert notes == [f"data: {names}: 5 rows, 30 tokens"]


def test_row_that_no_item_can_be_made_of_is_skipped_and_counted(tmp_path: Path) -> None:
    class Refuses(Pixels):
        def item(self, row: Row, ids: list) -> Item:
            if row.line == 2:
                raise RowError("the template refuses it")
            return super().item(row, ids)

    source = [{"files": _idx(tmp_path)}]
    for how in ("skip", "stop"):
        config = DataConfig(train=source, on_error=how)
        inputs, _ = find_inputs(config, None, tmp_path)
        if how == "stop":
            with pytest.raises(DataError, match=r":2: the template refuses it"):
                build_items(inputs, config, Refuses(None, None, None))
            return
        items = build_items(inputs, config, Refuses(None, None, None))
        assert (len(items), items.counts.bad, items.counts.documents) == (4, 1, 4)


def test_of_many_files_without_an_item_the_first_ones_are_named(tmp_path: Path) -> None:
    for number in range(5):
        (tmp_path / f"{number}.jsonl").write_text('{"label": 1}\n')
    config = DataConfig(train="*.jsonl", on_error="skip")
    inputs, _ = find_inputs(config, None, tmp_path)
    with pytest.raises(DataError, match=r"^0.jsonl, 1.jsonl, 2.jsonl and 2 more: no items; 5 malf"):
        build_items(inputs, config, Pixels(None, None, None))


@pytest.mark.parametrize("name", ["x.parquet", "x.arrow"])
def test_rows_of_columns_are_those_of_jsonl(name: str, tmp_path: Path) -> None:
    """A task reads what it does not name, `input`; the split does not depend on what it names."""
    import pyarrow
    from pyarrow import feather, parquet

    names = ("instruction", "input", "output")
    rows = [{each: f"{each} {n}" for each in names} for n in range(60)]
    (tmp_path / "x.jsonl").write_text("\n".join(map(json.dumps, rows)))
    table = pyarrow.Table.from_pylist(rows)
    write = parquet.write_table if name == "x.parquet" else feather.write_feather
    write(table, tmp_path / name)
    for part in ("train", "valid"):
        expected, *found = (
            [row.values for row in _rows(str(tmp_path / each), chosen, None, part, **HELD_OUT)]
            for each, chosen in (
                ("x.jsonl", ("output",)),
                (name, ("output",)),
                (name, ("instruction", "output")),
            )
        )
        assert found == [expected, expected]
        assert len(expected) > 5


@pytest.mark.parametrize("name", ["x.parquet", "x.arrow"])
def test_column_that_is_there_twice_is_refused(name: str, tmp_path: Path) -> None:
    import pyarrow
    from pyarrow import ipc, parquet

    columns = [pyarrow.array([each]) for each in ("a", "b", "c")]
    table = pyarrow.Table.from_arrays(columns, names=["text", "text", "more"])
    if name == "x.parquet":
        parquet.write_table(table, tmp_path / name)
    else:
        with ipc.new_file(tmp_path / name, table.schema) as writer:
            writer.write_table(table)
    with pytest.raises(DataError, match=r'x\.\w+: column "text" is there twice$'):
        [*_rows(str(tmp_path / name), ("text",))]


def test_lists_in_columns_give_their_rows(tmp_path: Path) -> None:
    import pyarrow
    from pyarrow import parquet

    row = {"text": "d", "parts": [{"text": "a"}, {"text": "b"}]}
    parquet.write_table(pyarrow.Table.from_pylist([row]), tmp_path / "x.parquet")
    found = _rows(str(tmp_path / "x.parquet"), ("text",), rows="parts")
    assert [row.text("text") for row in found] == ["a", "b"]


def test_time_that_python_does_not_hold_is_a_number(tmp_path: Path) -> None:
    import pyarrow
    from pyarrow import parquet

    table = pyarrow.table({"text": ["a"], "at": pyarrow.array([1 << 60], pyarrow.timestamp("ms"))})
    parquet.write_table(table, tmp_path / "x.parquet")
    (row,) = _rows(str(tmp_path / "x.parquet"), ("text",))
    assert row.values == {"text": "a", "at": 1 << 60}
    inner = pyarrow.array([[1]], pyarrow.list_(pyarrow.timestamp("ns")))
    table = pyarrow.table({"text": ["a"], "at": inner})
    parquet.write_table(table, tmp_path / "x.parquet")
    with pytest.raises(DataError, match=r"x\.parquet: a value that Python cannot hold: "):
        _rows(str(tmp_path / "x.parquet"), ("text",))


@pytest.mark.parametrize("content", ['[{"a": "1", "a": "2"},\n {"a": "3"}]', '{"a": 1, "a": 2}'])
def test_key_that_a_json_object_has_twice_is_one_row(tmp_path: Path, content: str) -> None:
    path = tmp_path / "x.json"
    path.write_text(content)
    with pytest.raises(DataError, match=r'x\.json:1: "a" is there twice'):
        _rows(str(path), ("a",), format="json")
    if content.startswith("["):
        counts = Counts()
        (row,) = _rows(str(path), ("a",), format="json", on_error="skip", counts=counts)
        assert (row.values, row.line, counts.bad) == ({"a": "3"}, 2, 1)


@pytest.mark.parametrize("path", ["qas", "groups.qas"])
def test_key_that_an_inner_row_has_twice_is_one_row(tmp_path: Path, path: str) -> None:
    article = '{"qas": [\n{"a": "1", "a": "2"},\n{"a": "3"}]}'
    (tmp_path / "x.json").write_text(f'[{{"groups": [{article}], "qas": []}}]'
                                     if "." in path else f"[{article}]")  # fmt: skip
    with pytest.raises(DataError, match=rf'x\.json:2: data.rows: {path}: "a" is there twice'):
        _rows("x.json", ("a",), format="json", rows=path)
    counts = Counts()
    (row,) = _rows("x.json", ("a",), format="json", rows=path, on_error="skip", counts=counts)
    assert (row.text("a"), row.line, counts.bad) == ("3", 3, 1)


def test_rows_of_lines_have_newlines_where_the_mark_stands(tmp_path: Path) -> None:
    (tmp_path / "x.tsv").write_text("text\tlabel\na<n>b<n>\tc\n")
    (row,) = _rows(str(tmp_path / "x.tsv"), ("text",), line_break="<n>")
    assert row.values == {"text": "a\nb\n", "label": "c"}
    for name in ("x.de", "x.en"):
        (tmp_path / name).write_text(f"{name}<n>b\n")
    pair = {"files": [str(tmp_path / name) for name in ("x.de", "x.en")], "format": "parallel"}
    (row,) = _rows(pair, ("source", "target"), line_break="<n>")
    assert row.values == {"source": "x.de\nb", "target": "x.en\nb"}
    (row,) = _rows(pair, ("source", "target"))
    assert row.text("source") == "x.de<n>b"


def test_group_of_rows_is_read_from_columns_too(tmp_path: Path) -> None:
    import pyarrow
    from pyarrow import parquet

    rows = {"text": [f"t{n}" for n in range(40)], "group": [f"g{n % 8}" for n in range(40)]}
    parquet.write_table(pyarrow.table(rows), tmp_path / "x.parquet")
    both = {"valid_fraction": 0.4, "valid_group": "group"}
    source = [str(tmp_path / "x.parquet")]
    parts = [_rows(source, ("text",), part=part, **both) for part in ("train", "valid")]
    assert sorted(map(len, parts), reverse=True)[1] >= 5
    assert sum(map(len, parts)) == 40
    groups = [{row.values["group"] for row in part} for part in parts]
    assert not groups[0] & groups[1]


def test_pixel_of_many_digits_is_no_number() -> None:
    row = Row({"image": [[1, 10**400]], "label": 1}, "x", 1)
    with pytest.raises(RowError, match='"image" has rows of different lengths, or no numbers'):
        image_in(row, "image")


def test_row_asked_for_a_text_that_is_an_array_says_so() -> None:
    row = Row({"label": IMAGES[0]}, "a", 1)
    with pytest.raises(Exception, match='"label" is an array of 2 x 3 values, not a string'):
        row.text("label")


def test_format_without_rows_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x\n")
    message = (
        r"a\.txt: a task needs rows \(arrow, conll, csv, idx, images, json, jsonl, parallel, "
        r"parquet, squad, tsv\), "
        r"and .* as text; if it has rows, rename it, or set data.format"
    )
    with pytest.raises(UsageError, match=message):
        _rows(["a.txt"])
    (tmp_path / "a.bin").write_text("x\n")
    with pytest.raises(UsageError, match=r"a.bin: the ending '.bin' tells no format; rename it"):
        _rows(["a.bin"])


def test_format_by_a_dotted_name_is_any_module(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "my_rows.py").write_text(
        "ENDINGS = ()\n"
        "def rows(file, columns, counts):\n"
        "    yield 1, {'text': open(file.path).read()}\n"
    )
    (tmp_path / "lab").mkdir()
    (tmp_path / "my_rows.py").rename(tmp_path / "lab/rows.py")
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "a.bin").write_text("x")
    assert _rows(["a.bin"], format="lab.rows")[0].values == {"text": "x"}


@pytest.mark.parametrize("format_", ["idx", "images", "squad"])
def test_running_text_from_rows_only_formats_is_refused(tmp_path: Path, format_: str) -> None:
    (tmp_path / "a").write_text("x\n")
    (tmp_path / "b").write_text("x\n")
    files = ["a", "b"] if format_ == "idx" else ["a"]
    config = DataConfig(train=[{"files": files, "format": format_}])
    inputs, _ = find_inputs(config, None, tmp_path)
    with pytest.raises(UsageError, match=f"a: {format_} is read for the rows of a task"):
        list(read_documents(inputs, config, Counts()))
