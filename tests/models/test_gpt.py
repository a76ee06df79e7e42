"""GPT-1 against transformers' OpenAIGPTLMHeadModel: logits, losses, gradients, files."""

import json

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from transformers import AutoModelForCausalLM, OpenAIGPTConfig, OpenAIGPTLMHeadModel, OpenAIGPTModel

from nlpkit import attention, recipe
from nlpkit.attention.choice import AttentionChoice
from nlpkit.attention.kinds import causal
from nlpkit.checkpoints import hf_layout, hf_writing
from nlpkit.contracts.request import Layout
from nlpkit.errors import FileError, Unsupported
from nlpkit.models.formats.rows import resize_embeddings
from nlpkit.models.gpt import VOCABULARY, Config
from nlpkit.models.gpt.model import Model
from nlpkit.objectives import clm
from nlpkit.selftest import batching, leaks, resuming, texts
from nlpkit.train.optim import optimizers
from tests import _provable, _tiny
from tests._attention import attend_of
from tests._formats import from_hf, to_hf
from tests._losses import loss_of, only_term

SMALL = Config(hidden_size=32, num_layers=3, num_heads=4, max_positions=40)
VOCAB = 61
LENGTHS = (9, 30, 1, 17)
BACKENDS = ["reference", "sdpa", "cpu_flash"]


class _Tokenizer:
    vocab_size, bos_id, eos_id, unk_id = VOCAB, None, 0, None


@pytest.fixture
def model() -> Model:
    built = Model(SMALL, VOCAB).eval()
    with torch.no_grad():  # large enough for every part to matter, norms and biases too
        for parameter in built.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return built


@pytest.fixture
def oracle(model: Model) -> OpenAIGPTLMHeadModel:
    settings, tensors = to_hf("gpt", model.config, model.state_dict())
    theirs = OpenAIGPTLMHeadModel(OpenAIGPTConfig(**settings)).eval()
    report = theirs.load_state_dict(tensors)
    assert not report.missing_keys
    assert not report.unexpected_keys
    return theirs


def _batch() -> dict[str, torch.Tensor]:
    objective = clm.Objective(clm.Config(max_length=40), _Tokenizer(), SMALL)
    rng = np.random.default_rng(0)
    made = [objective.example(rng.integers(1, VOCAB, n + 1), rng) for n in LENGTHS]
    return {n: torch.from_numpy(np.concatenate([e[n] for e in made])) for n in made[0]}


@pytest.mark.parametrize("backend", BACKENDS)
def test_logits_of_a_pack_equal_transformers_one_by_one(model, oracle, backend) -> None:
    model.backend = backend
    ids = _batch()["input_ids"]
    logits = model.logits(model(LENGTHS, ids)).split(LENGTHS)
    for ours, text in zip(logits, ids.split(LENGTHS), strict=True):
        expected = oracle(text[None]).logits[0]
        torch.testing.assert_close(ours, expected, atol=1e-5, rtol=0)


def test_loss_and_gradients_equal_transformers(model, oracle) -> None:
    model, oracle = model.double(), oracle.double()
    batch = _batch()
    objective = clm.Objective(clm.Config(max_length=40), _Tokenizer(), SMALL)
    term = only_term(loss_of(objective, model, batch, LENGTHS))
    term.loss_sum.backward()
    expected = torch.zeros((), dtype=torch.float64)
    texts = zip(batch["input_ids"].split(LENGTHS), batch["labels"].split(LENGTHS), strict=True)
    for ids, labels in texts:
        expected = expected + F.cross_entropy(oracle(ids[None]).logits[0], labels, reduction="sum")
    expected.backward()
    assert term.num_targets == sum(LENGTHS)
    # the summed loss is reported in single precision
    torch.testing.assert_close(term.loss_sum.double(), expected, rtol=1e-6, atol=0)
    _, ours = to_hf("gpt", SMALL, {name: p.grad for name, p in model.named_parameters()})
    theirs = {name: p.grad for name, p in oracle.named_parameters()}  # the tied table once
    assert theirs.keys() == ours.keys() - {"lm_head.weight"}
    for name, grad in theirs.items():
        torch.testing.assert_close(ours[name], grad, atol=2e-6, rtol=1e-5, msg=name)


def test_loss_of_transformers_on_its_own_labels_is_ours(model, oracle) -> None:
    # transformers shifts labels itself and averages over the T - 1 targets.
    ids = torch.randint(1, VOCAB, (25,))
    expected = oracle(ids[None], labels=ids[None]).loss
    total, _ = model.token_loss(model((24,), ids[:-1]), torch.arange(24), ids[1:])
    torch.testing.assert_close(total / 24, expected, atol=1e-5, rtol=0)


def test_changed_sequence_leaves_its_neighbours_bitwise(model) -> None:
    ids = _batch()["input_ids"]
    before = model(LENGTHS, ids).split(LENGTHS)
    other = ids.clone()
    other[9:39] = (other[9:39] + 1) % VOCAB
    after = model(LENGTHS, other).split(LENGTHS)
    assert [torch.equal(a, b) for a, b in zip(before, after, strict=True)] == [1, 0, 1, 1]


def test_token_is_not_seen_by_what_comes_before_it(model) -> None:
    ids = torch.randint(1, VOCAB, (20,))
    other = ids.clone()
    other[12] = (other[12] + 1) % VOCAB
    before, after = model((20,), ids), model((20,), other)
    moved = (before != after).any(1).tolist()
    assert moved == [False] * 12 + [True] * 8


def test_checkpoint_opens_in_transformers_and_comes_back_exactly(model, tmp_path) -> None:
    hf_writing.write(tmp_path, *to_hf("gpt", SMALL, model.state_dict()))
    theirs, report = AutoModelForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert type(theirs) is OpenAIGPTLMHeadModel
    assert not any(report.values()), report
    ids = torch.randint(1, VOCAB, (30,))
    expected = theirs.eval()(ids[None]).logits[0]
    torch.testing.assert_close(model.logits(model((30,), ids)), expected, atol=1e-5, rtol=0)
    config, state = from_hf("gpt", tmp_path)
    assert config == SMALL
    assert state.keys() == model.state_dict().keys()
    for name, value in model.state_dict().items():
        assert torch.equal(state[name], value), name


@pytest.mark.parametrize("kind", [OpenAIGPTLMHeadModel, OpenAIGPTModel])
def test_foreign_checkpoint_with_or_without_head_is_read(kind, tmp_path) -> None:
    theirs = kind(
        OpenAIGPTConfig(vocab_size=VOCAB, n_positions=40, n_embd=32, n_layer=3, n_head=4)
    ).eval()
    theirs.save_pretrained(tmp_path)
    assert "nlpkit" not in json.loads((tmp_path / "config.json").read_text())
    config, state = from_hf("gpt", tmp_path)
    model = Model(config, VOCAB).eval()
    model.load_state_dict(state)
    ids = torch.randint(1, VOCAB, (30,))
    body = theirs.transformer if kind is OpenAIGPTLMHeadModel else theirs
    expected = body(ids[None]).last_hidden_state[0]
    torch.testing.assert_close(model((30,), ids), expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"afn": "relu"}, "afn is 'relu'; this family has 'gelu' only"),
        ({"tie_word_embeddings": False}, "tie_word_embeddings is False; this family has True only"),
    ],
)
def test_checkpoint_with_a_setting_that_we_lack_is_refused(model, change, message, tmp_path):
    settings, tensors = to_hf("gpt", SMALL, model.state_dict())
    hf_writing.write(tmp_path, settings | change, tensors)
    with pytest.raises(FileError, match=message):
        from_hf("gpt", tmp_path)


def test_initial_weights_are_the_papers() -> None:
    for name, value in Model(Config(num_layers=1), 3000).state_dict().items():
        if value.ndim == 1:  # biases 0, scales 1
            assert torch.equal(value, torch.full_like(value, float("ln" in name and "w" in name)))
        else:
            # Five standard errors of a standard deviation: sigma / sqrt(2 n).
            assert abs(float(value.std()) - 0.02) < 5 * 0.02 / (2 * value.numel()) ** 0.5, name
            assert abs(float(value.mean())) < 5 * 0.02 / value.numel() ** 0.5, name


def test_default_sizes_give_the_papers_parameters() -> None:
    with torch.device("meta"):
        model = Model(Config(), 40478)
    # openai-gpt: 116,534,784 (transformers' num_parameters of the default OpenAIGPTConfig)
    assert sum(p.numel() for p in model.parameters()) == 116_534_784


def test_dropout_follows_the_seed_and_is_off_in_evaluation(model) -> None:
    ids = _batch()["input_ids"]
    plain = model(LENGTHS, ids)
    model.train()

    def draw(seed: int) -> torch.Tensor:
        torch.manual_seed(seed)
        return model(LENGTHS, ids)

    assert torch.equal(draw(3), draw(3))
    assert not torch.equal(draw(3), draw(4))
    assert torch.equal(model.eval()(LENGTHS, ids), plain)


@pytest.mark.parametrize("name", ["embedding_dropout", "attention_dropout", "residual_dropout"])
def test_each_dropout_acts_alone(name) -> None:
    none = dict.fromkeys(("embedding_dropout", "attention_dropout", "residual_dropout"), 0.0)
    ids = _batch()["input_ids"]
    for rate in (0.0, 0.5):
        model = Model(SMALL.model_copy(update=none | {name: rate}), VOCAB).train()
        assert torch.equal(model(LENGTHS, ids), model(LENGTHS, ids)) == (rate == 0)


def test_backend_that_cannot_drop_is_refused_by_name_and_passed_over_by_auto(model) -> None:
    ids = _batch()["input_ids"]
    model.train()
    model.backend = "flex"
    with pytest.raises(Unsupported, match="flex cannot do kind causal: dropout"):
        model(LENGTHS, ids)
    model.backend = "auto"
    model(LENGTHS, ids)
    assert model.attention_choice == "cpu_flash"


@pytest.mark.slow
@pytest.mark.parametrize("backend", [pytest.param("reference", marks=pytest.mark.slow), "sdpa"])
def test_causal_attention_dropout_keeps_the_expectation_and_hides_the_future(backend) -> None:
    lengths, total = [6, 3], 9
    q, k, v = torch.randn(3, total, 2, 8)

    def build(rate: float) -> attention.Attend:
        return attend_of(
            AttentionChoice.of("causal"), Layout(lengths), heads=2, head_dim=8, dtype=q.dtype,
            device="cpu", training=True, dropout=rate, backend=backend,
        )  # fmt: skip

    draws = torch.stack([build(0.4)(q, k, v) for _ in range(1500)])
    # Five standard errors of a mean of 1500.
    bound = 5 * draws.std(0) / 1500**0.5 + 1e-6
    assert ((draws.mean(0) - build(0.0)(q, k, v)).abs() <= bound).all()
    # The first token sees itself alone: all of its value, raised by 1 / 0.6, or nothing.
    first = draws[:, 0]
    kept = torch.isclose(first, v[0] / 0.6, atol=1e-5).all(-1)
    assert (kept | (first == 0).all(-1)).all()
    assert 0.5 < float(kept.float().mean()) < 0.7


def test_sequence_longer_than_the_positions_is_refused(model) -> None:
    with pytest.raises(ValueError, match="41 tokens; the model has 40 positions"):
        model((41,), torch.zeros(41, dtype=torch.long))


def test_linear_layers_are_named_as_peft_knows_them(model) -> None:
    names = {
        n.rpartition(".")[2] for n, m in model.named_modules() if isinstance(m, torch.nn.Linear)
    }
    assert names == {"c_attn", "c_proj", "c_fc"}


def test_grown_vocabulary_keeps_old_rows_and_logits(model) -> None:
    larger = Model(SMALL, VOCAB + 3)
    larger.load_state_dict(resize_embeddings(model.state_dict(), VOCABULARY, VOCAB + 3))
    ids = torch.randint(1, VOCAB, (12,))
    old = model.logits(model((12,), ids))
    new = larger.eval().logits(larger((12,), ids))
    torch.testing.assert_close(new[:, :VOCAB], old, atol=1e-6, rtol=0)


RECIPE = """\
name: tiny
model: {family: gpt, hidden_size: 32, num_layers: 2, num_heads: 4, max_positions: 64}
tokenizer: {kind: bpe, vocab_size: 400, min_frequency: 1}
data: {train: [TRAIN], valid: [VALID]}
objective: {name: clm, max_length: 64}
train: {steps: 12, tokens_per_step: 512, tokens_per_batch: 256, lr: 1.0e-2, schedule: cosine,
  warmup_steps: 4, precision: fp32, eval_every: 5, save_every: 4, keep: 2}
"""


@pytest.mark.slow  # `test_encoder_runs` resumes runs with dropout
@pytest.mark.parametrize("sets", [(), ("objective.contiguous=false", "train.workers=1")])
@pytest.mark.slow
def test_run_with_dropout_stopped_and_resumed_is_the_uninterrupted_one(tmp_path, sets) -> None:
    path = _tiny.write(tmp_path, text=RECIPE)
    whole = _tiny.pretrain(path, tmp_path / "whole", *sets)
    broken = _tiny.pretrain_with_stops(path, tmp_path / "broken", [7, 12], *sets)
    assert _tiny.metrics(tmp_path / "whole") == _tiny.metrics(tmp_path / "broken")
    one, two = hf_layout.read(whole)[1], hf_layout.read(broken)[1]
    assert all(torch.equal(one[name], two[name]) for name in one.keys() | two.keys())
    first = next(r for r in _tiny.metrics(tmp_path / "whole") if "loss" in r)
    # At first all 400 tokens are about as likely: ln 400 = 5.99.
    assert abs(first["loss"] - 5.99) < 0.3
    theirs = AutoModelForCausalLM.from_pretrained(whole)
    assert theirs.config.model_type == "openai-gpt"


class Unshifted(clm.Objective):
    """Gives every position its own token to predict."""

    def example(self, ids, rng):
        made = super().example(ids, rng)
        return made | {"labels": made["input_ids"].copy()}


@pytest.mark.slow
def test_selftest_of_gpt_holds_and_finds_targets_in_sight(tmp_path) -> None:
    with _provable.of_recipe(_tiny.write(tmp_path, text=RECIPE, documents=60)) as bench:
        for proof in (
            leaks.find_leaks,
            leaks.find_neighbour_leaks,
            texts.check_unmasking,
            batching.compare_packed,
        ):
            passed, figure = proof(bench.subject)
            assert passed, figure
        for other in (
            batching.check_batches,
            batching.compare_gradients,
            resuming.reopen,
        ):
            passed, figure = other(bench)
            assert passed, figure
        right = bench.subject.objective
        bench.subject.objective = Unshifted(
            right.config, bench.subject.tokenizer, bench.run.part.config
        )
        passed, figure = leaks.find_leaks(bench.subject)
        assert not passed
        assert " 0 move with their own token" not in figure


def test_selftest_of_a_mask_that_shows_the_next_token_is_a_leak(tmp_path, monkeypatch) -> None:
    path = _tiny.write(tmp_path, text=RECIPE, documents=60)
    with _provable.of_recipe(path, "attention.backend=reference") as bench:
        assert leaks.find_leaks(bench.subject)[0]
        monkeypatch.setattr(causal, "mask", lambda config, q, k: k["position"] <= q["position"] + 1)
        assert not leaks.find_leaks(bench.subject)[0]


def test_recipe_of_the_paper_has_the_papers_sizes() -> None:
    # Radford et al. 2018, sec. 4.1
    made = recipe.load("gpt1_paper").recipe
    sizes = made.model.config
    assert (sizes.num_layers, sizes.hidden_size, sizes.num_heads) == (12, 768, 12)
    assert (sizes.max_positions, made.objective[0].config.max_length) == (512, 512)
    assert {sizes.embedding_dropout, sizes.attention_dropout, sizes.residual_dropout} == {0.1}
    assert made.objective[0].config.contiguous
    train = made.train
    assert (train.lr, train.warmup_steps, train.schedule.name) == (2.5e-4, 2000, "cosine")
    assert train.tokens_per_step == 64 * 512
    for name in ("classify", "entail", "similarity", "choice"):
        tuned = recipe.load(f"gpt1_paper_{name}").recipe.train
        assert (tuned.rows_per_step, tuned.tokens_per_step, tuned.epochs) == (32, None, 3)
        assert (tuned.lr, tuned.schedule.name, tuned.warmup_ratio) == (6.25e-5, "linear", 0.002)
    assert train.weight_decay == 0.01
    (adamw,) = optimizers(Model(SMALL, VOCAB), train)
    decayed, spared = adamw.param_groups
    assert (decayed["weight_decay"], spared["weight_decay"]) == (0.01, 0.0)
    assert all(p.ndim == 1 for p in spared["params"])  # biases and norms
    assert all(p.ndim == 2 for p in decayed["params"])
