"""What a shell offers at the Tab key: verbs, options, recipes, scores, settings.

The script of a shell (`scripts`) calls nlpkit with `_NLPKIT_COMPLETE=complete_SHELL`, the words of
the command line, one a line, in COMP_WORDS, and the number of the word at the cursor in COMP_CWORD.
The answer is an offer a line, for zsh and fish with a tab and a text after it. Without an answer
the shell offers files.
"""

from collections.abc import Mapping

from nlpkit.completion.offers import offers

VARIABLE = "_NLPKIT_COMPLETE"
_BREAKS = frozenset("=:")


def answer(environment: Mapping[str, str]) -> str:
    """Return the answer to the question in the environment."""
    text = environment["COMP_WORDS"]
    words = text.split("\n" if "\n" in text else " ")
    number = int(environment["COMP_CWORD"])
    words = [*words, *[""] * (number + 1 - len(words))][: number + 1]
    before, typed, kept = _joined(words)
    found = [offer for offer in offers(before[1:], typed) if offer.text.startswith(typed)]
    if environment[VARIABLE] == "complete_bash":
        return "".join(f"{offer.text[kept:]}\n" for offer in found)
    return "".join(f"{offer.text}\t{offer.about}\n" for offer in found)


def _joined(words: list[str]) -> tuple[list[str], str, int]:
    """Return the words before the cursor, the one at it, and how much of this bash keeps.

    For bash `=` and `:` are words of their own: here they are joined with what is beside them.
    """
    joined: list[str] = []
    glue = False
    for word in words:
        is_break = word != "" and _BREAKS.issuperset(word)
        if joined and (glue or is_break):
            joined[-1] += word
        else:
            joined.append(word)
        glue = is_break
    replaced = "" if glue else words[-1]
    return joined[:-1], joined[-1], len(joined[-1]) - len(replaced)
