"""On a GPU: every backend against the formula, training against the CPU, resuming, generation.

`python -m pytest -m gpu` on a machine with a CUDA device; skipped elsewhere. What can be shown
without one: `test_attention_selection.py`, `test_attention_fake_gpu.py`,
`test_fake_gpu.py`.
"""

import random
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch._dynamo
from safetensors.torch import load_file

from nlpkit.errors import Unsupported
from nlpkit.generate.engine import generate
from nlpkit.generate.rows import Rules
from nlpkit.generate.settings import Settings
from nlpkit.models import gpt
from nlpkit.models.gpt import model as gpt_model
from tests import _attention, _tiny
from tests._attention import KINDS, PACKS, fields_of, inputs, prepare, rows_of

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore:FlexAttention sums")]

DEVICE = "cuda"
BACKENDS = ("flash", "varlen", "flex", "sdpa")
DRAW = random.Random(14)
RAGGED = PACKS | {
    f"random {i}": [DRAW.randint(1, 400) for _ in range(DRAW.randint(1, 9))] for i in range(3)
}
# Of the largest value. The reference has the same rounded inputs and computes in float32; what is
# left are outputs, probabilities and gradients in the type: 2^-8 in bfloat16, 2^-11 in float16,
# each rounded a few times, and in float32 sums in another order.
NEAR = {torch.float32: 5e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}


@pytest.fixture(autouse=True)
def _exact_products(monkeypatch: pytest.MonkeyPatch) -> None:
    """Heads of 32, which all kernels have; float32 as it is, not TF32."""
    monkeypatch.setattr(_attention, "WIDTH", 32)
    torch.set_float32_matmul_precision("highest")


@pytest.fixture(scope="module")
def _compiled_kinds() -> list[str]:
    return []


@pytest.fixture(autouse=True)
def _own_graphs(request: pytest.FixtureRequest, _compiled_kinds: list[str]) -> Iterator[None]:
    """Begin each kind without compiled graphs; too many of one kind are an error."""
    kind = getattr(request.node, "callspec", SimpleNamespace(params={})).params.get("kind", "")
    if [kind] != _compiled_kinds[-1:]:
        torch._dynamo.reset()
        _compiled_kinds.append(kind)
    with torch._dynamo.config.patch(fail_on_recompile_limit_hit=True):
        yield


def _results(kind: str, backend: str, lengths: list[int], dtype: torch.dtype):
    """Return the output of two layers and the gradients of q, k, v and the table."""
    qkv, table, grad = inputs(sum(lengths), dtype, DEVICE)
    attend = prepare(kind, backend, lengths, fields_of(lengths), table, dtype, DEVICE)
    out = attend(attend(*qkv), *qkv[1:])
    wanted = [*qkv, table] if rows_of(kind) else qkv
    return [out.detach(), *torch.autograd.grad(out, wanted, grad)]


@pytest.mark.parametrize(
    ("pack", "dtype"),
    [
        *((pack, torch.bfloat16) for pack in RAGGED),
        # Each type is compiled anew: fewer packs of the others.
        *((p, t) for t in (torch.float16, torch.float32) for p in ("ragged", "random 0")),
    ],
    ids=str,
)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", KINDS)
def test_attention_on_gpu_equals_reference(kind, backend, pack, dtype) -> None:
    try:
        found = _results(kind, backend, RAGGED[pack], dtype)
    except Unsupported as error:
        pytest.skip(str(error))
    expected = _results(kind, "reference", RAGGED[pack], dtype)
    for a, b in zip(found, expected, strict=True):
        assert (a.dtype, a.device) == (b.dtype, b.device)
        largest = b.abs().max().clamp(min=1).item()
        torch.testing.assert_close(a, b, atol=NEAR[dtype] * largest, rtol=0)


@pytest.mark.parametrize("kind", KINDS)
def test_attention_reference_on_gpu_equals_that_of_the_cpu(kind, monkeypatch) -> None:
    expected = []
    for device in ("cpu", DEVICE):
        monkeypatch.setitem(globals(), "DEVICE", device)
        expected.append([x.cpu() for x in _results(kind, "reference", [5, 70, 1], torch.float32)])
    for a, b in zip(*expected, strict=True):
        torch.testing.assert_close(a, b, atol=1e-4 * b.abs().max().clamp(min=1).item(), rtol=0)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", KINDS)
def test_attention_changed_document_leaves_neighbours_bitwise(kind, backend) -> None:
    lengths = [30, 140, 40]
    (q, k, v), table, _ = inputs(210, torch.bfloat16, DEVICE)
    try:
        attend = prepare(kind, backend, lengths, fields_of(lengths), table, torch.bfloat16, DEVICE)
    except Unsupported as error:
        pytest.skip(str(error))
    before = attend(q, k, v).detach()
    changed = [x.detach().clone() for x in (q, k, v)]
    for x in changed:
        x[30:170] += 1
    after = attend(*changed).detach()
    assert torch.equal(before[:30], after[:30])
    assert torch.equal(before[170:], after[170:])
    assert not torch.equal(before[30:170], after[30:170])


# --- training --------------------------------------------------------------------------------

_SIZES = "hidden_size: 64, num_layers: 2, num_heads: 2"
_REST = """\
data: {train: [TRAIN], valid: [VALID]}
train: {steps: 12, tokens_per_step: 512, tokens_per_batch: 256, lr: 1.0e-2, warmup_steps: 4,
  precision: fp32, eval_every: 5, save_every: 4, keep: 2}
"""
RECIPES = {
    "gpt1": f"""\
name: tiny
model: {{family: gpt, {_SIZES}, max_positions: 64, attention_dropout: 0.0}}
tokenizer: {{kind: bpe, vocab_size: 300}}
objective: {{name: clm, max_length: 64}}
{_REST}""",
    "bert": f"""\
name: tiny
model: {{family: bert, {_SIZES}, intermediate_size: 64, max_positions: 64, attention_dropout: 0.0}}
tokenizer: {{kind: wordpiece, vocab_size: 300}}
objective: {{name: mlm, max_length: 64}}
{_REST}""",
    "cpm_ant": _tiny.RECIPE.replace("hidden_size: 32", "hidden_size: 64").replace(
        "num_heads: 4", "num_heads: 2"
    ),
}
_NO_DROPOUT = {  # each device has its own random numbers
    "gpt1": ("model.embedding_dropout=0.0", "model.residual_dropout=0.0"),
    "bert": ("model.dropout=0.0",),
    "cpm_ant": ("model.dropout=0.0",),
}


def _recipe(folder: Path, name: str) -> Path:
    return _tiny.write(folder, text=RECIPES[name])


@pytest.mark.parametrize("name", RECIPES)
def test_training_in_fp32_equals_that_of_the_cpu(tmp_path: Path, name: str) -> None:
    path = _recipe(tmp_path, name)
    for device in ("cpu", DEVICE):
        _tiny.pretrain(path, tmp_path / device, "train.steps=4", *_NO_DROPOUT[name], device=device)
    pairs = zip(*(_tiny.metrics(tmp_path / device) for device in ("cpu", DEVICE)), strict=True)
    losses = [
        (a[key], b[key]) for a, b in pairs for key in ("loss", "grad_norm") if key in a and key in b
    ]
    assert len(losses) >= 8
    # Four updates of Adam in float32; sums are in another order.
    for a, b in losses:
        assert b == pytest.approx(a, rel=1e-3)


@pytest.mark.parametrize("name", RECIPES)
def test_training_in_bf16_learns(tmp_path: Path, name: str) -> None:
    path = _recipe(tmp_path, name)
    _tiny.pretrain(path, tmp_path / "run", "train.precision=bf16", device=DEVICE)
    losses = [r["loss"] for r in _tiny.metrics(tmp_path / "run") if "loss" in r]
    assert sum(losses[-3:]) < sum(losses[:3])


@pytest.mark.parametrize(
    ("name", "precision", "backend"),
    [
        # torch's fused kernels and flex's sum of the gradient of a bias are not deterministic;
        # these are.
        ("gpt1", "fp32", "flex"), ("gpt1", "bf16", "flex"), ("bert", "fp32", "flex"),
        ("cpm_ant", "fp32", "reference"), ("cpm_ant", "bf16", "reference"),
    ],
)  # fmt: skip
def test_stopped_and_resumed_run_has_the_same_bits(
    tmp_path: Path, name: str, precision: str, backend: str
) -> None:
    path = _recipe(tmp_path, name)
    sets = f"train.precision={precision}", f"attention.backend={backend}"
    sets += ("train.deterministic=true",)
    whole = _tiny.pretrain(path, tmp_path / "whole", *sets, device=DEVICE)
    resumed = _tiny.pretrain_with_stops(path, tmp_path / "resumed", [9, 14], *sets, device=DEVICE)
    for file in ("model.safetensors", "optimizer.safetensors"):
        ours, theirs = load_file(whole / file), load_file(resumed / file)
        assert ours.keys() == theirs.keys()
        assert [n for n in ours if not torch.equal(ours[n], theirs[n])] == []
    assert _tiny.metrics(tmp_path / "resumed") == _tiny.metrics(tmp_path / "whole")


# --- generation ------------------------------------------------------------------------------


def _greedy(model: torch.nn.Module, ids: list[int], new: int) -> list[int]:
    """Return the tokens that follow, each from a forward pass over the whole text."""
    text = list(ids)
    for _ in range(new):
        hidden = model([len(text)], torch.tensor(text, device=DEVICE))
        text.append(int(model.logits(hidden[-1:]).argmax()))
    return text[len(ids) :]


def test_generation_with_the_cache_equals_that_without() -> None:
    from nlpkit.objectives import clm
    from tests.generate.test_engine import EOS, VOCAB, _Tokenizer

    config = gpt.Config(hidden_size=64, num_layers=2, num_heads=2, max_positions=64)
    model = gpt_model.Model(config, VOCAB)
    with torch.no_grad():  # so that the answers differ
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    model = model.to(DEVICE).eval()
    objective = clm.Objective(clm.Config(max_length=64), _Tokenizer(), config)
    texts = [[11, 12, 13], [40], [20, 21, 22, 23, 24, 25, 26, 27, 28]]
    with torch.no_grad():
        prompts = [objective.continue_text(ids, 16) for ids in texts]
        found = generate(model, prompts, Settings(), Rules((EOS,), objective.suppress_tokens))
        for ids, (answer,) in zip(texts, found, strict=True):
            expected = _greedy(model, ids, len(answer.ids) + answer.ended)
            assert [*answer.ids, *([EOS] if answer.ended else [])] == expected
