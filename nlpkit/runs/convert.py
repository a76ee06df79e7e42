"""Converts a checkpoint to the layout of `transformers`: merges adapters, changes the precision."""

import os
import shlex
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from nlpkit import __version__
from nlpkit.checkpoints import (
    any_layout,
    hf_layout,
    hf_model,
    hf_writing,
    objective_heads,
    tokenizer_files,
)
from nlpkit.contracts.objective import Objective
from nlpkit.contracts.tokenizer import Tokenizer
from nlpkit.data.lines import name_first
from nlpkit.disk import name_path_in_errors, whole_directory
from nlpkit.errors import FileError, UsageError
from nlpkit.json_types import JsonMapping, JsonObject
from nlpkit.models import families
from nlpkit.runs import model_card
from nlpkit.runs.saved_objective import load_objective, load_tokenizer
from nlpkit.runs.stored_weights import PRECISIONS, Weights, average, read
from nlpkit.units import format_bytes


@dataclass(frozen=True)
class Options:
    """What `convert` does beside merging adapters."""

    precision: str | None = None  # fp32, bf16 or fp16; None: as stored (fp32 for an original)
    config: Path | None = None  # settings of an original release that lie in another directory
    vocabulary: Path | None = None  # file or directory of a tokenizer that is not with the weights
    adapters: Path | None = None  # in the format of an original release, which they adapt
    family: str | None = None  # reads the checkpoints; None: the family that they name
    average: Sequence[Path] = ()  # other checkpoints of the model; the mean of all is written
    max_shard: int | None = None  # bytes of the largest file of weights; None: all are in one


@dataclass(frozen=True)
class _Model:
    weights: Weights
    family: str
    loaded: hf_model.Loaded
    tokenizer: Tokenizer | None
    objective: Objective | None
    dtype: torch.dtype


def convert(
    source: Path,
    out: Path,
    options: Options = Options(),
    *,
    info: Callable[[str], None] = lambda _: None,
    warn: Callable[[str], None] = lambda _: None,
) -> JsonObject:
    """Write the checkpoint `source` to `out`, atomically; return facts about the result.

    Raises:
        UsageError: `out` exists and is not empty, or an option does not apply.
        FileError: a file is missing or damaged, does not fit, or cannot be written.
    """
    with name_path_in_errors(out):
        if out.is_symlink() or (out.exists() and (not out.is_dir() or any(out.iterdir()))):
            raise UsageError(f"{out}: exists already; give a new or empty directory")
    dtype = None if options.precision is None else PRECISIONS[options.precision]
    if options.average and options.adapters is not None:
        raise UsageError("--adapters: merged into one release; excludes --average")
    # An original release may be larger than memory.
    scratch = Scratch(next(path for path in out.absolute().parents if path.is_dir()))
    sources = (source, *options.average)
    weights = [
        read(each, dtype, options.config, options.family, info, options.adapters, scratch.keep)
        for each in sources
    ]
    model = _load(average(weights) if options.average else weights[0], options, warn)
    if (passes := model.loaded.config.setting("passes", 1)) > 1:
        raise UsageError(
            f"{source}: passes {passes}: transformers has no {model.family} whose layers run "
            "several times; nlpkit opens the checkpoint as it is"
        )
    folders = _make_folders(model)
    _drop_unread(model, folders[""], info)
    if (kind := str(folders[""][0]["model_type"])).startswith(hf_model.OWN_TYPE):
        kinds = dict.fromkeys(choice.kind for choice in model.loaded.config.attention)
        named = f" with attention {', '.join(kinds)}" if kinds else ""
        warn(
            f"transformers has no {model.family}{named}: "
            f"nlpkit opens {out}, from_pretrained does not (model_type {kind})"
        )
    averaged = [each.path for each in weights] if options.average else []
    parameters = sum(tensor.numel() for tensor in model.loaded.state.values())

    draft = out.absolute().with_name(f".{out.absolute().name}.{os.getpid()}")
    with whole_directory(out, draft) as directory:
        hf_writing.write_folders(directory, folders, options.max_shard)
        _write_beside(model, directory, folders[""][0])
        card = _make_card(model, directory, parameters, averaged)
        (directory / model_card.CARD).write_text(card, encoding="utf-8")
    files = [file for folder in folders for file in (out / folder).glob("model*.safetensors")]
    path = model.weights.path
    name = model_card.read_name(path) or out.name
    return {
        "checkpoint": str(out),
        "source": str(path),
        "upload": shlex.join(["hf", "upload", f"USER/{name}", str(out), "."]),
        "family": model.family,
        "precision": next(name for name, each in PRECISIONS.items() if each == model.dtype),
        "parameters": parameters,
        "bytes": sum(file.stat().st_size for file in files),
        "files": len(files),
    }


def _load(weights: Weights, options: Options, warn: Callable[[str], None]) -> _Model:
    """Return the model with these weights, its tokenizer and its objective."""
    path = weights.path
    family = hf_model.find_family(weights.settings, path, options.family)
    loaded = hf_model.from_hf(family, path, weights.settings, weights.tensors)
    for line in loaded.warnings("not written"):
        warn(line)
    if options.vocabulary is not None and not families.load(family).VOCABULARY:
        raise UsageError(f"--vocab: family {family} has no vocabulary; leave the option out")
    tokenizer = load_tokenizer(path, family, loaded, options.vocabulary)
    objective = None
    try:
        objective = load_objective(path, family, loaded, tokenizer)
    except FileError as error:
        warn(f"{error}: transformers is not told how texts are read")
    dtype = weights.precision if options.precision is None else PRECISIONS[options.precision]
    return _Model(weights, family, loaded, tokenizer, objective, dtype)


def _make_folders(model: _Model) -> hf_layout.Folders:
    """Return what is written as `config.json` and weights, with what `config.json` had before."""
    loaded, old = model.loaded, model.weights.settings
    ids = hf_writing.find_token_ids(model.objective, model.tokenizer, loaded.config)
    folders = hf_writing.to_hf(model.family, loaded.config, loaded.state, ids, loaded.head)
    _keep_name(folders[""][0], old, model.family)
    for folder, (settings, tensors) in folders.items():
        kept = {} if folder else old
        as_before = {k: v for k, v in kept.items() if k in ("id2label", "label2id")}
        if isinstance(kept.get("eos_token_id"), list):
            as_before["eos_token_id"] = kept["eos_token_id"]
        settings = {
            **{k: v for k, v in kept.items() if k != "torch_dtype"},
            **settings,
            **as_before,
            "dtype": str(model.dtype).removeprefix("torch."),
        }
        cast = {name: _cast(name, tensor, model.dtype) for name, tensor in tensors.items()}
        folders[folder] = settings, cast
    return folders


def _drop_unread(model: _Model, content: hf_layout.Content, info: Callable[[str], None]) -> None:
    """Remove what transformers' model with a task's layer does not have, such as an output table.

    It would report such tensors as unexpected.
    """
    (settings, tensors), head = content, model.loaded.head
    own_type = str(settings["model_type"]).startswith(hf_model.OWN_TYPE)
    if head is None or not head.architecture or own_type:
        return
    module = families.load_model(model.family)
    unread = [name for name in tensors if not hf_model.has_tensor(module, head, name)]
    for name in unread:
        del tensors[name]
    if unread:
        named = " ".join(settings["architectures"])
        info(f"not in {named}, not written: {name_first(unread)}")


def _keep_name(settings: JsonObject, old: JsonMapping, family: str) -> None:
    """Give `config.json` the name that the model had before, where its family has several.

    A class that ends otherwise, such as that of the body alone, is replaced by the family's.
    """
    own, *more = hf_model.model_types(family)
    classes = settings["architectures"]
    ends = [name.partition("For")[2] for name in classes]
    before = [name for name in old.get("architectures") or () if name.partition("For")[2] in ends]
    if settings["model_type"] == own and old.get("model_type") in more and before:
        settings |= {"model_type": old["model_type"], "architectures": before}


def _write_beside(model: _Model, directory: Path, settings: JsonObject) -> None:
    """Write what is beside the weights."""
    path = model.weights.path
    heads = {n: _cast(n, tensor, model.dtype) for n, tensor in model.weights.heads.items()}
    objective_heads.write(directory, heads)
    if model.tokenizer is not None:
        use = tokenizer_files.describe_use(model.objective, model.loaded.config, model.tokenizer)
        tokenizer_files.save(model.tokenizer, directory, use)
    notes = {**any_layout.read_notes(path), "nlpkit": __version__}
    generation = hf_layout.read_if_there(path / hf_writing.GENERATION)
    # Beside a published config.json, whose settings of generation hold, it would override these.
    if not generation and (model.weights.is_release or "objective" in notes):
        generation = hf_writing.choose_generation(model.objective, model.tokenizer, settings)
    hf_writing.write_generation(directory, generation)
    notes.pop("base", None)
    hf_writing.write_notes(directory, notes)
    more = model.objective.checkpoint_files() if model.objective is not None else {}
    for name, text in more.items():
        old = path / name  # which may have been edited
        own = old.read_text(encoding="utf-8") if old.is_file() else text
        (directory / name).write_text(own, encoding="utf-8")


def _make_card(model: _Model, directory: Path, parameters: int, averaged: Sequence[Path]) -> str:
    """Return the model card: the one that is there, since users edit it, or a new one."""
    path = model.weights.path
    own = path / model_card.CARD
    # That of adapters, or of one of several checkpoints, is not this model's.
    if own.is_file() and not averaged and any_layout.find_base(path) is None:
        return own.read_text(encoding="utf-8")
    return model_card.make_card(
        *(directory, path), parameters=parameters, objective=model.objective, averaged=averaged
    )


class Scratch:
    """Room for tensors in files without names, so that a model need not fit into memory.

    The system writes their pages out when memory is short. The files vanish with the tensors, or
    with the process.
    """

    def __init__(self, directory: Path):
        self.directory = directory
        self.free = shutil.disk_usage(directory).free

    def keep(self, tensor: Tensor) -> Tensor:
        """Return a copy of a dense tensor whose memory is a file.

        Raises:
            FileError: the file system is full, or the directory cannot be written.
        """
        if tensor.numel() == 0:
            return tensor
        # Without this check, a full file system would end the process by a signal.
        if tensor.nbytes > self.free:
            raise FileError(
                f"{self.directory}: no room for a temporary copy of the weights: a tensor of "
                f"{format_bytes(tensor.nbytes)}, and {format_bytes(self.free)} free"
            )
        self.free -= tensor.nbytes
        with name_path_in_errors(self.directory):
            number, name = tempfile.mkstemp(dir=self.directory, prefix=".nlpkit-")
            os.close(number)
            try:
                kept = torch.from_file(name, shared=True, size=tensor.numel(), dtype=tensor.dtype)
            finally:
                os.unlink(name)
        return kept.view(tensor.shape).copy_(tensor)


def _cast(name: str, tensor: Tensor, dtype: torch.dtype) -> Tensor:
    cast = tensor.to(dtype)
    if dtype == torch.float16 and not cast.isfinite().all() and tensor.isfinite().all():
        largest = tensor.abs().max().item()
        raise UsageError(f"--precision fp16: {name} has {largest:.3g}, above 65504; use bf16")
    return cast
