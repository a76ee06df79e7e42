"""Question answering: the loss of transformers, windows, exact characters, SQuAD 2, mistakes."""

import json
import re
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from pydantic import ValidationError

from nlpkit.contracts.reader import Counts, RowError, TextFile
from nlpkit.data import formats
from nlpkit.data.readers import squad
from nlpkit.errors import DataError
from nlpkit.models.bert.model import Model as Bert
from nlpkit.objectives.examples.text import forward
from nlpkit.objectives.question_answering import best_span
from nlpkit.objectives.tasks.answers import Found, read_answers
from nlpkit.objectives.tasks.windows import token_windows
from tests._spans import BERT, batch_of, bound, items, row, take_body, their_config

REAL = Path(__file__).resolve().parents[3] / "shared/data/zh_task/cmrc2018_trial.squad.json"
CONTEXT = "The quick brown fox jumps.  Our Words: 预测词语, over the lazy dog!"
SETTINGS = {"max_question_length": 12, "dropout": 0.0}


def asked(answer: str, start: int | None = None, **more: object):
    start = CONTEXT.index(answer) if start is None else start
    answers = [{"text": answer, "answer_start": start}]
    return row(context=CONTEXT, question="what jumps?", answers=answers, **more)


@pytest.mark.parametrize(
    "answer", ["fox", "brown fox jumps", "Words", "预测", "词语, over", "dog!"]
)
def test_target_is_the_answer_in_the_tokens(answer: str) -> None:
    objective = bound("question_answering", max_length=100, **SETTINGS)
    (item,) = items(objective, asked(answer))
    (part,), label = item.parts, item.label
    start, stop = label.places[0]
    spans = label.spans[start - label.offset : stop - label.offset + 1]
    assert CONTEXT[spans[0][0] : spans[-1][1]] == answer
    types = objective.frame.types(part)
    assert types[: label.offset].tolist() == [0] * label.offset
    assert types[label.offset :].all()


def test_loss_and_gradients_are_those_of_transformers() -> None:
    objective = bound("question_answering", max_length=30, stride=7, **SETTINGS)
    made = items(objective, asked("fox"), asked("lazy dog"))
    batch = batch_of(objective, made)
    windows = len(batch.lengths)
    assert windows > 2  # one row has several
    torch.manual_seed(0)
    theirs = transformers.BertForQuestionAnswering(
        their_config(objective.tokenizer.vocab_size)
    ).train()
    ours = Bert(BERT, objective.tokenizer.vocab_size)
    take_body(ours, theirs)
    ours.head = head = torch.nn.Linear(32, 2)
    head.load_state_dict(theirs.qa_outputs.state_dict())
    loss = objective.loss(ours, forward(objective, ours, batch), batch)
    assert loss.num_targets == {"task": windows}
    mean = loss.mean(loss.num_targets)
    losses, start = [], 0
    for k, length in enumerate(batch.lengths):
        part = slice(start, start + length)
        losses.append(
            theirs(
                input_ids=batch.fields["input_ids"][None, part],
                token_type_ids=batch.fields["token_type_ids"][None, part],
                start_positions=batch.fields["start_positions"][k : k + 1],
                end_positions=batch.fields["end_positions"][k : k + 1],
            ).loss
        )
        start += length
    expected = torch.stack(losses).mean()
    torch.testing.assert_close(mean, expected, atol=1e-5, rtol=0)
    mean.backward()
    expected.backward()
    torch.testing.assert_close(head.weight.grad, theirs.qa_outputs.weight.grad, atol=1e-5, rtol=0)
    table = theirs.bert.embeddings.word_embeddings.weight.grad
    torch.testing.assert_close(ours.token_embedding.grad, table, atol=1e-5, rtol=0)


def test_windows_begin_a_stride_apart_and_hold_every_token() -> None:
    # Devlin et al. 2018, the authors' code: starts 0, 4, 8 while tokens are left.
    assert token_windows(15, 7, 4) == [(0, 7), (4, 11), (8, 15)]
    assert token_windows(7, 7, 4) == [(0, 7)]
    assert token_windows(0, 7, 4) == [(0, 0)]
    # A stride longer than a window would leave tokens out.
    assert token_windows(15, 7, 99) == [(0, 7), (7, 14), (14, 15)]


def test_window_without_the_whole_answer_has_the_null_answer() -> None:
    for family, last in (("bert", False), ("gpt", True)):
        objective = bound("question_answering", family, max_length=30, stride=7, **SETTINGS)
        (item,) = items(objective, asked("lazy dog"))
        label = item.label
        first = CONTEXT.index("lazy dog")
        for part, place, start in zip(item.parts, label.places, label.starts, strict=True):
            spans = label.spans[start : start + len(part) - label.offset - 1]
            inside = spans[0][0] <= first and spans[-1][1] >= first + len("lazy dog")
            null = len(part) - 1 if last else 0
            assert (place != (null, null)) == inside
        assert item.cut == {"contexts read in windows": 1, "windows of them": len(item.parts)}


def test_answer_that_no_window_holds_is_counted() -> None:
    objective = bound("question_answering", max_length=30, stride=7, **SETTINGS)
    start = CONTEXT.index("lazy dog")
    (item,) = items(objective, asked(CONTEXT[: start + len("lazy dog")], 0))
    assert {*item.label.places} == {(0, 0)}
    windows = {"contexts read in windows": 1, "windows of them": len(item.parts)}
    assert item.cut == windows | {"answers whole in no window": 1}


def test_window_has_the_answer_where_it_has_all_of_its_tokens() -> None:
    # Answers of two tokens at every place: at the border of a window, too.
    objective = bound("question_answering", max_length=30, stride=7, **SETTINGS)
    (item,) = items(objective, asked("fox"))
    spans = item.label.spans.tolist()
    for first, last in pairwise(spans):
        (item,) = items(objective, asked(CONTEXT[first[0] : last[1]], first[0]))
        for part, place, start in zip(
            item.parts, item.label.places, item.label.starts, strict=True
        ):
            held = [None] * item.label.offset + spans[start:]
            held = held[: len(part) - 1]  # the last token is [SEP]
            whole = first in held and last in held
            assert place == ((held.index(first), held.index(last)) if whole else (0, 0))


@pytest.mark.parametrize("longest", [1, 3, 50])
def test_best_span_is_the_best_of_all_spans(longest: int) -> None:
    rng = np.random.default_rng(longest)
    for length in (1, 2, 9, 30):
        scores = rng.normal(size=(length, 2))
        spans = {
            (a, b): scores[a, 0] + scores[b, 1]
            for a in range(length)
            for b in range(a, min(length, a + longest))
        }
        first, last = max(spans, key=lambda span: spans[span])
        score, *found = best_span(scores, longest)
        assert (found, score) == ([first, last], pytest.approx(spans[first, last]))


def test_first_and_shortest_of_equal_spans_is_the_best() -> None:
    assert best_span(np.zeros((4, 2)), 3) == (0.0, 0, 0)
    # Tokens 1 and 2 as first, 2 and 3 as last: (1, 2), (2, 2), (1, 3) and (2, 3) are equal.
    scores = np.array([[0.0, 0.0], [1.0, 0.0], [1.0, 1.0], [0.0, 1.0]])
    assert best_span(scores, 4) == (2.0, 2, 2)


class Scores(torch.nn.Module):
    """A head that gives the states as scores."""

    def head(self, states: torch.Tensor) -> torch.Tensor:
        return states


def _answer(
    objective, item, places: list[tuple[int, int, float]], null: float | list[float] = 0.0
) -> str:
    """Return the answer where tokens (first, last) of the context have a score in each window.

    `null` is the score of no answer, of all windows or of each.
    """
    batch = batch_of(objective, [item])
    hidden = torch.zeros(len(batch.fields["place"]), 2)
    ends = np.cumsum(batch.lengths)
    hidden[[0, *ends[:-1]]] = torch.tensor(null).reshape(-1, 1) / 2
    for first, last, score in places:
        hidden[batch.fields["place"] == first, 0] = score / 2
        hidden[batch.fields["place"] == last, 1] = score / 2
    _, found = objective.predict(Scores(), hidden, batch)
    ((text, _),) = objective.answers(found, [item])
    return text


def test_answer_is_a_piece_of_the_text_as_it_stands_there() -> None:
    objective = bound("question_answering", max_length=30, stride=7, **SETTINGS)
    (item,) = items(objective, asked("fox"))
    spans = item.label.spans
    for first in range(len(spans)):
        for last in range(first, min(first + 3, len(spans))):
            text = _answer(objective, item, [(first, last, 9.0)])
            assert text == CONTEXT[spans[first][0] : spans[last][1]]
    # The best over all windows: a higher sum in the last one.
    end = len(spans) - 1
    assert _answer(objective, item, [(0, 0, 5.0), (end, end, 6.0)]) == CONTEXT[spans[end][0] :]


def test_no_answer_is_predicted_only_where_it_may_be_and_scores_higher() -> None:
    impossible = row(context=CONTEXT, question="what?", answers=[], is_impossible=True)
    objective = bound("question_answering", max_length=100, no_answer=True, **SETTINGS)
    item, right = items(objective, impossible, asked("fox"))
    assert item.label.answers == ("",)
    assert item.label.places == ((0, 0),)
    assert _answer(objective, item, [(3, 3, 4.0)], null=5.0) == ""
    assert _answer(objective, item, [(3, 3, 4.0)], null=3.0) != ""
    # Devlin et al. 2018, sec. 4.3: an answer is predicted where its score > that of none + τ.
    assert _answer(objective, item, [(3, 3, 4.0)], null=4.0) == ""
    assert objective.metrics == ("squad_f1:no_answer=true", "exact_match:normalize=squad")
    high = bound(
        "question_answering", max_length=100, no_answer=True, null_threshold=2.0, **SETTINGS
    )
    assert _answer(high, item, [(3, 3, 4.0)], null=3.0) == ""
    assert _answer(high, item, [(3, 3, 4.0)], null=2.0) == ""
    assert _answer(high, item, [(3, 3, 4.0)], null=1.9) != ""
    never = bound("question_answering", max_length=100, **SETTINGS)
    assert _answer(never, right, [(3, 3, 4.0)], null=5.0) != ""


def test_score_of_no_answer_is_the_lowest_of_all_windows() -> None:
    # `run_squad.py` of the authors: the minimum of all feature_null_score.
    objective = bound("question_answering", max_length=30, stride=7, no_answer=True, **SETTINGS)
    (item,) = items(objective, asked("fox"))
    high = [5.0] * len(item.parts)
    assert _answer(objective, item, [(3, 3, 4.0)], null=high) == ""
    for window in range(len(high)):
        null = [*high[:window], 3.0, *high[window + 1 :]]
        assert _answer(objective, item, [(3, 3, 4.0)], null=null) != ""


def test_answers_may_be_several_and_written_as_datasets_does() -> None:
    objective = bound("question_answering", max_length=100, **SETTINGS)
    answers = {"text": ["fox", "brown fox"], "answer_start": [16, 10]}
    (item,) = items(objective, row(context=CONTEXT, question="what?", answers=answers))
    found = objective.answers([Found(3, 3, 1.0)], [item])
    assert found[0][1] == ("fox", "brown fox")


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"context": CONTEXT}, 'no "question"|no "answers"'),
        ({"data": []}, "a file in the form of SQuAD; to read it so, set data.format: squad"),
        ({"answers": []}, "the question has no answer; set objective.no_answer: true to"),
        ({"answers": ["fox"]}, '"answers" is an array, not a list of {"text"'),
        ({"answers": [{"text": "", "answer_start": 0}]}, "the text of an answer is empty"),
        ({"answers": [{"text": "fox", "answer_start": "16"}]}, "answer_start is a string"),
        ({"answers": [{"text": "cat", "answer_start": 1}]}, "does not hold the answer 'cat'"),
        ({"answers": [{"text": "fox", "answer_start": 15}]},
         "'fox' is not at character 15 of the context, but at 16; correct it, or set "
         "objective.nearest_answer: true"),
        ({"answers": {"text": ["fox"]}}, "needs the lists text and answer_start, of one length"),
    ],
)  # fmt: skip
def test_mistakes_in_rows_are_named(values: dict, said: str) -> None:
    objective = bound("question_answering", max_length=100, **SETTINGS)
    whole = {} if "data" in values or "context" in values else {"context": CONTEXT, "question": "?"}
    with pytest.raises(RowError) as caught:
        objective.texts(row(**whole, **values))
    assert re.search(said, caught.value.what)


def test_nearest_answer_corrects_a_wrong_place() -> None:
    objective = bound("question_answering", max_length=100, nearest_answer=True, **SETTINGS)
    (item,) = items(objective, asked("fox", 15))
    start, stop = (place - item.label.offset for place in item.label.places[0])
    assert CONTEXT[item.label.spans[start][0] : item.label.spans[stop][1]] == "fox"


@pytest.mark.parametrize(("start", "place"), [(-3, 0), (1, 0), (3, 0), (5, 8), (7, 8), (30, 8)])
def test_nearest_of_two_places_is_taken(start: int, place: int) -> None:
    context = "cat dog cat"
    answers = {"answers": [{"text": "cat", "answer_start": start}]}
    (found,) = read_answers(row(**answers), "answers", context, nearest=True)
    assert found == ("cat", place, place + 3)


def test_sequence_without_room_for_a_context_is_refused() -> None:
    with pytest.raises(ValidationError, match="max_length: 40 leaves no room for a context"):
        bound("question_answering", max_length=40, max_question_length=37)


def test_metrics_of_chinese_are_those_of_cmrc() -> None:
    objective = bound("question_answering", max_length=100, normalize="cmrc", **SETTINGS)
    assert objective.metrics == ("squad_f1:normalize=cmrc", "exact_match:normalize=cmrc")


def _squad(folder: Path, text: str) -> list[tuple[int, object]]:
    path = folder / "a.squad.json"
    path.write_text(text, encoding="utf-8")
    return list(squad.rows(TextFile(str(path), "a.squad.json", "squad"), [], Counts()))


def test_squad_rows_have_the_line_of_the_question(tmp_path: Path) -> None:
    text = """{"data": [{"title": "T", "paragraphs": [
      {"context": "a b", "qas": [
        {"id": "1", "question": "q", "answers": [{"text": "a", "answer_start": 0}]},
        {"id": "2", "question": "r", "answers": [], "is_impossible": true}
    ]}]}]}"""
    (line, first), (other, second) = _squad(tmp_path, text)
    assert (line, other) == (3, 4)
    assert first == {
        "id": "1", "question": "q", "title": "T", "context": "a b",
        "answers": [{"text": "a", "answer_start": 0}],
    }  # fmt: skip
    assert second["is_impossible"] is True
    assert formats.find_format("dev.squad.json.gz") == "squad"
    assert formats.find_format("dev.json") == "jsonl"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"data": [\n{"paragraphs": [\n{"context": "a"}]}]}', r':3: no "qas"; SQuAD'),
        ('{"data": [\n1]}', r':1: no list of objects in "data"'),
        ('{"data": [\n1,]}', r":2: broken JSON at column 3"),
        ("[]", r":1: an array, not an object"),
    ],
)
def test_squad_mistakes_are_named_with_their_line(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(DataError, match=said):
        _squad(tmp_path, text)


@pytest.mark.real_data
@pytest.mark.skipif(not REAL.exists(), reason="needs the shared data")
def test_cmrc_questions_are_those_of_the_json_module() -> None:
    found = [r for _, r in squad.rows(TextFile(str(REAL), REAL.name, "squad"), [], Counts())]
    whole = json.loads(REAL.read_text("utf-8"))["data"]
    asked = [q for a in whole for p in a["paragraphs"] for q in p["qas"]]
    assert [r["answers"] for r in found] == [q["answers"] for q in asked]
    assert [r["id"] for r in found] == [q["id"] for q in asked]
