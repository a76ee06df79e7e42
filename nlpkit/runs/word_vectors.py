"""Writes vectors of tokens as the text that gensim reads.

V tokens, C width of the vectors.
"""

import re
from collections.abc import Callable
from pathlib import Path

from nlpkit.checkpoints import hf_model
from nlpkit.disk import whole_file
from nlpkit.errors import UsageError
from nlpkit.json_types import JsonObject
from nlpkit.plural import number_of
from nlpkit.runs.init_vectors import TABLE
from nlpkit.runs.saved_objective import load_tokenizer
from nlpkit.runs.stored_weights import read

SPACE = "▁"  # in place of white space in a token, which would end it


def write_text(
    source: Path,
    out: Path,
    family: str | None = None,
    *,
    info: Callable[[str], None] = lambda _: None,
    warn: Callable[[str], None] = lambda _: None,
) -> JsonObject:
    """Write the input vectors of a checkpoint's tokens as word2vec.c does; return facts.

    The first line is `V C`, each other one a token and its numbers. White space in a token is
    `SPACE`, which is said.

    Raises:
        UsageError: `out` exists, or the model has no such table.
        FileError: a file is missing or damaged, or cannot be written.
    """
    if out.exists():
        raise UsageError(f"{out}: exists already; give a new file")
    weights = read(source, None, None, family, info)
    named = hf_model.find_family(weights.settings, weights.path, family)
    loaded = hf_model.from_hf(named, weights.path, weights.settings, weights.tensors)
    tokenizer = load_tokenizer(weights.path, named, loaded)
    if tokenizer is None or TABLE not in loaded.state:
        raise UsageError(f"--to word2vec: family {named} has no vectors of tokens")
    table = loaded.state[TABLE].float()
    names = [tokenizer.token(number) for number in range(len(table))]
    words = [re.sub(r"\s", SPACE, name) for name in names]
    with whole_file(out) as file:
        file.write(f"{table.shape[0]} {table.shape[1]}\n")
        for word, row in zip(words, table, strict=True):
            file.write(" ".join([word, *(f"{number:.9g}" for number in row.tolist())]) + "\n")
    if changed := sum(one != two for one, two in zip(words, names, strict=True)):
        warn(f"{number_of(changed, 'tokens have')} white space, which is {SPACE} in {out}")
    return {"file": str(out), "source": str(weights.path), "tokens": len(table),
            "width": table.shape[1]}  # fmt: skip
