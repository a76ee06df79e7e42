"""Rows of task files: jsonl, tsv, csv, by name or number, malformed, and of real data sets."""

import json
from pathlib import Path

import numpy as np
import pytest

from nlpkit import registry
from nlpkit.contracts.reader import Counts
from nlpkit.data.files import find_inputs
from nlpkit.data.items import Row, TaskDataset, build_items, read_rows
from nlpkit.data.settings import Config as DataConfig
from nlpkit.errors import DataError
from nlpkit.models import gpt
from tests._letters import EXTRACT, START, Letters

RNG = np.random.default_rng(0)
A, B, C, D, E = range(11, 16)


def _task(name: str, rows: list[dict] | None = None, **settings):
    """Return a task bound as `build` does it: what is open is learned from the training rows."""
    module = registry.load("objectives", name)
    config = module.Config(**settings)
    if rows is not None:
        made = [Row(values, "train.jsonl", i) for i, values in enumerate(rows, 1)]
        config = module.Objective.complete(config, made)
    return module.Objective(config, Letters(), gpt.Config())


def _items(folder: Path, name: str, content: str, task, **settings) -> TaskDataset:
    path = folder / name
    path.write_text(content, encoding="utf-8", newline="")
    config = DataConfig(train=[str(path)], **settings)
    inputs, _ = find_inputs(config, None, folder)
    return build_items(inputs, config, task)


def test_unknown_label_of_held_out_rows_is_named_with_its_line(tmp_path: Path) -> None:
    task = _task("classification", [{"label": "x"}, {"label": "y"}])
    rows = [{"text": "a", "label": "x"}, {"text": "a", "label": "z"}]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    message = "valid.jsonl:2: \"label\" is 'z', none of the classes x, y"
    with pytest.raises(DataError, match=message):
        _items(tmp_path, "valid.jsonl", text, task)
    items = _items(tmp_path, "valid.jsonl", text, task, on_error="skip")
    assert len(items) == 1
    assert items.counts.bad == 1
    assert str(items.counts.first_bad[0]).endswith(message)
    long = _task("classification", [{"label": "y" * 9999}, {"label": "a\nb"}])
    message = r"is 'x{40}…', none of the classes 'a\\nb', 'y{40}…'$"
    with pytest.raises(DataError, match=message):
        _items(tmp_path, "valid.jsonl", json.dumps({"text": "a", "label": "x" * 9999}), long)


@pytest.mark.parametrize("labels", [["pos", "7", 0], [0, "7", "pos"]])
def test_classes_of_which_some_are_text_and_some_numbers_are_refused(labels: list) -> None:
    """As in a file whose column was filled by two programs."""
    rows = [{"text": "a", "label": label} for label in labels]
    first, _, last = ("0" if each == 0 else repr(each) for each in labels)
    with pytest.raises(DataError) as caught:
        _task("classification", rows)
    assert str(caught.value) == (
        f'train.jsonl:3: "label" is {last}, and in train.jsonl:1 {first}: some classes are text, '
        "some numbers; if they are meant, list them in objective.labels"
    )
    task = _task("classification", rows, labels=["pos", "7", "0"])
    assert task.config.labels == ["pos", "7", "0"]


def test_class_is_the_same_as_a_number_and_as_its_text() -> None:
    """A table has text alone, so that JSON beside it may have either."""
    rows = [{"text": "a", "label": label} for label in ("1", 1, 0, "0")]
    assert _task("classification", rows).config.labels == ["0", "1"]


CLASSES = {"labels": ["x", "y"]}
FILES = {
    "rows.jsonl": '{"kind": "y", "n": 3, "words": "abc"}\n\n{"kind": "x", "words": "de"}\n',
    "rows.tsv": "kind\tn\twords\ny\t3\tabc\nx\t4\tde\n",
    "rows.csv": 'kind,n,words\r\ny,3,"abc"\r\n"x",4,de\r\n',
}


@pytest.mark.parametrize("name", FILES)
def test_rows_of_every_format_are_read_by_the_names_of_their_columns(tmp_path, name) -> None:
    task = _task("classification", text="words", label="kind", **CLASSES)
    items = _items(tmp_path, name, FILES[name], task)
    assert [item.parts[0].tolist() for item in items.items] == [
        [START, A, B, C, EXTRACT],
        [START, D, E, EXTRACT],
    ]
    assert [item.label for item in items.items] == [1, 0]
    assert items.lengths.tolist() == [5, 4]


@pytest.mark.parametrize(("name", "divider"), [("rows.tsv", "\t"), ("rows.csv", ",")])
def test_tables_without_header_are_read_by_number(tmp_path, name: str, divider: str) -> None:
    task = _task("classification", text="3", label="1", **CLASSES)
    text = "".join(divider.join(row) + "\n" for row in (["y", "3", "abc"], ["x", "4", "de"]))
    items = _items(tmp_path, name, text, task)
    assert [item.label for item in items.items] == [1, 0]
    with pytest.raises(DataError, match=rf"{name}:3: 2 columns; there is no column 3"):
        _items(tmp_path, name, f"{text}x{divider}5\n", task)


def test_csv_cell_may_hold_quotes_and_line_breaks(tmp_path: Path) -> None:
    text = 'label,text\nx,"a\nb ""c"", d"\ny,e\nz,a\n'
    config = DataConfig(train=[str(tmp_path / "rows.csv")])
    (tmp_path / "rows.csv").write_text(text)
    inputs, _ = find_inputs(config, None, tmp_path)
    rows = list(read_rows(inputs, config, ("label", "text"), Counts()))
    assert [(row.line, row.values["text"]) for row in rows] == [
        (2, 'a\nb "c", d'),
        (4, "e"),
        (5, "a"),
    ]
    with pytest.raises(DataError, match=r"rows.csv:5: \"label\" is 'z'"):
        _items(tmp_path, "rows.csv", text, _task("classification", **CLASSES))


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.tsv", "label\ttext\nx\ta\tb\n", r"a.tsv:2: 3 columns; the header has 2"),
        ("a.tsv", "label\ttex\nx\ta\n", r'a.tsv:2: no "text", did you mean tex\?'),
        ("a.tsv", "text\ttext\nx\ta\n", r'a.tsv:1: column "text" is there twice'),
        ("a.csv", 'label,text\nx,"a\n', r"a.csv:2: not csv: "),
        ("a.tsv", "label\ttext\n", r"a.tsv: no rows"),
        ("a.tsv", "", r"a.tsv: empty file"),
        ("a.jsonl", '{"text": 3, "label": "x"}\n', r'a.jsonl:1: "text" is a number \(3\)'),
        ("a.jsonl", "[1]\n", r"a.jsonl:1: "),
    ],
)
def test_file_that_is_malformed_is_named_with_its_line(tmp_path, name, text, message) -> None:
    with pytest.raises(DataError, match=message):
        _items(tmp_path, name, text, _task("classification", **CLASSES))


REAL = Path(__file__).resolve().parents[2] / "../shared/data/en_task"
SICK = {"objective": "similarity", "label": "score", "regression": True}
FILES_OF_OTHERS = {  # name: rows of train and dev as ../shared/data/README.md says, settings
    "sst2": ((3000, 872), {"objective": "classification"}),
    "cola": ((2850, 527), {"objective": "classification"}),
    "scitail": ((2000, 500), {"objective": "entailment"}),
    "snli": ((3000, 600), {"objective": "entailment"}),
    "mrpc": ((2000, 500), {"objective": "similarity"}),
    "sick": ((3000, 500), SICK),
    "sick as classes": ((3000, 500), {"objective": "similarity", "label": "entailment"}),
    "copa": (
        (800, 200),
        {"objective": "multiple_choice", "context": "premise", "question": "question"},
    ),
    "comve_b": ((2500, 500), {"objective": "multiple_choice", "context": "premise"}),
}
CLASSES_OF_OTHERS = {
    "sst2": ["0", "1"],
    "cola": ["0", "1"],
    "mrpc": ["0", "1"],
    "scitail": ["entailment", "neutral"],
    "snli": ["contradiction", "entailment", "neutral"],
    "sick as classes": ["CONTRADICTION", "ENTAILMENT", "NEUTRAL"],
}


@pytest.mark.real_data
@pytest.mark.skipif(not REAL.is_dir(), reason=f"no {REAL}")
@pytest.mark.parametrize("name", FILES_OF_OTHERS)
def test_real_files_are_read_without_conversion(tmp_path: Path, name: str) -> None:
    counts, settings = FILES_OF_OTHERS[name]
    stem = REAL / name.split()[0]
    config = DataConfig(train=[f"{stem}.train.jsonl"], valid=[f"{stem}.dev.jsonl"])
    inputs = find_inputs(config, None, tmp_path)
    settings = dict(settings)
    module = registry.load("objectives", settings.pop("objective"))
    found = module.Config(**settings)
    columns = module.Objective.named_columns(found)
    rows = read_rows(inputs[0], config, columns, Counts())
    found = module.Objective.complete(found, rows)
    assert getattr(found, "labels", None) == CLASSES_OF_OTHERS.get(name)
    task = module.Objective(found, Letters(), gpt.Config())
    for part, count in zip(inputs, counts, strict=True):
        items = build_items(part, config, task)
        assert len(items) == count
        assert items.counts.bad == 0
        example = task.example(items.items[-1], RNG)
        assert example["input_ids"][0] == START
        assert example["input_ids"][-1] == EXTRACT
