"""GLM's blanks: the example of the paper, counts of draws, attention and states by hand."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats
from transformers import GPT2Config, GPT2Model

from nlpkit import recipe
from nlpkit.attention.choice import AttentionChoice
from nlpkit.attention.masks import dense_mask
from nlpkit.checkpoints import hf_writing
from nlpkit.contracts.batch import IGNORE
from nlpkit.contracts.request import Layout
from nlpkit.data.pack import collate
from nlpkit.errors import RecipeError
from nlpkit.generate.engine import generate
from nlpkit.generate.rows import Rules
from nlpkit.generate.settings import Settings
from nlpkit.generate.texts import Writer
from nlpkit.models import gpt2
from nlpkit.models.gpt2 import model as gpt2_model
from nlpkit.objectives import blank_infilling
from nlpkit.objectives.examples.text import forward
from nlpkit.recipe.fit import missing_needs
from tests import _masked
from tests._formats import from_hf, to_hf

PREFIX = (AttentionChoice.of("prefix"),)
PLAIN = gpt2.Config(hidden_size=16, num_layers=2, num_heads=2, max_positions=512)
CONFIG = PLAIN.model_copy(update={"attention": PREFIX})
MARKS = ("[MASK]", blank_infilling.START, blank_infilling.END)
TOKENIZER = _masked.tokenizer().extended(MARKS)
MASK, START, END = (TOKENIZER.special_id(mark) for mark in MARKS)


def _objective(**settings) -> blank_infilling.Objective:
    config = blank_infilling.Config(**{"max_length": 64} | settings)
    return blank_infilling.Objective(config, TOKENIZER, CONFIG)


def _model(backend: str = "auto") -> gpt2_model.Model:
    torch.manual_seed(0)
    model = gpt2_model.Model(CONFIG, TOKENIZER.vocab_size, backend).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return model


def _batch(objective: blank_infilling.Objective, examples: list[dict[str, np.ndarray]]):
    batch = collate(examples, objective.fields)
    batch.fields = {name: torch.from_numpy(value) for name, value in batch.fields.items()}
    return batch


def test_example_of_the_paper() -> None:
    # Du et al. 2022, fig. 2: x1 … x6, the spans x3 and x5 x6, of which the second is first in B.
    # There positions in A begin with 1.
    x1, x2, x3, x4, x5, x6 = 21, 22, 23, 24, 25, 26
    text = np.array([x1, x2, x3, x4, x5, x6])
    made = _objective().build(text, np.array([2, 4]), np.array([3, 6]), np.array([1, 0]))
    assert made["input_ids"].tolist() == [x1, x2, MASK, x4, MASK, START, x5, x6, START, x3]
    assert made["position_ids"].tolist() == [0, 1, 2, 3, 4, 4, 4, 4, 2, 2]
    assert made["span_position_ids"].tolist() == [0, 0, 0, 0, 0, 1, 2, 3, 1, 2]
    assert made["labels"].tolist() == [IGNORE] * 5 + [x5, x6, END, x3, END]
    assert made["context"].tolist() == [True] * 5 + [False] * 5
    layout = Layout((10,)).with_fields({"context": torch.from_numpy(made["context"])})
    seen = dense_mask(PREFIX[0], layout).numpy()
    assert seen[:5, :5].all()  # A sees A
    assert not seen[:5, 5:].any()
    assert seen[5:, :5].all()  # B sees A and its left
    assert np.array_equal(seen[5:, 5:], np.tri(5, dtype=np.bool_))


@pytest.mark.parametrize("size", [1, 2, 3, 7, 20, 50])
@pytest.mark.parametrize("rate", [0.15, 0.5])
def test_spans_have_the_share_of_the_tokens_and_text_between_them(size: int, rate: float) -> None:
    objective = _objective(rate=rate)
    noise = math.ceil(round(rate * size, 6))
    for seed in range(40):
        starts, stops = objective.draw_spans(size, np.random.default_rng(seed))
        assert (stops > starts).all()
        assert (starts[1:] > stops[:-1]).all()
        assert starts[0] >= 0
        assert stops[-1] <= size
        assert (stops - starts).sum() <= noise
        if len(starts) < objective.most_spans(size):
            assert (stops - starts).sum() == noise


def test_lengths_are_poisson_numbers_above_zero_and_all_places_are_as_likely() -> None:
    objective = _objective(max_length=512)
    rng, lengths, firsts = np.random.default_rng(0), [], np.zeros(4)
    for _ in range(600):
        starts, stops = objective.draw_spans(440, rng)
        lengths.append(stops - starts)
    found = np.bincount(np.concatenate(lengths), minlength=8)[1:8]
    wanted = stats.poisson.pmf(np.arange(1, 8), 3.0) / (1 - math.exp(-3.0))
    count = sum(map(len, lengths))
    for share, expected in zip(found / count, wanted, strict=True):
        # One span of each example, of about 21, is cut.
        assert share == pytest.approx(expected, abs=_masked.bound_of(expected, count) + 0.02)
    assert np.mean([len(each) for each in lengths]) == pytest.approx(66 / 3.157, rel=0.05)
    for _ in range(4000):  # a span of one token among four
        starts, _ = objective.draw_spans(4, rng)
        firsts[starts[0]] += 1
    for share in firsts / 4000:
        assert share == pytest.approx(0.25, abs=_masked.bound_of(0.25, 4000))


def test_spans_come_in_random_order_and_the_text_comes_back() -> None:
    objective, rng, orders = _objective(rate=0.3), np.random.default_rng(0), set()
    for _ in range(200):
        piece = _masked.plain(20, rng)
        example = objective.example(piece, rng)
        (text,) = objective.restore(example)
        assert np.array_equal(text, piece)
        begins = example["position_ids"][example["input_ids"] == START]
        masks = example["position_ids"][example["input_ids"] == MASK]
        assert sorted(begins.tolist()) == masks.tolist()
        if len(begins) == 2:
            orders.add(tuple(np.argsort(begins).tolist()))
        targets = example["labels"][example["labels"] != IGNORE]
        assert (targets == END).sum() == len(begins)
        assert len(targets) == 6 + len(begins)
    assert orders == {(0, 1), (1, 0)}


def test_example_depends_on_its_own_draws_alone() -> None:
    objective, piece = _objective(document=0.5), _masked.plain(30, np.random.default_rng(0))
    torch.manual_seed(1)
    one = [objective.example(piece, np.random.default_rng(seed)) for seed in range(8)]
    np.random.default_rng(9).random()
    torch.manual_seed(2)
    two = [objective.example(piece, np.random.default_rng(seed)) for seed in reversed(range(8))]
    for first, second in zip(one, reversed(two), strict=True):
        for name, values in first.items():
            assert np.array_equal(values, second[name])


def test_documents_have_one_long_span_and_half_of_them_end_the_text() -> None:
    objective, rng, shares, ends = _objective(document=1.0), np.random.default_rng(0), [], 0
    for _ in range(2000):
        example = objective.example(_masked.plain(40, rng), rng)
        assert (example["input_ids"] == START).sum() == 1
        size = int((example["labels"] != IGNORE).sum()) - 1
        shares.append(size / 40)
        (place,) = example["position_ids"][example["input_ids"] == MASK]
        ends += size < 40 and place == 40 - size
    assert min(shares) == 0.5
    assert max(shares) == 1.0
    assert np.mean(shares) == pytest.approx(0.75, abs=0.02)
    # Where the place is drawn, it is the end in 1 of rest + 1 cases.
    other = np.mean([1 / (rest + 1) for rest in range(1, 21)])
    assert ends / 2000 == pytest.approx((0.5 + 0.5 * other) * 20 / 21, abs=0.06)


@pytest.mark.parametrize("settings", [{}, {"rate": 0.5, "mean_span": 0.5}, {"document": 0.5}])
def test_examples_are_at_most_as_long_as_planned_and_nearly_so(settings: dict) -> None:
    objective, rng = _objective(**settings), np.random.default_rng(0)
    assert objective.length(np.array([objective.piece]))[0] <= 64
    assert objective.length(np.array([objective.piece + 1]))[0] > 64
    for size in (1, 2, 5, objective.piece):
        planned = int(objective.length(np.array([size]))[0])
        for _ in range(50):
            made = len(objective.example(_masked.plain(size, rng), rng)["labels"])
            assert 0 <= planned - made <= objective.max_shrink
    usual = _objective(max_length=512)
    sizes = [len(usual.example(_masked.plain(450, rng), rng)["labels"]) for _ in range(50)]
    assert np.mean(sizes) / usual.length(np.array([450]))[0] > 0.95


def test_states_equal_transformers_with_the_mask_and_both_positions() -> None:
    """GPT-2 of transformers, given the sum of the embeddings, positions and a dense mask."""
    objective, rng = _objective(rate=0.3), np.random.default_rng(0)
    examples = [objective.example(_masked.plain(size, rng), rng) for size in (30, 4, 17)]
    batch = _batch(objective, examples)
    settings, tensors = to_hf("gpt2", CONFIG, _model().state_dict())
    theirs = GPT2Model(GPT2Config(**settings, attn_implementation="eager")).eval()
    body = {n.removeprefix("transformer."): tensor for n, tensor in tensors.items()}
    second = body.pop("wspe.weight")
    report = theirs.load_state_dict(body, strict=False)
    assert not report.missing_keys
    assert report.unexpected_keys == ["lm_head.weight"]
    wanted = []
    for example in examples:
        fields = {name: torch.from_numpy(values) for name, values in example.items()}
        size, context = len(fields["labels"]), fields["context"]
        row, column = torch.arange(size)[:, None], torch.arange(size)
        seen = context | (~context[:, None] & (column <= row))
        mask = torch.zeros(size, size).masked_fill(~seen, torch.finfo(torch.float32).min)
        words = theirs.wte(fields["input_ids"]) + second[fields["span_position_ids"]]
        with torch.no_grad():
            out = theirs(
                inputs_embeds=words[None],
                position_ids=fields["position_ids"][None],
                attention_mask=mask[None, None],
            )
        wanted.append(out.last_hidden_state[0])
    for backend in ("reference", "sdpa", "cpu_flash"):
        model = _model(backend)
        model.eval()
        with torch.no_grad():
            states = model(batch.lengths, **{n: batch.fields[n] for n in objective.inputs})
        torch.testing.assert_close(states, torch.cat(wanted), rtol=1e-4, atol=1e-5)


def test_loss_is_the_cross_entropy_of_the_spans() -> None:
    objective, rng, model = _objective(), np.random.default_rng(0), _model()
    examples = [objective.example(_masked.plain(40, rng), rng) for _ in range(3)]
    batch = _batch(objective, examples)
    loss = objective.loss(model, forward(objective, model, batch), batch)
    states = model(batch.lengths, **{n: batch.fields[n] for n in objective.inputs})
    labels = batch.fields["labels"]
    wanted = torch.nn.functional.cross_entropy(
        model.logits(states), labels, ignore_index=IGNORE, reduction="sum"
    )
    torch.testing.assert_close(loss.terms["blank_infilling"].loss_sum, wanted)
    assert loss.num_targets == objective.num_targets({"labels": labels.numpy()})


def test_checkpoint_keeps_the_second_table_and_names_its_attention(tmp_path: Path) -> None:
    model = _model()
    settings, tensors = to_hf("gpt2", CONFIG, model.state_dict())
    assert settings["model_type"] == "nlpkit-gpt2"  # transformers would see the left alone
    assert settings["nlpkit"]["attention"] == [{"kind": "prefix"}]
    hf_writing.write(tmp_path, settings, tensors)
    config, state = from_hf("gpt2", tmp_path)
    assert config.can("prefix")
    assert torch.equal(state["span_position_embedding"], model.span_position_embedding)
    settings, tensors = to_hf("gpt2", PLAIN, gpt2_model.Model(PLAIN, 60).state_dict())
    assert settings["model_type"] == "gpt2"
    assert "transformer.wspe.weight" not in tensors


def test_without_fields_all_of_a_text_is_part_a() -> None:
    model, ids = _model(), torch.arange(20, 30)
    given = {"context": torch.ones(10, dtype=torch.bool), "position_ids": torch.arange(10)}
    given["span_position_ids"] = torch.zeros(10, dtype=torch.int64)
    torch.testing.assert_close(model((10,), ids), model((10,), ids, **given))


def _answer(objective: blank_infilling.Objective, prompt, **settings) -> tuple[int, ...]:
    rules = Rules(objective.eos_token_ids, objective.suppress_tokens)
    ((answer,),) = generate(_model(), [prompt], Settings(**settings), rules)
    return answer.ids


@pytest.mark.parametrize("behind", [[], [24, 25]])
def test_a_blank_is_written_as_without_a_cache(behind: list[int]) -> None:
    objective, model, before = _objective(), _model(), [20, 21, 22, 23]
    prompt = objective.fill_blanks((before, behind), (6,))
    if not behind:
        same = objective.continue_text(before, 6)
        assert np.array_equal(same.given["input_ids"], prompt.given["input_ids"])
    assert prompt.given["input_ids"].tolist() == [*before, MASK, *behind, START]
    assert prompt.open
    found = _answer(objective, prompt)
    written: list[int] = []
    for _ in range(6):  # each step as training would see it, before a token that nobody sees
        text = np.array([*before, *written, 30, *behind])
        made = objective.build(text, np.array([4]), np.array([5 + len(written)]), np.array([0]))
        inputs = {name: torch.from_numpy(made[name]) for name in objective.inputs}
        with torch.no_grad():
            logits = model.logits(model((len(made["labels"]),), **inputs)[-2:])[0]
        logits[list(objective.suppress_tokens)] = -torch.inf
        written.append(int(logits.argmax()))
        if written[-1] == END:
            break
    assert found == tuple(each for each in written if each != END)


def test_several_blanks_have_their_numbers_of_tokens() -> None:
    objective = _objective()
    prompt = objective.fill_blanks(([20], [21, 22], []), (2, 3))
    assert prompt.given["input_ids"].tolist() == [20, MASK, 21, 22, MASK, START, START]
    assert prompt.given["position_ids"].tolist() == [0, 1, 2, 3, 4, 1, 4]
    assert prompt.slots["position_ids"].tolist() == [1, 1, 4, 4, 4]
    assert prompt.slots["span_position_ids"].tolist() == [2, 3, 2, 3, 4]
    assert prompt.predicted_from.tolist() == [5, -1, 6, -1, -1]
    assert not prompt.open
    assert len(_answer(objective, prompt)) == 5
    with pytest.raises(ValueError, match="at most 60 fit"):
        objective.fill_blanks(([], [20] * 60, []), (1, 1))


def test_a_single_blank_ends_where_the_model_says() -> None:
    objective, model = _objective(), _model()
    with torch.no_grad():  # the end is the most probable token, whatever stands before
        model.final_norm.weight.zero_()
        model.final_norm.bias.copy_(model.token_embedding[END])
        model.token_embedding[END] *= 10
    writer = Writer(model, TOKENIZER, objective, Settings())
    one, several = writer.write(["the lazy<blank:3> dog", "the<blank:2> lazy<blank> dog"])
    assert (one.outputs[0].text, one.outputs[0].tokens) == ("the lazy dog", 0)
    assert one.outputs[0].ended
    assert several.outputs[0].tokens == 3


def test_recipes_that_do_not_fit_are_told_what_does() -> None:
    assert missing_needs(blank_infilling.Objective, CONFIG) == []
    assert missing_needs(blank_infilling.Objective, PLAIN) == ["prefix", "given_positions"]
    with pytest.raises(RecipeError) as error:
        recipe.load("gpt2", ["objective={name: blank_infilling, max_length: 64}"])
    assert str(error.value).endswith("set attention: {kind: prefix}")
    recipe.load("gpt2", ["objective={name: blank_infilling}", "attention.kind=prefix"])


def test_a_single_blank_ends_before_a_stop_text() -> None:
    objective, texts = _objective(), ["the lazy<blank:6> dog"]
    (plain,) = Writer(_model(), TOKENIZER, objective, Settings()).write(texts)
    fill = plain.outputs[0].text.removeprefix("the lazy").removesuffix(" dog")
    assert len(fill) > 4
    (cut,) = Writer(_model(), TOKENIZER, objective, Settings(stop=[fill[2:4]])).write(texts)
    assert cut.outputs[0].text == f"the lazy{fill[: fill.index(fill[2:4])]} dog"
