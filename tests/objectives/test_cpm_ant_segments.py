"""CPM-Ant's segments: tensors of random rows against the original's formatting, and by hand."""

import random

import numpy as np
import pytest
import torch

from nlpkit.contracts.batch import IGNORE, LENGTHS
from nlpkit.contracts.reader import RowError
from nlpkit.data.items import Row
from nlpkit.generate.settings import Settings
from nlpkit.generate.texts import Writer
from nlpkit.models.cpm_ant import Config as ModelConfig
from nlpkit.objectives import cpm_ant_nlg, cpm_ant_nlu, cpm_ant_segments
from nlpkit.runs.open_checkpoint import open_checkpoint
from tests import _adapters, _cpm_live
from tests._cpm_live import SIZES
from tests._losses import loss_of, only_term

VOCAB, PROMPT, BOS, EOS, UNK = 100, 4, 6, 7, 1
RNG = np.random.default_rng(0)


class Numbers:
    """A tokenizer of texts that are ids, with spaces between."""

    vocab_size, bos_id, eos_id, unk_id, pad_id = VOCAB, BOS, EOS, UNK, 0

    def encode(self, text: str) -> list[int]:
        return [int(number) for number in text.split()]

    def encode_batch(self, texts: list[str]) -> list[list[int]]:
        return [self.encode(text) for text in texts]


MODEL = ModelConfig(
    hidden_size=8, num_layers=1, num_heads=1, prompt_types=8, prompt_length=PROMPT, segment_types=8,
    num_buckets=16, max_distance=24,
)  # fmt: skip
NAMES = {
    "input": "input_ids", "position": "position", "context": "context", "segment": "segment",
    "target": "labels",
}  # fmt: skip


def _objective(segments: list[dict], **settings) -> cpm_ant_segments.Objective:
    config = cpm_ant_segments.Config(segments=segments, **settings)
    return cpm_ant_segments.Objective(config, Numbers(), MODEL)


def _item(objective, **values):
    row = Row(values, "x.jsonl", 1)
    return objective.item(row, objective.encode(list(objective.texts(row))))


def _text(draw: random.Random) -> list[int]:
    return draw.choices(range(8, VOCAB), k=draw.randint(0, 9))


def _written(ids: list[int]) -> str:
    return " ".join(map(str, ids))


def _same(example: dict[str, np.ndarray], expected: dict[str, list[int]]) -> None:
    for theirs, ours in NAMES.items():
        assert example[ours].tolist() == expected[theirs], ours


@pytest.mark.parametrize("branch", ["cpm-ant", "cpm-ant-plus"])
def test_tensors_of_200_random_rows_equal_the_original_formatting(branch: str) -> None:
    draw, decoded = random.Random(5), 0
    for _ in range(200):
        task = draw.choice([3, 4, 5, 6])
        first = _cpm_live.DECODED[task]
        kinds = draw.choices([kind for kind in range(1, 8) if kind != first], k=draw.randint(1, 3))
        begin = len(kinds)  # what follows the first decoded segment is decoded, of whatever type
        kinds += [first, *draw.choices(range(1, 8), k=draw.randint(0, 2))]
        decoded += len(kinds) - begin
        segments = [
            {"text": f"c{n}", "type": kind, "decode": n >= begin} for n, kind in enumerate(kinds)
        ]
        if branch == "cpm-ant":
            segments = [each | {"decode": True, "loss": each["decode"]} for each in segments]
        objective = _objective([segments[0] | {"prompt": task}, *segments[1:]])
        texts = [_text(draw) for _ in kinds]
        item = _item(objective, **{f"c{n}": _written(ids) for n, ids in enumerate(texts)})
        framed = [(kind, [BOS, *ids, EOS]) for kind, ids in zip(kinds, texts, strict=True)]
        expected = _cpm_live.example_of_segments(task, framed, PROMPT, VOCAB, branch)
        example = objective.example(item, RNG)
        _same(example, expected)
        assert item.size == len(expected["input"])
        assert objective.fields.keys() == example.keys()
        assert all(example[name].dtype == field.dtype for name, field in objective.fields.items())
    assert decoded > 350


def test_tuned_rows_are_two_compositions_that_equal_the_original_formatting() -> None:
    draw = random.Random(6)
    for _ in range(200):
        task = draw.randrange(8)
        prompt = [VOCAB + PROMPT * task + k for k in range(PROMPT)]
        source, target, cue = _text(draw), _text(draw), [30, 31]
        nlg = cpm_ant_nlg.Objective(cpm_ant_nlg.Config(task_id=task), Numbers(), MODEL)
        free = _objective(
            [
                {"text": "input", "type": 2, "prompt": task, "end": False},
                {"text": "target", "type": 2, "decode": True, "begin": False},
            ]
        )
        expected = _cpm_live.tuning_example([BOS, *source], [*target, EOS], prompt)
        row = {"input": _written(source), "target": _written(target)}
        for objective in (nlg, free):
            _same(objective.example(_item(objective, **row), RNG), expected)
        nlu = cpm_ant_nlu.Objective(
            cpm_ant_nlu.Config(task_id=task, cue="30 31", answer="9"), Numbers(), MODEL
        )
        options = [_text(draw) for _ in range(draw.randint(1, 4))]
        item = _item(nlu, input=row["input"], target=0, options=[_written(o) for o in options])
        example = nlu.example(item, RNG)
        wanted = [
            _cpm_live.tuning_example([BOS, *source, *option, *cue], [], prompt)
            for option in options
        ]
        assert example[LENGTHS].tolist() == [len(each["input"]) for each in wanted]
        for theirs, ours in NAMES.items():
            if theirs != "target":
                found = example[ours].tolist()
                assert found == [value for each in wanted for value in each[theirs]]


QUESTION = [
    {"text": "passage", "type": 1, "prompt": 4},
    {"text": "question", "type": 2},
    {"text": "answer", "type": 3, "decode": True},
]


def test_dialogue_is_decoded_and_only_the_answers_are_learned() -> None:
    turn = {"type": 2, "decode": True}
    objective = _objective(
        [
            {"text": "a", "type": 1},
            {"text": "b", **turn, "loss": False, "end": False},
            {"text": "c", **turn, "prompt": 3, "begin": False},
            {"text": "d", **turn, "loss": False},
            {"text": "e", **turn},
        ]
    )
    item = _item(objective, a="10", b="11 12", c="13", d="14", e="15")
    example = objective.example(item, RNG)
    first, third = ([VOCAB + PROMPT * n + k for k in range(PROMPT)] for n in (1, 3))
    shown = [*first, BOS, 10, EOS, BOS, 11, 12, *third, 13, EOS, BOS, 14, EOS, BOS, 15, EOS]
    assert example["input_ids"].tolist() == shown
    begin = shown.index(11)
    assert example["context"].tolist() == [n < begin for n in range(len(shown))]
    labels = [IGNORE] * len(shown)
    labels[shown.index(third[-1])] = 13  # there is no <s>: it is predicted from the soft prompt
    labels[shown.index(13)] = EOS
    labels[shown.index(15) - 1], labels[shown.index(15)] = 15, EOS
    assert example["labels"].tolist() == labels
    assert example["segment"].tolist() == [
        0 if token >= VOCAB else 1 if n < PROMPT + 3 else 2 for n, token in enumerate(shown)
    ]
    assert item.size == len(shown)


@pytest.fixture
def opened(tmp_path):
    """A model with the original's weights, and these."""
    state = _cpm_live.weights(SIZES)
    tokens = [*_adapters.WORDS, *"零一二三四五六七八九十"][: SIZES["vocab_size"]]
    opened = open_checkpoint(_cpm_live.release(tmp_path / "release", state, SIZES, tokens))
    return opened, state


TURNS = [
    {"text": "passage", "type": 3},
    {"text": "question", "type": 1, "decode": True, "loss": False},
    {"text": "answer", "type": 2, "decode": True},
]
ROW = {"passage": "天地人山水花鸟", "question": "春夏秋冬", "answer": "日月星云风"}


def _bound(opened, segments: list[dict]) -> cpm_ant_segments.Objective:
    config = cpm_ant_segments.Config(segments=segments, max_length=48)
    return cpm_ant_segments.Objective(config, opened.tokenizer, opened.model.config)


def _reference(state, fields: dict[str, torch.Tensor]) -> torch.Tensor:
    """Return the original's logits of the text; our prompt 1 is its prompt 2."""
    size = SIZES["prompt_length"]
    names = ("ids", "segment", "context")
    values = (fields[name][size:] for name in ("input_ids", "segment", "context"))
    return _cpm_live.logits(state, SIZES, block=2, **dict(zip(names, values, strict=True)))


@pytest.mark.parametrize("segments", [QUESTION, TURNS], ids=["question", "turns"])
def test_loss_is_that_of_the_original_with_its_bias_between_segments(opened, segments) -> None:
    opened, state = opened
    segments = [each | {"prompt": None} for each in segments]
    objective = _bound(opened, segments)
    example = objective.example(_item(objective, **ROW), RNG)
    fields = {name: torch.from_numpy(array) for name, array in example.items()}
    loss = loss_of(objective, opened.model, fields, [len(fields["input_ids"])])
    targets = fields["labels"][SIZES["prompt_length"] :]
    assert (targets != IGNORE).sum() == 6
    summed = torch.nn.functional.cross_entropy(_reference(state, fields), targets, reduction="sum")
    torch.testing.assert_close(only_term(loss).loss_sum, summed, atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("segments", [QUESTION, TURNS], ids=["question", "turns"])
def test_generated_tokens_are_the_likeliest_of_the_original(opened, segments) -> None:
    opened, state = opened
    segments = [each | {"prompt": None} for each in segments]
    objective = _bound(opened, segments)
    given = "[SEP]".join((ROW["passage"], ROW["question"]))
    writer = Writer(opened.model, opened.tokenizer, objective, Settings(max_new_tokens=8))
    (written,) = writer.write([given])
    item = _item(objective, **ROW | {"answer": ""})
    assert item.text == given
    example = objective.example(item, RNG)
    fields = {name: torch.from_numpy(array[:-1]) for name, array in example.items()}
    found: list[int] = []
    while len(found) < 8:
        logits = _reference(state, fields)[-1]
        logits[list(objective.suppress_tokens)] = -torch.inf
        token = int(logits.argmax())
        if token == objective.eos_id:
            break
        found.append(token)
        new = {"input_ids": token, "segment": segments[-1]["type"], "context": False}
        fields = {name: torch.cat([fields[name], torch.tensor([new[name]])]) for name in new}
    assert len(found) > 2
    assert written.outputs[0].text == opened.tokenizer.decode(found)
    (wrong,) = writer.write([ROW["passage"]])
    assert wrong.problem == (
        "has 1 text, but the segments before the last one are 2: {passage}[SEP]{question}"
    )


def test_texts_too_long_lose_the_start_of_the_first_and_the_end_of_the_last() -> None:
    # 4 of the prompt and 3 x (<s>, </s>): 6 left
    objective = _objective(QUESTION, max_length=16)
    for passage, question, answer, kept, cut in (
        ("8 9 10 11", "12 13", "14 15", [[10, 11], [12, 13], [14, 15]], {"passages cut": 1,
         "tokens cut from passages": 2}),
        ("8 9", "10 11 12", "14 15 16 17 18", [[], [12], [14, 15, 16, 17, 18]], {
         "passages cut": 1, "tokens cut from passages": 2, "questions cut": 1,
         "tokens cut from questions": 2}),
        ("8", "9", "14 15 16 17 18 19 20", [[], [], [14, 15, 16, 17, 18, 19]], {
         "passages cut": 1, "tokens cut from passages": 1, "questions cut": 1,
         "tokens cut from questions": 1, "answers cut": 1, "tokens cut from answers": 1}),
    ):  # fmt: skip
        item = _item(objective, passage=passage, question=question, answer=answer)
        assert [part.tolist() for part in item.parts] == kept
        assert item.cut == cut
        assert item.size == len(objective.example(item, RNG)["input_ids"]) <= 16


def test_prompt_of_generation_is_cut_as_an_example_is() -> None:
    objective = _objective(QUESTION, max_length=16)  # 7 for texts and new tokens
    prompt = objective.continue_text(objective.encode_input("8 9 10[SEP]11 12 13"), 3)
    assert prompt.text.tolist() == [10, 11, 12, 13]
    assert prompt.cut == 2
    assert prompt.slots["position"].tolist() == [4 + 4 + 5 + n for n in range(3)]
    assert prompt.slots["segment"].tolist() == [3, 3, 3]
    assert prompt.predicted_from.tolist() == [12, -1, -1]
    assert prompt.given["input_ids"][PROMPT:].tolist() == [BOS, 10, EOS, BOS, 11, 12, 13, EOS, BOS]


def test_unknown_tokens_of_learned_segments_are_no_targets() -> None:
    turns = [{"text": "a", "type": 1}, {"text": "b", "type": 2, "decode": True},
             {"text": "c", "type": 2, "decode": True}]  # fmt: skip
    for learn, targets in ((False, 3), (True, 5)):
        objective = _objective(turns, learn_unknown=learn)
        item = _item(objective, a="1 1", b="1 9", c="1")
        assert objective.unknown(item) == 4
        assert objective.unlearned(item) == (0 if learn else 2)
        labels = objective.example(item, RNG)["labels"]
        assert (labels != IGNORE).sum() == targets


def test_text_with_the_separator_is_refused() -> None:
    objective = _objective(QUESTION)
    row = Row({"passage": "8 [SEP] 9", "question": "9", "answer": "9"}, "x", 1)
    with pytest.raises(RowError) as error:
        objective.texts(row)
    assert error.value.what == "a text has [SEP], which separates the segments of an input"


def test_choices_are_the_texts_of_the_last_segment() -> None:
    segments = [{"text": "a", "type": 1}, {"text": "label", "type": 2, "decode": True}]
    objective = _objective(segments, choices={"0": "20", "1": "21 22"})
    assert _item(objective, a="9", label=1).parts[1].tolist() == [21, 22]
    assert cpm_ant_segments.Objective.named_columns(objective.config) == ("a", "label")
