"""mypy checks that each shipped kind and backend of attention has the types of its contract.

These parts are modules, whose members mypy compares with a class only where they are assigned.
"""

from pathlib import Path

import pytest
from mypy import api

from nlpkit import registry
from nlpkit.contracts import check

ROOT = Path(__file__).parents[1]
FOLDERS = ("attention/kinds", "attention/backends")


def _assignments(folder: str, name: str) -> str:
    """Return a function that gives an object of the contract each member of a part."""
    part, contract = registry.load(folder, name), registry.contract_of(folder)
    ((_, _, cls),) = check.contracts_of(part, contract)
    source = Path(part.__file__).read_text(encoding="utf-8")
    own = [each for each in check.members(cls) if f"\n{each}" in source or f"def {each}(" in source
           or f"class {each}(" in source]  # fmt: skip
    module = part.__name__
    lines = [f"    part.{each} = {module}.{each}" for each in own]
    return f"import {module}\ndef {module.replace('.', '_')}(part: {cls.__name__}) -> None:\n" + (
        "\n".join(lines) + "\n"
    )


@pytest.mark.slow
def test_shipped_kinds_and_backends_have_the_types_of_their_contracts(tmp_path: Path) -> None:
    head = (
        "from nlpkit.contracts.backend import Backend\n"
        "from nlpkit.contracts.kind import CustomKind, MaskKind\n"
    )
    parts = [(folder, name) for folder in FOLDERS for name in registry.names(folder)]
    file = tmp_path / "parts.py"
    file.write_text(head + "".join(_assignments(*part) for part in parts), encoding="utf-8")
    options = ["--disable-error-code=method-assign", f"--config-file={ROOT / 'pyproject.toml'}"]
    found, errors, _ = api.run([str(file), *options])
    assert found.startswith("Success"), found + errors
    # A wrong type is found.
    file.write_text(
        file.read_text("utf-8")
        + "def wrong(q: int) -> str: ...\ndef f(part: MaskKind) -> None:\n    part.mask = wrong\n",
        encoding="utf-8",
    )
    found, _, _ = api.run([str(file), *options])
    assert "incompatible type" in found.lower()
