"""mypy holds every shipped part against the contract of its kind."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import nlpkit
from nlpkit import registry
from nlpkit.contracts import check

PACKAGE = Path(nlpkit.__file__).parent
ROOT = PACKAGE.parent


@pytest.mark.slow  # mypy reads the whole package
def test_shipped_parts_have_the_types_of_their_contracts(tmp_path: Path) -> None:
    lines = []
    for number, (folder, name) in enumerate(_shipped()):
        contract = registry.contract_of(folder)
        assert contract is not None
        part = registry.load(folder, name)
        for _, each, cls in check.contracts_of(part, contract):
            kind, alias = f"{cls.__module__}.{cls.__name__}", f"part_{number}_{cls.__name__}"
            lines += [f"import {cls.__module__}", f"import {part.__name__} as {alias}"]
            if isinstance(each, type):
                lines.append(f"{alias}_class: type[{kind}] = {alias}.{each.__name__}")
                continue
            own = ast.parse(Path(part.__file__ or "").read_text("utf-8"))
            # A score takes options of its own, which the contract cannot name.
            members = check.members(cls).keys() - ({"score"} if cls.__name__ == "Metric" else set())
            for member in sorted(members & _defined(own)):
                lines += [f"def {alias}_{member}(part: {kind}) -> None:"]
                lines += [f"    part.{member} = {alias}.{member}"]
    file = tmp_path / "parts.py"
    file.write_text("\n".join(lines) + "\n")
    command = [sys.executable, "-m", "mypy", "--disable-error-code=method-assign", str(file)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    wrong = "def wrong(part: nlpkit.contracts.kind.MaskKind) -> None:\n    part.pairs = 3\n"
    file.write_text("\n".join(lines) + f"\n{wrong}")
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert "ncompatible types" in done.stdout


def _shipped() -> list[tuple[str, str]]:
    folders = {folder.relative_to(PACKAGE).as_posix() for folder in PACKAGE.rglob("*/")}
    contracts = {folder: registry.contract_of(folder) for folder in sorted(folders)}
    known = [name for name, contract in contracts.items() if "CONTRACTS" in dir(contract)]
    assert {"objectives", "data/readers", "tokenizers"} <= {*known}
    return [(folder, name) for folder in known for name in registry.names(folder)]


def _defined(tree: ast.Module) -> set[str]:
    """Return the names that a module defines at its top."""
    found = set()
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        for target in node.targets if isinstance(node, ast.Assign) else []:
            found |= {target.id} if isinstance(target, ast.Name) else set()
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found.add(node.target.id)
    return found
