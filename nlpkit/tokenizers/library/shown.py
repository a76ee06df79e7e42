"""Shows a token to people, on one line.

A byte-level vocabulary has a symbol for each byte, so that a Chinese token in it reads `æĪĳ`. It
is shown as the text of its bytes, 我; a byte that is only a part of a character is `<0xE6>`, as in
the vocabularies of SentencePiece, and a space is ␣. Files, ids and `token` are not changed.
"""

from nlpkit.contracts.tokenizer import ByteLevel, Tokenizer
from nlpkit.tokenizers.library.source_and_target import SourceAndTarget

_SPACE = "␣"


def show_token(tokenizer: Tokenizer, token_id: int) -> str:
    """Return the token with this id as people read it; one behind the last is of a soft prompt."""
    if token_id >= tokenizer.vocab_size:
        return f"[prompt {token_id - tokenizer.vocab_size}]"
    own = tokenizer.target if isinstance(tokenizer, SourceAndTarget) else tokenizer
    raw = own.token_bytes(token_id) if isinstance(own, ByteLevel) else None
    text = own.token(token_id) if raw is None else _text(raw)
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def _text(raw: bytes) -> str:
    # Python's way to keep a byte that is no UTF-8: a lone surrogate, U+DC00 + byte.
    kept = raw.decode("utf-8", errors="surrogateescape").replace(" ", _SPACE)
    return "".join(f"<0x{ord(c) - 0xDC00:02X}>" if "\udc80" <= c <= "\udcff" else c for c in kept)
