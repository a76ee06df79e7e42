"""GPT-1's tasks: sequences by hand against the table of spec/gpt1.md, labels, rows of files."""

import numpy as np
import pytest

from nlpkit import registry
from nlpkit.contracts.batch import LENGTHS
from nlpkit.contracts.reader import RowError
from nlpkit.data.items import Row
from nlpkit.errors import DataError
from nlpkit.models import gpt
from tests._letters import DELIMITER, EXTRACT, START, Letters

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


def _example(task, **values):
    row = Row(values, "x.jsonl", 1)
    item = task.item(row, task.encode(list(task.texts(row))))
    example = task.example(item, RNG)
    assert item.size == len(example["input_ids"]) == example[LENGTHS].sum()
    return example, item


def test_classification_is_start_text_extract() -> None:
    task = _task("classification", labels=["no", "yes"])
    example, item = _example(task, text="abc", label="yes")
    assert example["input_ids"].tolist() == [START, A, B, C, EXTRACT]
    assert example[LENGTHS].tolist() == [5]
    assert example["label"].tolist() == [1]
    assert item.cut == {}


@pytest.mark.parametrize("choices", [[1, 2, 3], ["1", "0"], ["a", "b", "1"]])
def test_choices_that_are_places_of_others_are_refused(choices: list) -> None:
    """A row with 1 could mean the text 1, or the entry after the first."""
    with pytest.raises(ValueError, match=r"1 is an entry, and the number of entry 2, .*: 1"):
        _task("classification", choices=choices)


@pytest.mark.parametrize("choices", [[0, 1, 2], [10, 20], ["a", 1], [1.5, 2.5]])
def test_choices_that_are_meant_in_one_way_are_read(choices: list) -> None:
    choices = list(map(str, choices))
    task = _task("classification", [], choices=choices)
    for number, text in enumerate(choices):
        for value in (number, text):
            assert task.label(Row({"label": value}, "x", 1)) == number


@pytest.mark.parametrize("text", ["{text}[SEP]label", "{text}[SEP]", "It is: [SEP]{text}"])
def test_text_beside_a_delimiter_is_no_name_of_a_column(text: str) -> None:
    with pytest.raises(ValueError, match=r"a text beside \[SEP\] names no {COLUMN}"):
        _task("classification", labels=["0", "1"], text=text)


def test_entailment_is_premise_delimiter_hypothesis() -> None:
    task = _task("entailment", labels=["no", "yes"])
    example, _ = _example(task, premise="ab", hypothesis="c", label="no")
    assert example["input_ids"].tolist() == [START, A, B, DELIMITER, C, EXTRACT]
    assert example["label"].tolist() == [0]


def test_similarity_has_both_orders() -> None:
    task = _task("similarity", regression=True)
    example, _ = _example(task, text_a="ab", text_b="c", label="3.5")
    assert example["input_ids"].tolist() == [
        *(START, A, B, DELIMITER, C, EXTRACT),
        *(START, C, DELIMITER, A, B, EXTRACT),
    ]
    assert example[LENGTHS].tolist() == [6, 6]
    assert example["order"].tolist() == [0, 1]
    assert example["label"].tolist() == [3.5, 3.5]


@pytest.mark.parametrize("columns", ["options", ["one", "two", "three"]])
def test_multiple_choice_has_context_and_question_with_each_answer(columns) -> None:
    task = _task("multiple_choice", question="question", options=columns)
    values = {"context": "a", "question": "b", "label": 2}
    answers = ["c", "", "de"]
    given = (
        {"options": answers}
        if columns == "options"
        else dict(zip(columns, answers, strict=columns != "options"))
    )
    example, _ = _example(task, **values, **given)
    space = 11 + 52
    asked = [START, A, space, B, DELIMITER]
    assert example["input_ids"].tolist() == [
        *(*asked, C, EXTRACT),
        *(*asked, EXTRACT),
        *(*asked, D, E, EXTRACT),
    ]
    assert example[LENGTHS].tolist() == [7, 6, 8]
    assert example["order"].tolist() == [0, 1, 2]
    assert example["label"].tolist() == [2, 2, 2]


def test_truncation_cuts_the_context_first_and_counts_it() -> None:
    # start, delimiter, extract: 5 of 8 left; the hypothesis has 3, so 2 of the premise's 6 stay
    task = _task("entailment", labels=["0", "1"], max_length=8)
    example, item = _example(task, premise="abcdea", hypothesis="cde", label=0)
    assert example["input_ids"].tolist() == [START, A, B, DELIMITER, C, D, E, EXTRACT]
    assert item.cut == {"part 1 of inputs cut": 1, "tokens cut from part 1 of inputs": 4}


def test_truncation_of_a_long_second_part_keeps_delimiter_and_extract() -> None:
    task = _task("entailment", labels=["0", "1"], max_length=6)
    example, item = _example(task, premise="ab", hypothesis="abcde", label=0)
    assert example["input_ids"].tolist() == [START, DELIMITER, A, B, C, EXTRACT]
    assert item.cut == {
        "part 1 of inputs cut": 1,
        "tokens cut from part 1 of inputs": 2,
        "part 2 of inputs cut": 1,
        "tokens cut from part 2 of inputs": 2,
    }


def test_truncation_of_options_is_counted_over_all_of_them() -> None:
    task = _task("multiple_choice", max_length=7)  # room for 4
    example, item = _example(task, context="abc", options=["d", "de", "deabc"], label=0)
    assert example["input_ids"].tolist() == [
        *(START, A, B, C, DELIMITER, D, EXTRACT),
        *(START, A, B, DELIMITER, D, E, EXTRACT),
        *(START, DELIMITER, D, E, A, B, EXTRACT),
    ]
    assert item.cut == {
        "part 1 of inputs cut": 2,
        "tokens cut from part 1 of inputs": 1 + 3,
        "part 2 of inputs cut": 1,
        "tokens cut from part 2 of inputs": 1,
    }


@pytest.mark.parametrize("kept", ["abc de", "ab de", " de", " d"])
def test_long_context_of_multiple_choice_is_cut_before_the_question(kept: str) -> None:
    task = _task("multiple_choice", question="question", max_length=len(kept) + 5)
    row = {"context": "abc", "question": "de", "options": ["aa", "b"], "label": 0}
    example, item = _example(task, **row)
    ids = Letters().encode_batch([kept])[0]
    first = [START, *ids, DELIMITER, A, A, EXTRACT]
    assert example["input_ids"].tolist()[: len(first)] == first
    lost = len("abc de") - len(kept)
    expected = 2 * lost - 1 if lost else 0  # the second answer leaves room for one more
    assert item.cut.get("tokens cut from part 1 of inputs", 0) == expected


def test_max_length_beyond_the_positions_is_refused() -> None:
    with pytest.raises(ValueError, match=r"max_length: 600 is more than model.max_positions 512"):
        _task("classification", labels=["0", "1"], max_length=600)


@pytest.mark.parametrize(
    ("found", "sorted_names"),
    [
        (["b", "a", "b"], ["a", "b"]),
        ([10, 9, -1], ["-1", "9", "10"]),
        (["10", "9"], ["9", "10"]),
        (["1", "b", "10"], ["1", "10", "b"]),
    ],
)
def test_labels_are_those_of_the_training_rows_sorted(found, sorted_names) -> None:
    task = _task("classification", [{"text": "a", "label": label} for label in found])
    assert task.config.labels == sorted_names
    assert task.outputs == len(sorted_names)


def test_labels_of_the_same_number_have_one_order_in_every_process() -> None:
    # By the number alone, 1 and 01 stood in the order of a set, which is another in each process.
    found = [text for number in range(10) for text in (f"{number}", f"0{number}")]
    task = _task("classification", [{"text": "a", "label": label} for label in found])
    assert task.config.labels == sorted(found, key=lambda text: (int(text), text))


@pytest.mark.parametrize(
    ("label", "message"),
    [
        (True, '"label" is true, not a string or an integer'),
        (None, '"label" is null, not a string or an integer'),
        (1.0, '"label" is a number (1.0), not a string or an integer'),
        ("", '"label" is empty, not a string or an integer'),
        (["a"], '"label" is an array'),
    ],
)
def test_label_that_is_no_class_is_refused_with_its_line(label, message: str) -> None:
    with pytest.raises(DataError) as error:
        _task("classification", [{"text": "a", "label": "x"}, {"text": "a", "label": label}])
    assert str(error.value).startswith(f"train.jsonl:2: {message}")


def test_labels_all_alike_are_refused() -> None:
    with pytest.raises(DataError, match="all rows have the same \"label\", 'x'"):
        _task("entailment", [{"premise": "a", "hypothesis": "b", "label": "x"}] * 3)


def test_wrong_labels_are_left_to_the_reading_of_the_rows() -> None:
    rows = [{"premise": "a", "hypothesis": "b", "label": of} for of in ("x", None, "y")]
    task = _task("entailment", rows)
    assert task.config.labels == ["x", "y"]
    with pytest.raises(RowError, match='"label" is null'):
        task.texts(Row(rows[1], "f", 2))
    with pytest.raises(DataError, match=':2: "label" is null'):  # the reason for no classes
        _task("entailment", rows[:2])


@pytest.mark.parametrize("label", ["much", None, True, "nan", "inf", [1], 1e39, 10**400])
def test_regression_label_that_is_no_number_is_refused(label) -> None:
    task = _task("similarity", regression=True)
    with pytest.raises(RowError, match="not a finite number"):
        task.texts(Row({"text_a": "a", "text_b": "b", "label": label}, "x", 1))


@pytest.mark.parametrize("label", [3, -1, True, None, "b", 0.0])
def test_choice_label_that_is_no_option_is_refused(label) -> None:
    row = Row({"context": "a", "options": ["b", "c", "d"], "label": label}, "x", 1)
    with pytest.raises(RowError, match="not the number of an option, 0 to 2"):
        _task("multiple_choice").texts(row)


@pytest.mark.parametrize(
    ("options", "message"),
    [("ab", "not a list of strings"), (["a", 1], "is a number"), ([], "an empty list")],
)
def test_choice_options_that_are_no_texts_are_refused(options, message: str) -> None:
    row = Row({"context": "a", "options": options, "label": 0}, "x", 1)
    with pytest.raises(RowError, match=message):
        _task("multiple_choice").texts(row)
