"""Tagging: the examples, the loss of transformers' token classifier, windows, mistakes in rows."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

from nlpkit.contracts.batch import IGNORE
from nlpkit.contracts.reader import Counts, RowError, TextFile
from nlpkit.data.items import Row
from nlpkit.data.readers import conll
from nlpkit.errors import DataError
from nlpkit.models.bert.model import Model as Bert
from nlpkit.models.gpt.model import Model as Gpt
from nlpkit.objectives import tagging
from nlpkit.objectives.examples.text import forward
from nlpkit.objectives.tasks import windows
from nlpkit.objectives.tasks.windows import word_windows
from tests import _spans
from tests._spans import BERT, GPT, batch_of, bound, items, row, take_body, their_config

REAL = Path(__file__).resolve().parents[3] / "shared/data/en_task/wikigold.dev.conll"
LABELS = ["O", "B-X", "I-X"]
ROWS = (
    row(words=["Whole", "words", "foxes", "."], tags=["O", "B-X", "I-X", "O"]),
    row(words=["Counting", "models"], tags=["B-X", "O"]),
)


def test_label_of_a_word_is_on_its_first_token() -> None:
    objective = bound("tagging", labels=LABELS)
    (item,) = items(objective, ROWS[0])
    example = objective.example(item, np.random.default_rng(0))
    tokens = [objective.tokenizer.token(i) for i in example["input_ids"]]
    assert (tokens[0], tokens[-1]) == ("[CLS]", "[SEP]")
    first = [k for k, token in enumerate(tokens[1:-1], 1) if not token.startswith("##")]
    assert len(first) == 4 < len(tokens) - 2  # a word has several tokens
    assert np.flatnonzero(example["tags"] != IGNORE).tolist() == first
    assert example["tags"][first].tolist() == [0, 1, 2, 0]
    assert not example["token_type_ids"].any()


def test_loss_and_gradients_are_those_of_transformers() -> None:
    objective = bound("tagging", labels=LABELS, dropout=0.0)
    made = items(objective, *ROWS)
    batch = batch_of(objective, made)
    torch.manual_seed(0)
    theirs = transformers.BertForTokenClassification(
        their_config(objective.tokenizer.vocab_size, num_labels=3)
    ).train()
    ours = Bert(BERT, objective.tokenizer.vocab_size)
    take_body(ours, theirs)
    head = torch.nn.Linear(32, 3)
    head.load_state_dict(theirs.classifier.state_dict())
    ours.head = head
    loss = objective.loss(ours, forward(objective, ours, batch), batch)
    assert loss.num_targets == {"task": 6}
    mean = loss.mean(loss.num_targets)
    longest = max(batch.lengths)
    ids, tags = torch.zeros(2, longest).long(), torch.full((2, longest), IGNORE)
    mask, start = torch.zeros(2, longest).long(), 0
    for k, length in enumerate(batch.lengths):
        part = slice(start, start + length)
        ids[k, :length], tags[k, :length] = (
            batch.fields["input_ids"][part],
            batch.fields["tags"][part],
        )
        mask[k, :length] = 1
        start += length
    expected = theirs(input_ids=ids, attention_mask=mask, labels=tags).loss
    torch.testing.assert_close(mean, expected, atol=1e-5, rtol=0)
    mean.backward()
    expected.backward()
    torch.testing.assert_close(head.weight.grad, theirs.classifier.weight.grad, atol=1e-5, rtol=0)
    table = theirs.bert.embeddings.word_embeddings.weight.grad
    torch.testing.assert_close(ours.token_embedding.grad, table, atol=1e-5, rtol=0)


def test_causal_family_adds_the_auxiliary_loss_as_a_mean_over_rows() -> None:
    objective = bound("tagging", "gpt", labels=LABELS, lm_weight=0.25, dropout=0.0)
    batch = batch_of(objective, items(objective, *ROWS))
    torch.manual_seed(0)
    model = Gpt(GPT, objective.tokenizer.vocab_size)
    model.head = torch.nn.Linear(32, 3, bias=False)
    hidden = forward(objective, model, batch)
    loss = objective.loss(model, hidden, batch)
    assert loss.num_targets == {"task": 6, "lm": 2}
    by_hand, start = 0.0, 0
    for length in batch.lengths:
        ids = batch.fields["input_ids"][start : start + length]
        logits = model.logits(hidden[start : start + length - 1])
        by_hand += torch.nn.functional.cross_entropy(logits, ids[1:]).item() / 2
        start += length
    task = float(loss.terms["task"].loss_sum) / 6
    assert float(loss.mean(loss.num_targets)) == pytest.approx(task + 0.25 * by_hand, abs=1e-5)


@pytest.mark.parametrize("seed", range(30))
def test_every_word_is_predicted_once_in_a_window_that_holds_it(seed: int) -> None:
    rng = np.random.default_rng(seed)
    room, overlap = int(rng.integers(1, 20)), int(rng.integers(0, 30))
    sizes = rng.integers(1, room + 1, int(rng.integers(1, 60)))
    windows = word_windows(sizes, room, overlap)
    predicted = [k for window in windows for k in range(window.first, window.last)]
    assert predicted == list(range(len(sizes)))
    for start, stop, first, last in windows:
        assert start <= first <= last <= stop
        assert sizes[start:stop].sum() <= room


def test_words_in_the_middle_of_a_window_have_context_on_both_sides() -> None:
    # 10 words of 1 token, 6 in a window, 4 asked for, 3 shared: by hand.
    assert word_windows(np.ones(10, int), 6, 4) == [(0, 6, 0, 5), (3, 9, 5, 8), (6, 10, 8, 10)]


def test_long_sentence_is_read_in_windows_and_a_long_word_is_counted() -> None:
    objective = bound("tagging", labels=LABELS, max_length=10, overlap=4)
    words = ["Whole", "words"] * 8 + ["predicts" * 6]
    (item,) = items(objective, row(words=words, tags=["O"] * 17))
    assert len(item.parts) > 1
    assert max(map(len, item.parts)) <= 10
    targets = np.concatenate(item.label.targets)
    assert int((targets != IGNORE).sum()) == 17
    assert item.cut["sentences read in windows"] == 1
    assert item.cut["windows of them"] == len(item.parts)
    assert item.cut["words longer than a window"] == 1
    assert len(item.parts[-1]) == 10  # its first 8 tokens between [CLS] and [SEP]


def test_predictions_are_lines_of_tags_in_the_order_of_the_words() -> None:
    objective = bound("tagging", labels=LABELS, max_length=10, overlap=4, dropout=0.0)
    long = row(words=["Whole", "words", "models"] * 6, tags=["O", "B-X", "I-X"] * 6)
    made = items(objective, ROWS[0], long, ROWS[1])
    batch = batch_of(objective, made)

    class Right(torch.nn.Module):
        """Answers what is right."""

        def head(self, states: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.one_hot(states.long().squeeze(1), 3).float()

    hidden = batch.fields["tags"][:, None].float()
    _, found = objective.predict(Right(), hidden, batch)
    for predicted, right in objective.answers(found, made):
        assert predicted == right
    assert objective.answers(found, made)[1][0] == "O B-X I-X " * 5 + "O B-X I-X"


def test_word_without_a_token_is_an_unknown_token_and_predicted() -> None:
    objective = bound("tagging", labels=LABELS)
    (item,) = items(objective, row(words=["Whole", "\u200b", " "], tags=["O", "O", "B-X"]))
    assert objective.unknown(item) == 2
    assert (item.label.targets[0] != IGNORE).sum() == 3


def test_words_have_the_spaces_of_a_text() -> None:
    assert windows.space_words(["EU", "rejects", ","]) == ["EU", " rejects", " ,"]
    assert windows.space_words(["我", "爱", "GPT", "吗"]) == ["我", "爱", "GPT", "吗"]


def test_text_is_read_as_characters_and_a_line_of_tags_is_split() -> None:
    objective = bound("tagging", labels=["O", "B-X", "E-X"], scheme="bmes")
    (item,) = items(objective, row(words="我们的", tags="B-X E-X O"))
    assert item.label.tags == ["B-X", "E-X", "O"]
    assert item.size == 5


@pytest.mark.parametrize(
    ("values", "settings", "said"),
    [
        ({"tags": ["O"]}, {}, 'no "words"'),
        ({"words": ["a"], "tags": ["O", "O"]}, {}, '"words" has 1 word and "tags" 2 tags'),
        ({"words": [], "tags": []}, {}, '"words" is empty'),
        ({"words": ["a", 1], "tags": ["O", "O"]}, {}, '"words" is an array, not a list of str'),
        ({"words": ["a"], "tags": ["B X"]}, {}, "\"tags\": tag 1 is 'B X', not a string without"),
        ({"words": ["a"], "tags": ["B-Y"]}, {}, "word 1, 'a', has the tag 'B-Y', none of the tags"),
        ({"words": ["a"], "tags": ["NN"]}, {}, "tag 1 is 'NN'; .*objective.scheme: null is for"),
        ({"words": ["a", "b"], "tags": ["O", "I-X"]}, {"scheme": "iob2"},
         "not in scheme iob2: O I-X; objective.scheme: conll"),
    ],
)  # fmt: skip
def test_mistakes_in_rows_are_named(values: dict, settings: dict, said: str) -> None:
    objective = bound("tagging", labels=LABELS, **settings)
    with pytest.raises(RowError) as caught:
        objective.texts(row(**values))
    assert re.search(said, caught.value.what)


def test_labels_are_the_tags_of_the_training_rows_with_o_first() -> None:
    config = tagging.Config()
    assert tagging.Objective.complete(config, ROWS).labels == ["O", "B-X", "I-X"]
    with pytest.raises(DataError, match=r"data\.train: all words have the same tag, 'O'"):
        tagging.Objective.complete(config, [row(words=["a"], tags=["O"])])
    with pytest.raises(DataError, match=r"rows\.jsonl:7: .*tag 1 is 'NN'"):
        tagging.Objective.complete(config, [row(words=["a"], tags=["NN"])])


def test_tags_that_are_no_entities_are_scored_by_accuracy() -> None:
    assert bound("tagging", labels=["NN", "VB"], scheme=None).metrics == ("tag_accuracy",)
    strict = bound("tagging", labels=LABELS, scheme="iob2")
    assert strict.metrics == ("entity_f1:scheme=iob2", "tag_accuracy")


def _read(folder: Path, text: str) -> list[tuple[int, object]]:
    path = folder / "a.conll"
    path.write_text(text, encoding="utf-8")
    return list(conll.rows(TextFile(str(path), "a.conll", "conll"), ["words"], Counts()))


def test_conll_columns_are_sentences_by_number_and_by_name(tmp_path: Path) -> None:
    text = "-DOCSTART- -X- O\n\nEU NNP B-ORG\nrejects VBZ O\n\n\nHe\tPRP\tO\n 　\tS\tO\n"
    (first, one), (second, other) = _read(tmp_path, text)
    assert (first, second) == (3, 7)
    assert one == {
        "words": ["EU", "rejects"], "tags": ["B-ORG", "O"],
        "1": ["EU", "rejects"], "2": ["NNP", "VBZ"], "3": ["B-ORG", "O"],
    }  # fmt: skip
    assert other["words"] == ["He", " 　"]  # white space is a word where tabs divide


def test_conll_mistake_is_named_with_its_line_and_the_sentence_is_left_out(tmp_path: Path) -> None:
    found = _read(tmp_path, "a O\nb\nc O\n\nd O\ne X O\n\nf O\n")
    assert [line for line, _ in found] == [2, 6, 8]
    assert "1 column; a word and its tag" in str(found[0][1])
    assert "3 columns; the line before has 2" in str(found[1][1])
    assert found[2][1]["words"] == ["f"]


@pytest.mark.real_data
@pytest.mark.skipif(not REAL.exists(), reason="needs the shared data")
def test_wikigold_is_read_word_by_word() -> None:
    rows = [r for _, r in conll.rows(TextFile(str(REAL), REAL.name, "conll"), [], Counts())]
    lines = [line.split() for line in REAL.read_text("utf-8").splitlines()]
    assert sum(len(r["words"]) for r in rows) == sum(
        bool(line) and line[0] != "-DOCSTART-" for line in lines
    )
    made = [Row(r, REAL.name, 1) for r in rows]
    labels = tagging.Objective.complete(tagging.Config(), made).labels
    assert labels == ["O", "I-LOC", "I-MISC", "I-ORG", "I-PER"]
    objective = _spans.bound("tagging", labels=labels)
    assert [objective.texts(each) for each in made]
