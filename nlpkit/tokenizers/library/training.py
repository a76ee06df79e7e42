"""Trains on the frequencies of words, so that the same texts always give the same vocabulary."""

from collections import Counter
from collections.abc import Iterable, Iterator

from tokenizers import Tokenizer as Library
from tokenizers.models import Model
from tokenizers.normalizers import Normalizer
from tokenizers.pre_tokenizers import PreTokenizer, WhitespaceSplit
from tokenizers.trainers import Trainer

from nlpkit.tokenizers.library.text_files import sound


def count_words(
    texts: Iterable[str], normalizer: Normalizer | None, splitter: PreTokenizer
) -> Counter[str]:
    """Return the frequency of each word; reads `texts` once."""
    words: Counter[str] = Counter()
    for text in sound(texts):
        text = normalizer.normalize_str(text) if normalizer else text
        words.update(word for word, _ in splitter.pre_tokenize_str(text))
    return words


def learn(model: Model, trainer: Trainer, words: Counter[str], characters: set[str]) -> Library:
    """Return a tokenizer that is trained on the words that are made of these characters."""
    learner = Library(model)
    learner.pre_tokenizer = WhitespaceSplit()
    spelled = Counter({word: n for word, n in words.items() if characters.issuperset(word)})
    learner.train_from_iterator(repeat(spelled), trainer)
    return learner


def repeat(words: Counter[str]) -> Iterator[str]:
    """Yield each word as often as it was counted, with spaces between, as a trainer needs it."""
    chunk = 10_000
    for word, count in words.items():
        for start in range(0, count, chunk):
            yield " ".join([word] * min(chunk, count - start))
