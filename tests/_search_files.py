"""What the tests of search share: calling a tool, writing its files, random text."""

import argparse
import json
import random
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import ModuleType

from tests.conftest import REAL_DATA

CRANFIELD = REAL_DATA / "ir"


def call(tool: ModuleType, *arguments: object) -> float | None:
    """Run a tool as the command line does, without its error messages."""
    parser = argparse.ArgumentParser()
    tool.add_arguments(parser)
    value: float | None = tool.run(parser.parse_args([str(each) for each in arguments]))
    return value


def write_jsonl(path: Path, texts: Iterable[str]) -> Path:
    """Write documents d0, d1, …"""
    rows = (json.dumps({"id": f"d{i}", "text": text}) for i, text in enumerate(texts))
    path.write_text("".join(f"{row}\n" for row in rows), encoding="utf-8")
    return path


def write_tsv(path: Path, texts: Iterable[str]) -> Path:
    """Write queries q0, q1, …"""
    path.write_text("".join(f"q{i}\t{text}\n" for i, text in enumerate(texts)), encoding="utf-8")
    return path


def random_texts(
    rng: random.Random, number: int, most: int, vocabulary: Sequence[str]
) -> list[str]:
    """Return texts of 0 to `most` words, the first words of the vocabulary far more often."""
    weights = [1 / (rank + 1) for rank in range(len(vocabulary))]
    return [
        " ".join(rng.choices(vocabulary, weights, k=rng.randint(0, most))) for _ in range(number)
    ]
