"""The backend of attention is chosen by its time on the first batch, and kept with the run."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from nlpkit import attention
from nlpkit.attention import measured
from nlpkit.attention.backends import cpu_flash, sdpa
from nlpkit.attention.contract import Choice, Request
from nlpkit.errors import NlpkitError
from nlpkit.runs import fastest_backend
from nlpkit.train.log import NORMAL
from tests import _tiny

HEADS, WIDTH = 2, 16


def _requests(
    lengths: list[int], kind: str = "causal", dtype: torch.dtype = torch.bfloat16, **more: float
) -> list[Request]:
    """Return the request of one pack."""
    layout = attention.layout_of(lengths, "cpu")
    return fastest_backend.requests(
        lambda: attention.prepare(
            Choice.of(kind), layout, heads=HEADS, head_dim=WIDTH, dtype=dtype, device="cpu",
            training=True, **more,
        )
    )  # fmt: skip


def _times(monkeypatch: pytest.MonkeyPatch, **seconds: float) -> None:
    monkeypatch.setattr(measured, "_seconds", lambda request, name: seconds[name])
    monkeypatch.setattr(measured, "_FEWEST", 0)


@pytest.mark.parametrize(
    ("seconds", "preferred"),
    [
        ({"cpu_flash": 1.0, "sdpa": 0.5}, "sdpa"),
        ({"cpu_flash": 1.0, "sdpa": 0.75}, None),  # too close to be sure
        ({"cpu_flash": 1.0, "sdpa": 2.0}, None),  # the usual one is the fastest
    ],
)
def test_the_faster_one_is_preferred(
    monkeypatch: pytest.MonkeyPatch, seconds: dict[str, float], preferred: str | None
) -> None:
    _times(monkeypatch, **seconds)
    found = measured.fastest(_requests([7, 5]), attention.usual)
    assert (found and found[0]) == preferred
    if found:
        assert found[1] == "0.50 of the usual backend's time on the first batch"


def test_in_float32_torch_is_usual_and_the_other_one_may_be_faster(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _times(monkeypatch, cpu_flash=0.5, sdpa=1.0)
    found = measured.fastest(_requests([7, 5], dtype=torch.float32), attention.usual)
    assert found is not None
    assert found[0] == "cpu_flash"


def test_small_batches_and_requests_for_one_backend_alone_are_not_measured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(request: Request, name: str) -> float:
        raise AssertionError

    monkeypatch.setattr(measured, "_seconds", fail)
    assert measured.fastest(_requests([7, 5]), attention.usual) is None
    monkeypatch.setattr(measured, "_FEWEST", 0)
    assert measured.fastest([], attention.usual) is None
    # cpu_flash has no dropout on the probabilities.
    assert measured.fastest(_requests([7, 5], dropout=0.1), attention.usual) is None


def test_of_long_sequences_nothing_is_measured_and_no_mask_is_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(request: Request, name: str) -> float:
        raise AssertionError

    monkeypatch.setattr(measured, "_seconds", fail)
    # Prepared where the request comes from, masks of such a length would take ten seconds.
    for backend in (cpu_flash, sdpa):
        monkeypatch.setattr(backend, "prepare", lambda request: lambda q, k, v: q)
    found = measured.fastest(_requests([2**15]), attention.usual)
    assert found == ("sdpa", "long sequences, no mask")
    assert measured.fastest(_requests([2**15], dtype=torch.float32), attention.usual) is None


def test_measuring_leaves_no_gradient_and_draws_no_number() -> None:
    table = torch.zeros(4, HEADS, requires_grad=True)
    before = torch.get_rng_state()
    layout = attention.layout_of([6, 3], "cpu")
    buckets = Choice.of("relative_bias", num_buckets=4, max_distance=8)

    def prepare() -> None:
        attention.prepare(
            buckets, layout, heads=HEADS, head_dim=WIDTH, dtype=torch.bfloat16, device="cpu",
            training=True, tensors={"table": table},
        )  # fmt: skip
        torch.rand(3)

    (request,) = fastest_backend.requests(prepare)
    assert all(measured._seconds(request, name) > 0 for name in measured.CANDIDATES)
    assert table.grad is None
    assert torch.equal(torch.get_rng_state(), before)


def test_a_preferred_backend_computes_what_it_can_and_leaves_the_rest() -> None:
    def chosen(backend: str, **more: float) -> str:
        return attention.prepare(
            Choice.of("causal"), attention.layout_of([4, 3], "cpu"), heads=HEADS, head_dim=WIDTH,
            dtype=torch.bfloat16, device="cpu", training=True, backend=backend, **more,
        ).backend  # fmt: skip

    assert chosen("auto") == "cpu_flash"
    assert chosen("auto:sdpa") == "sdpa"
    assert chosen("auto:tiled", dropout=0.1) == "cpu_flash"


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _tiny.write(tmp_path_factory.mktemp("backend"))


def _status(run: Path) -> dict[str, object]:
    found: dict[str, object] = json.loads((run / "run.json").read_text("utf-8"))
    return found


def test_a_run_says_its_choice_and_keeps_it_when_resumed(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sets = ("train.steps=4", "train.eval_every=2", "train.warmup_steps=1", "model.dropout=0.0")

    def stopped(run: Path, forget: Callable[[], None]) -> Path:
        with pytest.raises(NlpkitError, match="saved at step"):
            _tiny.pretrain(tiny, run, *sets, stop=_tiny.StopAtStep(run, 2))
        forget()
        return _tiny.pretrain(tiny, run, *sets)

    _times(monkeypatch, cpu_flash=1.0, sdpa=0.5)
    whole = _tiny.pretrain(tiny, tmp_path / "whole", *sets, verbosity=NORMAL)
    assert _status(tmp_path / "whole")["attention_backend"] == "sdpa"
    said = capsys.readouterr().err
    assert "attention: sdpa first (0.50 of the usual backend's time on the first batch)" in said
    assert "attention: sdpa\n" in said
    again = stopped(tmp_path / "kept", lambda: _times(monkeypatch, cpu_flash=0.5, sdpa=1.0))
    assert (again / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()

    # A run of before has no such key: it goes on with the usual order, whatever is faster.
    usual = _tiny.pretrain(tiny, tmp_path / "usual", *sets)
    assert _status(tmp_path / "usual")["attention_backend"] == ""
    old = tmp_path / "old"

    def forget() -> None:
        status = {k: v for k, v in _status(old).items() if k != "attention_backend"}
        (old / "run.json").write_text(json.dumps(status), "utf-8")
        _times(monkeypatch, cpu_flash=1.0, sdpa=0.5)

    def name_a_module() -> None:
        status = _status(old) | {"attention_backend": "evil.backend"}
        (old / "run.json").write_text(json.dumps(status), "utf-8")

    assert (stopped(old, forget) / "model.safetensors").read_bytes() == (
        usual / "model.safetensors"
    ).read_bytes()
    old = tmp_path / "stranger"
    _times(monkeypatch, cpu_flash=0.5, sdpa=1.0)
    assert (stopped(old, name_a_module) / "model.safetensors").read_bytes() == (
        usual / "model.safetensors"
    ).read_bytes()
