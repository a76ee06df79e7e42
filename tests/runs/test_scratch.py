"""Tensors in files without names: equal content, no file left, no memory of the process."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from nlpkit.errors import FileError
from nlpkit.runs.convert import Options, Scratch, convert
from tests import _adapters, _cpm_live
from tests._cpm_live import SIZES


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_scratch_keeps_equal_tensors_of_separate_storages(dtype, tmp_path: Path) -> None:
    scratch = Scratch(tmp_path)
    tensors = [torch.randn(shape).to(dtype) for shape in ((3, 5), (7,), (2, 3, 4), (0, 3))]
    kept = [scratch.keep(tensor) for tensor in tensors]
    assert not list(tmp_path.iterdir())
    assert all(torch.equal(one, other) for one, other in zip(tensors, kept, strict=True))
    assert len({tensor.untyped_storage().data_ptr() for tensor in kept}) == len(kept)
    assert {tensor.dtype for tensor in kept} == {dtype}


def test_scratch_of_a_full_disk_is_one_error(tmp_path: Path) -> None:
    scratch = Scratch(tmp_path)
    scratch.free = 100
    scratch.keep(torch.ones(20))
    with pytest.raises(FileError, match=r"no room for a temporary copy of the weights"):
        scratch.keep(torch.ones(20))
    assert not list(tmp_path.iterdir())


def test_convert_of_a_release_writes_shards_and_leaves_no_scratch(tmp_path: Path) -> None:
    tokens = [*_adapters.WORDS, *"零一二三四五六七八九十"][: SIZES["vocab_size"]]
    released = _cpm_live.release(tmp_path / "release", _cpm_live.weights(SIZES), SIZES, tokens)
    made = convert(released, tmp_path / "out", Options(precision="bf16", max_shard=10_000))
    assert made["files"] > 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "release"]


# Prints the peak of the memory that no file backs, in MiB, above that of the imports.
_MEASURE = """
import sys, threading, time
from pathlib import Path
from nlpkit.runs.convert import Options, convert
def anonymous():
    return next(int(l.split()[1]) for l in open("/proc/self/status") if l.startswith("RssAnon"))
start = peak = anonymous()
done = False
def watch():
    global peak
    while not done:
        peak = max(peak, anonymous())
        time.sleep(0.002)
thread = threading.Thread(target=watch)
thread.start()
convert(Path(sys.argv[1]), Path(sys.argv[2]), Options(precision="bf16", max_shard=20_000_000))
done = True
thread.join()
print((peak - start) // 1024)
"""
# Else malloc keeps what is freed, more or less of it, as threads and other programs have it.
_GIVES_BACK = {
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_THRESHOLD_": "65536",
    "MALLOC_TRIM_THRESHOLD_": "0",
}


def _sparse_release(folder: Path, sizes: dict) -> Path:
    """Write a release whose tensors have shapes and no content: holes in a sparse file."""
    tokens = [*_adapters.WORDS, *map(str, range(sizes["vocab_size"]))][: sizes["vocab_size"]]
    with torch.device("meta"):
        shapes = {name: tensor.shape for name, tensor in _cpm_live.weights(sizes).items()}
    # The system gives memory to what is written only.
    state = {name: torch.empty(shape, dtype=torch.float16) for name, shape in shapes.items()}
    released = _cpm_live.release(folder, {"a": torch.zeros(1)}, sizes, tokens)
    with torch.serialization.skip_data():
        torch.save(state, released)
    return released


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.slow
def test_convert_of_a_release_needs_no_more_memory_for_more_layers(tmp_path: Path) -> None:
    peaks = []
    for layers in (2, 30):
        wide = {"dim_model": 1024, "num_heads": 8, "dim_head": 128, "dim_ff": 2560}
        sizes = SIZES | wide | {"num_layers": layers}
        released = _sparse_release(tmp_path / f"release{layers}", sizes)
        out = tmp_path / f"out{layers}"
        result = subprocess.run(
            [sys.executable, "-c", _MEASURE, released, out],
            capture_output=True, text=True, env=os.environ | _GIVES_BACK,
        )  # fmt: skip
        assert result.returncode == 0, result.stderr
        peaks.append(int(result.stdout))
    index = json.loads((tmp_path / "out30" / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] > 700_000_000
    # 28 layers more are 670 MB as bf16.

    assert peaks[1] < peaks[0] + 100
