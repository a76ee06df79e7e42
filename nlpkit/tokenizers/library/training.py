"""Trains on the frequencies of words, so that the same texts always give the same vocabulary.

The time that the library needs for the pairs of a word grows with the square of its length.
Therefore long words, such as DNA or base64, are cut. SentencePiece leaves out lines of more than
4,192 bytes (`max_sentence_length`).
"""

from collections import Counter
from collections.abc import Iterable, Iterator

from tokenizers import Tokenizer as Library
from tokenizers.models import Model
from tokenizers.normalizers import Normalizer
from tokenizers.pre_tokenizers import PreTokenizer, WhitespaceSplit
from tokenizers.trainers import Trainer

from nlpkit.plural import number_of
from nlpkit.tokenizers.library.text_files import sound

LONGEST_WORD = 4096  # characters


def count_words(
    texts: Iterable[str], normalizer: Normalizer | None, splitter: PreTokenizer
) -> Counter[str]:
    """Return the frequency of each word; reads `texts` once."""
    words: Counter[str] = Counter()
    for text in sound(texts):
        text = normalizer.normalize_str(text) if normalizer else text
        words.update(word for word, _ in splitter.pre_tokenize_str(text))
    return words


def cut_words(words: Counter[str], longest: int = LONGEST_WORD) -> tuple[Counter[str], str]:
    """Return the words, long ones in parts, and what to say of them."""
    parts: Counter[str] = Counter()
    for word, count in words.items():
        for start in range(0, len(word), longest):
            parts[word[start : start + longest]] += count
    return parts, describe_cut(count_longer(words, longest), longest)


def count_longer(words: Counter[str], longest: int) -> int:
    """Return how many of the words have more characters than `longest`."""
    return sum(count for word, count in words.items() if len(word) > longest)


def cut_texts(texts: Iterable[str], splitter: PreTokenizer, lengths: list[int]) -> Iterator[str]:
    """Yield the texts, cut within long words; append the length of each of these to `lengths`."""
    for text in texts:
        start = 0
        if _may_have_long_word(text):
            for _, (begin, end) in splitter.pre_tokenize_str(text):
                if end - begin > LONGEST_WORD:
                    lengths.append(end - begin)
                    for stop in range(begin + LONGEST_WORD, end, LONGEST_WORD):
                        yield text[start:stop]
                        start = stop
        yield text[start:]


def _may_have_long_word(text: str) -> bool:
    """Return whether white space, or what is between it, may be long; faster than to split."""
    half = LONGEST_WORD // 2
    windows = (text[i : i + half] for i in range(0, len(text) - half, half))
    return any(len(window.split(maxsplit=1)) < 2 for window in windows)


def describe_cut(count: int, longest: int = LONGEST_WORD, done: str = "cut") -> str:
    """Return what to say of `count` words that were cut, if there are any."""
    words = number_of(count, "words")
    return f"{words} of more than {longest:,} characters {done}" if count else ""


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
