"""The kind `local_window`: against torch's softmax with a mask drawn by hand, and what is skipped.

Every backend on every pack, gradients included: test_attention.py.
"""

import sys
from types import SimpleNamespace

import pytest
import torch

from nlpkit import attention
from nlpkit.attention.backends import flash, varlen
from nlpkit.attention.cache import Cache
from nlpkit.attention.choice import AttentionChoice, load_kind
from nlpkit.attention.kernels.tiles import Tiling
from nlpkit.attention.masks import dense_mask
from nlpkit.contracts.request import Layout, Request
from tests._attention import HEADS, TILED, WIDTH, attend_of, inputs
from tests.parts import tiled

BACKENDS = ["reference", "sdpa", "cpu_flash", TILED]


def _prepare(
    window: int, layout: Layout, backend: str = "auto", causal: bool = True, **more
) -> attention.Attend:
    return attend_of(
        AttentionChoice.of("local_window", window=window, causal=causal), layout,
        heads=HEADS, head_dim=WIDTH,
        dtype=torch.float32, device="cpu", training="cache" not in more, backend=backend, **more,
    )  # fmt: skip


def _request(
    name: str = "local_window", window: int = 5, lengths=(40, 400), device: str = "cpu", **changes
) -> Request:
    layout, position = Layout(lengths, device), Layout(lengths).positions
    kind = load_kind(name)
    config = kind.Config(window=window) if name == "local_window" else kind.Config()
    facts = {
        "kind": kind, "config": config, "layout": layout, "keys": layout,
        "fields": {"position": position}, "key_fields": {"position": position},
        "tensors": {}, "buffers": {}, "heads": HEADS, "key_heads": HEADS, "head_dim": 64,
        "dtype": torch.bfloat16, "training": True, "dropout": 0.0, "scale": 0.125,
    }  # fmt: skip
    return Request(**(facts | changes))


def test_window_mask_equals_drawing() -> None:
    mask = dense_mask(AttentionChoice.of("local_window", window=3), Layout([5, 2]))
    drawing = ["x......", "xx.....", "xxx....", ".xxx...", "..xxx..", ".....x.", ".....xx"]
    assert ["".join("x" if seen else "." for seen in row) for row in mask.tolist()] == drawing


def test_window_to_both_sides_is_seen_and_goes_to_fused_kernels() -> None:
    choice = AttentionChoice.of("local_window", window=2, causal=False)
    assert choice.visibility == "bidirectional"
    mask = dense_mask(choice, Layout([5, 2]))
    drawing = ["xx.....", "xxx....", ".xxx...", "..xxx..", "...xx..", ".....xx", ".....xx"]
    assert ["".join("x" if seen else "." for seen in row) for row in mask.tolist()] == drawing
    assert _request(config=choice.config).window == (1, 1)


@pytest.mark.parametrize(("window", "causal"), [(1, True), (4, True), (1000, True), (4, False)])
@pytest.mark.parametrize("backend", BACKENDS)
def test_window_equals_torchs_softmax_of_each_document_with_gradients(
    backend: str, window: int, causal: bool
) -> None:
    lengths = [23, 1, 340]  # to both sides, several tiles
    (q, k, v), _, grad = inputs(364)
    right = 0 if causal else window - 1
    parts = []
    for q_one, k_one, v_one in zip(*(x.split(lengths) for x in (q, k, v)), strict=True):
        place = torch.arange(len(q_one))
        far = place[:, None] - place[None, :]
        scores = torch.einsum("qhd,khd->hqk", q_one, k_one) / WIDTH**0.5
        weights = scores.masked_fill((far < -right) | (far > window - 1), -torch.inf).softmax(-1)
        parts.append(torch.einsum("hqk,khd->qhd", weights, v_one))
    expected = torch.cat(parts)
    found = _prepare(window, Layout(lengths), backend, causal)(q, k, v)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)
    for a, b in zip(
        torch.autograd.grad(found, (q, k, v), grad),
        torch.autograd.grad(expected, (q, k, v), grad),
        strict=True,
    ):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=0)


def test_token_moves_only_those_that_have_it_in_their_window() -> None:
    (q, k, v), _, _ = inputs(20)
    attend = _prepare(4, Layout([20]))
    changed = v.detach().clone()
    changed[6] += 1
    moved = (attend(q, k, v) != attend(q, k, changed)).flatten(1).any(1)
    assert moved.nonzero().flatten().tolist() == [6, 7, 8, 9]


def test_window_with_a_cache_equals_without() -> None:
    (q, k, v), _, _ = inputs(15)
    whole, cache, found = _prepare(4, Layout([15]))(q, k, v), Cache(), []
    for start, stop in [(0, 6), *((i, i + 1) for i in range(6, 15))]:
        layout = attention.layout_of([stop - start], "cpu", cache)
        attend = _prepare(4, layout, cache=cache)
        found.append(attend(q[start:stop], k[start:stop], v[start:stop]))
    torch.testing.assert_close(torch.cat(found), whole, atol=1e-6, rtol=0)


@pytest.mark.parametrize("backend", BACKENDS[1:])
def test_window_is_of_the_positions_that_a_batch_brings(backend: str) -> None:
    # They restart in a document, as those of a translation do; the document is several tiles.
    (q, k, v), _, _ = inputs(300)
    place = torch.cat([torch.arange(130), torch.arange(170)])
    far = place[:, None] - place
    scores = torch.einsum("qhd,khd->hqk", q, k) / WIDTH**0.5
    weights = scores.masked_fill((far < 0) | (far > 3), -torch.inf).softmax(-1)
    expected = torch.einsum("hqk,khd->qhd", weights, v)
    found = _prepare(4, Layout([300]), backend, fields={"position": place})(q, k, v)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)


def test_cpu_flash_computes_only_tiles_around_the_window() -> None:
    # By hand: 400 tokens are 4 tiles of 100 rows, each with the 100 keys of its rows and, but for
    # the first, the 4 before them; the 40 others are one tile.
    sizes = [(t.rows.stop - t.rows.start, t.keys.stop - t.keys.start)
             for t in Tiling(_request(), 128).tiles]  # fmt: skip
    assert sizes == [(100, 100), (100, 104), (100, 104), (100, 104), (40, 40)]


def test_tiled_skips_the_tiles_outside_the_window() -> None:
    tile = tiled._TILE
    layout = Layout([10 * tile])
    request = _request(lengths=[10 * tile], window=tile)
    (q, k, _), _, _ = inputs(layout.total)
    blocks = list(tiled._tiles(0, layout.total, q.device))
    found = [
        (i, j) for i, rows in enumerate(blocks) for j, keys in enumerate(blocks)
        if tiled._scores(request, None, q, k, rows, keys) is not None
    ]  # fmt: skip
    assert found == [(i, j) for i in range(10) for j in (i - 1, i) if j >= 0]


def test_window_goes_to_fused_kernels_as_keys_to_the_left_and_right(monkeypatch) -> None:
    assert _request().window == (4, 0)
    assert _request("causal").window == (-1, 0)
    assert _request("full").window == (-1, -1)
    assert _request(tensors={"table": torch.zeros(1, HEADS)}).window is None
    assert _request(keys=Layout([3, 4])).window is None
    given: list[dict] = []

    def kernel(q, *args, **options):
        given.append(options)
        return q

    package = SimpleNamespace(flash_attn_varlen_func=kernel)
    monkeypatch.setitem(sys.modules, "flash_attn", package)
    monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", kernel)
    q = torch.zeros(440, HEADS, 64)
    for kind in ("local_window", "causal", "full"):
        for backend in (flash, varlen):
            backend.prepare(_request(kind))(q, q, q)
    windows = [options["window_size"] for options in given]
    assert windows == [(4, 0), (4, 0), (-1, 0), (-1, 0), (-1, -1), (-1, -1)]
    assert [options.get("causal") for options in given[::2]] == [True, True, False]


def test_kernels_for_gpus_take_a_window(monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    assert varlen.refuses(_request(device="cuda")) is None
