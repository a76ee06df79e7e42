"""Entity F1 and tag accuracy: numbers of seqeval 1.2.2 and conlleval, and hand counts."""

import pytest

from nlpkit.contracts.metric import BadLine
from nlpkit.errors import DataError
from nlpkit.score import named
from nlpkit.score.counts.tags import find_entities
from nlpkit.score.metrics import bleu, chrf, entity_f1, squad_f1, tag_accuracy, ter

# The example of seqeval's README: precision, recall and F1 are 0.50, micro and macro.
README_RIGHT = ["O O O B-MISC I-MISC I-MISC O", "B-PER I-PER O"]
README_PREDICTED = ["O O B-MISC I-MISC I-MISC I-MISC O", "B-PER I-PER O"]
HARD_RIGHT = ["B-X I-X O B-Y", "I-X I-X B-X O", "S-X O B-Y I-Y E-Y"]
RIGHT = ["B-X I-X O I-X B-X", "I-Y I-X O B-Y", "I-X B-Y I-Y O B-Y"]
PREDICTED = ["B-X I-X I-Y I-X B-X", "I-Y B-X O B-Y", "O B-Y I-Y O B-X"]
HARD_PREDICTED = ["B-X I-Y O I-Y", "I-X I-X I-X O", "B-X O B-Y E-Y E-Y"]


def test_entity_f1_equals_the_example_of_seqeval() -> None:
    for average in ("micro", "macro"):
        found = entity_f1.score(README_PREDICTED, [README_RIGHT], average=average)
        assert (found.details["precision"], found.details["recall"], found.score) == (0.5, 0.5, 0.5)
    assert found.details["by_type"]["PER"]["f1"] == 1
    assert found.details["by_type"]["MISC"]["support"] == 1


@pytest.mark.parametrize(
    ("scheme", "predicted", "right", "expected"),
    [
        # f1_score of seqeval 1.2.2 for micro, macro, weighted; strict for all but conll.
        ("conll", HARD_PREDICTED, HARD_RIGHT,
         (0.30769230769230765, 0.30952380952380953, 0.3015873015873016)),
        ("iob2", PREDICTED, RIGHT, (0.7272727272727272, 0.7333333333333334, 0.7466666666666667)),
        ("iob1", PREDICTED, RIGHT, (0.7692307692307692, 0.7749999999999999, 0.7642857142857142)),
        ("bioes", ["B-X I-X E-X I-X S-X", "B-Y E-Y O E-Y", "O B-Y I-Y O S-Y"],
         ["B-X I-X E-X O S-X", "B-Y E-Y O B-Y", "S-X B-Y I-Y O S-Y"],
         (0.888888888888889, 0.9, 0.8800000000000001)),
    ],
)  # fmt: skip
def test_entity_f1_of_broken_sequences_equals_seqeval(
    scheme: str, predicted: list[str], right: list[str], expected: tuple[float, ...]
) -> None:
    for average, value in zip(entity_f1.AVERAGES, expected, strict=True):
        found = entity_f1.score(predicted, [right], scheme=scheme, average=average)
        assert found.score == pytest.approx(value, abs=1e-12), average


@pytest.mark.parametrize(
    ("scheme", "tags", "found"),
    [
        # By the rules of conlleval: I after O begins an entity, and so does another type.
        ("conll", "I-A I-A O I-B B-B", [(0, 2, "A"), (3, 4, "B"), (4, 5, "B")]),
        ("conll", "B-A I-B E-B S-B M-B E-B", [(0, 1, "A"), (1, 3, "B"), (3, 4, "B"), (4, 6, "B")]),
        ("conll", "B M E S", [(0, 3, "_"), (3, 4, "_")]),  # words of a Chinese sentence
        # Strict: what the scheme does not allow is no entity.
        ("iob2", "I-A B-A I-A I-B", [(1, 3, "A")]),
        ("iob2", "B-A B-A I-A B-A O", [(0, 1, "A"), (1, 3, "A"), (3, 4, "A")]),
        ("iob1", "I-A B-A I-A I-B", [(0, 1, "A"), (1, 3, "A"), (3, 4, "B")]),
        ("bioes", "B-A I-A O B-A E-A S-B", [(3, 5, "A"), (5, 6, "B")]),
        ("bmes", "B-A M-A E-A B-A E-B", [(0, 3, "A")]),
        ("bilou", "B-A L-A U-B I-A", [(0, 2, "A"), (2, 3, "B")]),
    ],
)
def test_entities_of_a_scheme(scheme: str, tags: str, found: list[tuple]) -> None:
    assert find_entities(tags.split(), scheme) == found


def test_entity_f1_from_sums_is_the_score() -> None:
    for average in entity_f1.AVERAGES:
        rows = list(entity_f1.statistics(HARD_PREDICTED, [HARD_RIGHT], average=average))
        sums = [sum(column) for column in zip(*rows, strict=True)]
        whole = entity_f1.score(HARD_PREDICTED, [HARD_RIGHT], average=average)
        assert entity_f1.from_sums(sums, average=average) == whole.score


def test_entity_f1_without_entities_is_0_and_warned() -> None:
    found = entity_f1.score(["O O"], [["O O"]])
    assert (found.score, found.details["warnings"]) == (0, ["neither file has an entity"])
    assert list(entity_f1.statistics(["O O"], [["O O"]])) == [()]


@pytest.mark.parametrize(
    ("predicted", "right", "scheme", "said", "file"),
    [
        ("O O", "O", "conll", "2 tags; the reference has 1", 0),
        ("O", "PER", "conll", "tag 1 is 'PER'; in scheme conll it is O, B-TYPE, I-TYPE", 1),
        ("O S-X", "O O", "iob2", "tag 2 is 'S-X'; in scheme iob2 it is O, B-TYPE, I-TYPE", 0),
        ("B-", "O", "iob2", "tag 1 is 'B-'", 0),
    ],
)
def test_entity_f1_refuses_a_line_that_it_cannot_read(
    predicted: str, right: str, scheme: str, said: str, file: int
) -> None:
    with pytest.raises(BadLine, match=said) as caught:
        entity_f1.score([predicted], [[right]], scheme=scheme)
    assert caught.value.file == file


def test_tag_accuracy_counts_tags_not_lines() -> None:
    found = tag_accuracy.score(["A B", "C"], [["A C", "C"]])
    assert found.score == pytest.approx(2 / 3)
    with pytest.raises(DataError, match="no tag"):
        tag_accuracy.score([""], [[""]])


def test_named_score_takes_the_best_of_several_right_answers() -> None:
    found = named.score("squad_f1", ["the red cat"], [("blue dog", "red cat")])
    assert found.score == 1
    assert named.score("accuracy", ["a"], [("a", "b")]).score == 1


def test_named_score_of_rows_with_fewer_right_answers_is_that_of_these_alone() -> None:
    # An empty line in their place would be a reference: the closest one to a short answer, so that
    # BLEU had no brevity penalty, and one of no length for the mean of TER.
    answers, right = ["cat", "dog"], [("a big black cat sat",), ("the dog", "one dog")]
    repeated = [[row[0] for row in right], [row[-1] for row in right]]
    for name, metric in (("bleu", bleu), ("chrf", chrf), ("ter", ter)):
        assert named.score(name, answers, right).score == metric.score(answers, repeated).score
    assert named.score("bleu", answers, right).details["ref_len"] == 5 + 2


def test_squad_f1_of_an_empty_answer_is_that_of_squad_2() -> None:
    # evaluate-v2.0.py: if either is no answer, F1 is 1 if they agree, 0 otherwise.
    hypotheses, references = ["", "", "cat", "cat"], [["", "cat", "", "cat"]]
    scores = squad_f1.sentences(hypotheses, references, no_answer=True)
    assert [each.score for each in scores] == [1, 0, 0, 1]
    # evaluate-v1.1.py has no such answers: nothing in common is 0.
    assert [each.score for each in squad_f1.sentences(hypotheses, references)] == [0, 0, 0, 1]
