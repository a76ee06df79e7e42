"""What tests of published checkpoints share."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests._layouts import publish


@pytest.fixture(scope="session")
def published(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return what publishes a layout once; its files are not to be changed."""
    folder = tmp_path_factory.mktemp("published")

    def once(name: str) -> Path:
        path = folder / name
        return path if path.exists() else publish(path, name)

    return once
