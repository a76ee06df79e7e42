"""Keeps tensors in files without names, so that a model need not fit into memory.

The system writes their pages out when memory is short. The files vanish with the tensors, or with
the process.
"""

import os
import shutil
import tempfile
from pathlib import Path

import torch
from torch import Tensor

from nlpkit import units
from nlpkit.disk import name_path_in_errors
from nlpkit.errors import FileError


class Scratch:
    """Room for tensors in the file system of a directory."""

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
                f"{units.format_bytes(tensor.nbytes)}, and {units.format_bytes(self.free)} free"
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
