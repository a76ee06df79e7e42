"""Weights in several files of limited size, with an index, as `transformers` saves large models."""

import json
import re
from collections.abc import Mapping

from torch import Tensor

from nlpkit.errors import UsageError

_UNITS = {"KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_SIZE = re.compile(r"(\d+(?:\.\d+)?) ?([KMGT]B)", re.IGNORECASE)


def size_of(text: str) -> int:
    """Return the bytes of a size such as `2GB`; raise `UsageError`."""
    found = _SIZE.fullmatch(text.strip())
    size = int(float(found[1]) * _UNITS[found[2].upper()]) if found else 0
    if not size:
        raise UsageError(
            f"--max-shard-size: {text!r} is no size; give a number with {', '.join(_UNITS)}, such "
            "as 2GB"
        )
    return size


def split(
    tensors: Mapping[str, Tensor], limit: int, name: str = "model.safetensors"
) -> dict[str, dict[str, Tensor]]:
    """Return the tensors of each file, in their order; each file has at most `limit` bytes.

    A larger tensor has a file of its own. A single file is called `name`.
    """
    shards: list[dict[str, Tensor]] = []
    shard: dict[str, Tensor] = {}
    size = 0
    for key, tensor in tensors.items():
        if tensor.nbytes > limit:
            shards.append({key: tensor})
            continue
        if size + tensor.nbytes > limit:
            shards.append(shard)
            shard, size = {}, 0
        shard[key] = tensor
        size += tensor.nbytes
    if shard or not shards:
        shards.append(shard)
    if len(shards) == 1:
        return {name: shards[0]}
    stem, _, ending = name.rpartition(".")
    of = f"of-{len(shards):05d}.{ending}"
    return {f"{stem}-{number:05d}-{of}": each for number, each in enumerate(shards, 1)}


def index(files: Mapping[str, Mapping[str, Tensor]]) -> str:
    """Return the content of `model.safetensors.index.json`."""
    tensors = [tensor for shard in files.values() for tensor in shard.values()]
    content = {
        "metadata": {
            "total_parameters": sum(tensor.numel() for tensor in tensors),
            "total_size": sum(tensor.nbytes for tensor in tensors),
        },
        "weight_map": {key: name for name, shard in files.items() for key in shard},
    }
    return json.dumps(content, indent=2, sort_keys=True) + "\n"
