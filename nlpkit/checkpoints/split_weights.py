"""Writes weights as several files, with an index of their tensors, as `transformers` does."""

import json
from collections.abc import Mapping
from pathlib import Path

from huggingface_hub import split_torch_state_dict_into_shards
from torch import Tensor

from nlpkit.checkpoints.hf_layout import INDEX
from nlpkit.checkpoints.hf_writing import save_tensors


def write(directory: Path, tensors: Mapping[str, Tensor], limit: int) -> None:
    """Write files of at most `limit` bytes; what fits into one has no index."""
    shards = split_torch_state_dict_into_shards(dict(tensors), max_shard_size=limit)
    for name, keys in shards.filename_to_tensors.items():
        save_tensors(directory / name, {key: tensors[key] for key in keys}, {"format": "pt"})
    if shards.is_sharded:
        parameters = sum(tensor.numel() for tensor in tensors.values())
        metadata = {"total_parameters": parameters, **shards.metadata}
        index = {"metadata": metadata, "weight_map": shards.tensor_to_filename}
        text = json.dumps(index, indent=2, sort_keys=True, ensure_ascii=False)
        (directory / INDEX).write_text(text + "\n", encoding="utf-8")
