"""Directories in the layout of `transformers`: `config.json` and safetensors. Never a pickle."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from nlpkit.attention.contract import Choice
from nlpkit.checkpoints import pickles, shards
from nlpkit.disk import read_json
from nlpkit.errors import FileError, UsageError
from nlpkit.models import families, hf_format
from nlpkit.models.head import HEAD, PREFIX, SEQUENCE, TaskHead, saved_head, task_head
from nlpkit.models.hf_format import FOLDERS
from nlpkit.models.meta import meta_model
from nlpkit.models.rows import vocabulary_size
from nlpkit.plural import number_of
from nlpkit.recipe.problems import in_words

WEIGHTS = "model.safetensors"
INDEX = f"{WEIGHTS}.index.json"
OWN_TYPE = "nlpkit-"  # prefix of model_type for models that transformers does not support
NOTES = "nlpkit.json"  # the objective with its settings, which transformers does not need
NAMED = 3  # maximal number of tensor names in a message

# `config.json` and tensors of a directory, and those of all its subfolders ("": the directory).
Content = tuple[dict[str, Any], dict[str, Tensor]]
Folders = dict[str, Content]


@dataclass(frozen=True)
class Loaded:
    """A checkpoint's tensors, matched with the parameters of its family."""

    config: Any
    state: dict[str, Tensor]  # includes the task's output layer, if there is one
    missing: tuple[str, ...]  # transformers' names of parameters that the checkpoint does not have
    unexpected: tuple[str, ...]  # tensors that the model does not have
    head: TaskHead | None = None  # of the task's output layer

    def warnings(self, fate: str) -> list[str]:
        """Return lines about missing and unexpected tensors; `fate`: what replaces missing ones."""
        lines = [f"missing, {fate}: {listed(self.missing)}"] if self.missing else []
        if self.unexpected:
            lines.append(f"unexpected in this model, ignored: {listed(self.unexpected)}")
        return lines


class MissingTensors(FileError):
    """Required tensors are missing; `layers` are parts of names that all of them have."""

    def __init__(self, message: str, layers: Sequence[str]):
        super().__init__(message)
        self.layers = layers


def listed(names: Sequence[str]) -> str:
    """Return the first names and the number of other names."""
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return f"{', '.join(names[:NAMED])}{more}"


def write_folders(directory: Path, folders: Folders, max_shard: int | None = None) -> None:
    """Write `config.json` and `model.safetensors` of each folder; see `write`."""
    for folder, (settings, tensors) in folders.items():
        (directory / folder).mkdir(exist_ok=True)
        write(directory / folder, settings, tensors, max_shard)


def write(
    directory: Path,
    settings: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    max_shard: int | None = None,
) -> None:
    """Write `config.json` and `model.safetensors`, or its shards of at most `max_shard` bytes."""
    write_settings(directory, settings)
    files = {WEIGHTS: tensors} if max_shard is None else shards.split(tensors, max_shard)
    for name, each in files.items():
        save_tensors(directory / name, each, {"format": "pt"})
    if len(files) > 1:
        (directory / INDEX).write_text(shards.index(files), encoding="utf-8")


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
    contiguous = {name: tensor.contiguous() for name, tensor in tensors.items()}
    save_file(contiguous, path, metadata=metadata)
    path.chmod(permissions)


def write_settings(directory: Path, settings: Mapping[str, Any]) -> None:
    """Write `config.json`."""
    own = {name: value for name, value in settings.items() if name != FOLDERS}
    text = json.dumps(own, indent=2, ensure_ascii=False)
    (directory / "config.json").write_text(text + "\n", encoding="utf-8")


def write_notes(directory: Path, notes: Mapping[str, Any]) -> None:
    """Write `nlpkit.json`."""
    text = json.dumps(notes, indent=1, ensure_ascii=False)
    (directory / NOTES).write_text(text + "\n", encoding="utf-8")


def layout(
    family: str,
    config: Any,
    weights: Mapping[str, Tensor],
    labels: Sequence[str] | None = None,
    pad_id: int | None = None,
    bos_and_eos: tuple[int | None, int | None] = (None, None),
    head: TaskHead | None = None,
    target_ids: tuple[int | None, int | None] = (None, None),
) -> Folders:
    """Return `config.json` and tensors of a model, with the task's output layer if it has one.

    `labels` are the names of the outputs of this layer. A model with an output layer is saved as
    the model `head` of transformers (`TASK_HEADS` in `model.py`; default: the sequence classifier);
    if transformers has no such model, with the class of the family and a layer of our own.
    `pad_id` and `bos_and_eos` are ids of the tokenizer, `target_ids` those of what begins and ends
    a target with a source.

    Raises:
        UsageError: a family's table of names is not complete.
    """
    module = families.load_model(family)
    form, body = module.FORMAT, {k: v for k, v in weights.items() if not k.startswith(PREFIX)}
    try:
        tensors = hf_format.written(form, config, body)
    except KeyError as error:
        raise UsageError(f"family {family}: FORMAT.names has no row for {error}") from error
    notes: dict[str, Any] = {"family": family}
    inner = {folder: each for folder, each in form.folders.items() if each.present(config)}
    if inner:
        notes["folders"] = [*inner]
    if config.attention:
        notes["attention"] = [choice.to_json() for choice in config.kinds]
    folders = {}
    for folder, each in {"": form, **inner}.items():
        settings = hf_format.settings_of(
            each,
            config,
            model_type=families.load(family).MODEL_TYPE,
            vocab_size=vocabulary_size(body, families.vocabulary(family)),
            notes=None if folder else notes,
        )
        # transformers has no such family, or would compute the family's default attention
        if config.attention or not each.architecture:
            settings["model_type"] = f"{OWN_TYPE}{settings['model_type']}"
            settings["architectures"] = []
        folders[folder] = settings, tensors[folder]
    ends = zip(("bos_token_id", "eos_token_id"), bos_and_eos, strict=True)
    for name, found in (*ends, ("pad_token_id", pad_id)):
        if found is not None or (form.bos_and_eos and name != "pad_token_id"):
            folders[""][0].setdefault(name, found)
    if form.has_padding:
        folders[""][0]["pad_token_id"] = -1 if pad_id is None else pad_id
    if config.encodes_source and None not in target_ids:
        begin, end = target_ids
        padding = begin if pad_id is None else pad_id
        sources: int | None = getattr(config, "source_vocab_size", None)
        if sources is not None and padding is not None and padding >= sources:
            padding = 0  # it must be an id of both vocabularies
        folders[""][0].update(decoder_start_token_id=begin, eos_token_id=end, pad_token_id=padding)
    if HEAD in weights:
        settings, body_tensors = folders[""]
        head = head or task_head(module, SEQUENCE)
        body_tensors |= {theirs: weights[ours] for ours, theirs in head.names.items()}
        names = labels or [f"LABEL_{i}" for i in range(len(weights[HEAD]))]
        settings["id2label"] = dict(enumerate(names))
        settings["label2id"] = {name: i for i, name in enumerate(names)}
        if head.architecture:
            settings["architectures"] = [head.architecture]
    return folders


def read(directory: Path, known: Iterable[str] = ()) -> Content:
    """Return the settings and all tensors of a checkpoint directory, with or without shards.

    A tensor in a subfolder has the name `FOLDER/NAME`; settings of subfolders are in `FOLDERS`.

    Args:
        known: subfolders that the family may have. Those that the settings name
            (`nlpkit.folders`) are read, too. A subfolder that does not exist is left out.

    Raises:
        FileError: a file is missing, damaged, or a pickle.
    """
    settings = read_settings(directory)
    tensors = _read_tensors(directory)
    inner: dict[str, dict[str, Any]] = {}
    for folder in dict.fromkeys((*_named_folders(settings, directory), *known)):
        if (directory / folder).is_dir():
            inner[folder] = read_settings(directory / folder)
            more = _read_tensors(directory / folder)
            tensors |= {f"{folder}/{name}": tensor for name, tensor in more.items()}
    return {**settings, FOLDERS: inner} if inner else settings, tensors


def with_folders_of(base: Content, directory: Path) -> Content:
    """Return the content of a base with `config.json` of another directory, such as of adapters.

    Of the base's folders, those are kept that this `config.json` names.
    """
    settings, tensors = read_settings(directory), base[1]
    named = _named_folders(settings, directory)
    inner = {n: each for n, each in base[0].get(FOLDERS, {}).items() if n in named}
    kept = {
        name: tensor
        for name, tensor in tensors.items()
        if "/" not in name or name.partition("/")[0] in inner
    }
    return {**settings, FOLDERS: inner} if inner else settings, kept


def _named_folders(settings: Mapping[str, Any], directory: Path) -> list[str]:
    notes = settings.get("nlpkit")
    folders = notes.get("folders", []) if isinstance(notes, dict) else []
    if not isinstance(folders, list) or not all(
        isinstance(name, str) and name not in ("", "..") and Path(name).name == name
        for name in folders
    ):
        raise FileError(f"{directory}/config.json: nlpkit.folders is {folders!r}; must be names")
    return folders


def _read_tensors(directory: Path) -> dict[str, Tensor]:
    index = directory / INDEX
    names = [WEIGHTS]
    if index.is_file():
        weight_map = read_json(index).get("weight_map")
        if not isinstance(weight_map, dict) or not all(
            isinstance(n, str) for n in weight_map.values()
        ):
            raise FileError(f"{index}: needs weight_map, which names the file of each tensor")
        names = sorted(set(weight_map.values()))
        for name in names:
            if Path(name).name != name:
                raise FileError(f"{index}: the shard {name!r} is outside the directory")
    tensors: dict[str, Tensor] = {}
    for name in names:
        path = directory / name
        if not path.is_file():
            raise FileError(f"{path}: {_absent(path)}{pickles.remedy(directory)}")
        tensors.update(load_tensors(path))
    return tensors


def load_tensors(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a file; raise `FileError` if it cannot be read."""
    try:
        return load_file(path)
    except (SafetensorError, OSError) as error:
        raise FileError(f"{path}: not a readable safetensors file: {error}") from error


def check_dtypes(place: Path, weights: Mapping[str, Tensor]) -> None:
    """Raise `FileError` if a weight is not a floating-point number: a cast would truncate it."""
    for name, tensor in weights.items():
        if not tensor.is_floating_point():
            kind = str(tensor.dtype).removeprefix("torch.")
            raise FileError(f"{place}: {name} is {kind}; weights are floating-point numbers")


def read_notes(directory: Path) -> dict[str, Any]:
    """Return `nlpkit.json`, which holds the objective, or an empty dict if there is none."""
    path = directory / NOTES
    return read_json(path) if path.is_file() else {}


def read_settings(directory: Path) -> dict[str, Any]:
    """Return `config.json` of a checkpoint directory."""
    path = directory / "config.json"
    if not path.is_file():
        raise FileError(f"{path}: {_absent(path)}; is this a checkpoint directory?")
    return read_json(path)


def _absent(path: Path) -> str:
    """Return why a path is not a file. Links to files are files, as in the Hugging Face cache."""
    return "not a regular file" if path.exists() else "no such file"


def converted(
    family: str,
    directory: Path,
    settings: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    *,
    allow_missing: Sequence[str] = (),
    predicts: bool | None = None,
) -> Loaded:
    """Return the family's `Config` and state dict for a checkpoint, after a check of all shapes.

    No memory is allocated for missing parameters.

    Args:
        allow_missing: parts of the names of tensors that may be missing, in addition to the
            family's optional tensors.
        predicts: whether the layers behind the body are needed, such as those that predict masked
            tokens; None: if there is no output layer of a task.

    Raises:
        FileError: a setting or tensor is missing, or has a wrong type or size.
    """
    light, module = families.load(family), families.load_model(family)
    form = module.FORMAT
    settings = hf_format.with_missing_folders(form, settings, allow_missing)
    try:
        config = hf_format.read_config(form, light.Config, settings)
        kinds = settings.get("nlpkit", {}).get("attention", [])
        config = config.model_copy(update={"attention": tuple(map(Choice.from_json, kinds))})
        hf_format.check_depth(form, config, tensors)
        skeleton = meta_model(module.Model, config, 1)
        state, unused = hf_format.read_state(form, config, settings, tensors, skeleton)
        vocab_size = vocabulary_size(state, families.vocabulary(family))
        model = meta_model(module.Model, config, vocab_size)
    except KeyError as error:
        raise FileError(f"{directory}: {error} is missing from config.json or weights") from error
    except ValidationError as error:
        raise FileError(f"{directory}/config.json: {in_words(error)}") from error
    except (ValueError, TypeError, AttributeError, IndexError, RuntimeError) as error:
        cause = " ".join(str(error).split("\n")[:3])
        raise FileError(f"{directory}/config.json: does not fit the weights: {cause}") from error
    shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    head = saved_head(module, settings.get("architectures") or (), tensors)
    needed = "" if predicts or (predicts is None and head is None) else form.body
    absent = [name for name in shapes if name not in state]
    missing = _missing(form, directory, absent, allow_missing, needed)
    if predicts is None:  # what is not needed is not used
        missing = tuple(name for name in missing if name.startswith(needed))
    if head is not None:
        names = head.names
        if lacking := [theirs for theirs in names.values() if theirs not in tensors]:
            raise FileError(f"{directory}: {lacking[0]} is missing, but {names[HEAD]} exists")
        unused = [name for name in unused if name not in names.values()]
        state |= {ours: tensors[theirs] for ours, theirs in names.items()}
        width = config.state_size  # type: ignore[attr-defined]
        shapes |= head.shapes(width, len(state[HEAD]))
    check_dtypes(directory, state)
    for name, tensor in state.items():
        if tuple(tensor.shape) != shapes[name]:
            raise FileError(
                f"{directory}: {name} is {tuple(tensor.shape)}; by config.json it is {shapes[name]}"
            )
    return Loaded(config, state, missing, tuple(sorted(unused)), head)


def _missing(
    form: hf_format.HfFormat,
    directory: Path,
    names: Sequence[str],
    allowed: Sequence[str],
    needed: str,
) -> tuple[str, ...]:
    """Return transformers' names of missing parameters; raise `FileError` if one is required.

    Names that do not begin with `needed` are not.
    """
    theirs = {ours: [n.key for n in hf_format.names_of(form, ours)] or [ours] for ours in names}
    patterns = (*form.optional, *allowed)
    wrong = [
        n[0]
        for ours, n in theirs.items()
        if n[0].startswith(needed) and not hf_format.matches(patterns, ours, *n)
    ]
    if wrong:
        number = number_of(len(wrong), "tensors are missing")
        message = f"{directory}: {number}: {listed(wrong)}"
        layers = {name.rpartition(".")[0] or name for name in wrong}
        outer = [n for n in layers if not any(n.startswith(f"{each}.") for each in layers)]
        raise MissingTensors(message, sorted({name.rpartition(".")[2] for name in outer}))
    return tuple(keys[0] for keys in theirs.values())
