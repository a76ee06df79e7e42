"""Writes the shipped Chinese data: train/, valid/, nlg/ and nlu/ beside this file.

    python data/zh/make.py [DIRECTORY]

Everything comes from sources/: passages (`*.txt`, one after another, divided by a line `%%`)
and rules (`*.rules`, see grammar.py). One seed, standard library only: the same bytes each time.
Every tenth passage is held out; a held-out text is written anew until no sentence of LONG
characters or more of it stands in train. Prints a table of what it wrote. Licence: CC0 1.0.
"""

import hashlib
import json
import random
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from grammar import Grammar, read_rules

HERE = Path(__file__).resolve().parent
SEED = 20
LONG = 20
HELD_OUT_EVERY = 10
# UTF-8 bytes of text written by the grammar, train and valid, beside the passages.
GENERATED = {
    "prose": (230_000, 14_000),
    "dialogue": (105_000, 9_000),
    "arithmetic": (95_000, 9_000),
    "explain": (110_000, 9_000),
}
# Items for train and valid.
TASKS = {"nlg": (2400, 300), "nlu": (2400, 300)}
SENTENCE_END = re.compile(r"[。！？\n]")


def main() -> None:
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else HERE
    for name, items in files().items():
        path = target / name
        path.parent.mkdir(parents=True, exist_ok=True)
        data = "".join(json.dumps(item, ensure_ascii=False) + "\n" for item in items).encode()
        path.write_bytes(data)
        digest = hashlib.sha256(data).hexdigest()
        print(f"| zh/{name} | {len(data)} | {len(items)} | `{digest}` |")


def files() -> dict[str, list[dict]]:
    """Items of every generated file, by its path."""
    rules = read_rules(p.read_text("utf-8") for p in sorted(HERE.glob("sources/*.rules")))
    made: dict[str, list[dict]] = {}
    for kind, (train_bytes, valid_bytes) in GENERATED.items():
        # One generator a file, so that a change in one kind leaves the others as they are.
        rng = random.Random(f"{SEED} {kind}")
        train, valid = split_passages(kind)
        held_out = set(valid)
        grammar = Grammar(rules, rng)
        train += texts(grammar, kind, train_bytes, held_out)
        seen = {sentence for text in train for sentence in long_sentences(text)}
        if kind not in ("prose", "explain"):
            seen = set()
        valid += texts(grammar, kind, valid_bytes, set(train) | held_out, seen)
        for split, documents in (("train", train), ("valid", valid)):
            rng.shuffle(documents)
            made[f"{split}/{kind}.jsonl"] = [{"text": text} for text in documents]
    for task, (train_count, valid_count) in TASKS.items():
        grammar = Grammar(rules, random.Random(f"{SEED} {task}"))
        items = nlg_items(grammar) if task == "nlg" else nlu_items(grammar)
        made[f"{task}/train.jsonl"] = [next(items) for _ in range(train_count)]
        made[f"{task}/valid.jsonl"] = [next(items) for _ in range(valid_count)]
    return made


def split_passages(kind: str) -> tuple[list[str], list[str]]:
    """Passages of `kind` written by hand, for train and for valid."""
    passages = [
        passage.strip()
        for path in sorted(HERE.glob(f"sources/{kind}_*.txt"))
        for passage in path.read_text("utf-8").split("\n%%\n")
    ]
    valid = passages[HELD_OUT_EVERY // 2 :: HELD_OUT_EVERY]
    return [passage for passage in passages if passage not in valid], valid


def texts(
    grammar: Grammar, kind: str, size: int, taken: set[str], sentences: set[str] | None = None
) -> list[str]:
    """Different texts of `kind` of `size` bytes together, none of them `taken`."""
    found: list[str] = []
    taken = set(taken)
    while size > 0:
        text = tidy(grammar.write(kind))
        if text in taken or (sentences and sentences & set(long_sentences(text))):
            continue
        taken.add(text)
        found.append(text)
        size -= len(text.encode())
    return found


def tidy(text: str) -> str:
    """`text` without white space at the ends of its lines."""
    return "\n".join(line.rstrip() for line in text.strip().split("\n"))


def long_sentences(text: str) -> list[str]:
    """Sentences of `text` with LONG characters or more."""
    return [s for s in map(str.strip, SENTENCE_END.split(text)) if len(s) >= LONG]


def nlg_items(grammar: Grammar) -> Iterator[dict]:
    """Different items `{"input", "target"}`."""
    seen: set[str] = set()
    while True:
        source, target = grammar.write("nlg").split("\t")
        if source not in seen:
            seen.add(source)
            yield {"input": source, "target": target}


def nlu_items(grammar: Grammar) -> Iterator[dict]:
    """Different items `{"input", "target", "options"}`, targets balanced over the positions."""
    seen: set[str] = set()
    positions: dict[int, list[int]] = {}
    while True:
        source, correct, pool, wanted = grammar.write("nlu").split("\t")
        others = list(dict.fromkeys(option for option in pool.split("/") if option != correct))
        count = int(wanted)
        if source in seen or len(others) < count - 1:
            continue
        seen.add(source)
        options = grammar.rng.sample(others, count - 1)
        deck = positions.setdefault(count, [])
        if not deck:
            deck.extend(range(count))
            grammar.rng.shuffle(deck)
        target = deck.pop()
        options.insert(target, correct)
        yield {"input": source, "target": target, "options": options}


if __name__ == "__main__":
    main()
