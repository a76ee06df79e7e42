"""Writes the shipped English task sets: classify, entail, similarity, choice, prefer and chat.

    python data/en/tasks.py [DIRECTORY]

Words come from sources/tasks/tasks.rules by the grammar of data/zh/grammar.py; what is right is
worked out here. Each set is balanced over its answers, and what a model sees of one text alone (of
a hypothesis, of an option) says nothing about the answer. One seed, standard library only: the same
bytes each time. Prints a table of what it wrote. Licence: CC0 1.0.
"""

import csv
import hashlib
import io
import itertools
import json
import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "zh"))

from grammar import Grammar, Memory, read_rules  # noqa: E402 (it lies beside, in zh)

SEED = 22
Item = dict[str, Any]
# Items for train and valid, and how they are written.
SIZES = {
    "classify": (1600, 300, "tsv"),
    "entail": (1200, 300, "csv"),
    "similarity": (1000, 300, "jsonl"),
    "choice": (700, 300, "jsonl"),
    "prefer": (700, 300, "jsonl"),
    "chat": (450, 300, "jsonl"),
}
OPTIONS = 3
DETAILS = ("number", "colour", "town", "day", "weather")
SLOTS = {"p": "name", "a": "action", "i": "item", "s": "spot"}  # of a fact that is told twice


def main() -> None:
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else HERE
    for name, items in files().items():
        path = target / name
        path.parent.mkdir(parents=True, exist_ok=True)
        data = written(items, path.suffix).encode()
        path.write_bytes(data)
        digest = hashlib.sha256(data).hexdigest()
        lines = data.count(b"\n")
        print(f"| en/{name} | {len(data)} | {lines} | `{digest}` |")


def written(items: list[Item], suffix: str) -> str:
    """Items as the text of a file; tables begin with the names of their columns."""
    if suffix == ".jsonl":
        return "".join(json.dumps(item) + "\n" for item in items)
    if suffix == ".tsv":
        rows = [list(items[0]), *(item.values() for item in items)]
        return "".join("\t".join(map(str, row)) + "\n" for row in rows)
    out = io.StringIO()
    writer = csv.DictWriter(out, list(items[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(items)
    return out.getvalue()


def files() -> dict[str, list[Item]]:
    """Items of every file, by its path; no item occurs twice."""
    rules = read_rules([(HERE / "sources" / "tasks" / "tasks.rules").read_text("utf-8")])
    makers: dict[str, Callable[[Grammar], Iterator[Item]]] = {
        "classify": classify,
        "entail": entail,
        "similarity": similarity,
        "choice": choice,
        "prefer": prefer,
        "chat": chat,
    }
    made: dict[str, list[Item]] = {}
    for task, (train, valid, suffix) in SIZES.items():
        # One generator a task, so that a change in one leaves the others as they are.
        items = different(makers[task](Grammar(rules, random.Random(f"{SEED} {task}"))))
        made[f"{task}/train.{suffix}"] = [next(items) for _ in range(train)]
        made[f"{task}/valid.{suffix}"] = [next(items) for _ in range(valid)]
    return made


def different(items: Iterator[Item]) -> Iterator[Item]:
    """The items without those whose texts, in any order, were there before."""
    seen: set[str] = set()
    for item in items:
        texts = sorted(str(text) for name, text in item.items() if name not in ("label", "score"))
        if (key := "\n".join(texts)) not in seen:
            seen.add(key)
            yield item


def classify(grammar: Grammar) -> Iterator[Item]:
    """Opinions; two of three need more than the sum of their words: `not`, `but`."""
    while True:
        label, text = grammar.write("classify").split("\t")
        yield {"label": label, "text": text}


def entail(grammar: Grammar) -> Iterator[Item]:
    """A premise that tells some details; a hypothesis about one: so, otherwise, or not told."""
    rng = grammar.rng
    while True:
        for label in shuffled(rng, ["entailment", "neutral", "contradiction"]):
            memory: Memory = {}
            for name in (*DETAILS, "name", "verb", "goods"):
                grammar.expand(f"{{{name}={name}}}", memory)
            told = set(rng.sample(DETAILS, rng.randint(2, 4)))
            asked = rng.choice([d for d in DETAILS if (d in told) != (label == "neutral")])
            text = premise(memory, told, rng)
            if label == "contradiction":
                memory[asked] = other(grammar, asked, memory[asked])
            hypothesis = grammar.write(f"told_{asked}", memory)
            yield {"premise": text, "hypothesis": hypothesis, "label": label}


def premise(memory: Memory, told: set[str], rng: random.Random) -> str:
    """A sentence with the details that are `told`, where and when in either place."""
    word = {name: values[0] for name, values in memory.items()}
    number = word["number"] if "number" in told else "some"
    colour = f" {word['colour']}" if "colour" in told else ""
    core = f"{word['name']} {word['verb']} {number}{colour} {word['goods']}"
    extra = {"town": f"in {word['town']}", "day": f"on {word['day']}"}
    extra["weather"] = f"in the {word['weather']}"
    around = shuffled(rng, [text for name, text in extra.items() if name in told])
    front = rng.randint(0, min(1, len(around)))
    before = "".join(f"{capital(text)}, " for text in around[:front])
    return f"{before}{' '.join([core, *around[front:]])}."


def similarity(grammar: Grammar) -> Iterator[Item]:
    """Two tellings of one fact, or of two that share some of who, what was done, what, where."""
    rng = grammar.rng
    while True:
        for agree in (len(SLOTS), *shuffled(rng, list(range(len(SLOTS))))[:1]):
            first: Memory = {}
            for slot, symbol in SLOTS.items():
                grammar.expand(f"{{!{slot}={symbol}}}", first)
            second = dict(first)
            for slot in rng.sample(list(SLOTS), len(SLOTS) - agree):
                second[slot] = other(grammar, SLOTS[slot], first[slot])
            texts = [capital(grammar.write("telling", memory)) for memory in (first, second)]
            if texts[0] != texts[1]:
                label = "same" if agree == len(SLOTS) else "different"
                yield {"text_a": texts[0], "text_b": texts[1], "label": label, "score": agree}


def choice(grammar: Grammar) -> Iterator[Item]:
    """A scene and what may follow: the endings of other scenes are wrong here, right there."""
    rng = grammar.rng
    deck: list[int] = []
    while True:
        deck = deck or shuffled(rng, list(range(OPTIONS)))
        memory: Memory = {}
        grammar.expand("{!p=name}", memory)
        memory["P"] = [capital(memory["p"][1])]
        cards = [rng.sample(line.split("|")[2:], 1) for line in grammar.rules["scene"]]
        number = rng.randrange(len(cards))
        wordings = grammar.rules["scene"][number].split("|")[:2]
        wrong = rng.sample([i for i in range(len(cards)) if i != number], OPTIONS - 1)
        label = deck.pop()
        wrong.insert(label, number)
        yield {
            "context": grammar.expand(rng.choice(wordings), memory) + ".",
            "options": [grammar.expand(cards[i][0], memory) + "." for i in wrong],
            "label": label,
        }


def prefer(grammar: Grammar) -> Iterator[Item]:
    """A scene with what follows, and with the ending of another scene."""
    for item in choice(grammar):
        right = item["options"].pop(item["label"])
        yield {"prompt": item["context"], "chosen": right, "rejected": item["options"][0]}


def chat(grammar: Grammar) -> Iterator[Item]:
    """A conversation of one to three scenes and their endings; one of two has a system's message.

    It says how the assistant begins each turn.
    """
    rng, scenes = grammar.rng, choice(grammar)
    while True:
        opening = rng.choice(["", "", "Then: ", "Next: "])
        asked = [{"role": "system", "content": f"Begin with {opening.strip()}"}] if opening else []
        for item in itertools.islice(scenes, rng.randint(1, 3)):
            right = item["options"][item["label"]]
            asked.append({"role": "user", "content": item["context"]})
            asked.append({"role": "assistant", "content": opening + right})
        yield {"messages": asked}


def other(grammar: Grammar, symbol: str, value: list[str]) -> list[str]:
    """Another alternative of `symbol` than `value`."""
    while True:
        memory: Memory = {}
        grammar.expand(f"{{!x={symbol}}}", memory)
        if memory["x"] != value:
            return memory["x"]


def shuffled(rng: random.Random, values: list) -> list:
    """The values in random order."""
    return rng.sample(values, len(values))


def capital(text: str) -> str:
    """`text` with its first letter large."""
    return text[0].upper() + text[1:]


if __name__ == "__main__":
    main()
