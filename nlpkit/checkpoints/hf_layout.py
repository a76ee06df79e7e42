"""Reads directories in the layout of `transformers`: `config.json` and safetensors."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from nlpkit.checkpoints.files import OPTIMIZER_STATE
from nlpkit.contracts.format import FOLDERS
from nlpkit.disk import read_json
from nlpkit.errors import FileError
from nlpkit.json_types import JsonMapping, JsonObject

WEIGHTS = "model.safetensors"
PICKLE = "pytorch_model.bin"  # read where there is no other file: tensors alone
INDEX = f"{WEIGHTS}.index.json"
_FOREIGN = ("tf_model.h5", "flax_model.msgpack", "model.ckpt.index", "*.gguf", "*.onnx")
_WRAPPED = "module."
ADAPTERS = "adapter_config.json"  # of peft; beside it, there are no weights of a model
NOTES = "nlpkit.json"  # the objective with its settings, which transformers does not need

# `config.json` and tensors of a directory, and those of all its subfolders ("": the directory).
Content = tuple[JsonObject, dict[str, Tensor]]
Folders = dict[str, Content]


def read(directory: Path, known: Iterable[str] = ()) -> Content:
    """Return the settings and all tensors of a checkpoint directory, with or without shards.

    A tensor in a subfolder has the name `FOLDER/NAME`; settings of subfolders are in `FOLDERS`.

    Args:
        known: subfolders that the family may have. Those that the settings name
            (`nlpkit.folders`) are read, too. A subfolder that does not exist is left out.

    Raises:
        FileError: a file is missing or damaged.
    """
    settings = read_settings(directory)
    tensors = _read_tensors(directory)
    inner: dict[str, JsonObject] = {}
    for folder in dict.fromkeys((*_named_folders(settings, directory), *known)):
        if (directory / folder).is_dir():
            inner[folder] = read_settings(directory / folder)
            more = _read_tensors(directory / folder)
            tensors |= {f"{folder}/{name}": tensor for name, tensor in more.items()}
    return {**settings, FOLDERS: inner} if inner else settings, tensors


def replace_settings(base: Content, directory: Path) -> Content:
    """Return the content of a base with `config.json` of another directory, such as of adapters.

    Of the base's folders, those are kept that this `config.json` names.
    """
    settings = read_settings(directory)
    named = _named_folders(settings, directory)
    inner = base[0].get(FOLDERS, {})
    return keep_folders(({**settings, FOLDERS: inner}, base[1]), named)


def keep_folders(
    content: tuple[JsonMapping, Mapping[str, Tensor]], named: Sequence[str]
) -> Content:
    """Return the content of a checkpoint with those of its folders alone that are `named`."""
    settings, tensors = content
    inner = {n: each for n, each in settings.get(FOLDERS, {}).items() if n in named}
    kept = {
        name: tensor
        for name, tensor in tensors.items()
        if "/" not in name or name.partition("/")[0] in inner
    }
    own = {name: value for name, value in settings.items() if name != FOLDERS}
    return {**own, FOLDERS: inner} if inner else own, kept


def _named_folders(settings: JsonMapping, directory: Path) -> list[str]:
    notes = settings.get("nlpkit")
    folders = notes.get("folders", []) if isinstance(notes, dict) else []
    if not isinstance(folders, list) or not all(
        isinstance(name, str) and name not in ("", "..") and Path(name).name == name
        for name in folders
    ):
        raise FileError(f"{directory}/config.json: nlpkit.folders is {folders!r}; must be names")
    return folders


def list_weights(directory: Path) -> list[Path]:
    """Return the files of weights: safetensors, or else those of torch.

    Also those that a resumed run alone reads, except the state of optimizers.
    """
    files = (path for path in directory.glob("*.safetensors") if path.name != OPTIMIZER_STATE)
    return sorted(files) or sorted(directory.glob("pytorch_model*.bin"))


def _read_tensors(directory: Path) -> dict[str, Tensor]:
    """Return the tensors of `model.safetensors`, or else of `pytorch_model.bin`."""
    here = [name for name in (WEIGHTS, PICKLE) if any(directory.glob(f"{name}*"))]
    if not here and (found := [p.name for name in _FOREIGN for p in directory.glob(name)]):
        raise FileError(
            f"{directory}: has {found[0]} alone; weights are read from {WEIGHTS} or {PICKLE}"
        )
    files = here[:1] or [WEIGHTS]
    index = directory / f"{files[0]}.index.json"
    # A model that was saved again in one file leaves the index of its shards behind.
    if index.is_file() and not (directory / files[0]).is_file():
        names = read_json(index).get("weight_map")
        if not isinstance(names, dict) or not all(isinstance(n, str) for n in names.values()):
            raise FileError(f"{index}: needs weight_map, which names the file of each tensor")
        files = sorted(set(names.values()))
    tensors: dict[str, Tensor] = {}
    for file in files:
        if Path(file).name != file:
            raise FileError(f"{index}: the shard {file!r} is outside the directory")
        tensors |= load_tensors(directory / file)
    # So DistributedDataParallel calls what it wraps.
    if tensors and all(name.startswith(_WRAPPED) for name in tensors):
        return {name.removeprefix(_WRAPPED): tensor for name, tensor in tensors.items()}
    return tensors


def load_tensors(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a file; raise `FileError` if it cannot be read."""
    if not path.is_file():
        raise FileError(f"{path}: {_explain_absence(path)}")
    if path.suffix == ".bin":
        from nlpkit.models.formats.pickled import read_state_dict

        return read_state_dict(path)
    try:
        return load_file(path)
    except (SafetensorError, OSError) as error:
        raise FileError(f"{path}: not a readable safetensors file: {error}") from error


def check_dtypes(place: Path, weights: Mapping[str, Tensor]) -> None:
    """Raise `FileError` if a weight is no floating-point number: a cast would truncate it.

    Those of 8 bits are refused, too: they are to be multiplied by scales.
    """
    for name, tensor in weights.items():
        if not tensor.is_floating_point() or tensor.dtype.itemsize == 1:
            kind = str(tensor.dtype).removeprefix("torch.")
            raise FileError(
                f"{place}: {name} is {kind}; weights are floating-point numbers of 16 bits or more"
            )


def read_notes(directory: Path) -> JsonObject:
    """Return `nlpkit.json`, which holds the objective, or an empty dict if there is none."""
    return read_if_there(directory / NOTES)


def read_if_there(path: Path) -> JsonObject:
    """Return the object in a JSON file, or an empty dict if there is no file."""
    return read_json(path) if path.is_file() else {}


def read_adapters(directory: Path) -> JsonObject | None:
    """Return `adapter_config.json` of a directory, or None if there is none."""
    path = directory / ADAPTERS
    return read_json(path) if path.is_file() else None


def read_settings(directory: Path) -> JsonObject:
    """Return `config.json` of a checkpoint directory."""
    path = directory / "config.json"
    if not path.is_file():
        raise FileError(f"{path}: {_explain_absence(path)}; is this a checkpoint directory?")
    settings = read_json(path)
    names = settings.get("architectures") or []
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise FileError(f"{path}: architectures is not a list of names of classes")
    return settings


def _explain_absence(path: Path) -> str:
    """Return why a path is not a file. Links to files are files, as in the Hugging Face cache."""
    return "not a regular file" if path.exists() else "no such file"
