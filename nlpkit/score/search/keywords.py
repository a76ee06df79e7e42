"""The words with the highest weights in each document, as lines of tsv or JSON."""

import json
from collections.abc import Iterator

import numpy as np

from nlpkit.score.search.inverted_index import Index
from nlpkit.score.search.ranking import Weighting


def write_lines(
    index: Index, weighting: Weighting, most: int, form: str, signature: str
) -> Iterator[str]:
    """Yield the lines of each document: at most `most` words, sorted by descending weight.

    Words of equal weight are in the order of their first use in all documents.
    """
    names = list(index.terms)
    terms = np.repeat(np.arange(len(names)), index.frequencies)  # (P,)
    weights = [weighting.impacts(term) for term in range(len(names))]
    scores = np.concatenate([np.empty(0), *weights])  # (P,)
    order = np.lexsort((terms, -scores, index.documents))
    starts = np.searchsorted(index.documents[order], np.arange(len(index.ids) + 1))
    for document, key in enumerate(index.ids):
        chosen = order[starts[document] : starts[document + 1]][:most].tolist()
        rows = [(names[terms[at]], float(scores[at]), at) for at in chosen]
        if form == "tsv":
            yield "".join(f"{key}\t{r}\t{word}\t{s!r}\n" for r, (word, s, _) in enumerate(rows, 1))
            continue
        words = [
            {
                "word": word,
                "rank": rank,
                "score": score,
                "tf": int(index.counts[at]),
                "df": int(index.frequencies[terms[at]]),
            }
            for rank, (word, score, at) in enumerate(rows, 1)
        ]
        found = {"document": key, "signature": signature, "words": words}
        yield json.dumps(found, ensure_ascii=False) + "\n"
