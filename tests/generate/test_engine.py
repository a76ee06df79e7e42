"""Decoding against `transformers.generate` with the same weights, and against no cache at all."""

from collections.abc import Iterator, Sequence
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from transformers import (
    CpmAntConfig,
    CpmAntForCausalLM,
    LogitsProcessor,
    LogitsProcessorList,
    OpenAIGPTConfig,
    OpenAIGPTLMHeadModel,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from nlpkit.errors import UsageError
from nlpkit.generate import logits as choosing
from nlpkit.generate.engine import generate
from nlpkit.generate.rows import Beam, Rules, compact
from nlpkit.generate.settings import Settings
from nlpkit.generate.texts import Writer
from nlpkit.models import cpm_ant, gpt
from nlpkit.models.cpm_ant import model as cpm_ant_model
from nlpkit.models.gpt import model as gpt_model
from nlpkit.objectives import clm, cpm_ant_nlg
from nlpkit.objectives import cpm_ant as cpm_ant_objective
from tests._formats import to_hf

VOCAB, NEW = 61, 16
PAD, UNK, BOS, EOS = 0, 1, 6, 7
LENGTHS = (3, 9, 1, 5, 14, 2, 7)


class _Tokenizer:
    """A token is a character: `chr(id + 64)`; the special ones are silent."""

    vocab_size, pad_id, unk_id, bos_id, eos_id = VOCAB, PAD, UNK, BOS, EOS

    def encode(self, text: str) -> list[int]:
        return [ord(c) - 64 if 10 <= ord(c) - 64 < VOCAB else UNK for c in text]

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(chr(i + 64) for i in ids if i not in (PAD, BOS, EOS))


def _shaken(model: torch.nn.Module, seed: int, tokens: float, others: float, positions: float):
    """Return the model with weights found by trial: answers that are long, short and various."""
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            std = positions if "position" in name else tokens if "embedding" in name else others
            mean = 1.0 if "norm" in name or ("ln_" in name and "weight" in name) else 0.0
            parameter.copy_(mean + torch.randn(parameter.shape, generator=draw) * std)
    return model.eval()


@pytest.fixture(scope="module")
def gpts():
    config = gpt.Config(hidden_size=32, num_layers=3, num_heads=4, max_positions=64)
    ours = _shaken(gpt_model.Model(config, VOCAB), 5, 0.5, 0.2, 2.0)
    with torch.no_grad():
        ours.token_embedding[[EOS, 19]] = ours.token_embedding[[19, EOS]]  # often chosen
    settings, tensors = to_hf("gpt", config, ours.state_dict())
    theirs = OpenAIGPTLMHeadModel(OpenAIGPTConfig(**settings)).eval()
    theirs.load_state_dict(tensors)
    return ours, clm.Objective(clm.Config(max_length=64), _Tokenizer(), config), theirs


@pytest.fixture(scope="module")
def ants():
    config = cpm_ant.Config(
        hidden_size=32, num_layers=3, num_heads=4, intermediate_size=48, prompt_types=4,
        prompt_length=5, segment_types=4, num_buckets=32, max_distance=40,
    )  # fmt: skip
    ours = _shaken(cpm_ant_model.Model(config, VOCAB), 0, 0.7, 0.4, 3.0)
    settings, tensors = to_hf("cpm_ant", config, ours.state_dict())
    theirs = CpmAntForCausalLM(CpmAntConfig(**settings)).eval()
    theirs.load_state_dict(tensors)
    objective = cpm_ant_objective.Objective(
        cpm_ant_objective.Config(max_length=64, min_piece=1), _Tokenizer(), config
    )
    return ours, objective, theirs


def _texts(seed: int = 0) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    return [rng.integers(10, VOCAB, n).tolist() for n in LENGTHS]


def _ours(parts, texts, batch: int = 32, ends: tuple[int, ...] = (EOS,), new: int = NEW, **given):
    model, objective, _ = parts
    prompts = [objective.continue_text(ids, new) for ids in texts]
    rules = Rules(ends, objective.suppress_tokens)
    return list(generate(model, prompts, Settings(**given), rules, batch=batch))


def _theirs(model, ids: list[int], never: Sequence[int], ends: Sequence[int], **given):
    """Return (new ids without what follows the end token, score) of each sequence."""
    out = model.generate(
        torch.tensor([ids]),
        attention_mask=torch.ones(1, len(ids), dtype=torch.int64),
        max_new_tokens=NEW,
        do_sample=False,
        eos_token_id=list(ends),
        pad_token_id=PAD,
        suppress_tokens=list(never),
        return_dict_in_generate=True,
        output_scores=True,
        **given,
    )
    found = []
    scores = out.sequences_scores if "num_beams" in given else [None] * len(out.sequences)
    for sequence, score in zip(out.sequences, scores, strict=True):
        new = sequence[len(ids) :].tolist()
        stop = min((new.index(end) for end in ends if end in new), default=len(new))
        found.append((tuple(new[:stop]), score))
    return found


def _assert_equal(parts, found, texts, front: list[int], ends=(EOS,), **given) -> None:
    _, objective, theirs = parts
    for ids, answers in zip(texts, found, strict=True):
        expected = _theirs(theirs, front + ids, objective.suppress_tokens, ends, **given)
        assert [answer.ids for answer in answers] == [ids for ids, _ in expected]
        for answer, (_, score) in zip(answers, expected, strict=True):
            if score is not None:
                assert answer.score == pytest.approx(score.item(), rel=1e-4)


def _assert_various(found) -> None:
    """Check that the comparison says something: some end, some do not, none is monotonous."""
    first = [answers[0] for answers in found]
    assert {answer.ended for answer in first} == {True, False}
    assert len({answer.ids for answer in first}) == len(first)
    assert sum(len(set(answer.ids)) for answer in first) >= 5 * len(first)


BEAMS = [
    {"beam": 4, "nbest": 3, "length_penalty": 1.5},
    {"beam": 2, "nbest": 2, "length_penalty": 0.0},
    {"beam": 3, "nbest": 1, "length_penalty": -1.0},
    {"beam": 4, "nbest": 4, "repetition_penalty": 1.3, "min_new_tokens": 4},
]
GREEDY = [{}, {"repetition_penalty": 1.4}, {"min_new_tokens": 6}]
_THEIR_NAMES = {"beam": "num_beams", "nbest": "num_return_sequences"}


@pytest.mark.fast_cases(2)
@pytest.mark.parametrize(
    "batch", [3, *(pytest.param(size, marks=pytest.mark.slow) for size in (1, 32))]
)
@pytest.mark.parametrize(
    "given",
    [
        *(*GREEDY[:2], BEAMS[0], BEAMS[3]),
        *(pytest.param(given, marks=pytest.mark.slow) for given in (GREEDY[2], *BEAMS[1:3])),
    ],
    ids=str,
)
def test_generate_gpt_equals_transformers(gpts, given: dict, batch: int) -> None:
    texts = _texts()
    found = _ours(gpts, texts, batch, **given)
    _assert_equal(gpts, found, texts, [], **{_THEIR_NAMES.get(k, k): v for k, v in given.items()})


@pytest.mark.parametrize("given", [{}, {"beam": 3, "nbest": 3}], ids=str)
def test_generate_gpt_with_two_end_tokens_equals_transformers(gpts, given: dict) -> None:
    texts, ends = _texts(1), (EOS, 33)
    found = _ours(gpts, texts, ends=ends, **given)
    theirs = {_THEIR_NAMES.get(k, k): v for k, v in given.items()}
    _assert_equal(gpts, found, texts, [], ends, **theirs)


@pytest.mark.parametrize(
    "given",
    [BEAMS[1], *(pytest.param(given, marks=pytest.mark.slow) for given in (GREEDY[0], BEAMS[0]))],
    ids=str,
)
def test_generate_cpm_ant_equals_transformers_with_its_cache(ants, given: dict) -> None:
    texts = _texts()
    found = _ours(ants, texts, **given)
    _assert_equal(
        ants, found, texts, [BOS], **{_THEIR_NAMES.get(k, k): v for k, v in given.items()}
    )


class _PenaltyOfCpmLive(LogitsProcessor):
    """`repetition_penalty` of OpenBMB/CPM-Live (cpm_live/generation/utils.py), row by row."""

    def __init__(self, penalty: float, start: int, window: int | None):
        self.penalty, self.start, self.window = penalty, start, window

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        scores = scores.clone()
        for row, ids in zip(scores, input_ids.tolist(), strict=True):
            first = max(self.start, len(ids) - self.window) if self.window else self.start
            for token in {*ids[first:]}:
                row[token] *= self.penalty if row[token] < 0 else 1 / self.penalty
        return scores


@pytest.mark.fast_cases(1)
@pytest.mark.parametrize(
    ("family", "window", "beams"),
    [
        ("ants", None, {}),
        ("ants", 3, {"beam": 3, "nbest": 3}),
        ("gpts", 3, {}),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (
                ("ants", None, {"beam": 3, "nbest": 3}),
                ("ants", 1, {}),
                ("gpts", None, {}),
                ("gpts", 1, {"beam": 3, "nbest": 3}),
            )
        ),
    ],
)
def test_generate_penalty_counts_what_the_original_counts(
    family: str, window: int | None, beams: dict, request: pytest.FixtureRequest
) -> None:
    # CPM-Ant's own output alone; GPT's text, too, as in transformers. `<s>` is never chosen.
    parts = request.getfixturevalue(family)
    front = [BOS] if family == "ants" else []
    texts = _texts()
    found = _ours(parts, texts, repetition_penalty=1.5, repetition_window=window, **beams)
    names = {_THEIR_NAMES[name]: value for name, value in beams.items()}
    for ids, answers in zip(texts, found, strict=True):
        start = len(front + ids) if front else 0
        penalty = LogitsProcessorList([_PenaltyOfCpmLive(1.5, start, window)])
        _assert_equal(parts, [answers], [ids], front, logits_processor=penalty, **names)
    other = _ours(parts, texts, repetition_penalty=1.5, repetition_window=2, **beams)
    assert [answers[0].ids for answers in other] != [answers[0].ids for answers in found]


def test_generate_answers_of_the_test_models_are_various(gpts, ants) -> None:
    _assert_various(_ours(gpts, _texts()))
    _assert_various(_ours(ants, _texts()))


SAMPLED = [
    {"temperature": 0.8},
    {"top_k": 5, "seed": 3},
    {"top_p": 0.9, "nbest": 3, "repetition_penalty": 1.2},
]


@pytest.mark.parametrize(
    "given",
    [BEAMS[0], *(pytest.param(given, marks=pytest.mark.slow) for given in SAMPLED + GREEDY[1:2])],
    ids=str,
)
def test_generate_alone_equals_in_a_batch(ants, given: dict) -> None:
    texts = _texts() + _texts(1)
    alone = _ours(ants, texts, batch=1, **given)
    for batch in (2, 5, 32):
        found = _ours(ants, texts, batch=batch, **given)
        assert [[a.ids for a in each] for each in found] == [
            [a.ids for a in each] for each in alone
        ]
        for each, other in zip(found, alone, strict=True):
            assert [a.score for a in each] == pytest.approx([a.score for a in other], rel=1e-4)


def test_generate_seed_and_number_of_the_input_decide_the_sample(ants) -> None:
    same = [_texts()[1]] * 3
    first = _ours(ants, same, temperature=1.0)
    assert len({answers[0].ids for answers in first}) == 3
    assert first == _ours(ants, same, temperature=1.0)
    assert first != _ours(ants, same, temperature=1.0, seed=1)


def test_generate_samples_of_one_input_differ_and_are_sorted(gpts) -> None:
    for answers in _ours(gpts, _texts(), temperature=2.0, nbest=5):
        assert len({answer.ids for answer in answers}) > 1
        scores = [answer.score for answer in answers]
        assert scores == sorted(scores, reverse=True)


@pytest.mark.parametrize("given", [{}, {"temperature": 1.0}], ids=str)
def test_generate_no_end_token_before_the_least_then_at_once(gpts, given: dict) -> None:
    # With half of the vocabulary as end tokens, an answer ends as soon as it may.
    ends = tuple(range(VOCAB // 3, VOCAB - VOCAB // 6))
    short = _ours(gpts, _texts() * 3, ends=ends, **given)
    assert min(len(answers[0].ids) for answers in short) == 0
    found = _ours(gpts, _texts() * 3, ends=ends, min_new_tokens=4, **given)
    # Four tokens, then the end token, which is not in `ids`.
    assert min(len(answers[0].ids) for answers in found) == 4


def test_generate_score_is_the_log_probability(gpts) -> None:
    model, _, _ = gpts
    (text,) = _texts()[1:2]
    (answer,) = _ours(gpts, [text], ends=(), min_new_tokens=NEW)[0]
    whole = [*text, *answer.ids]
    logits = model.logits(model((len(whole),), torch.tensor(whole)))
    each = logits.log_softmax(-1)[range(len(text) - 1, len(whole) - 1), list(answer.ids)]
    assert answer.score == pytest.approx(each.sum().item(), rel=1e-4)


def _filled_without_cache(model, objective, parts, blanks) -> list[int]:
    """Fill blank after blank, the whole text computed anew each time, as in training."""
    soft, unfilled = objective.prompt_length, -1
    text = list(parts[0])
    for blank, part in zip(blanks, parts[1:], strict=True):
        text += [unfilled] * blank + list(part)
    text = [BOS, *text, EOS]
    holes = [i for i, token in enumerate(text) if token == unfilled]
    size = soft + len(text)
    segment = torch.ones(size, dtype=torch.int64)
    segment[:soft] = 0
    context = torch.ones(size, dtype=torch.bool)
    context[soft + torch.tensor(holes)] = False
    prompt = torch.as_tensor(objective.soft[0])
    for hole in holes:
        # What is not filled yet may be anything: nothing before it sees it.
        ids = torch.tensor([token if token != unfilled else 11 for token in text])
        hidden = model((size,), torch.cat([prompt, ids]), segment, torch.arange(size), context)
        logits = model.logits(hidden[soft + hole - 1])
        logits[[*objective.suppress_tokens, EOS]] = -torch.inf
        text[hole] = int(logits.argmax())
    return [text[hole] for hole in holes]


BLANKS = [
    ([[11, 12, 13], [20, 21]], [1]),
    ([[], [20, 21, 22]], [3]),
    ([[11, 12], []], [4]),
    ([[11], [30], [], [40, 41, 42], []], [2, 1, 2, 3]),
    ([[], []], [5]),
]


def test_generate_blanks_equal_computing_the_whole_text_each_time(ants) -> None:
    model, objective, _ = ants
    prompts = [objective.fill_blanks(*case) for case in BLANKS]
    # Beside texts that go on, which have other slots.
    mixed = [prompts[0], objective.continue_text([11, 12], 6), *prompts[1:]]
    for batch in (1, 32):
        rules = Rules(objective.eos_token_ids, objective.suppress_tokens)
        found = list(generate(model, mixed, Settings(), rules, batch=batch))
        del found[1]
        for case, (answer,) in zip(BLANKS, found, strict=True):
            assert list(answer.ids) == _filled_without_cache(model, objective, *case)


def test_generate_blanks_by_beams_are_at_least_as_probable(ants) -> None:
    model, objective, _ = ants
    prompts = [objective.fill_blanks(*case) for case in BLANKS[3:]]
    rules = Rules(objective.eos_token_ids, objective.suppress_tokens)
    greedy = list(generate(model, prompts, Settings(), rules))
    settings = Settings(beam=8, nbest=2, length_penalty=0.0)
    for (plain,), beams in zip(greedy, generate(model, prompts, settings, rules), strict=True):
        assert len(beams[0].ids) == len(plain.ids)
        assert beams[0].score >= plain.score - 1e-4
        assert beams[0].score >= beams[1].score


def test_prompt_of_blanks_has_the_positions_of_the_whole_text(ants) -> None:
    # By hand: <s> 11 _ _ 12 _ </s> behind 5 soft prompt tokens.
    prompt = ants[1].fill_blanks([[11], [12], []], [2, 1])
    assert prompt.given["input_ids"].tolist()[5:] == [BOS, 11, 12, EOS]
    assert prompt.given["position"].tolist() == [0, 1, 2, 3, 4, 5, 6, 9, 11]
    assert prompt.given["segment"].tolist() == [0] * 5 + [1] * 4
    assert prompt.given["context"].all()
    assert prompt.slots["position"].tolist() == [7, 8, 10]
    assert prompt.slots["segment"].tolist() == [1, 1, 1]
    assert not prompt.slots["context"].any()
    assert prompt.predicted_from.tolist() == [6, -1, 7]  # 11; the first blank; 12
    assert not prompt.open


def test_prompt_to_go_on_keeps_the_end_of_a_long_text(ants) -> None:
    # 64 - 5 soft - <s> = 58 tokens for text and slots.
    objective = ants[1]
    prompt = objective.continue_text(list(range(100)), 20)
    assert prompt.given["input_ids"].tolist()[:5] == list(range(VOCAB + 5, VOCAB + 10))
    assert prompt.given["input_ids"].tolist()[5:] == [BOS, *range(62, 100)]
    assert prompt.cut == 62
    assert prompt.slots["position"].tolist() == list(range(44, 64))
    assert set(prompt.slots["segment"]) == {2}
    assert objective.continue_text([], 3).given["input_ids"].tolist()[5:] == [BOS]


def test_prompt_of_too_long_blanks_loses_the_start_then_the_end(ants) -> None:
    objective = ants[1]  # 64 - 5 - 2 = 57 tokens
    prompt = objective.fill_blanks([list(range(10, 40)), [50] * 20, [51] * 30], [1, 2])
    assert prompt.cut == 26
    assert prompt.text.tolist() == [*range(36, 40), *[50] * 20, *[51] * 30]
    prompt = objective.fill_blanks([[10], [50] * 40, [51] * 30], [1, 2])
    assert prompt.cut == 17
    assert prompt.text.tolist() == [*[50] * 40, *[51] * 14]
    with pytest.raises(ValueError, match="61 tokens from the first blank to the last; at most 57"):
        objective.fill_blanks([[], [50] * 58, []], [1, 2])


def test_prompt_of_clm_begins_as_documents_do() -> None:
    config = gpt.Config(max_positions=16)

    def prompt(ids: list[int], contiguous: bool, **special: int | None):
        tokenizer = SimpleNamespace(bos_id=None, eos_id=None, pad_id=None, unk_id=None, **{})
        vars(tokenizer).update(special)
        objective = clm.Objective(
            clm.Config(max_length=16, contiguous=contiguous), tokenizer, config
        )
        return objective.continue_text(ids, 4)

    assert prompt([3], True, bos_id=6, eos_id=7).given["input_ids"].tolist() == [3]
    assert prompt([], True, bos_id=6, eos_id=7).given["input_ids"].tolist() == [7]
    assert prompt([3], False, bos_id=6, eos_id=7).given["input_ids"].tolist() == [6, 3]
    long = prompt(list(range(20, 40)), False, bos_id=6)
    assert long.given["input_ids"].tolist() == [6, *range(29, 40)]
    assert long.cut == 9
    with pytest.raises(ValueError, match="no token to begin with"):
        prompt([], True)


def test_prompt_of_nlg_is_its_examples_context(ants) -> None:
    model = ants[0]
    objective = cpm_ant_nlg.Objective(
        cpm_ant_nlg.Config(max_length=40, task_id=3), _Tokenizer(), model.config
    )
    prompt = objective.continue_text([11, 12, 13], 4)
    item = SimpleNamespace(parts=(np.array([11, 12, 13]), np.array([20, 21, 22])))
    example = objective.example(item, np.random.default_rng(0))
    for name, value in prompt.given.items():
        assert value.tolist() == example[name][:9].tolist()
    for name, value in prompt.slots.items():
        assert value.tolist() == example[name][9:13].tolist()


def test_generate_does_not_wait_while_there_is_work(gpts) -> None:
    model, objective, _ = gpts
    events: list[str] = []
    there = {"ready": True}

    def prompts() -> Iterator:
        for number, ids in enumerate(_texts()[:4]):
            events.append(f"read {number}")
            there["ready"] = number == 0  # from the second on, someone has to wait
            yield objective.continue_text(ids, 2)

    answers = generate(model, prompts(), Settings(), Rules(), batch=8, ready=lambda: there["ready"])
    for number, _ in enumerate(answers):
        assert not torch.is_inference_mode_enabled()  # it is not the caller's
        events.append(f"answer {number}")
    order = ["read 0", "read 1", "answer 0", "answer 1", "read 2", "answer 2", "read 3", "answer 3"]
    assert events == order


def test_generate_reads_no_more_than_a_batch_ahead(gpts) -> None:
    model, objective, _ = gpts
    read = 0

    def prompts() -> Iterator:
        nonlocal read
        for ids in _texts() * 3:
            read += 1
            yield objective.continue_text(ids, 3)

    for number, _ in enumerate(generate(model, prompts(), Settings(), Rules(), batch=4), 1):
        assert read <= number + 7
    assert number == read == 21


def test_generate_none_is_answered_with_nothing_in_its_place(gpts) -> None:
    model, objective, _ = gpts
    one, two = (objective.continue_text(ids, 3) for ids in _texts()[:2])
    for given in ({}, {"temperature": 1.0, "nbest": 2}):
        prompts = [None, one, None, two, None]
        found = list(generate(model, prompts, Settings(**given), Rules(), batch=2))
        assert [len(answers) for answers in found] == [0, given.get("nbest", 1)] * 2 + [0]
    assert list(generate(model, [], Settings(), Rules())) == []


def test_generate_beam_too_wide_for_the_vocabulary_is_refused(gpts) -> None:
    with pytest.raises(UsageError, match="--beam: 40 is too many for 61 tokens; at most 30"):
        _ours(gpts, _texts(), beam=40)
    model, objective, _ = gpts
    # Each beam needs two candidates, one of which may be the end token.
    with pytest.raises(UsageError, match=r"^--beam: 31 is too many for 61 tokens; at most 30$"):
        Writer(model, _Tokenizer(), objective, Settings(beam=31))


def test_generate_stop_text_in_every_beam_ends_the_search(gpts) -> None:
    model, objective, _ = gpts
    prompts = [objective.continue_text(ids, NEW) for ids in _texts()]
    rules = Rules((), objective.suppress_tokens, stops=lambda _, ids: len(ids) == 3)
    for answers in generate(model, prompts, Settings(beam=4, nbest=4), rules):
        assert [len(answer.ids) for answer in answers] == [3] * 4
        assert all(answer.ended for answer in answers)


def test_penalty_of_gnmt_is_that_of_the_paper(gpts) -> None:
    # Wu et al. 2016, eq. 14, with the log-probabilities that a penalty of 0 leaves as they are.
    wide = {"beam": 8, "nbest": 8}
    sums = _ours(gpts, _texts(), length_penalty=0.0, **wide)
    found = _ours(gpts, _texts(), length_penalty=0.6, length_penalty_form="gnmt", **wide)
    compared = set()
    for answers, plain in zip(found, sums, strict=True):
        assert [one.score for one in answers] == sorted((a.score for a in answers), reverse=True)
        total = {one.ids: one.score for one in plain}
        for answer in [one for one in answers if one.ids in total]:
            length = len(answer.ids) + answer.ended  # with the end token
            expected = total[answer.ids] / ((5 + length) ** 0.6 / 6**0.6)
            assert answer.score == pytest.approx(expected, rel=1e-5)
            compared.add(length)
    assert len(compared) > 2
    assert Settings(length_penalty=0.6, beam=2).divisor(3) == 3**0.6


def test_beam_that_stop_texts_leave_alone_goes_on_beside_dead_ones() -> None:
    beam = Beam(3, float, 5)
    scores = (-1.0, -2.0, -3.0, -4.0, -5.0, -6.0)
    candidates = [(score, 0, token) for token, score in enumerate(scores)]
    parents = beam.step(candidates, lambda token: False, lambda ids: ids[-1] != 1)
    assert not beam.done
    assert parents == [0, 0, 0]
    assert beam.running == [(-2.0, (1,)), (-np.inf, (1,)), (-np.inf, (1,))]
    # Those of a rank below the third are no answers.
    assert [answer.ids for answer in beam.finished] == [(0,), (2,)]


def test_compact_moves_the_last_into_the_gaps() -> None:
    assert compact([True, False, True, False, True]) == [0, 4, 2]
    assert compact([False, True]) == [1]
    assert compact([False, False]) == []
    assert compact([True, True]) == [0, 1]


@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p"),
    [(1.0, None, None), (0.7, 6, None), (1.0, None, 0.8), (1.5, 9, 0.5), (1.0, None, 1.0),
     (1.0, 500, 0.01)],
)  # fmt: skip
def test_draw_has_the_distribution_of_transformers(temperature, top_k, top_p) -> None:
    draw = torch.Generator().manual_seed(1)
    logits = torch.randn(3, 400, generator=draw) * torch.tensor([0.1, 1.0, 3.0])[:, None]
    warpers = LogitsProcessorList([TemperatureLogitsWarper(temperature)])
    if top_k:
        warpers.append(TopKLogitsWarper(top_k))
    if top_p:
        warpers.append(TopPLogitsWarper(top_p))
    expected = warpers(None, logits.clone()).softmax(-1)
    values, tokens = choosing.candidates(logits / temperature, top_k, top_p)
    found = torch.zeros_like(logits).scatter(1, tokens, values.softmax(-1))
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-4)
    # Evenly spaced numbers land on each token in proportion to its probability.
    count = 4000
    uniform = (torch.arange(count, dtype=torch.float64) + 0.5) / count
    for row in range(3):
        given = {"temperature": temperature, "top_k": top_k, "top_p": top_p}
        drawn = choosing.draw(logits[row].expand(count, -1), uniform, **given)
        share = torch.bincount(drawn, minlength=400) / count
        assert (share - expected[row]).abs().max() <= 1 / count


@pytest.mark.parametrize("top_k", [None, 4])
@pytest.mark.parametrize(("top_p", "kept"), [(0.5, [1]), (0.75, [1, 0]), (0.76, [1, 0, 2])])
def test_top_p_that_is_reached_exactly_takes_no_token_more(top_p, kept, top_k) -> None:
    # Probabilities of 1/4, 1/2, 1/7 and 3/28: the sums 1/2 and 3/4 are exact in float32.
    logits = torch.tensor([[1 / 4, 1 / 2, 1 / 7, 3 / 28]]).log()
    values, tokens = choosing.candidates(logits, top_k, top_p)
    assert tokens[values > -torch.inf].tolist() == kept


def test_draw_at_the_edges_never_takes_what_is_left_out() -> None:
    logits = torch.tensor([[0.0, -torch.inf, 1.0, -torch.inf]])
    for number in (0.0, 1 - 1e-16, 1.0):
        token = choosing.draw(logits, torch.tensor([number], dtype=torch.float64), top_k=4)
        assert token.item() in (0, 2)


def test_penalize_equals_transformers() -> None:
    draw = torch.Generator().manual_seed(0)
    logits = torch.randn(4, 30, generator=draw)
    ids = torch.randint(0, 30, (4, 8), generator=draw)
    expected = RepetitionPenaltyLogitsProcessor(1.7)(ids, logits.clone())
    torch.testing.assert_close(choosing.penalize(logits, list(ids.numpy()), 1.7), expected)


def _writer(parts, **given) -> Writer:
    model, objective, _ = parts
    return Writer(model, _Tokenizer(), objective, Settings(**given))


def test_writer_fills_blanks_in_place_and_keeps_the_rest_of_the_text(ants) -> None:
    writer = _writer(ants, max_new_tokens=4)
    texts = ["ab?<blank>cd", "<blank:3>", "ab", "x<blank>y<blank:2>z", "x<blank:0>", "<blink>"]
    found = [written.outputs[0] for written in writer.write(texts)]
    assert [output.tokens for output in found if output.whole] == [1, 3, 3]
    assert (found[0].text[:3], found[0].text[4:]) == ("ab?", "cd")
    assert len(found[1].text) == 3
    assert [output.whole for output in found] == [True, True, False, True, False, False]
    assert (found[3].text[0], found[3].text[2], found[3].text[5:]) == ("x", "y", "z")
    assert writer.counts["inputs"] == 6
    # No token stands for these characters.
    assert writer.counts["unknown tokens"] == 1 + len("<:0>") + len("<>")


def test_writer_with_a_marker_of_ones_own(ants) -> None:
    (written,) = _writer(ants, blank="__").write(["ab__cd____"])
    assert written.outputs[0].tokens == 3
    (written,) = _writer(ants, blank="[m]").write(["ab[m]cd[m:2]__"])
    assert written.outputs[0].tokens == 3


def test_writer_counts_inputs_that_were_cut(ants) -> None:
    writer = _writer(ants, max_new_tokens=18)
    list(writer.write(["a" * 40, "a" * 50, "a" * 41]))
    assert (writer.counts["cut inputs"], writer.counts["cut tokens"]) == (2, 11)


def test_writer_ends_before_a_stop_text(gpts) -> None:
    (plain,) = _writer(gpts, max_new_tokens=12).write(["abcdefg"])
    text = plain.outputs[0].text
    assert len(text) > 4
    stop = text[2:4]
    (cut,) = _writer(gpts, max_new_tokens=12, stop=["no such", stop]).write(["abcdefg"])
    assert cut.outputs[0].text == text[: text.index(stop)]
    assert cut.outputs[0].ended
    assert cut.outputs[0].tokens == text.index(stop) + 2


class _Words(_Tokenizer):
    """A token is a word: spaces stand between two, but not before the first."""

    def decode(self, ids: Sequence[int]) -> str:
        return " ".join(super().decode(ids))


def test_writer_ends_before_a_stop_text_that_begins_with_the_space_after_the_input(gpts) -> None:
    model, objective, _ = gpts

    def write(**given):
        settings = Settings(max_new_tokens=12, **given)
        (found,) = Writer(model, _Words(), objective, settings).write(["abcdefg"])
        return found.outputs[0]

    first = write(min_new_tokens=12).text[:2]
    assert first[0] == " "
    found = write(stop=[first])
    assert (found.text, found.tokens, found.ended) == ("", 1, True)


@pytest.mark.parametrize("beam", [1, 2])
def test_writer_has_the_least_number_of_tokens_before_a_stop_text(gpts, beam: int) -> None:
    def write(**given) -> str:
        (found,) = _writer(gpts, beam=beam, max_new_tokens=12, **given).write(["abcdefg"])
        return found.outputs[0].text

    text = write(min_new_tokens=12)
    # What stands among the first six tokens, or reaches into them, ends nothing.
    stops = [text[0], text[4:6], text[5:7], text[7:9]]
    where = min(text.find(stop, 6) for stop in stops if text.find(stop, 6) >= 0)
    assert 6 <= where < 12
    assert write(min_new_tokens=6, stop=stops) == text[:where]


@pytest.mark.parametrize("beam", [1, 3])
def test_writer_fills_all_blanks_whatever_the_stop_texts_are(ants, beam: int) -> None:
    text = "ab<blank:2>cd<blank:3>"
    (plain,) = _writer(ants, beam=beam).write([text])
    whole = plain.outputs[0].text
    # In the first blank, and across both.
    stops = [whole[2], whole[3] + whole[6]]
    (stopped,) = _writer(ants, beam=beam, stop=stops).write([text])
    assert stopped.outputs == plain.outputs


def test_writer_says_why_an_input_has_no_answer(gpts) -> None:
    model, _, _ = gpts
    tokenizer = _Tokenizer()
    tokenizer.eos_id = tokenizer.bos_id = None
    objective = clm.Objective(clm.Config(max_length=64), tokenizer, model.config)
    writer = Writer(model, tokenizer, objective, Settings(max_new_tokens=3))
    first, second = writer.write(["", "abc"])
    assert first.outputs == []
    assert first.problem == "the text is empty, and the vocabulary has no token to begin with"
    assert len(second.outputs) == 1


def test_writer_puts_the_space_between_input_and_output(gpts) -> None:
    class Spaced(_Tokenizer):
        def decode(self, ids: Sequence[int]) -> str:
            return " ".join(super(Spaced, self).decode([i]) for i in ids)

    model, objective, _ = gpts
    (written,) = Writer(model, Spaced(), objective, Settings(max_new_tokens=3)).write(["ab"])
    assert written.outputs[0].text.startswith(" ")
    assert len(written.outputs[0].text) == 6


def test_writer_too_many_new_tokens_are_refused(ants) -> None:
    with pytest.raises(UsageError, match=r"--max-new-tokens: 58 is too many; the model takes 58"):
        _writer(ants, max_new_tokens=58)
    assert _writer(ants).max_new_tokens == 29
    with pytest.raises(UsageError, match=r"--min-new-tokens: 40 is too many.*29 are to be added"):
        _writer(ants, min_new_tokens=40)


def test_writer_of_a_model_of_single_tokens_is_refused(gpts) -> None:
    objective = clm.Objective(clm.Config(max_length=1), _Tokenizer(), gpts[0].config)
    with pytest.raises(UsageError, match="--max-new-tokens: 1 is too many; the model takes 1 tok"):
        Writer(gpts[0], _Tokenizer(), objective, Settings())


def test_writer_of_an_objective_that_writes_no_text_is_refused(ants) -> None:
    with pytest.raises(UsageError, match="does not generate text"):
        Writer(ants[0], _Tokenizer(), SimpleNamespace(objectives=()), Settings())


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"beam": 2, "top_k": 3}, "beam: excludes"),
        ({"nbest": 3, "beam": 2}, "nbest: 3 answers need a beam of at least 3"),
        (
            {"max_new_tokens": 2, "min_new_tokens": 3},
            "min_new_tokens: 3 is more than --max-new-tokens 2",
        ),
        ({"stop": [""]}, "stop: an empty text"),
        ({"temperature": 0.0}, "greater than or equal to 0.0000000001"),
        ({"top_p": 1.5}, "less than or equal to 1"),
        ({"blank": ""}, "at least 1 character"),
    ],
)
def test_settings_that_make_no_sense_are_refused(given: dict, message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        Settings(**given)
