"""docs/files.md names every file of weights and of tokenizers that is read."""

import re
from pathlib import Path

from nlpkit import registry
from nlpkit.checkpoints import hf_layout, hf_model, peft_layout, tokenizer_files
from nlpkit.models import families
from nlpkit.models.cpm_ant import original
from nlpkit.tokenizers.library import pieces

PAGE = Path(__file__).resolve().parents[2] / "docs/files.md"


def _names(heading: str) -> set[str]:
    """Return the names in the first column of the table below a heading."""
    section = PAGE.read_text(encoding="utf-8").partition(f"## {heading}\n")[2].partition("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| `")]
    return {name for row in rows for name in re.findall(r"`([^`]+)`", row.split(" | ")[0])}


def test_weights_are_those_that_are_read() -> None:
    files = {hf_layout.WEIGHTS, hf_layout.PICKLE, peft_layout.WEIGHTS, original.WEIGHTS}
    indexes = {f"{name}.index.json" for name in (hf_layout.WEIGHTS, hf_layout.PICKLE)}
    assert _names("Weights") == files | indexes | {"adapter_model.bin"}


def test_tokenizers_are_those_that_are_read() -> None:
    named, beside = _names("Tokenizers"), {"merges.txt", "vocab.bpe", "vocab_40000.bpe"}
    own = {tokenizer_files.KIND, "nlpkit_vocab.json"}
    assert {*tokenizer_files._list_files()} - own == named - beside
    assert {*pieces.FILES} <= named
    text = PAGE.read_text(encoding="utf-8")
    assert all(f"`{family}`" in text for family in pieces.UNREAD[:3])


def test_families_are_those_that_transformers_has_and_their_types() -> None:
    text = PAGE.read_text(encoding="utf-8").partition("## Families\n")[2]
    rows = re.findall(r"^\| (`.*?) \| `(\w+)` \|", text, re.MULTILINE)
    named = {family: set(re.findall(r"`([^`]+)`", types)) for types, family in rows}
    known = [n for n in registry.names("models") if families.load_model(n).FORMAT.architecture]
    assert named == {name: {*hf_model.model_types(name)} for name in known}
