"""Reads state dicts that `torch.save` wrote: tensors alone, and no program in them is run."""

import pickle
import re
import warnings
from pathlib import Path

import torch
from torch import Tensor

from nlpkit.errors import FileError

_REFUSED = "not a file of tensors alone, and nothing else is opened"


def read_state_dict(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a state dict; raise `FileError` for anything else."""
    if not path.is_file():
        raise FileError(f"{path}: no such file")
    # An archive is memory-mapped: a tensor takes memory only when it is read.
    zipped = _is_archive(path)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # an error is reported below
            state = torch.load(path, map_location="cpu", weights_only=True, mmap=zipped)
    # A broken or hostile pickle can raise anything.
    except Exception as error:
        raise FileError(f"{path}: {_REFUSED}: {_why(error)}") from error
    if not isinstance(state, dict) or not state:
        raise FileError(f"{path}: holds {type(state).__name__}; a state dict has names and tensors")
    for name, tensor in state.items():
        if not isinstance(name, str) or not _is_plain(tensor):
            raise FileError(f"{path}: {name!r} is no plain tensor")
    return state


def _is_archive(path: Path) -> bool:
    """Return whether torch saved an archive, and not, as before 2020, pickles one by one."""
    try:
        with open(path, "rb") as file:
            begin = file.read(2)
    except OSError as error:
        raise FileError(f"{path}: cannot be read: {error.strerror}") from error
    if begin != b"PK" and begin[:1] != b"\x80":
        raise FileError(f"{path}: {_REFUSED}: torch did not save it; was it downloaded as a whole?")
    return begin == b"PK"


def _why(error: Exception) -> str:
    """Return the error in one line, without torch's advice to load the file unsafely."""
    text = " ".join(str(error).split())
    if named := re.search(r"GLOBAL (\S+)", text):
        return f"it calls {named[1]}"
    if isinstance(error, pickle.UnpicklingError):
        return "a pickle of other things"
    if isinstance(error, (EOFError, OSError)) or re.search("EOF|PytorchStreamReader|mmap", text):
        return "it is damaged or cut short"
    return f"{type(error).__name__}: {text.partition('. ')[0][:200]}"


def _is_plain(tensor: object) -> bool:
    """Return whether a value is a dense tensor whose elements are all in the file."""
    return (
        isinstance(tensor, Tensor)
        and tensor.layout == torch.strided
        and tensor.device.type == "cpu"
        and tensor.numel() * tensor.element_size() <= tensor.untyped_storage().nbytes()
    )
