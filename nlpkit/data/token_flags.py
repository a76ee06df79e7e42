"""Token flags: a byte beside each token of a store, for what is in the text and not in the ids.

An objective names the flags that it needs; each is a bit of the byte. They are made from the text,
since the ids do not tell where a sentence ends if the tokenizer drops white space.

A sentence ends at a newline, after `.`, `!`, `?` or `…` where white space or the text's end
follows, and after `。`, `！`, `？` or `……` whatever follows; closing quotes and brackets behind the
mark belong to it. There is no list of abbreviations: `Mr. Smith` is two sentences.

T tokens of a text.
"""

import re
from collections.abc import Iterable, Sequence

import numpy as np

from nlpkit.contracts.batch import bit
from nlpkit.contracts.tokenizer import Aligned

_CLOSING = r"[\"'”’»)\]」』）】》]*"
_END = re.compile(
    rf"(?:[。！？]|……)[。！？…!?]*{_CLOSING}"  # Chinese: nothing need follow
    rf"|[.!?…]+{_CLOSING}(?=\s|$)"
    r"|\n"
)
_LINE_END = re.compile("\n")
_NOT_SPACE = re.compile(r"\S")
_CHINESE = re.compile(
    "[\u4e00-\u9fff\u3400-\u4dbf\uf900-\ufaff\U00020000-\U0002a6df"
    "\U0002a700-\U0002ceaf\U0002f800-\U0002fa1f]+"
)


def flag_tokens(
    text: str,
    offsets: list[tuple[int, int]],
    names: Iterable[str],
    is_second: bool,
    by_line: bool = False,
) -> np.ndarray:
    """Return the flags (T,) uint8 of the tokens of `text` that stand at `offsets`.

    With `by_line` each line is a sentence.
    """
    flags = np.zeros(len(offsets), np.uint8)
    stops = np.maximum.accumulate(np.array([stop for _, stop in offsets], np.int64))
    for name in names:
        if name == "second_side":
            flags |= bit(name) * is_second
            continue
        is_sentence = name == "sentence_start"
        starts = sentence_starts(text, by_line) if is_sentence else word_starts(text)
        # A token may begin with the space before: the first that ends behind the character.
        first = np.searchsorted(stops, starts, side="right")
        flags[first[first < len(flags)]] |= bit(name)
    return flags


def encode_with_flags(
    texts: list[str],
    is_second: Sequence[bool],
    tokenizer: Aligned,
    names: Sequence[str],
    by_line: bool,
) -> tuple[list[list[int]], np.ndarray]:
    """Return the ids of each text, and the flags (N,) uint8 of all their tokens."""
    found = tokenizer.encode_with_offsets(texts)
    flags = [
        flag_tokens(text, offsets, names, bool(second), by_line)
        for text, (_, offsets), second in zip(texts, found, is_second, strict=True)
    ]
    return [ids for ids, _ in found], np.concatenate([np.empty(0, np.uint8), *flags])


def sentence_starts(text: str, by_line: bool = False) -> list[int]:
    """Return the index of the first character, no white space, of each sentence of `text`.

    With `by_line` each line is a sentence (`data.format: sentences`).
    """
    starts: list[int] = []
    begin = 0
    ends = _LINE_END if by_line else _END
    for end in [*(found.end() for found in ends.finditer(text)), len(text)]:
        first = _NOT_SPACE.search(text, begin, end)
        if first:
            starts.append(first.start())
        begin = end
    return starts


def word_starts(text: str) -> list[int]:
    """Return the index of the first character of each word of `text`.

    A word is a run without space or punctuation; punctuation is a word a character, as in BERT's
    `BasicTokenizer`. A run of BERT's Chinese characters (CJK ideographs) is cut by jieba (`rjieba`,
    without its model for unknown words); other scripts without spaces are not cut.
    """
    # Imported here because few objectives need it, and jieba loads in a tenth of a second.
    import rjieba
    from tokenizers.pre_tokenizers import BertPreTokenizer

    starts: set[int] = set()
    for word, (begin, _) in BertPreTokenizer().pre_tokenize_str(text):
        starts.add(begin)
        for found in _CHINESE.finditer(word):
            start = begin + found.start()
            for part in rjieba.cut(found.group(), False):
                starts.add(start)
                start += len(part)
            if found.end() < len(word):
                starts.add(start)
    return sorted(starts)


def is_chinese(character: str) -> bool:
    """Return whether a character is one of those that jieba cuts into words."""
    return bool(_CHINESE.fullmatch(character))
