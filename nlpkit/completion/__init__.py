"""Completion in shells: verbs, options, recipes, scores, settings.

The script of a shell (`scripts`) calls nlpkit with `_NLPKIT_COMPLETE=complete_SHELL`. COMP_WORDS
has the words of the command line, one per line, and COMP_CWORD the index of the word at the cursor.
The output has one completion per line, for zsh and fish followed by a tab and a description. If it
is empty, the shell completes file names.
"""

from collections.abc import Mapping

from nlpkit.completion.offers import offers

VARIABLE = "_NLPKIT_COMPLETE"
_BREAKS = frozenset("=:")


def answer(environment: Mapping[str, str]) -> str:
    """Return the output for the command line in the environment."""
    text = environment["COMP_WORDS"]
    words = text.split("\n" if "\n" in text else " ")
    number = int(environment["COMP_CWORD"])
    words = [*words, *[""] * (number + 1 - len(words))][: number + 1]
    before, typed, kept = _joined(words)
    matching = [offer for offer in offers(before[1:], typed) if offer.text.startswith(typed)]
    if environment[VARIABLE] == "complete_bash":
        return "".join(f"{offer.text[kept:]}\n" for offer in matching)
    return "".join(f"{offer.text}\t{offer.about}\n" for offer in matching)


def _joined(words: list[str]) -> tuple[list[str], str, int]:
    """Return the words before the cursor, the word at it, and the length that bash keeps of it.

    bash splits words at `=` and `:`; this function joins the parts.
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
