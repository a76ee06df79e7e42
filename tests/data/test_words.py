"""Words of documents, of pieces and of steps: as `wc -w` and jieba count, for every tokenizer."""

import subprocess
from pathlib import Path

import numpy as np
import pytest
import rjieba

from nlpkit.contracts.batch import Spans
from nlpkit.data import words
from nlpkit.data.corpus import Corpus
from nlpkit.data.files import find_inputs
from nlpkit.data.settings import Config, Part
from nlpkit.data.store import build_corpus
from nlpkit.data.tokenize import Encoding
from nlpkit.objectives.examples.text import cut_documents, cut_stream
from tests._fakes import CharacterTokenizer

ENGLISH = "Twice  two is\tfour, isn't it?\nYes - it is .\n"
CHINESE = "他们在研究生命的起源。"


class KnowsLittle(CharacterTokenizer):
    """Knows no character but those of `known`: a document of others has no token."""

    known, unk_id = "abcdefgh", 0

    def encode_batch(self, texts):
        return [[ord(c) if c in self.known else 0 for c in text] for text in texts]

    def fingerprint(self):
        return "knows little"


def _count(folder: Path, tokenizer: object, part: Part = "all", **settings: object) -> Corpus:
    config = Config.model_validate({"train": [str(folder / "text.txt")], **settings})
    inputs, _ = find_inputs(config, None, folder / "spool")
    encoding = Encoding(tokenizer, drop_unknown=True)  # type: ignore[arg-type]
    return build_corpus(inputs, config, encoding, cache_dir=folder, part=part, count_words=True)


def _words(corpus: Corpus) -> list[int]:
    assert corpus.words is not None
    return corpus.words.tolist()


def test_english_words_are_those_of_wc_and_chinese_words_those_of_jieba() -> None:
    done = subprocess.run(["wc", "-w"], input=ENGLISH, capture_output=True, text=True, check=True)
    assert words.count(ENGLISH) == int(done.stdout) == 11
    assert words.count(CHINESE) == len(rjieba.cut(CHINESE, True)) > 1
    # White space is no word in Chinese, either.
    assert words.count(f"{ENGLISH} {CHINESE}  {CHINESE}") == 11 + 2 * words.count(CHINESE)


def test_documents_have_their_words_whatever_the_tokenizer(tmp_path) -> None:
    texts = ["a bad cab", "xyz zyx", "", "dead beef", "fade in"]
    (tmp_path / "text.txt").write_text("\n".join(texts), encoding="utf-8")
    corpus = _count(tmp_path, CharacterTokenizer())
    assert _words(corpus) == [3, 2, 2, 2]
    # A document without any known token is not in the store.
    corpus = _count(tmp_path, KnowsLittle())
    assert _words(corpus) == [3, 2, 2]


def test_each_part_of_the_text_has_the_words_of_its_documents(tmp_path) -> None:
    texts = [" ".join(["word"] * n) for n in range(1, 40)]
    (tmp_path / "text.txt").write_text("\n".join(texts), encoding="utf-8")
    found = {}
    for part in ("train", "valid"):
        corpus = _count(tmp_path, CharacterTokenizer(), part, valid_fraction=0.4)
        found[part] = _words(corpus)
        assert [5 * n - 1 for n in found[part]] == corpus.lengths.tolist()
    assert sorted(found["train"] + found["valid"]) == [*range(1, 40)]


def test_counts_are_kept_and_a_damaged_file_is_made_again(tmp_path, monkeypatch) -> None:
    (tmp_path / "text.txt").write_text("one two\nthree\n", encoding="utf-8")
    _count(tmp_path, CharacterTokenizer())
    (kept,) = (tmp_path / "words").iterdir()
    monkeypatch.setattr(words, "read", None)  # fails if the text is read again
    assert _words(_count(tmp_path, CharacterTokenizer())) == [2, 1]
    monkeypatch.undo()
    for damaged in (b"", kept.read_bytes()[:-3]):
        kept.write_bytes(damaged)
        assert _words(_count(tmp_path, CharacterTokenizer())) == [2, 1]


def _overlapping(lengths: np.ndarray) -> Spans:
    """Return pieces of a stream that share a token with the next one, as those of `clm`."""
    spans = cut_stream(lengths, 7, end=1)
    last = (
        (lengths + 1).sum() - np.cumsum(lengths + 1)[spans.document] + (lengths + 1)[spans.document]
    )
    return Spans(spans.document, spans.start, np.minimum(spans.stop + 1, last), {}, (), (1,))


@pytest.mark.parametrize("cut", [
    lambda lengths: cut_documents(lengths, 7, 1),
    lambda lengths: cut_stream(lengths, 7, end=1),
    _overlapping,
])  # fmt: skip
def test_pieces_share_out_the_words_of_their_documents(cut) -> None:
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, 40, 30)
    counts = rng.integers(1, 1 + lengths)
    pieces = words.count_pieces(counts, lengths, cut(lengths))
    assert pieces.sum() == counts.sum()
    assert pieces.min() >= 0
    # By hand: a document of 20 tokens and 9 words, cut at 7 and 14, and one of a single token.
    spans = cut_documents(np.array([20, 1]), 7, 1)
    assert words.count_pieces(np.array([9, 4]), np.array([20, 1]), spans).tolist() == [3, 3, 3, 4]
    # A piece that is dropped is not read.
    spans = cut_documents(np.array([20, 1]), 7, 7)
    assert words.count_pieces(np.array([9, 4]), np.array([20, 1]), spans).tolist() == [3, 3]
