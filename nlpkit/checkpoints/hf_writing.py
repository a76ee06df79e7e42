"""Writes a model in the layout of `transformers`: settings, tensors, and how it generates."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from safetensors.torch import save_file
from torch import Tensor

from nlpkit.checkpoints import tokenizer_files
from nlpkit.checkpoints.hf_layout import INDEX, NOTES, WEIGHTS, Content, Folders
from nlpkit.checkpoints.hf_model import OWN_TYPE
from nlpkit.contracts.abilities import Generative
from nlpkit.contracts.format import FOLDERS, HfFormat
from nlpkit.contracts.tokenizer import Tokenizer
from nlpkit.errors import UsageError
from nlpkit.json_types import JsonMapping, JsonObject
from nlpkit.models import families
from nlpkit.models.config import ModelConfig
from nlpkit.models.formats import hf_format
from nlpkit.models.formats.hf_format import vocabulary_size
from nlpkit.models.layers.head import HEAD, PREFIX, SEQUENCE, TaskHead, task_head
from nlpkit.objectives.examples.text import default_new_tokens
from nlpkit.tokenizers.library.source_and_target import SourceAndTarget

GENERATION = "generation_config.json"
_GENERATING = ("LMHeadModel", "ForCausalLM", "ForConditionalGeneration", "MTModel")


@dataclass(frozen=True)
class TokenIds:
    """Ids of special tokens that transformers is told; None where there is no such token."""

    pad: int | None = None
    bos: int | None = None
    eos: int | None = None
    target_start: int | None = None  # begins a target with a source
    target_end: int | None = None
    separator: int | None = None  # between two texts


def to_hf(
    family: str,
    config: ModelConfig,
    weights: Mapping[str, Tensor],
    ids: TokenIds = TokenIds(),
    head: TaskHead | None = None,
    labels: Sequence[str] | None = None,
) -> Folders:
    """Return `config.json` and tensors of a model, with the task's output layer if it has one.

    A model with an output layer is saved as the model `head` of transformers (`TASK_HEADS` in
    `model.py`; default: the sequence classifier), whose outputs are called `labels`; if
    transformers has no such model, with the class of the family and a layer of our own.

    Raises:
        UsageError: a family's table of names is not complete.
    """
    module, light = families.load_model(family), families.load(family)
    form, body = module.FORMAT, {k: v for k, v in weights.items() if not k.startswith(PREFIX)}
    try:
        tensors = hf_format.to_hf_tensors(form, config, body)
    except KeyError as error:
        raise UsageError(f"family {family}: FORMAT.names has no row for {error}") from error
    notes: JsonObject = {"family": family}
    if inner := {folder: each for folder, each in form.folders.items() if each.present(config)}:
        notes["folders"] = [*inner]
    if config.attention:
        notes["attention"] = [choice.to_json() for choice in config.kinds]
    folders = {}
    for folder, each in {"": form, **inner}.items():
        settings = hf_format.to_hf_settings(
            each,
            config,
            model_type=light.MODEL_TYPE,
            vocab_size=vocabulary_size(body, light.VOCABULARY),
            notes=None if folder else notes,
        )
        # transformers has no such family, or would compute the family's default attention
        if not (config.has_default_attention and settings["architectures"]):
            settings["model_type"] = f"{OWN_TYPE}{settings['model_type']}"
            settings["architectures"] = []
        folders[folder] = settings, tensors[folder]
    _add_token_ids(folders[""][0], form, config, ids)
    if HEAD in weights:
        _add_head(folders[""], form, head or task_head(module, SEQUENCE), weights, labels)
    return folders


def _add_token_ids(
    settings: JsonObject, form: HfFormat, config: ModelConfig, ids: TokenIds
) -> None:
    for name, found in (("bos_token_id", ids.bos), ("eos_token_id", ids.eos)):
        if found is not None or form.bos_and_eos:
            settings.setdefault(name, found)
    if ids.pad is not None or form.has_padding:
        settings.setdefault("pad_token_id", -1 if ids.pad is None else ids.pad)
    if form.has_separator:
        settings["sep_token_id"] = ids.separator
    begin, end = ids.target_start, ids.target_end
    settings |= {name: settings[id_] for name, id_ in form.same_ids.items() if id_ in settings}
    if config.can("encodes_source") and begin is not None and end is not None:
        padding = begin if ids.pad is None else ids.pad
        if settings.get("decoder_vocab_size") and padding >= settings["vocab_size"]:
            padding = 0  # it must be an id of both vocabularies
        settings.update(decoder_start_token_id=begin, eos_token_id=end, pad_token_id=padding)


def _add_head(
    content: Content,
    form: HfFormat,
    head: TaskHead,
    weights: Mapping[str, Tensor],
    labels: Sequence[str] | None,
) -> None:
    settings, tensors = content
    tensors |= {theirs: weights[ours] for ours, theirs in head.names.items()}
    names = labels or [f"LABEL_{i}" for i in range(len(weights[HEAD]))]
    settings["id2label"] = dict(enumerate(names))
    settings["label2id"] = {name: i for i, name in enumerate(names)}
    if head.architecture:
        settings["architectures"] = [name := head.class_for("".join(settings["architectures"]))]
        if body := form.bodies.get(name):
            for key in [key for key in tensors if key.startswith(form.body)]:
                tensors[body + key.removeprefix(form.body)] = tensors.pop(key)


def write_folders(directory: Path, folders: Folders, max_shard: int | None = None) -> None:
    """Write `config.json` and `model.safetensors` of each folder; see `write`."""
    for folder, (settings, tensors) in folders.items():
        (directory / folder).mkdir(exist_ok=True)
        write(directory / folder, settings, tensors, max_shard)


def write(
    directory: Path,
    settings: JsonMapping,
    tensors: Mapping[str, Tensor],
    max_shard: int | None = None,
) -> None:
    """Write `config.json` and `model.safetensors`, or its shards of at most `max_shard` bytes."""
    write_settings(directory, settings)
    if max_shard is None:
        save_tensors(directory / WEIGHTS, tensors, {"format": "pt"})
    else:
        _write_shards(directory, tensors, max_shard)


def _write_shards(directory: Path, tensors: Mapping[str, Tensor], limit: int) -> None:
    """Write files of at most `limit` bytes; what fits into one has no index."""
    from huggingface_hub import split_torch_state_dict_into_shards

    shards = split_torch_state_dict_into_shards(dict(tensors), max_shard_size=limit)
    for name, keys in shards.filename_to_tensors.items():
        save_tensors(directory / name, {key: tensors[key] for key in keys}, {"format": "pt"})
    if shards.is_sharded:
        parameters = sum(tensor.numel() for tensor in tensors.values())
        metadata = {"total_parameters": parameters, **shards.metadata}
        index = {"metadata": metadata, "weight_map": shards.tensor_to_filename}
        _write_json(directory / INDEX, index, is_sorted=True)


def save_tensors(
    path: Path, tensors: Mapping[str, Tensor], metadata: dict[str, str] | None = None
) -> None:
    """Write a safetensors file with default permissions; `save_file` alone makes it private.

    Tensors on `meta` have no content, and are not written.
    """
    if any(tensor.is_meta for tensor in tensors.values()):
        return
    path.touch()
    permissions = path.stat().st_mode
    save_file({name: each.contiguous() for name, each in tensors.items()}, path, metadata=metadata)
    path.chmod(permissions)


def write_settings(directory: Path, settings: JsonMapping) -> None:
    """Write `config.json`."""
    own = {name: value for name, value in settings.items() if name != FOLDERS}
    _write_json(directory / "config.json", own)


def write_notes(directory: Path, notes: JsonMapping) -> None:
    """Write `nlpkit.json`."""
    _write_json(directory / NOTES, notes, indent=1)


def _write_json(path: Path, content: JsonMapping, indent: int = 2, is_sorted: bool = False) -> None:
    text = json.dumps(content, indent=indent, sort_keys=is_sorted, ensure_ascii=False)
    path.write_text(text + "\n", encoding="utf-8")


def choose_generation(
    objective: object, tokenizer: Tokenizer | None, settings: JsonObject
) -> JsonObject:
    """Return the settings of greedy generation, or {} if the model does not generate.

    `settings` is the model's `config.json`, whose ids hold here, too.
    """
    has_class = any(name.endswith(_GENERATING) for name in settings["architectures"])
    if not isinstance(objective, Generative) or tokenizer is None or not has_class:
        return {}
    ends, front = list(objective.eos_token_ids), getattr(objective, "front", ())
    padding = None if isinstance(tokenizer, SourceAndTarget) else settings.get("pad_token_id")
    fillers = [padding, tokenizer.pad_id, *ends]  # padding may be a word of a second tokenizer
    found: JsonObject = {
        "bos_token_id": settings.get("bos_token_id"),
        "eos_token_id": ends[0] if len(ends) == 1 else ends or None,
        # Finished sequences of a batch are filled with it, also where texts have no padding.
        "pad_token_id": next((n for n in fillers if n is not None and n >= 0), None),
        "decoder_start_token_id": settings.get("decoder_start_token_id"),
        "forced_bos_token_id": next(iter(front), None),
        "suppress_tokens": sorted(objective.suppress_tokens) or None,
    }
    found = {name: value for name, value in found.items() if value is not None}
    longest = default_new_tokens(objective) + len(front)
    return found | {"do_sample": False, "max_new_tokens": longest}


def find_token_ids(objective: object, tokenizer: Tokenizer | None, config: ModelConfig) -> TokenIds:
    """Return the ids of the special tokens of a model with this objective and tokenizer."""
    if tokenizer is None:
        return TokenIds()
    ends = objective.eos_token_ids if isinstance(objective, Generative) else ()
    others: tuple[int | None, ...] = ()
    if tokenizer_files.is_extendable(tokenizer):
        others = tuple(map(tokenizer.special_id, (*config.target_tokens, config.task_tokens[1])))
    eos = ends[0] if ends else tokenizer.eos_id
    return TokenIds(tokenizer.pad_id, tokenizer.bos_id, eos, *others)


def write_generation(directory: Path, settings: JsonObject) -> None:
    """Write the file, unless there are no settings."""
    if settings:
        _write_json(directory / GENERATION, settings)
