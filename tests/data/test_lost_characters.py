"""Characters that tokens do not hold: together the tokens of a text have those of the text."""

from pathlib import Path

import numpy as np
import pytest

from nlpkit import registry
from nlpkit.data.cache import cache_directory
from nlpkit.data.corpus import Corpus
from nlpkit.data.files import find_inputs
from nlpkit.data.settings import Config
from nlpkit.data.store import Encoding, build_corpus
from nlpkit.train.held_out import share_out

LINES = ["The cat, it's on the desk.", "no dog  is here.", "Café: a desk and a cat", "the the the"]


def _corpus(folder: Path, lines: list[str], encoding: Encoding) -> Corpus:
    file = folder / "text.txt"
    file.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    config = Config(train=[str(file)])
    inputs, _ = find_inputs(config, None, cache_directory(str(folder / "spool"), None, print))
    return build_corpus(inputs, config, encoding, cache_dir=folder / "cache")


@pytest.mark.parametrize("kind", ["bpe", "gpt1_bpe", "unigram", "wordpiece"])
def test_tokens_of_a_text_have_its_characters_whatever_the_tokenizer_loses(
    tmp_path: Path, kind: str
) -> None:
    module = registry.load("tokenizers", kind)
    tokenizer = module.Tokenizer.train(LINES * 3, module.Config(vocab_size=320))
    corpus = _corpus(tmp_path, LINES, Encoding(tokenizer))
    held = tokenizer.token_characters()
    found = share_out(held, corpus, tokenizer.unk_id)
    times = corpus.histogram()
    # By hand: the lines' own characters, spaces and the doubled space included.
    total = sum(map(len, LINES))
    assert total == 26 + 16 + 22 + 11
    assert times @ found[: len(times)] == pytest.approx(total)
    lost = {"bpe": 0, "gpt1_bpe": 16, "unigram": -len(LINES), "wordpiece": 16}[kind]
    assert times @ held[: len(times)] == total - lost
    if not lost:
        assert np.array_equal(found, held)


def test_unknown_tokens_are_not_given_to_those_that_are_known(tmp_path: Path) -> None:
    module = registry.load("tokenizers", "wordpiece")
    tokenizer = module.Tokenizer.train(["abcd efgh"] * 3, module.Config(vocab_size=40))
    assert len(tokenizer.encode("abcd efgh")) == 2
    # Half of the tokens are unknown, so the others have half of the 19 characters.
    corpus = _corpus(tmp_path, ["abcd uuu", "efgh vvvvvv"], Encoding(tokenizer))
    found = share_out(tokenizer.token_characters(), corpus, tokenizer.unk_id)
    times = corpus.histogram()
    assert (corpus.tokens, times[tokenizer.unk_id]) == (4, 2)
    times[tokenizer.unk_id] = 0
    assert times @ found[: len(times)] == pytest.approx(19 / 2)


def test_unknown_characters_that_are_left_out_of_the_text_are_no_characters_of_it(
    tmp_path: Path,
) -> None:
    module = registry.load("tokenizers", "cpm_ant")
    tokenizer = module.Tokenizer.train(["山水 花月"] * 3, module.Config(vocab_size=16))
    assert tokenizer.keeps_text
    corpus = _corpus(tmp_path, ["山水 花月", "山狗水"], Encoding(tokenizer, drop_unknown=True))
    held = tokenizer.token_characters()
    assert np.array_equal(share_out(held, corpus, tokenizer.unk_id), held)
