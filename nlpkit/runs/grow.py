"""Extends a vocabulary: old tokens keep their ids, new ones are appended."""

from collections.abc import Iterable
from typing import Any

from nlpkit.errors import UsageError
from nlpkit.tokenizers.contract import Growing


def grown(
    old: Any, old_kind: str, kind: str, texts: Iterable[str], settings: dict[str, Any]
) -> Any:
    """Return `old` with new tokens from `texts`, at most `settings["vocab_size"]` in total.

    Raises:
        UsageError: the kind is different or cannot grow, or `vocab_size` is too small.
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
            f"token {size}, {old.token(size)!r}, would be the first one lost; "
            f"a vocabulary only grows, give {old.vocab_size} or more"
        )
    return old.grow(texts, **settings)


def check(old: Any, new: Any, path: str) -> None:
    """Raise `UsageError` unless `new` starts with all tokens of `old`, the one in `path`."""
    sizes = f"({new.vocab_size} tokens; {old.vocab_size} in {path})"
    for number in range(old.vocab_size):
        here = new.token(number) if number < new.vocab_size else None
        if here != old.token(number):
            found = f"is {here!r}" if here is not None else "is missing"
            raise UsageError(
                f"tokenizer: token {number} {found}, in init_from it is {old.token(number)!r} "
                f"{sizes}; a vocabulary only grows: all old tokens first, in their order"
            )
