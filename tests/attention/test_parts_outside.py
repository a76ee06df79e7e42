"""Kinds of attention of a user's own, chosen in a recipe: trained, saved, resumed, generated from.

Oracles: the dense formula, and the same model without a cache.
"""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from nlpkit import recipe
from nlpkit.attention.cache import Cache
from nlpkit.attention.choice import AttentionChoice
from nlpkit.attention.masks import dense_mask
from nlpkit.config import FrozenConfig
from nlpkit.contracts.kind import CustomKind, ParamSpec
from nlpkit.contracts.request import Layout
from nlpkit.errors import RecipeError, Unsupported
from nlpkit.generate.settings import Settings
from nlpkit.generate.texts import Writer
from nlpkit.models.gpt import Config
from nlpkit.models.gpt.model import Model
from nlpkit.runs.open_checkpoint import open_checkpoint
from tests import _tiny
from tests._attention import attend_of
from tests.parts import linear_attention

WINDOW, LINEAR = "tests.parts.local_window", "tests.parts.linear_attention"
SIZES = {"hidden_size": 16, "num_layers": 4, "num_heads": 2, "max_positions": 64}
RECIPE = """\
name: tiny
model: {family: gpt, hidden_size: 16, num_layers: 4, num_heads: 2, max_positions: 64,
  embedding_dropout: 0.1, attention_dropout: 0.0, residual_dropout: 0.1}
tokenizer: {kind: bpe, vocab_size: 300}
data: {train: [TRAIN], valid: [VALID]}
objective: {name: clm, max_length: 64}
ATTENTION
train: {steps: 6, tokens_per_step: 128, tokens_per_batch: 64, lr: 1.0e-2, warmup_steps: 2,
  eval_every: 3, save_every: 3, precision: fp32}
"""
ALTERNATING = f"attention: {{layers: [{{kind: causal}}, {{kind: {WINDOW}, window: 3}}]}}"
RECIPES = {"alternating": ALTERNATING, "linear": f"attention: {{kind: {LINEAR}}}"}


def _model(*choices: AttentionChoice) -> Model:
    torch.manual_seed(0)
    config = Config(**SIZES, embedding_dropout=0, attention_dropout=0, residual_dropout=0)
    return Model(config.model_copy(update={"attention": choices}), 50).eval()


def _grown(model: Model, ids: torch.Tensor, first: int) -> torch.Tensor:
    """Return the states of a sequence of which `first` tokens come at once, then one by one."""
    cache = Cache()
    states = [model((first,), ids[:first], cache=cache)]
    states += [model((1,), ids[i : i + 1], cache=cache) for i in range(first, len(ids))]
    return torch.cat(states)


@pytest.mark.parametrize(
    "choices",
    [
        (AttentionChoice.of("causal"), AttentionChoice.of(WINDOW, window=3)),
        (AttentionChoice.of(WINDOW, window=2), AttentionChoice.of(WINDOW, window=5)),
        (AttentionChoice.of(LINEAR),),
        (AttentionChoice.of(LINEAR), AttentionChoice.of("causal"), AttentionChoice.of(WINDOW)),
    ],
    ids=["two kinds", "one kind, two settings", "no mask", "three kinds"],
)
def test_generation_with_a_cache_equals_without(choices: tuple[AttentionChoice, ...]) -> None:
    model = _model(*choices)
    ids = torch.randint(50, (20,), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        whole = model((20,), ids)
        torch.testing.assert_close(_grown(model, ids, 7), whole, atol=2e-6, rtol=1e-5)
        # Packed beside another sequence: the same.
        packed = model((5, 20), torch.cat([ids[:5], ids]))[5:]
    torch.testing.assert_close(packed, whole, atol=2e-6, rtol=1e-5)


def test_cache_of_several_kinds_is_selected_and_appended_in_all_of_them() -> None:
    model = _model(
        AttentionChoice.of(LINEAR),
        AttentionChoice.of("causal"),
        AttentionChoice.of(WINDOW, window=3),
    )
    draw = torch.Generator().manual_seed(2)
    texts = [torch.randint(50, (n,), generator=draw) for n in (12, 12, 12)]
    with torch.no_grad():
        cache, other = Cache(), Cache()
        model((4, 6), torch.cat([texts[0][:4], texts[1][:6]]), cache=cache)
        model((3,), texts[2][:3], cache=other)
        cache.append(other)
        cache.select([2, 0, 0])
        states = model((1, 1, 1), torch.stack([texts[2][3], texts[0][4], texts[0][4]]), cache=cache)
        expected = [model((4,), texts[2][:4])[-1], model((5,), texts[0][:5])[-1]]
    assert cache.lengths == [4, 5, 5]
    for state, right in zip(states, [*expected, expected[1]], strict=True):
        torch.testing.assert_close(state, right, atol=2e-6, rtol=1e-5)


def test_window_is_the_dense_formula() -> None:
    choice = AttentionChoice.of(WINDOW, window=3)
    mask = dense_mask(choice, Layout([5, 2]))
    drawing = ["x......", "xx.....", "xxx....", ".xxx...", "..xxx..", ".....x.", ".....xx"]
    assert ["".join("x" if seen else "." for seen in row) for row in mask.tolist()] == drawing


def test_linear_attention_equals_its_dense_form() -> None:
    # Katharopoulos et al. 2020, eq. 8-9: weights phi(q) phi(k), normed over what is seen.
    q, k, v = torch.randn(3, 9, 2, 4, generator=torch.Generator().manual_seed(3)).double()
    attend = attend_of(
        AttentionChoice.of(LINEAR), Layout([6, 3]), heads=2, head_dim=4, dtype=q.dtype,
        device="cpu", training=True,
    )  # fmt: skip
    phi = [torch.nn.functional.elu(x) + 1 for x in (q, k)]
    weights = torch.einsum("qhd,khd->hqk", *phi)
    weights = weights * dense_mask(AttentionChoice.of("causal"), Layout([6, 3]))
    expected = torch.einsum("hqk,khd->qhd", weights / weights.sum(-1, keepdim=True), v)
    torch.testing.assert_close(attend(q, k, v), expected)
    assert attend.reason == f"{LINEAR} has its own computation"


@pytest.mark.parametrize("backend", ["reference", "sdpa"])
def test_cross_attention_sees_its_own_source_alone(backend: str) -> None:
    # Sequence i of the queries sees sequence i of the keys: each pair alone, by the formula.
    draw = torch.Generator().manual_seed(4)
    lengths, sources = (3, 1, 4), (5, 2, 7)
    q = torch.randn(8, 2, 4, generator=draw)
    k, v = torch.randn(2, 14, 2, 4, generator=draw)
    attend = attend_of(
        AttentionChoice.of("full"), Layout(lengths), keys=Layout(sources), heads=2,
        head_dim=4, dtype=q.dtype, device="cpu", training=True, backend=backend,
    )  # fmt: skip
    out = attend(q, k, v)
    parts = zip(q.split(lengths), k.split(sources), v.split(sources), strict=True)
    expected = [
        torch.einsum("hqk,khd->qhd", (torch.einsum("qhd,khd->hqk", a, b) / 2).softmax(-1), c)
        for a, b, c in parts
    ]
    torch.testing.assert_close(out, torch.cat(expected), atol=1e-6, rtol=1e-5)


def test_cross_attention_of_a_backend_that_cannot_is_refused() -> None:
    with pytest.raises(Unsupported, match="cpu_flash cannot do kind full: keys of other sequences"):
        attend_of(
            AttentionChoice.of("full"), Layout([2]), keys=Layout([3]), heads=1, head_dim=4,
            dtype=torch.float32, device="cpu", training=True, backend="cpu_flash",
        )  # fmt: skip


class _Scaled(CustomKind):
    """Causal attention whose values a learned vector scales: a tensor of each layer's own."""

    class Config(FrozenConfig):
        """No settings."""

    VISIBILITY = "causal"
    pairs = staticmethod(linear_attention.pairs)

    @staticmethod
    def tensors(config, heads, head_dim):
        return {"scale": ParamSpec((heads, head_dim), std=1.0)}

    @staticmethod
    def attend(request, q, k, v, tensors, state):
        return v * tensors["scale"]


def test_learned_tensors_of_a_kind_are_the_layers_own_and_get_gradients(monkeypatch) -> None:
    real = recipe.registry.load
    monkeypatch.setattr(
        recipe.registry,
        "load",
        lambda folder, name: _Scaled() if name == "x.y" else real(folder, name),
    )
    model = _model(AttentionChoice.of("causal"), AttentionChoice.of("x.y"))
    names = [name for name, _ in model.named_parameters() if "attention_tensors" in name]
    assert names == ["attention_tensors.layer_1_scale", "attention_tensors.layer_3_scale"]
    states = model((3,), torch.tensor([1, 2, 3]))
    (states * torch.randn(states.shape)).sum().backward()  # a plain sum is 0 after the norm
    gradients = [p.grad for n, p in model.named_parameters() if n in names]
    assert all(gradient.abs().sum() > 0 for gradient in gradients)
    assert not torch.equal(*gradients)


# `linear` is a loop of tokens.
@pytest.fixture(
    scope="module", params=["alternating", pytest.param("linear", marks=pytest.mark.slow)]
)
def run(request, tmp_path_factory) -> Path:
    """A run of the recipe, whole."""
    path = tmp_path_factory.mktemp("run")
    text = RECIPE.replace("ATTENTION", RECIPES[request.param])
    recipe = _tiny.write(path, text=text)
    held_out = (path / "valid.txt").read_text("utf-8").splitlines(keepends=True)
    (path / "valid.txt").write_text("".join(held_out[:3]), "utf-8")
    _tiny.pretrain(recipe, path / "whole")
    return path


@pytest.mark.slow
def test_run_resumes_bit_for_bit_and_keeps_its_attention(run: Path) -> None:
    last = _tiny.pretrain_with_stops(run / "tiny.yaml", run / "broken", [3, 7])
    assert _tiny.metrics(run / "broken") == _tiny.metrics(run / "whole")
    ours, whole = (
        load_file(p / "model.safetensors") for p in (last, run / "whole/checkpoints/latest")
    )
    assert all(torch.equal(ours[name], whole[name]) for name in ours.keys() | whole.keys())
    settings = json.loads((last / "config.json").read_text())
    assert settings["model_type"] == "nlpkit-openai-gpt"  # transformers' has other attention
    opened = open_checkpoint(last, device="cpu")
    resolved = recipe.load(str(run / "tiny.yaml"))
    assert opened.part.config.kinds == resolved.recipe.attention.choices


def test_run_generates_the_same_as_its_model_without_a_cache(run: Path) -> None:
    opened = open_checkpoint(run / "whole", device="cpu")
    model, tokenizer = opened.model, opened.tokenizer
    beams = Writer(model, tokenizer, opened.objective, Settings(max_new_tokens=8, beam=2))
    assert [len(written.outputs) for written in beams.write(["天", "地人"], batch=2)] == [1, 1]
    greedy = Settings(max_new_tokens=6, min_new_tokens=6)
    (written,) = Writer(model, tokenizer, opened.objective, greedy).write(["天"], batch=2)
    ids, given = tokenizer.encode("天"), len(tokenizer.encode("天"))
    with torch.no_grad():
        for _ in range(6):
            logits = model.logits(model((len(ids),), torch.tensor(ids))[-1])
            for banned in (*opened.objective.suppress_tokens, *opened.objective.eos_token_ids):
                logits[banned] = -torch.inf
            ids.append(int(logits.argmax()))
    assert written.outputs[0].text == tokenizer.decode(ids[given:])


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("{kind: full}", r"7:19: attention\.kind: full is bidirectional, and clm needs causal \("),
        ("{kind: cpm_ant}", r"7:19: attention\.kind: cpm_ant does not fit the model: it reads con"),
        ("{layers: [{kind: causal}, {kind: ful}]}", r"7:45: attention\.layers\.1\.kind: no 'ful',"),
        (f"{{kind: {WINDOW}, windw: 3}}", r"7:\d+: attention\.windw: unknown setting, did you"),
        (f"{{kind: {WINDOW}, window: 0}}", r"7:\d+: attention\.window: must be greater than 0"),
        ("{window: 3}", r"7:\d+: attention\.window: unknown setting where no kind is named"),
        (
            "{knd: causal}",
            r"7:\d+: attention\.knd: unknown setting where no kind is named, did you mean kind\?",
        ),
        ("{kind: causal, layers: [{kind: causal}]}", "kind and layers exclude each other"),
    ],
)
def test_attention_that_does_not_fit_is_named_with_its_line(tmp_path, written, said) -> None:
    text = RECIPE.replace("ATTENTION", f"attention: {written}")
    with pytest.raises(RecipeError, match=said):
        recipe.load(str(_tiny.write(tmp_path, text=text)))


def test_a_window_of_one_sees_nothing_before_it() -> None:
    model = _model(AttentionChoice.of(WINDOW, window=1))
    ids = torch.tensor([5, 6, 7, 8])
    with torch.no_grad():
        one = model((4,), ids)[3]
        other = model((4,), torch.tensor([9, 9, 9, 8]))[3]
    assert torch.equal(one, other)


def test_kind_that_is_causal_without_its_field_counts_as_causal() -> None:
    choice, causal = AttentionChoice.of("tests.parts.hybrid"), AttentionChoice.of("causal")
    assert choice.visibility == "causal"
    layout = Layout([3, 2])
    assert torch.equal(dense_mask(choice, layout), dense_mask(causal, layout))
    both = layout.with_fields({"both_sides": torch.tensor([True, True, True, False, False])})
    seen = dense_mask(choice, both)
    assert seen[:3, :3].all()
    assert torch.equal(seen[3:], dense_mask(causal, layout)[3:])
    # A fused kernel takes it only without the field.
    chosen = {"dtype": torch.float32, "training": False, "heads": 2, "head_dim": 8}
    assert attend_of(choice, layout, **chosen).backend == "sdpa"
    assert attend_of(choice, both, fields=both.fields, **chosen).backend == "cpu_flash"
    model, plain = _model(choice), _model(causal)
    plain.load_state_dict(model.state_dict())
    ids = torch.randint(50, (9,), generator=torch.Generator().manual_seed(5))
    with torch.no_grad():
        torch.testing.assert_close(_grown(model, ids, 4), plain((9,), ids), atol=2e-6, rtol=1e-5)
    assert model.config.can("causal")
    assert model.config.has_default_attention
    assert not _model(AttentionChoice.of(WINDOW)).config.has_default_attention
