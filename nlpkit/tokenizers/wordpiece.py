"""WordPiece as BERT has it: words, punctuation and single Chinese characters, then `##` pieces.

Devlin et al. 2019 (arXiv 1810.04805), sec. 3; pieces are learned by merging the most frequent
pair, as the `tokenizers` library does. Its own trainer numbers the `##` characters in hash order,
which makes every run differ; here they are counted first, so that the same texts always give the
same vocabulary. White space is not in the ids, nor is what lower-casing takes away.
"""

from collections import Counter
from collections.abc import Iterable

from pydantic import Field
from tokenizers import Tokenizer as Library
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

from nlpkit.config import FrozenConfig
from nlpkit.tokenizers._hf import LibraryTokenizer, count_characters, count_words, repeat

_SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
# BERT: a longer word is one [UNK].
_LONGEST_WORD = 100


class Config(FrozenConfig):
    """How to train a vocabulary."""

    vocab_size: int = Field(default=30522, ge=16, description="Tokens in all, 5 special ones.")
    min_frequency: int = Field(
        default=2, ge=1, description="A character or pair seen less often gets no token."
    )
    lowercase: bool = Field(default=True, description="Whether A and a are the same.")
    strip_accents: bool | None = Field(
        default=None, description="Whether é and e are the same; null: as lowercase says."
    )


class Tokenizer(LibraryTokenizer):
    """Text ↔ ids; a word with a character in no token is one `[UNK]`."""

    kind = "wordpiece"
    model = "WordPiece"
    bos = "[CLS]"
    eos = "[SEP]"
    unk = "[UNK]"
    pad = "[PAD]"
    mask = "[MASK]"
    cls = "[CLS]"
    sep = "[SEP]"

    @classmethod
    def train(cls, texts: Iterable[str], config: Config) -> "Tokenizer":
        """Return `config.vocab_size` tokens, or as many as `texts` has.

        One pass, memory for the distinct words. Characters are kept by frequency.
        """
        normalizer = normalizers.BertNormalizer(
            lowercase=config.lowercase, strip_accents=config.strip_accents
        )
        splitter = pre_tokenizers.BertPreTokenizer()
        words = count_words(
            texts, lambda text: splitter.pre_tokenize_str(normalizer.normalize_str(text))
        )
        library = Library(models.WordPiece(_learn(words, config), unk_token="[UNK]"))
        library.normalizer = normalizer
        library.pre_tokenizer = splitter
        library.decoder = decoders.WordPiece(cleanup=False)
        library.add_special_tokens(_SPECIAL)
        library.post_processor = processors.TemplateProcessing(
            single="[CLS] $A [SEP]",
            pair="[CLS] $A [SEP] $B:1 [SEP]:1",
            special_tokens=[(t, library.token_to_id(t)) for t in ("[CLS]", "[SEP]")],
        )
        return cls(library.to_str())

    def _characters(self, token: str) -> int:
        return len(token.removeprefix("##")) if len(token) > 2 else len(token)


def _learn(words: Counter[str], config: Config) -> dict[str, int]:
    """Return the vocabulary, token → id, from how often each word was seen."""
    words = Counter({word: n for word, n in words.items() if len(word) <= _LONGEST_WORD})
    inside = {character for word in words for character in word[1:]}
    # A character costs one token, and one more (##) where it is ever inside a word.
    budget = config.vocab_size - len(_SPECIAL)
    kept: set[str] = set()
    for character, count in count_characters(words).items():
        budget -= 1 + (character in inside)
        if budget < 0 or count < config.min_frequency:
            break
        kept.add(character)
    trainer = trainers.WordPieceTrainer(
        vocab_size=config.vocab_size,
        min_frequency=config.min_frequency,
        # The library numbers these first, in this order: ties between pairs go by number.
        special_tokens=[*_SPECIAL, *(f"##{c}" for c in sorted(kept & inside))],
        show_progress=False,
    )
    learner = Library(models.WordPiece(unk_token="[UNK]"))
    learner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    spelled = Counter({word: n for word, n in words.items() if kept.issuperset(word)})
    learner.train_from_iterator(repeat(spelled), trainer)
    return learner.get_vocab()
