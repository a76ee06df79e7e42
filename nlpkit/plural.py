"""Numbers with what they count, for messages: `1 row`, `2,000 rows`."""

_IRREGULAR = {"entries": "entry", "queries": "query", "entities": "entity", "classes": "class",
              "hypotheses": "hypothesis", "processes": "process", "batches": "batch",
              "prefixes": "prefix"}  # fmt: skip
_OF_ONE = {"are": "is", "were": "was", "have": "has", "differ": "differs", "give": "gives",
           "end": "ends", "consist": "consists", "their": "its"}  # fmt: skip


def number_of(count: int, counted: str) -> str:
    """Return a number and what it counts, given in the plural: `rows`, `blank lines were skipped`.

    The first word that ends with s is the noun; a verb after it follows the number, too.
    """
    return f"{count:,} {counted if count != 1 else _singular(counted)}"


def all_of(count: int, counted: str) -> str:
    """Return `all 3 rows are malformed`, and of one `the only row is malformed`."""
    return f"all {number_of(count, counted)}" if count != 1 else f"the only {_singular(counted)}"


def _singular(counted: str) -> str:
    words = counted.split(" ")
    at = next((n for n, word in enumerate(words) if word.endswith("s")), len(words))
    after = [_OF_ONE.get(word, word) for word in words[at + 1 :]]
    noun = [_IRREGULAR.get(word, word[:-1]) for word in words[at : at + 1]]
    return " ".join([*words[:at], *noun, *after])
