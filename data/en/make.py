"""Writes the shipped English text: train/ and valid/ beside this file.

    python data/en/make.py [DIRECTORY]

Everything comes from sources/*.rules by the grammar of data/zh/grammar.py. One seed, standard
library only: the same bytes each time. Prints a table of what it wrote. Licence: CC0 1.0.
"""

import hashlib
import json
import random
import re
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "zh"))

from grammar import SEVERAL, SLOT, Grammar, read_rules  # noqa: E402 (it lies beside, in zh)

SEED = 21
# UTF-8 bytes of text, train and valid.
SIZES = {
    "stories": (270_000, 16_000),
    "facts": (170_000, 12_000),
    "dialogue": (90_000, 8_000),
    "sums": (60_000, 6_000),
}


def main() -> None:
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else HERE
    for name, texts in files().items():
        path = target / name
        path.parent.mkdir(parents=True, exist_ok=True)
        data = "".join(json.dumps({"text": text}) + "\n" for text in texts).encode()
        path.write_bytes(data)
        digest = hashlib.sha256(data).hexdigest()
        print(f"| en/{name} | {len(data)} | {len(texts)} | `{digest}` |")


def files() -> dict[str, list[str]]:
    """Texts of every file, by its path."""
    rules = read_rules(p.read_text("utf-8") for p in sorted(HERE.glob("sources/*.rules")))
    space_sentences(rules)
    made: dict[str, list[str]] = {}
    for kind, sizes in SIZES.items():
        # One generator a kind, so that a change in one leaves the others as they are.
        grammar = Grammar(rules, random.Random(f"{SEED} {kind}"))
        taken: set[str] = set()
        for split, size in zip(("train", "valid"), sizes, strict=True):
            made[f"{split}/{kind}.jsonl"] = texts(grammar, kind, size, taken)
    return made


def space_sentences(rules: dict[str, list[str]]) -> None:
    """Put a space behind each alternative of the symbols that are written several in a row."""
    for lines in [*rules.values()]:
        for slot in SLOT.findall("\n".join(lines)):
            if found := SEVERAL.fullmatch(slot):
                rules[found[1]] = [line.rstrip() + " " for line in rules[found[1]]]


def texts(grammar: Grammar, kind: str, size: int, taken: set[str]) -> list[str]:
    """Different texts of `kind` of `size` bytes together; they are added to `taken`."""
    found: list[str] = []
    while size > 0:
        text = polish(grammar.write(kind))
        if text not in taken:
            taken.add(text)
            found.append(text)
            size -= len(text.encode())
    return found


def polish(text: str) -> str:
    """`text` with capitals where sentences and turns begin, `an` before vowels, tidy spaces."""
    text = re.sub(r" +", " ", "\n".join(line.strip() for line in text.strip().split("\n")))
    text = re.sub(r"(^|\n|[.!?] )([a-z])", _capital, text)
    text = re.sub(r"((?:^|\n)[A-Z][^.:\n]{1,25}: )([a-z])", _capital, text)  # of a turn
    return re.sub(r"\b([Aa]) (?=[aeiou])", r"\1n ", text)


def _capital(match: re.Match[str]) -> str:
    return match[1] + match[2].upper()


if __name__ == "__main__":
    main()
