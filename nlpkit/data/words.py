"""Where the words of a text begin: runs without space or punctuation, and Chinese by jieba.

Punctuation is a word a character, as in BERT's `BasicTokenizer`. A run of BERT's Chinese
characters (CJK ideographs) is cut by jieba (`rjieba`, without its model for unknown words).
Scripts without spaces that jieba does not know, such as Japanese kana, are not cut.
"""

import re

_CHINESE = re.compile(
    "[\u4e00-\u9fff\u3400-\u4dbf\uf900-\ufaff\U00020000-\U0002a6df"
    "\U0002a700-\U0002ceaf\U0002f800-\U0002fa1f]+"
)


def word_starts(text: str) -> list[int]:
    """Return the index of the first character of each word of `text`."""
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
