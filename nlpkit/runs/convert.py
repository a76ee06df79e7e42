"""Converts a checkpoint to the layout of `transformers`: merges adapters, changes the precision."""

import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nlpkit import __version__
from nlpkit.checkpoints import (
    any_layout,
    generation_settings,
    hf_layout,
    objective_heads,
    preprocessor,
    tokenizer_files,
)
from nlpkit.checkpoints.family import family_of
from nlpkit.contracts.objective import Objective
from nlpkit.contracts.tokenizer import Tokenizer
from nlpkit.disk import name_path_in_errors, sync
from nlpkit.errors import FileError, UsageError
from nlpkit.models import families
from nlpkit.models.config import ModelConfig
from nlpkit.models.head import TaskHead
from nlpkit.models.rows import vocabulary_size, without_padding
from nlpkit.runs import model_card
from nlpkit.runs.opened import objective_of
from nlpkit.runs.run import ModelPart
from nlpkit.runs.stored_weights import PRECISIONS, mean, read
from nlpkit.tokenizers._source_and_target import check_sources


def convert(
    source: Path,
    out: Path,
    *,
    precision: str | None = None,
    config: Path | None = None,
    vocabulary: Path | None = None,
    family: str | None = None,
    average: Sequence[Path] = (),
    max_shard: int | None = None,
    info: Callable[[str], None] = lambda _: None,
    warn: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Write the checkpoint `source` to `out`, atomically; return facts about the result.

    Args:
        average: other checkpoints of the same model; the weights of `out` are the mean of all.
        precision: fp32, bf16 or fp16; None: as stored (fp32 for an original release).
        max_shard: bytes of the largest file of weights; None: all are in one.
        config: settings of an original release, if they are not in the same directory.
        vocabulary: file or directory of the tokenizer, if it is not with the weights.
        family: the family that reads `source`; None: the one that the checkpoint names.

    Raises:
        UsageError: `out` exists and is not empty, or an option does not apply.
        FileError: a file is missing or damaged, does not fit, or cannot be written.
    """
    _check_free(out)
    requested = PRECISIONS[precision] if precision is not None else None
    old = read(source, requested, config, family, info)
    all_read = [old, *(read(each, requested, config, family, info) for each in average)]
    if average:
        old = mean(all_read)
    family, _ = family_of(old.settings, old.path, family)
    loaded = hf_layout.converted(family, old.path, old.settings, old.tensors)
    for line in loaded.warnings("not written"):
        warn(line)
    tokenizer = _tokenizer(old.path, loaded, family, vocabulary)
    pad_id = tokenizer.pad_id if tokenizer is not None else None
    notes = {**any_layout.read_notes(old.path), "nlpkit": __version__}
    part = ModelPart(family, loaded.config, None)
    objective = _objective(old.path, notes, tokenizer, part, loaded.head, warn)
    ends = generation_settings.begin_and_end(objective, tokenizer)
    folders = hf_layout.layout(
        *(family, loaded.config, loaded.state),
        pad_id=pad_id,
        bos_and_eos=ends,
        head=loaded.head,
        target_ids=tokenizer_files.target_ids(tokenizer, loaded.config.target_tokens),
    )
    if (kind := str(folders[""][0]["model_type"])).startswith(hf_layout.OWN_TYPE):
        warn(
            f"transformers has no {_with_attention(family, loaded.config)}: nlpkit opens {out}, "
            f"from_pretrained does not (model_type {kind})"
        )
    dtype = requested or old.precision
    for folder, (settings, tensors) in folders.items():
        kept = {} if folder else old.settings
        settings = {
            **{k: v for k, v in kept.items() if k != "torch_dtype"},
            **settings,
            **{k: v for k, v in kept.items() if k in ("id2label", "label2id")},
            "dtype": str(dtype).removeprefix("torch."),
        }
        cast = {name: _cast(name, tensor, dtype) for name, tensor in tensors.items()}
        folders[folder] = settings, cast
    notes.pop("base", None)
    generation = generation_settings.read(old.path) or generation_settings.of_objective(
        objective, tokenizer, folders[""][0]
    )

    own = old.path / model_card.CARD
    parameters = sum(tensor.numel() for tensor in loaded.state.values())

    def card(directory: Path) -> str:
        # A card that is there may have been edited; that of adapters or of one of several is none.
        if own.is_file() and not average and any_layout.base(old.path) is None:
            return own.read_text(encoding="utf-8")
        averaged = [each.path for each in all_read] if average else []
        return model_card.text(
            *(directory, old.path), parameters=parameters, objective=objective, averaged=averaged
        )

    def write(directory: Path) -> None:
        hf_layout.write_folders(directory, folders, max_shard)
        objective_heads.write(directory, {n: _cast(n, t, dtype) for n, t in old.heads.items()})
        if tokenizer is not None:
            use = tokenizer_files.use_of(objective, loaded.config, tokenizer)
            tokenizer_files.save(tokenizer, directory, use)
        generation_settings.write(directory, generation)
        hf_layout.write_notes(directory, notes)
        if inputs := preprocessor.read(old.path):
            preprocessor.write(directory, inputs)
        model_card.write(directory, card(directory))

    _publish(out, write)
    weights = [file for folder in folders for file in (out / folder).glob("model*.safetensors")]
    return {
        "checkpoint": str(out),
        "source": str(old.path),
        "upload": model_card.upload(out, model_card.name_of(old.path) or out.name),
        "family": family,
        "precision": next(name for name, kind in PRECISIONS.items() if kind == dtype),
        "parameters": parameters,
        "bytes": sum(file.stat().st_size for file in weights),
        "files": len(weights),
    }


def _with_attention(family: str, config: ModelConfig) -> str:
    """Return the name of a family, and its kinds of attention if they are not its own."""
    kinds = ", ".join(dict.fromkeys(choice.kind for choice in config.attention))
    return f"{family} with attention {kinds}" if kinds else family


def _objective(
    path: Path,
    notes: Mapping[str, Any],
    tokenizer: Tokenizer | None,
    part: ModelPart,
    head: TaskHead | None,
    warn: Callable[[str], None],
) -> Objective | None:
    """Return the objective of a checkpoint, or None, with a warning, if it cannot be made."""
    try:
        found: Objective = objective_of(path, notes, tokenizer, part, head)
        return found
    except FileError as error:
        warn(f"{error}: transformers is not told how texts are read")
        return None


def _check_free(out: Path) -> None:
    with name_path_in_errors(out):
        if out.is_symlink() or (out.exists() and (not out.is_dir() or any(out.iterdir()))):
            raise UsageError(f"{out}: exists already; give a new or empty directory")


def _tokenizer(
    path: Path, loaded: hf_layout.Loaded, family: str, vocabulary: Path | None
) -> Tokenizer | None:
    """Return the tokenizer of a checkpoint, or None if the family has no vocabulary.

    Raises:
        UsageError: `vocabulary` is given, but the family has no vocabulary.
        FileError: there is no tokenizer, or the model has another number of tokens.
    """
    tables = families.vocabulary(family)
    if not tables:
        if vocabulary is not None:
            raise UsageError(f"--vocab: family {family} has no vocabulary; leave the option out")
        return None
    tokenizer = tokenizer_files.load(vocabulary or any_layout.tokenizer_home(path))[1]
    rows = vocabulary_size(loaded.state, tables)
    if loaded.config.padded_vocabulary and rows > tokenizer.vocab_size:
        rows = tokenizer.vocab_size
        loaded.state.update(without_padding(loaded.state, tables, rows))
    if rows not in (0, tokenizer.vocab_size):
        name = vocabulary or "in its directory"
        raise FileError(
            f"{path}: the model has {rows} tokens and its tokenizer ({name}) has "
            f"{tokenizer.vocab_size}"
        )
    check_sources(path, loaded.config, tokenizer)
    return tokenizer


def _cast(name: str, tensor: Tensor, dtype: torch.dtype) -> Tensor:
    cast = tensor.to(dtype)
    if dtype == torch.float16 and not cast.isfinite().all() and tensor.isfinite().all():
        largest = tensor.abs().max().item()
        raise UsageError(f"--precision fp16: {name} has {largest:.3g}, above 65504; use bf16")
    return cast


def _publish(out: Path, write: Callable[[Path], None]) -> None:
    """Create the directory `out` with the files that `write(directory)` writes, in one rename."""
    draft = out.absolute().with_name(f".{out.absolute().name}.{os.getpid()}")
    with name_path_in_errors(out):
        draft.mkdir(parents=True)
        try:
            write(draft)
            for path in draft.rglob("*"):
                sync(path)
            sync(draft)
            draft.rename(out)
            sync(draft.parent)
        except BaseException:
            shutil.rmtree(draft, ignore_errors=True)
            raise
