"""CPM-Live's adapters against a reference that has OpenDelta's parallel module at run time."""

import pickle
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from nlpkit.checkpoints import any_layout
from nlpkit.errors import FileError, UsageError
from nlpkit.runs.convert import Options, convert
from tests import _adapters, _cpm_live, _tiny
from tests._cpm_live import SIZES

TOKENS = [*_adapters.WORDS, *"零一二三四五六七八九十"][: SIZES["vocab_size"]]
_WIDE = SIZES["num_heads"] * SIZES["dim_head"]
_Q = "encoder.layers.0.self_att.self_attention.project_q"


def _best(*, unused: bool = False, rank: int = 8) -> dict[str, torch.Tensor]:
    """Return the state dict of OpenDelta's adapters on queries and values."""
    state = {}
    for i in range(SIZES["num_layers"]):
        for part in "qv":
            name = f"encoder.layers.{i}.self_att.self_attention.project_{part}.lora"
            state[f"{name}.lora_A"] = 0.2 * torch.randn(rank, SIZES["dim_model"])
            state[f"{name}.lora_B"] = 0.2 * torch.randn(_WIDE, rank)
            if unused:
                state[f"{name}.lin.weight"] = torch.randn(_WIDE, SIZES["dim_model"])
                state[f"{name}.lin.bias"] = torch.randn(_WIDE)
    return state


@pytest.fixture
def released(tmp_path: Path) -> Path:
    return _cpm_live.release(tmp_path / "release", _cpm_live.weights(SIZES), SIZES, TOKENS)


@pytest.fixture
def best(tmp_path: Path) -> Path:
    torch.save(_best(), tmp_path / "best.pt")
    return tmp_path / "best.pt"


def _expected(released: Path, adapters: dict[str, torch.Tensor], ids: torch.Tensor):
    """Return the reference's logits of a text that is context, behind prompt 2."""
    return _cpm_live.logits(
        torch.load(released) | adapters, SIZES, block=2, ids=ids,
        segment=torch.full(ids.shape, 2), context=torch.ones(len(ids), dtype=torch.bool),
    )  # fmt: skip


@pytest.mark.parametrize(("unused", "rank"), [(False, 8), (True, 8), (False, 4)])
def test_cpm_live_adapters_merged_give_the_logits_of_the_parallel_module(
    unused: bool, rank: int, released: Path, tmp_path: Path
) -> None:
    adapters = _best(unused=unused, rank=rank)
    torch.save(adapters, tmp_path / "best.pt")
    convert(released, tmp_path / "out", Options(adapters=tmp_path / "best.pt"))
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out").eval()
    ids = torch.randint(10, SIZES["vocab_size"], (30,))
    with torch.no_grad():
        found = model(input_ids=ids[None]).logits[0]
    expected = _expected(released, adapters, ids)
    assert (expected - _expected(released, {}, ids)).abs().max() > 0.1
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def test_cpm_live_adapters_change_only_their_layers_and_are_rounded_once(
    released: Path, best: Path
) -> None:
    release = any_layout.find_original(released)
    assert release is not None
    files = release.weights, release.settings
    before, after = (release.module.read(*files, adapters=each)[1] for each in (None, best))
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    layers = {name.partition(".lora.")[0] for name in torch.load(best)}
    assert changed == {f"cpmant.{layer}.weight" for layer in layers}
    half = release.module.read(*files, torch.bfloat16, best)[1]
    assert all(torch.equal(half[name], after[name].bfloat16()) for name in after)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda s: s.pop(f"{_Q}.lora.lora_B"), f"lacks {_Q}.lora.lora_B"),
        (lambda s: s.pop(f"{_Q}.lora.lora_A"), f"lacks {_Q}.lora.lora_A"),
        (lambda s: s.update({"a.weight": torch.ones(2)}), "a.weight is no matrix of an adapter"),
        (lambda s: s.update({f"{_Q}.lora.lora_A": torch.ones(8)}), "lora_A is no matrix"),
        (lambda s: s.update({f"{_Q}.lora.lora_A": torch.ones(8, 31)}), "(8, 31) and "),
        (lambda s: s.update({f"{_Q}.lora.lora_A": torch.ones(7, 32)}), "(7, 32) and "),
        (lambda s: s.update({f"{_Q}.lora.lora_A": torch.ones(8, 32).long()}), "no floating-point"),
        (lambda s: s.update({"x.lora.lora_A": torch.ones(1, 1), "x.lora.lora_B": torch.ones(1, 1)}),
         "adapts x.weight, which the release does not have"),
        (lambda s: s.update({"segment_embedding.lora.lora_A": torch.ones(1, 32),
                             "segment_embedding.lora.lora_B": torch.ones(4, 1)}),
         "adapts segment_embedding.weight, which is no linear layer"),
        (lambda s: [s.pop(name) for name in list(s)[1:]], "lacks"),
    ],
)  # fmt: skip
def test_cpm_live_adapters_that_do_not_fit_are_named(
    change, named: str, released: Path, best: Path, tmp_path: Path
) -> None:
    state = _best()
    change(state)
    torch.save(state, best)
    with pytest.raises(FileError) as caught:
        convert(released, tmp_path / "out", Options(adapters=best))
    assert str(caught.value).startswith(f"{best}: ")
    assert named in str(caught.value)
    assert not (tmp_path / "out").exists()


class _Hostile:
    def __reduce__(self):
        return print, ("executed",)


def test_cpm_live_adapters_run_no_code_of_the_file(
    released: Path, best: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    best.write_bytes(pickle.dumps({f"{_Q}.lora.lora_A": _Hostile()}))
    with pytest.raises(FileError, match="not a file of tensors alone"):
        convert(released, tmp_path / "out", Options(adapters=best))
    assert "executed" not in capsys.readouterr().out


def test_cpm_live_adapters_are_merged_on_the_command_line(
    released: Path, best: Path, tmp_path: Path
) -> None:
    made = _tiny.command("convert", released, tmp_path / "out", "--adapters", best)
    assert made.returncode == 0, made.stderr
    assert f"adapters of {best} merged into {released}" in made.stderr
    # What was merged is no release, whatever the file says.
    again = _tiny.command("convert", tmp_path / "out", tmp_path / "no", "--adapters", best)
    assert again.returncode == 2
    assert "--adapters: " in again.stderr
    assert "is not an original release" in again.stderr
    with pytest.raises(UsageError, match="excludes --average"):
        convert(released, tmp_path / "no", Options(adapters=best, average=[released]))
    assert not (tmp_path / "no").exists()
