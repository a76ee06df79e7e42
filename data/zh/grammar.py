"""Text from a context-free grammar with memory: rules in, sentences out, the same for one seed.

A rules file holds `[symbol]` lines, each followed by its alternatives, one a line. In them:

    {s}        the remembered value s, or an alternative of symbol s
    {a=s}      an alternative of s, remembered as a;  {!a=s} remembers it without writing it
    {#3-9}     a whole number from 3 to 9;            {!n=#3-9} remembers one
    {=a*b}     the value of an expression;            {!t==a*b} remembers it
    {s*2-4}    two to four different alternatives of s; {s/2-4} the same in the order of the file
    {a.1}      column 1 of a remembered alternative whose columns are divided by |

`\\n` is a line break, `\\t` a tab. Alternatives are dealt like cards: none of a symbol comes a
second time before all the others came once.
"""

import random
import re
from collections.abc import Iterable

Memory = dict[str, list[str]]

SLOT = re.compile(r"\{([^{}]+)\}")
HEADER = re.compile(r"\[(\w+)\]")
NUMBER = re.compile(r"#(\d+)-(\d+)")
SEVERAL = re.compile(r"(\w+)([*/])(\d+)-(\d+)")
EXPRESSION = re.compile(r"[\w+\-*/%() ]+")


def read_rules(texts: Iterable[str]) -> dict[str, list[str]]:
    """Alternatives of every symbol in the rules files."""
    rules: dict[str, list[str]] = {}
    for text in texts:
        symbol = ""
        for line in text.split("\n"):
            header = HEADER.fullmatch(line)
            if header:
                symbol = header[1]
                if symbol in rules:
                    raise ValueError(f"symbol [{symbol}] is given twice")
                rules[symbol] = []
            elif line and not line.startswith("//"):
                rules[symbol].append(line)
    return rules


class Grammar:
    """Rules with the cards still to be dealt; all its randomness is `rng`."""

    def __init__(self, rules: dict[str, list[str]], rng: random.Random) -> None:
        self.rules = rules
        self.rng = rng
        self.decks: dict[str, list[int]] = {}

    def write(self, symbol: str, memory: Memory | None = None) -> str:
        """One text of `symbol`; what it remembered is left in `memory`."""
        memory = {} if memory is None else memory
        return self._alternative(symbol, memory)[0]

    def _deal(self, symbol: str) -> int:
        if not self.decks.get(symbol):
            if symbol not in self.rules:
                raise KeyError(f"no symbol [{symbol}] in the rules")
            self.decks[symbol] = list(range(len(self.rules[symbol])))
            self.rng.shuffle(self.decks[symbol])
        return self.decks[symbol].pop()

    def _alternative(self, symbol: str, memory: Memory) -> list[str]:
        text = self.expand(self.rules[symbol][self._deal(symbol)], memory)
        return text.split("|")

    def expand(self, template: str, memory: Memory) -> str:
        """`template` with its slots filled from left to right."""
        text = template.replace("\\n", "\n").replace("\\t", "\t")
        return SLOT.sub(lambda match: self._slot(match[1], memory), text)

    def _slot(self, slot: str, memory: Memory) -> str:
        silent = slot.startswith("!")
        name, equals, source = slot.lstrip("!").partition("=")
        if not equals:
            return self._value(name, memory)[0]
        value = self._value(source if name else "=" + source, memory)
        if name:
            # Two people of one story must not share a name.
            for _ in range(20):
                if source not in self.rules or value not in memory.values():
                    break
                value = self._value(source, memory)
            memory[name] = value
        return "" if silent else value[0]

    def _value(self, source: str, memory: Memory) -> list[str]:
        if source.startswith("="):
            return [evaluate(source[1:], memory)]
        if number := NUMBER.fullmatch(source):
            return [str(self.rng.randint(int(number[1]), int(number[2])))]
        if several := SEVERAL.fullmatch(source):
            return [self._several(several, memory)]
        name, _, column = source.partition(".")
        if name in memory:
            return [memory[name][int(column)]] if column else memory[name]
        return self._alternative(name, memory)

    def _several(self, several: re.Match[str], memory: Memory) -> str:
        symbol, order = several[1], several[2]
        count = min(self.rng.randint(int(several[3]), int(several[4])), len(self.rules[symbol]))
        chosen: list[int] = []
        while len(chosen) < count:
            index = self._deal(symbol)
            if index not in chosen:
                chosen.append(index)
        if order == "/":
            chosen.sort()
        return "".join(self.expand(self.rules[symbol][i], memory).split("|")[0] for i in chosen)


def evaluate(expression: str, memory: Memory) -> str:
    """Value of an arithmetic expression over remembered numbers, written without a useless `.0`."""
    if not EXPRESSION.fullmatch(expression):
        raise ValueError(f"not an arithmetic expression: {expression!r}")
    names = {name: float(v[0]) for name, v in memory.items() if re.fullmatch(r"[\d.]+", v[0])}
    return f"{eval(expression, {'__builtins__': {}}, names):.10g}"
