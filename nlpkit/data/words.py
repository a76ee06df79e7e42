"""Words of the text that a run has read: `train.words`, `train.save_at`. Imports no torch.

A word is what white space separates, as `wc -w` and BabyLM count; with Chinese characters it is as
many words as jieba cuts it into, as Chinese BabyLM counts. The tokenizer does not matter.
"""

import itertools
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from nlpkit.contracts.batch import Spans
from nlpkit.contracts.reader import Counts
from nlpkit.data import cache
from nlpkit.data.cache import Callbacks
from nlpkit.data.corpus import Corpus, TokenStore
from nlpkit.data.documents import read
from nlpkit.data.files import Input
from nlpkit.data.lines import name_first
from nlpkit.data.loader import Stream
from nlpkit.data.settings import Config, Part
from nlpkit.data.tokenize import Encoding, encode
from nlpkit.errors import FileError, UsageError
from nlpkit.plural import number_of

_HAN = re.compile("[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]")
_RULE = 1  # part of the names of files of counts: change it if a text gets another count


def count(text: str) -> int:
    """Return the words of a text."""
    words = text.split()
    if not _HAN.search(text):
        return len(words)
    import rjieba

    return sum(len(rjieba.cut(each, True)) if _HAN.search(each) else 1 for each in words)


def count_documents(
    corpus: Corpus, inputs: Sequence[Input], config: Config, encoding: Encoding,
    cache_dir: Path, part: Part, callbacks: Callbacks,
) -> np.ndarray:  # fmt: skip
    """Return the words of each document of a corpus, (D,) int64, from the cache if possible.

    Raises:
        FileError: the text has changed since it was tokenised, or the cache cannot be written.
    """
    found = []
    for store, source in zip(corpus.stores, inputs, strict=True):
        path = cache_dir / "words" / f"{store.fingerprint[:32]}-{_RULE}.npy"
        try:
            words = np.load(path)
        except (OSError, ValueError, EOFError):  # there is none, or it is damaged
            texts = _read_texts(store, source, config, encoding, part, callbacks)
            words = np.array([count(each) for each in texts], np.int64)
            if len(words) != len(store):
                name = source.files[0].name
                raise FileError(f"{name}: changed while it was being read; start again") from None
            with cache.scratch(path.parent) as folder, cache.write_errors(path):
                np.save(folder / path.name, words)
                os.replace(folder / path.name, path)
        found.append(words)
    counts = np.concatenate(found)
    names = name_first([file.name for source in inputs for file in source.files])
    callbacks.note(f"data: {names}: {number_of(int(counts.sum()), 'words')}")
    return counts


def _read_texts(
    store: TokenStore, source: Input, config: Config, encoding: Encoding, part: Part, on: Callbacks
) -> Iterator[str]:
    """Yield the text of each document of a store; it has none without known tokens."""
    for file in source.files:
        by_line = file.format == "sentences"
        for each in read(file, config, Counts(), part=part):
            on.should_stop()
            if store.counts.tokenless and not len(encode([each], encoding, Counts(), by_line)[1]):
                continue
            yield " ".join(each.texts)


def count_pieces(words: np.ndarray, lengths: np.ndarray, spans: Spans) -> np.ndarray:
    """Return the words of each span, (I,) int64, of documents of so many words and tokens, (D,).

    A document's words are shared out by its tokens: those up to token t of T are ⌊words · t / T⌋.
    So its pieces have its words together, whatever the tokenizer. What a piece shares with the next
    one, such as a token that is only context there, counts once.
    """
    framed = lengths + len(spans.before) + len(spans.after)
    starts, total = np.cumsum(framed) - framed, np.cumsum(words) - words

    def before(place: np.ndarray) -> np.ndarray:  # a token of all framed documents as one
        document = np.searchsorted(starts, place, side="right") - 1
        inside = np.clip(place - starts[document] - len(spans.before), 0, lengths[document])
        return total[document] + words[document] * inside // lengths[document]

    first, last = (starts[spans.document] + place for place in (spans.start, spans.stop))
    following = np.append(first[1:], last[-1:])
    last = np.where(following > first, np.minimum(last, following), last)
    return before(last) - before(first)


def count_bins(stream: Stream, bins: int | None = None, words: int = 0) -> np.ndarray:
    """Return the words read after 1, 2, … bins, (B,): up to so many bins, or by default words.

    Raises:
        UsageError: no example has a word.
    """
    pieces, ends = stream.examples.words, np.zeros(0, np.int64)
    if pieces is None or not pieces.any():
        raise UsageError("train.words: no example has a word")
    for epoch in itertools.count():
        plan = stream.plan(epoch)
        each = np.add.reduceat(pieces[plan.items % len(pieces)], plan.offsets[:-1])
        ends = np.append(ends, np.cumsum(each) + ends[-1:].sum())
        if len(ends) >= bins if bins else len(ends) and ends[-1] >= words:
            break
    return ends[: bins or int(np.searchsorted(ends, words)) + 1]
