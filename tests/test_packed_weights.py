"""Packed copies of weights: the same products, in every family, and when there are none."""

import copy
import platform
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from nlpkit import registry
from nlpkit.models import families, packed_weights
from nlpkit.models.packed_weights import PackedWeight, pack
from nlpkit.runs.opened import open_checkpoint
from tests import _tiny

VOCAB, PLENTY = 61, 1 << 40
SIZES = {"hidden_size": 32, "num_layers": 2, "num_heads": 4, "intermediate_size": 48}
SIZES |= {"image_size": 8, "patch_size": 4}


pytestmark = pytest.mark.skipif(
    platform.machine() != "x86_64", reason="weights are packed on x86-64 CPUs alone"
)


@pytest.fixture(autouse=True)
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pack small matrices, too, and float32 on every CPU: the products are tested, not the gain."""
    monkeypatch.setattr(packed_weights, "_SMALLEST", 1)
    monkeypatch.setattr(packed_weights, "_is_amd", lambda: True)


def _both(model: nn.Module) -> tuple[nn.Module, nn.Module]:
    model = model.requires_grad_(False).eval()
    packed = copy.deepcopy(model)
    pack(packed, PLENTY)
    return model, packed


@pytest.mark.parametrize("shape", [(0, 40), (1, 40), (7, 40), (3, 5, 40), (40,)], ids=str)
@pytest.mark.parametrize("bias", [True, False])
def test_packed_product_equals_the_plain_one(shape: tuple[int, ...], bias: bool) -> None:
    torch.manual_seed(0)
    plain, packed = _both(nn.Linear(40, 24, bias=bias))
    assert isinstance(packed.weight, PackedWeight)
    x = torch.randn(shape)
    for given in (x, x.flip(-1).mT.contiguous().mT if x.ndim > 1 else x):
        torch.testing.assert_close(packed(given), plain(given), rtol=1e-5, atol=1e-6)
    assert type(packed(x)) is torch.Tensor


@pytest.mark.skipif(
    not torch.ops.mkldnn._is_mkldnn_bf16_supported(), reason="oneDNN has no bfloat16 on this CPU"
)
def test_packed_product_in_bfloat16_equals_the_plain_one() -> None:
    torch.manual_seed(0)
    plain, packed = _both(nn.Linear(40, 24).bfloat16())
    assert isinstance(packed.weight, PackedWeight)
    x = torch.randn(7, 40).bfloat16()
    torch.testing.assert_close(packed(x), plain(x), rtol=2**-7, atol=2**-7)


def test_product_under_autocast_is_in_bfloat16_as_in_training() -> None:
    plain, packed = _both(nn.Linear(40, 24))
    x = torch.randn(7, 40)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        ours, theirs = packed(x), plain(x)
    assert ours.dtype == torch.bfloat16
    assert torch.equal(ours, theirs)


def test_other_types_and_gradients_are_computed_as_ever() -> None:
    torch.manual_seed(0)
    plain, packed = _both(nn.Linear(40, 24))
    x = torch.randn(7, 40, requires_grad=True)
    (of_packed,) = torch.autograd.grad(packed(x).sum(), x)
    (of_plain,) = torch.autograd.grad(plain(x).sum(), x)
    assert torch.equal(of_packed, of_plain)
    for wrong in (torch.randn(7, 40).double(), torch.randn(7, 39)):
        with pytest.raises(RuntimeError) as theirs:
            plain(wrong)
        with pytest.raises(RuntimeError) as ours:
            packed(wrong)
        assert str(ours.value) == str(theirs.value)


@pytest.mark.parametrize("family", registry.names("models"))
def test_every_family_keeps_its_layers_its_logits_and_its_weights(family: str) -> None:
    torch.manual_seed(0)
    known = families.load(family).Config.model_fields
    config = families.load(family).Config(**{k: v for k, v in SIZES.items() if k in known})
    plain, packed = _both(families.load_model(family).Model(config, VOCAB))
    layers = [name for name, each in plain.named_modules() if isinstance(each, nn.Linear)]
    for name in layers:
        one, other = plain.get_submodule(name), packed.get_submodule(name)
        assert isinstance(other.weight, PackedWeight)
        x = torch.randn(5, one.in_features)
        torch.testing.assert_close(other(x), one(x), rtol=1e-5, atol=1e-5)
    has_table = hasattr(plain, "output_table")
    if has_table:
        assert isinstance(packed.output_table(), PackedWeight)
        if family != "electra":  # a head of its own gives one number for a token
            hidden = torch.randn(5, config.state_size)
            expected = plain.logits(hidden)
            torch.testing.assert_close(packed.logits(hidden), expected, rtol=1e-4, atol=1e-4)
    assert layers or has_table
    before, after = plain.state_dict(), packed.state_dict()
    assert before.keys() == after.keys()
    for name, tensor in before.items():
        assert torch.equal(after[name], tensor), name


def test_tied_table_is_one_and_still_a_table() -> None:
    layer, table = nn.Linear(8, 30, bias=False), nn.Embedding(30, 8)
    layer.weight = table.weight
    plain, packed = _both(nn.ModuleList([layer, table]))
    assert packed[0].weight is packed[1].weight
    ids = torch.tensor([3, 29])
    assert torch.equal(packed[1](ids), plain[1](ids))


def test_no_copies_without_memory_for_them() -> None:
    layer = nn.Linear(40, 24).requires_grad_(False)
    pack(layer, 2 * layer.weight.nbytes - 1)
    assert isinstance(layer.weight, nn.Parameter)
    pack(layer, 2 * layer.weight.nbytes)
    assert isinstance(layer.weight, PackedWeight)


@pytest.mark.parametrize(
    ("cpuinfo", "expected"),
    [("processor\t: 0\nvendor_id\t: AuthenticAMD\n", True), ("vendor_id\t: GenuineIntel\n", False)],
)
def test_vendor_of_the_cpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cpuinfo: str, expected: bool
) -> None:
    monkeypatch.undo()
    (tmp_path / "cpuinfo").write_text(cpuinfo)
    assert packed_weights._is_amd(tmp_path / "cpuinfo") == expected
    assert not packed_weights._is_amd(tmp_path / "absent")


def test_opened_checkpoint_is_packed_with_the_same_logits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _tiny.pretrain(_tiny.write(tmp_path), tmp_path / "run", "train.steps=2")
    packed = open_checkpoint(tmp_path / "run", device="cpu").model
    monkeypatch.setattr(packed_weights, "_SMALLEST", 1 << 30)
    plain = open_checkpoint(tmp_path / "run", device="cpu").model
    assert isinstance(packed.output_table(), PackedWeight)
    assert not isinstance(plain.output_table(), PackedWeight)
    hidden = torch.randn(4, plain.config.hidden_size)
    expected = F.linear(hidden, plain.token_embedding)
    torch.testing.assert_close(packed.logits(hidden), expected, rtol=1e-5, atol=1e-5)
