"""CPM-Ant's tasks, tensor by tensor against the table of spec/cpm_ant.md, worked out by hand."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from nlpkit.contracts.batch import IGNORE, LENGTHS
from nlpkit.contracts.reader import RowError
from nlpkit.data.files import find_inputs
from nlpkit.data.items import Row, TaskDataset, build_items
from nlpkit.data.loader import Examples
from nlpkit.data.pack import collate
from nlpkit.data.settings import Config as DataConfig
from nlpkit.data.tokenize import Callbacks
from nlpkit.errors import DataError
from nlpkit.objectives import cpm_ant_nlg, cpm_ant_nlu
from nlpkit.objectives.examples.text import forward
from tests._losses import only_term
from tests.conftest import REAL_DATA

VOCAB, PROMPT, BOS, EOS = 100, 4, 6, 7
WORDS = {"是": 50, "a": 11, "b": 12, "c": 13, "d": 14, "e": 15, "f": 16, "?": 20, "!": 21}
RNG = np.random.default_rng(0)


class Letters:
    """A tokenizer of single characters."""

    vocab_size, bos_id, eos_id, unk_id, pad_id = VOCAB, BOS, EOS, 1, 0
    keeps_text = True

    def encode(self, text: str) -> list[int]:
        return [WORDS.get(character, 1) for character in text]

    def encode_batch(self, texts: list[str]) -> list[list[int]]:
        return [self.encode(text) for text in texts]


MODEL = SimpleNamespace(
    prompt_length=PROMPT, prompt_types=4, prompts=SimpleNamespace(infilling=0, generation=1)
)


def _nlg(**settings) -> cpm_ant_nlg.Objective:
    return cpm_ant_nlg.Objective(cpm_ant_nlg.Config(**settings), Letters(), MODEL)


def _nlu(**settings) -> cpm_ant_nlu.Objective:
    settings = {"cue": "?!"} | settings
    return cpm_ant_nlu.Objective(cpm_ant_nlu.Config(**settings), Letters(), MODEL)


def _item(objective, **values):
    row = Row(values, "x.jsonl", 1)
    return objective.item(row, objective.encode(list(objective.texts(row))))


def test_nlg_example_is_the_table_of_the_specification() -> None:
    objective = _nlg(max_length=32)
    item = _item(objective, input="abc", target="de")
    example = objective.example(item, RNG)
    # prompt 1: 100 + 4 * 1 + (0 … 3); <s> a b c; d e </s>
    assert example["input_ids"].tolist() == [104, 105, 106, 107, BOS, 11, 12, 13, 14, 15, EOS]
    assert example["position"].tolist() == list(range(11))
    assert example["context"].tolist() == [True] * 8 + [False] * 3
    assert example["segment"].tolist() == [0] * 4 + [2] * 7
    assert example["labels"].tolist() == [IGNORE] * 7 + [14, 15, EOS, IGNORE]
    assert item.size == 11
    assert item.cut == {}


def test_nlg_unknown_tokens_of_a_target_are_not_learned() -> None:
    # x is unknown, id 1; the labels stand one place before the tokens d x e </s>
    item = {"input": "x", "target": "dxe"}
    for learned, of_unknown in ((False, IGNORE), (True, 1)):
        objective = _nlg(learn_unknown=learned)
        example = objective.example(_item(objective, **item), RNG)
        assert example["input_ids"].tolist()[PROMPT:] == [BOS, 1, 14, 1, 15, EOS]
        assert example["labels"].tolist()[PROMPT + 1 :] == [14, of_unknown, 15, EOS, IGNORE]
        batch = collate([example], objective.fields)
        assert objective.num_targets(batch.fields) == {"nlg": 3 + learned}


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"input": "ab\0c", "target": "a"}, 'character 3 of "input" is NUL (U+0000)'),
        (
            {"input": "a", "target": "b\ud83d"},
            'character 2 of "target" is U+D83D, half of a surrogate pair',
        ),
    ],
)
def test_nlg_text_that_is_none_is_refused_with_its_line(tmp_path: Path, row, message) -> None:
    path = tmp_path / "rows.jsonl"
    rows = [{"input": "a", "target": "b"}, row]
    with pytest.raises(DataError) as error:
        _built(path, _nlg(), rows)
    assert str(error.value) == f"{path}:2: {message}"


def test_nlu_option_that_is_no_text_is_refused() -> None:
    row = {"input": "a", "target": 0, "options": ["b", "c\0"]}
    with pytest.raises(RowError) as error:
        _nlu().texts(Row(row, "x", 1))
    assert error.value.what == 'character 2 of "options"[1] is NUL (U+0000)'


@pytest.mark.parametrize("task_id", [0, 3])
def test_nlg_task_id_chooses_the_prompt(task_id: int) -> None:
    objective = _nlg(task_id=task_id)
    ids = objective.example(_item(objective, input="a", target="b"), RNG)["input_ids"]
    assert ids[:PROMPT].tolist() == [VOCAB + PROMPT * task_id + k for k in range(PROMPT)]


def test_nlg_of_a_task_id_without_prompt_is_refused() -> None:
    with pytest.raises(ValueError, match=r"objective.task_id: 4, but the model has 4 prompts"):
        _nlg(task_id=4)


def test_nlg_too_long_loses_the_begin_of_the_input_first_and_keeps_bos() -> None:
    # 4 prompt tokens, <s>, </s>: 5 left; the target has 2, so 3 of the input's 6 stay
    objective = _nlg(max_length=11)
    item = _item(objective, input="abcdef", target="ab")
    ids = objective.example(item, RNG)["input_ids"].tolist()
    assert ids[PROMPT:] == [BOS, 14, 15, 16, 11, 12, EOS]
    assert item.cut == {"inputs cut": 1, "tokens cut from inputs": 3}
    assert item.size == len(ids) == 11


def test_nlg_target_too_long_alone_is_cut_from_the_back_and_keeps_eos() -> None:
    objective = _nlg(max_length=9)  # room for 3
    item = _item(objective, input="ab", target="abcdef")
    ids = objective.example(item, RNG)["input_ids"].tolist()
    assert ids[PROMPT:] == [BOS, 11, 12, 13, EOS]
    assert item.cut == {
        "inputs cut": 1,
        "tokens cut from inputs": 2,
        "targets cut": 1,
        "tokens cut from targets": 3,
    }


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"input": "a"}, 'no "target"; it has: input'),
        ({"input": "a", "target": 3}, '"target" is a number (3), not a string'),
        ({"input": None, "target": "a"}, '"input" is null, not a string'),
        ({"inputs": "a", "target": "a"}, 'no "input", did you mean inputs?'),
    ],
)
def test_nlg_row_of_wrong_types_is_named(values: dict, message: str) -> None:
    with pytest.raises(RowError) as error:
        _nlg().texts(Row(values, "x", 1))
    assert message in error.value.what


def test_nlu_example_has_a_sequence_for_each_option() -> None:
    objective = _nlu(max_length=32)
    item = _item(objective, input="ab", target=1, options=["c", "de", ""])
    example = objective.example(item, RNG)
    prompt = [104, 105, 106, 107]
    assert example["input_ids"].tolist() == [
        *(*prompt, BOS, 11, 12, 13, 20, 21),
        *(*prompt, BOS, 11, 12, 14, 15, 20, 21),
        *(*prompt, BOS, 11, 12, 20, 21),
    ]
    assert example[LENGTHS].tolist() == [10, 11, 9]
    assert example["position"].tolist() == [*range(10), *range(11), *range(9)]
    assert example["context"].all()
    assert example["segment"][:10].tolist() == [0] * 4 + [2] * 6
    assert example["option"].tolist() == [0, 1, 2]
    assert example["label"].tolist() == [1, 1, 1]
    assert item.size == 30


# An integer: never a bool, a float or a string, also one of digits.
@pytest.mark.parametrize("target", [True, 1.0, "x", "1", " 1", None, [1], -1, 2])
def test_nlu_target_that_is_no_number_of_an_option_is_refused(target: object) -> None:
    with pytest.raises(RowError) as error:
        _nlu().texts(Row({"input": "a", "options": ["b", "c"], "target": target}, "x", 1))
    assert error.value.what.startswith('"target" is ')
    assert "not the number of an option, 0 to 1" in error.value.what


@pytest.mark.parametrize(
    ("options", "message"),
    [([], "an empty list"), ("ab", '"ab"'), (["a", 1], '"options"[1] is a number (1)')],
)
def test_nlu_options_that_are_no_list_of_strings_are_refused(options, message: str) -> None:
    with pytest.raises(RowError) as error:
        _nlu().texts(Row({"input": "a", "options": options, "target": 0}, "x", 1))
    assert message in error.value.what or "a string" in error.value.what


def test_nlu_too_long_keeps_option_and_cue() -> None:
    # 4 prompt tokens, <s>, a cue of 2: room for 3, of which the option takes 2
    objective = _nlu(max_length=10)
    item = _item(objective, input="abcd", target=0, options=["ef", "abcdef"])
    first, second = item.parts
    assert first.tolist() == [14, 15, 16]
    assert second.tolist() == [11, 12, 13]
    assert item.cut == {
        "inputs cut": 2,
        "tokens cut from inputs": 3 + 4,
        "options cut": 1,
        "tokens cut from options": 3,
    }


def test_nlu_answer_that_is_no_token_is_refused() -> None:
    with pytest.raises(ValueError, match=r"objective.answer: '不是' is not one token"):
        _nlu(answer="不是")


class Scores:
    """A model whose logit of the answer at a sequence's last token is what it was told."""

    def __init__(self, scores: list[float], lengths: tuple[int, ...]):
        self.scores, self.lengths = torch.tensor(scores, requires_grad=True), lengths

    def __call__(self, lengths: tuple[int, ...], **inputs: torch.Tensor) -> torch.Tensor:
        hidden = torch.full((sum(lengths), 1), 1e4)  # anywhere else it would show
        ends = torch.tensor(lengths).cumsum(0) - 1
        return hidden.index_put((ends,), self.scores[:, None])

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        other = torch.full((len(hidden), VOCAB), 7.0)
        return other.index_put((torch.arange(len(hidden)), torch.tensor(50)), hidden[:, 0])


def test_nlu_loss_is_cross_entropy_over_the_options_of_each_row() -> None:
    objective = _nlu()
    rows = [("ab", 1, ["c", "de", ""]), ("a", 0, ["b", "c"]), ("", 0, ["b"])]
    items = [_item(objective, input=i, target=t, options=o) for i, t, o in rows]
    batch = collate([objective.example(item, RNG) for item in items], objective.fields)
    assert objective.num_targets(batch.fields) == {"nlu": 3}
    fields = {name: torch.from_numpy(value) for name, value in batch.fields.items()}
    model = Scores([1.0, 2.0, -1.0, 0.5, 0.5, 9.0], batch.lengths)
    moved = replace(batch, fields=fields)
    loss, judged = objective.predict(model, forward(objective, model, moved), moved)
    scores = [torch.tensor(s) for s in ([1.0, 2.0, -1.0], [0.5, 0.5], [9.0])]
    expected = sum(
        torch.nn.functional.cross_entropy(s[None], torch.tensor([t]))
        for s, (_, t, _) in zip(scores, rows, strict=True)
    )
    assert torch.isclose(only_term(loss).loss_sum, expected)
    assert loss.num_targets == {"nlu": 3}
    assert judged == [("1", "1"), ("0", "0"), ("0", "0")]
    only_term(loss).loss_sum.backward()
    softmax = torch.cat([s.softmax(0) for s in scores])
    right = torch.tensor([0.0, 1, 0, 1, 0, 1])
    assert torch.allclose(model.scores.grad, softmax - right, atol=1e-6)


def _read(file: Path, objective: cpm_ant_nlu.Objective, cache: Path) -> TaskDataset:
    inputs, _ = find_inputs(config := DataConfig(train=[str(file)]), None, cache)
    return build_items(inputs, config, objective)


CHOICES = {"input": "text", "target": "label", "choices": ["c", "de"]}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("rows.jsonl", '{"text": "ab", "label": 1}\n{"text": "f", "label": 0, "options": 3}\n'),
        ("rows.jsonl", '{"text": "ab", "label": "1"}\n{"text": "f", "label": "0"}\n'),
        ("rows.tsv", "text\tlabel\nab\t1\nf\t0\n"),
        ("rows.csv", 'n,label,text\r\n7,1,"ab"\r\n8,0,f\r\n'),
    ],
)
def test_nlu_choices_are_the_options_of_rows_without_options(
    tmp_path: Path, name: str, text: str
) -> None:
    (tmp_path / name).write_text(text, encoding="utf-8", newline="")
    objective = _nlu(**CHOICES)
    items = _read(tmp_path / name, objective, tmp_path)
    examples = [objective.example(item, RNG) for item in items.items]
    prompt = [104, 105, 106, 107]
    assert [example["input_ids"].tolist() for example in examples] == [
        [*prompt, BOS, 11, 12, 13, 20, 21, *prompt, BOS, 11, 12, 14, 15, 20, 21],
        [*prompt, BOS, 16, 13, 20, 21, *prompt, BOS, 16, 14, 15, 20, 21],
    ]
    assert [example["option"].tolist() for example in examples] == [[0, 1], [0, 1]]
    assert [example["label"].tolist() for example in examples] == [[1, 1], [0, 0]]
    assert items.lengths.tolist() == [10 + 11, 9 + 10]


def test_nlu_choices_are_read_from_numbered_columns(tmp_path: Path) -> None:
    (tmp_path / "rows.tsv").write_text("1\tab\n0\tf\n", encoding="utf-8")
    objective = _nlu(**CHOICES | {"input": "2", "target": "1"})
    assert [item.label for item in _read(tmp_path / "rows.tsv", objective, tmp_path).items] == [
        1,
        0,
    ]


@pytest.mark.parametrize(
    ("target", "said"),
    [
        *[(n, "not an integer from 0 to 1") for n in (2, -1, "2", "10", "999999999", True)],
        *[(n, "not an integer") for n in ("-1", "01", "1.0", "x", " 1", "１", "9" * 5000)],
        *[(value, "not a string or a number") for value in (None, [1])],
    ],
)
def test_nlu_target_that_is_no_number_of_a_choice_is_refused(target: object, said: str) -> None:
    with pytest.raises(RowError) as error:
        _nlu(**CHOICES).texts(Row({"text": "a", "label": target}, "x", 1))
    assert said in error.value.what
    assert len(error.value.what) < 150


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"choices": ["a"]}, "at least 2"),
        ({"choices": []}, "at least 2"),
        ({"choices": ["a", ""]}, "entry 2 is empty"),
        ({"choices": ["a", "b", "a"]}, "'a' is given twice"),
        ({"choices": ["a", "b"], "options": "others"}, "choices: excludes options"),
    ],
)
def test_nlu_choices_that_are_none_are_refused(settings: dict, said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        cpm_ant_nlu.Config(**settings)
    assert cpm_ant_nlu.Config(choices=["a", "b"], options="options").choices == ["a", "b"]


@pytest.mark.real_data
@pytest.mark.parametrize(("part", "rows", "good"), [("train", 2500, 1247), ("dev", 500, 269)])
def test_nlu_choices_read_chnsenticorp_as_it_is(
    tmp_path: Path, part: str, rows: int, good: int
) -> None:
    # rows: `wc -l`; good: `grep -c '"label": 1'`
    file = REAL_DATA / "zh_task" / f"chnsenticorp.{part}.jsonl"
    items = _read(file, _nlu(**CHOICES | {"max_length": 4096}), tmp_path)
    assert len(items) == rows
    assert sum(item.label for item in items.items) == good
    first = json.loads(file.read_text(encoding="utf-8").split("\n")[0])
    # twice prompt, <s>, text, cue; a choice of one token, another of two
    assert items.items[0].size == 2 * (PROMPT + 1 + len(first["text"]) + 2) + 1 + 2


def test_items_of_a_file_say_where_a_row_is_wrong(tmp_path) -> None:
    path = tmp_path / "rows.jsonl"
    good = {"input": "a", "target": 0, "options": ["b", "c"]}
    bad = good | {"target": True}
    path.write_text("\n".join(map(json.dumps, [good, good, bad, good])) + "\n")
    config = DataConfig(train=[str(path)])
    inputs, _ = find_inputs(config, None, tmp_path)
    with pytest.raises(
        DataError, match=rf'{path}:3: "target" is true, not the number of an option'
    ):
        build_items(inputs, config, _nlu())
    skipping = DataConfig(train=[str(path)], on_error="skip")
    items = build_items(inputs, skipping, _nlu())
    assert len(items) == 3
    assert [str(bad) for bad in items.counts.first_bad] == [
        f'{path}:3: "target" is true, not the number of an option, 0 to 1'
    ]
    examples = Examples(items, _nlu(), seed=1)
    assert examples.sizes.tolist() == [2 * 9] * 3


def _built(path: Path, objective, rows: list[dict]) -> tuple[TaskDataset, list[str], list[str]]:
    """Return the items of rows, and what is noted and warned of."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    config = DataConfig(train=[str(path)])
    inputs, _ = find_inputs(config, None, path.parent)
    notes: list[str] = []
    warnings: list[str] = []
    callbacks = Callbacks(note=notes.append, warn=warnings.append)
    items = build_items(inputs, config, objective, callbacks=callbacks)
    return items, notes, warnings


def test_items_count_unknown_tokens_and_those_that_are_no_target(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    rows = [{"input": "ab", "target": "dxe"}, {"input": "axx", "target": "b"}]
    items, notes, warnings = _built(path, _nlg(), rows)
    # 4 prompt tokens, <s>, </s>, and 5 or 4 of text
    assert items.tokens == 11 + 10
    assert items.counts.unknown == 3
    assert items.counts.unlearned == 1
    assert notes == [f"data: {path}: 2 rows, 21 tokens, 3 of them unknown"]
    assert warnings == [
        f"{path}: 3 of 21 tokens (14.3 %) are unknown; a larger vocabulary knows their "
        "characters: set tokenizer.kind and tokenizer.vocab_size (with init_from, kind cpm_ant "
        "grows that of the checkpoint)"
    ]
    assert _built(path, _nlg(learn_unknown=True), rows)[0].counts.unlearned == 0


def test_items_with_few_unknown_tokens_are_no_warning(tmp_path: Path) -> None:
    rows = [{"input": "ab", "target": "d"}] * 11 + [{"input": "ab", "target": "dx"}]
    # 11 items of 9 tokens, one of 10
    path = tmp_path / "rows.jsonl"
    items, notes, warnings = _built(path, _nlg(), rows)
    assert (items.counts.unknown, items.tokens, warnings) == (1, 109, [])
    assert notes == [f"data: {path}: 12 rows, 109 tokens, 1 of them unknown"]


def test_items_name_a_cue_with_unknown_tokens(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    row = {"input": "ab", "target": 1, "options": ["c", "de"]}
    items, _, warnings = _built(path, _nlu(cue="?x!"), [row])
    assert items.counts.unknown == 2
    assert items.tokens == 11 + 12
    assert warnings[0].startswith(
        f"{path}: 2 of 23 tokens (8.7 %) are unknown, 1 of each sequence in objective.cue '?x!'; a "
    )


def test_items_of_unknown_tokens_alone_are_counted_and_the_first_is_named(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    inputs = ["ab", "xy", "", "xay", "y"]
    rows = [{"input": text, "target": "d"} for text in inputs]
    items, _, warnings = _built(path, _nlg(), rows)
    assert items.counts.unknown == 2 + 2 + 1
    assert warnings[1:] == [
        f"{path}:2: a text of unknown tokens alone; in all, 2 of 5 rows have such a text"
    ]
