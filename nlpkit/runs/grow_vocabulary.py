"""Extends a vocabulary: old tokens keep their ids, new ones are appended."""

from collections.abc import Iterable
from typing import Any

from nlpkit.contracts.tokenizer import Growing, Tokenizer
from nlpkit.errors import UsageError
from nlpkit.tokenizers.library.shown import show_token


def grow(
    old: Tokenizer, old_kind: str, kind: str, texts: Iterable[str], settings: dict[str, Any]
) -> Tokenizer:
    """Return `old` extended with tokens from `texts` to at most `settings["vocab_size"]` tokens.

    Raises:
        UsageError: the kind is different or cannot be extended, or `vocab_size` is too small.
    """
    if kind != old_kind or not isinstance(old, Growing):
        why = f"has a tokenizer of kind {old_kind}" if kind != old_kind else "cannot be grown"
        raise UsageError(
            f"tokenizer.kind: {kind}, and init_from {why}; remove the section tokenizer, or name "
            "a finished tokenizer (path) that begins with the old tokens"
        )
    size = settings["vocab_size"]
    if size < old.vocab_size:
        raise UsageError(
            f"tokenizer.vocab_size: {size} is less than the {old.vocab_size} tokens of init_from; "
            f"token {size}, {show_token(old, size)!r}, and all after it would be lost; "
            f"give {old.vocab_size} or more"
        )
    return old.grow(texts, **settings)


def check_old_tokens(old: Tokenizer, new: Tokenizer, path: str) -> None:
    """Raise `UsageError` unless `new` starts with all tokens of `old`, which is in `path`."""
    sizes = f"({new.vocab_size} tokens; {old.vocab_size} in {path})"
    for number in range(old.vocab_size):
        token = new.token(number) if number < new.vocab_size else None
        if token != old.token(number):
            actual = f"is {show_token(new, number)!r}" if token is not None else "is missing"
            raise UsageError(
                f"tokenizer: token {number} {actual}, in init_from it is "
                f"{show_token(old, number)!r} {sizes}; all old tokens must come first, in their "
                "order"
            )
