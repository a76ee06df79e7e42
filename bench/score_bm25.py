"""Print how fast `score bm25` indexes and answers, beside bm25s, on one core.

    OMP_NUM_THREADS=1 python bench/score_bm25.py [--documents N] [--queries N] [--rounds N]

The text is synthetic: words by Zipf's law (exponent 1.05, 200,000 different ones), documents of 20
to 138 of them, queries of 3 to 8 drawn alike. Indexing is from the jsonl file to the index, words
cut by each one's own rule (no stop words); answering is from the query's text to its ten best.
Rounds are interleaved, in seconds of this process; the table gives medians, and of the ratios to
bm25s the median over rounds. bm25s is measured as it comes (float32) and in float64, as ours is.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import bm25s
import numpy as np

from nlpkit.score.metrics import bm25
from nlpkit.score.search.documents import Records
from nlpkit.score.search.inverted_index import build
from nlpkit.score.search.ranking import Ranker
from nlpkit.score.search.words import get_tokenizer

_LETTERS = np.array(list("etaoinshrdlucmfwypvbgkjqxz"))
_VOCABULARY = 200_000


class Way(NamedTuple):
    """One way: file -> index, index and queries -> scores of the best (queries, 10)."""

    index: Callable[[Path], Any]
    answer: Callable[[Any, list[str]], np.ndarray]


def write(folder: Path, documents: int, queries: int) -> tuple[Path, list[str]]:
    """Write the documents; return their file, and the queries."""
    rng = np.random.default_rng(7)
    seen: dict[str, None] = {}
    while len(seen) < _VOCABULARY:
        # Rare words are longer.
        length = 2 + int(1.5 * np.log10(len(seen) + 2)) + int(rng.integers(0, 4))
        seen["".join(_LETTERS[np.minimum(rng.geometric(0.12, length) - 1, 25)])] = None
    words = np.array(list(seen), dtype=object)
    shares = np.cumsum(np.arange(1, _VOCABULARY + 1) ** -1.05)
    shares /= shares[-1]

    def text(number: int) -> str:
        return " ".join(words[np.searchsorted(shares, rng.random(number))])

    path = folder / "documents.jsonl"
    with open(path, "w", encoding="utf-8") as file:
        for i in range(documents):
            row = {"id": f"d{i}", "text": text(int(rng.integers(20, 139)))}
            file.write(json.dumps(row) + "\n")
    return path, [text(int(rng.integers(3, 9))) for _ in range(queries)]


def _ours() -> Way:
    words = get_tokenizer("word", True)

    def index(path: Path) -> Ranker:
        found = build(Records(str(path)), words)
        return Ranker(found, bm25.Weighting(found, bm25.Settings()))

    def answer(ranker: Ranker, queries: list[str]) -> np.ndarray:
        scores = np.zeros((len(queries), 10))
        for row, query in zip(scores, queries, strict=True):
            hits = ranker.top(words(query), 10)
            row[: len(hits)] = [hit.score for hit in hits]
        return scores

    return Way(index, answer)


def _theirs(dtype: str) -> Way:
    def index(path: Path) -> bm25s.BM25:
        with open(path, encoding="utf-8") as lines:
            texts = [json.loads(line)["text"] for line in lines]
        found = bm25s.BM25(dtype=dtype)
        tokens = bm25s.tokenize(texts, stopwords=None, show_progress=False)
        found.index(tokens, show_progress=False)
        return found

    def answer(found: bm25s.BM25, queries: list[str]) -> np.ndarray:
        tokens = bm25s.tokenize(queries, stopwords=None, show_progress=False, return_ids=False)
        return found.retrieve(tokens, k=10, show_progress=False).scores

    return Way(index, answer)


def main() -> None:
    """Time every way `--rounds` times and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--documents", type=int, default=100_000)
    parser.add_argument("--queries", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    ways = {"nlpkit, float64": _ours(), "bm25s, float32": _theirs("float32")}
    ways["bm25s, float64"] = _theirs("float64")
    built: dict[str, list[float]] = {name: [] for name in ways}
    answered: dict[str, list[float]] = {name: [] for name in ways}
    scores = {}
    with tempfile.TemporaryDirectory() as folder:
        path, queries = write(Path(folder), options.documents, options.queries)
        for _ in range(options.rounds):
            for name, way in ways.items():
                start = time.process_time()
                index = way.index(path)
                middle = time.process_time()
                scores[name] = way.answer(index, queries)
                built[name].append(middle - start)
                answered[name].append(time.process_time() - middle)
                del index
        size = path.stat().st_size
    ours, _, theirs = scores.values()
    print(f"{options.documents} documents, {size / 1e6:.0f} MB, {len(queries)} queries, ", end="")
    print(f"{options.rounds} rounds; bm25s {bm25s.__version__}, numpy {np.__version__}")
    print(f"greatest difference of the ten best scores in float64: {abs(ours - theirs).max():.1e}")
    print("\n| | index, s | of bm25s, float32 | queries/s | of bm25s, float32 |")
    print("|---|---|---|---|---|")
    base = "bm25s, float32"
    for name in ways:
        share = statistics.median(a / b for a, b in zip(built[name], built[base], strict=True))
        rate = statistics.median(b / a for a, b in zip(answered[name], answered[base], strict=True))
        seconds = statistics.median(built[name])
        speed = len(queries) / statistics.median(answered[name])
        print(f"| {name} | {seconds:.2f} | {share:.2f} x | {speed:.0f} | {rate:.2f} x |")


if __name__ == "__main__":
    main()
