"""Errors of the disk are one line that names the path and the cause."""

import os
from pathlib import Path

import pytest
from safetensors import SafetensorError

from nlpkit.disk import name_path_in_errors
from nlpkit.errors import FileError


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (OSError(28, os.strerror(28)), "no space left on the disk"),
        (SafetensorError("I/O error: No space left (os error 28)"), "no space left on the disk"),
        (SafetensorError("I/O error: File too large (os error 27)"), "File too large"),
        (SafetensorError("header too large"), "header too large"),
    ],
)
def test_error_of_the_disk_names_path_and_cause(error: Exception, said: str) -> None:
    with pytest.raises(FileError) as caught, name_path_in_errors(Path("d/f")):
        raise error
    assert str(caught.value) == f"d/f: cannot be written: {said}"
