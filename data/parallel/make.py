"""Writes the shipped parallel text: train.en, train.zh, valid.en and valid.zh beside it.

    python data/parallel/make.py [DIRECTORY]

Line n of an English file and line n of the Chinese file translate each other. Sentences come from
sources/parallel.rules by the grammar of data/zh/grammar.py. One seed, standard library only: the
same bytes each time. Prints a table of what it wrote. Licence: CC0 1.0.
"""

import hashlib
import random
import sys
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "zh"))

from grammar import Grammar, read_rules  # noqa: E402 (it lies beside, in zh)

SEED = 12
TRAIN, VALID = 3000, 300


def main() -> None:
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else HERE
    target.mkdir(parents=True, exist_ok=True)
    for name, lines in files().items():
        data = "".join(line + "\n" for line in lines).encode()
        (target / name).write_bytes(data)
        digest = hashlib.sha256(data).hexdigest()
        print(f"| parallel/{name} | {len(data)} | {len(lines)} | `{digest}` |")


def files() -> dict[str, list[str]]:
    """Lines of every file, by its name; no English and no Chinese sentence occurs twice."""
    rules = read_rules([(HERE / "sources" / "parallel.rules").read_text("utf-8")])
    pairs = different(Grammar(rules, random.Random(SEED)))
    train, valid = ([next(pairs) for _ in range(count)] for count in (TRAIN, VALID))
    return {
        "train.en": [english for english, _ in train],
        "train.zh": [chinese for _, chinese in train],
        "valid.en": [english for english, _ in valid],
        "valid.zh": [chinese for _, chinese in valid],
    }


def different(grammar: Grammar) -> Iterator[tuple[str, str]]:
    """Pairs of sentences that did not occur before."""
    seen: set[str] = set()
    while True:
        english, chinese = grammar.write("pair").split("\t")
        english = english[0].upper() + english[1:]
        if not seen & {english, chinese}:
            seen |= {english, chinese}
            yield english, chinese


if __name__ == "__main__":
    main()
