"""Writes the shipped sets whose answers are pieces of a text: tagging and question answering.

    python data/spans/make.py [DIRECTORY]

Words come from en.rules and zh.rules by the grammar of data/zh/grammar.py. Tags are BIO for English
words and BMES for Chinese characters; questions are in the form of SQuAD. Places are towns,
families and firms alike, and a text has several facts of one kind, so that the words alone do not
tell the answer. One seed, standard library only: the same bytes each time. Prints a table of what
it wrote. Licence: CC0 1.0.
"""

import hashlib
import json
import random
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "zh"))

from grammar import Grammar, Memory, read_rules  # noqa: E402 (it lies beside, in zh)

SEED = 24
SENTENCES = {"train": 1000, "valid": 300}  # of tagging
TEXTS = {"train": 240, "valid": 100}  # of question answering
FACTS, QUESTIONS = (1, 2, 3), 3  # of a text
SLOTS = "pdngct"  # who, day, number, goods, colour, town
ENTITY = re.compile(r"<(\w+):([^>]*)>")
UNITS = {"en": re.compile(r"\w+|[^\w\s]"), "zh": re.compile(r"\S")}


def main() -> None:
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else HERE
    target.mkdir(parents=True, exist_ok=True)
    for name, text in files().items():
        data = text.encode()
        (target / name).write_bytes(data)
        digest = hashlib.sha256(data).hexdigest()
        lines = text.count("\n")
        print(f"| spans/{name} | {len(data)} | {lines} | `{digest}` |")


def files() -> dict[str, str]:
    """The text of every file, by its name."""
    made: dict[str, str] = {}
    for language in ("en", "zh"):
        rules = read_rules([(HERE / f"{language}.rules").read_text("utf-8")])
        # One generator a set, so that a change in one leaves the others as they are.
        tagging = Grammar(rules, random.Random(f"{SEED} tag {language}"))
        sentences = different(tagged(tagging, language))
        asking = Grammar(rules, random.Random(f"{SEED} answer {language}"))
        texts = different(questions(asking, language))
        for part in ("train", "valid"):
            lines, paragraphs = SENTENCES[part], TEXTS[part]
            made[f"{language}_tag.{part}.conll"] = "".join(next(sentences) for _ in range(lines))
            made[f"{language}_answer.{part}.squad.json"] = squad(
                [next(texts) for _ in range(paragraphs)], f"{language}-{part}"
            )
    return made


def different(items: Iterator[Any]) -> Iterator[Any]:
    """The items without those that were there before."""
    seen = set()
    for item in items:
        if (key := json.dumps(item)) not in seen:
            seen.add(key)
            yield item


def tagged(grammar: Grammar, language: str) -> Iterator[str]:
    """Sentences as lines of a word and its tag, with a blank line after each."""
    while True:
        text, lines = grammar.write("tagged"), []
        for piece in re.split(r"(<[^>]*>)", text):
            entity = ENTITY.fullmatch(piece)
            words = UNITS[language].findall(entity[2] if entity else piece)
            tags = inside(len(words), entity[1], language) if entity else ["O"] * len(words)
            lines += [f"{word} {tag}\n" for word, tag in zip(words, tags, strict=True)]
        if language == "en" and lines[0][0].islower():
            lines[0] = lines[0][0].upper() + lines[0][1:]
        yield "".join(lines) + "\n"


def inside(count: int, kind: str, language: str) -> list[str]:
    """The tags of the words of an entity."""
    if language == "en":
        return [f"{'I' if number else 'B'}-{kind}" for number in range(count)]
    prefixes = "S" if count == 1 else "B" + "M" * (count - 2) + "E"
    return [f"{prefix}-{kind}" for prefix in prefixes]


def questions(grammar: Grammar, language: str) -> Iterator[dict[str, Any]]:
    """Texts of one to three facts, with different questions about each of them in turn."""
    space = " " if language == "en" else ""
    while True:
        count = grammar.rng.choice(FACTS)
        facts: list[Memory] = []
        parts: list[str] = []
        while len(facts) < count:
            memory: Memory = {}
            part = grammar.write("told", memory)
            # No two facts share a value, so that every question has one answer.
            if not any(memory[s] == fact[s] for fact in facts for s in SLOTS if s in memory):
                facts.append(memory)
                parts.append(part)
        context = space.join(parts)
        order = grammar.rng.sample(range(count), count)
        numbers = [order[k % count] for k in range(QUESTIONS)]
        asked: list[tuple[str, str]] = []
        while len(asked) < QUESTIONS:
            another = question(grammar, facts[numbers[len(asked)]])
            if another not in asked:
                asked.append(another)
        starts = [len(space.join(parts[:n])) + len(space) * (n > 0) for n in numbers]
        yield {
            "context": context,
            "qas": [
                {
                    "question": text,
                    "answers": [{"text": answer, "answer_start": context.index(answer, start)}],
                }
                for (text, answer), start in zip(asked, starts, strict=True)
            ],
        }


def question(grammar: Grammar, fact: Memory) -> tuple[str, str]:
    """A question about a fact, and its answer."""
    chosen = grammar.rng.choice(grammar.rules["asked"])
    text, slots = grammar.expand(chosen, fact).split("|")
    return text, "".join(fact[slot][0] for slot in slots.split())


def squad(paragraphs: list[dict[str, Any]], title: str) -> str:
    """The paragraphs in the form of SQuAD, a question a line."""
    lines = [f'{{"version": "1.1", "data": [{{"title": "{title}", "paragraphs": [']
    for number, paragraph in enumerate(paragraphs, 1):
        lines.append(
            f'{{"context": {json.dumps(paragraph["context"], ensure_ascii=False)}, "qas": ['
        )
        asked = [
            json.dumps({"id": f"{title}-{number}-{k}", **each}, ensure_ascii=False)
            for k, each in enumerate(paragraph["qas"], 1)
        ]
        lines += [each + "," for each in asked[:-1]]
        lines.append(asked[-1] + ("]}," if number < len(paragraphs) else "]}"))
    return "\n".join([*lines, "]}]}"]) + "\n"


if __name__ == "__main__":
    main()
