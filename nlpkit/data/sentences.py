"""Where the sentences of a text begin, by its punctuation and line breaks alone.

A sentence ends at a newline, after `.`, `!`, `?` or `…` where white space or the text's end
follows, and after `。`, `！`, `？` or `……` whatever follows; closing quotes and brackets behind the
mark belong to it. There is no list of abbreviations: `Mr. Smith` is two sentences.
"""

import re

_CLOSING = r"[\"'”’»)\]」』）】》]*"
_END = re.compile(
    rf"(?:[。！？]|……)[。！？…!?]*{_CLOSING}"  # Chinese: nothing need follow
    rf"|[.!?…]+{_CLOSING}(?=\s|$)"
    r"|\n"
)
_LINE_END = re.compile("\n")
_NOT_SPACE = re.compile(r"\S")


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
