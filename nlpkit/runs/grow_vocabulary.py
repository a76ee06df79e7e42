"""The tokenizer of a run with `init_from`: that of the checkpoint, which may get more tokens.

Old tokens keep their ids, new ones are appended.
"""

from collections.abc import Iterable
from pathlib import Path

from nlpkit.checkpoints import any_layout, bert_vocabulary, tokenizer_files
from nlpkit.contracts.tokenizer import Growing, Tokenizer
from nlpkit.data.lines import name_first
from nlpkit.errors import UsageError
from nlpkit.json_types import JsonObject
from nlpkit.models.formats.rows import drop_padding
from nlpkit.plural import number_of
from nlpkit.runs import vocabulary
from nlpkit.runs.run import ModelPart
from nlpkit.runs.vocabulary import TrainingText
from nlpkit.tokenizers.library.shown import show_token


def grow(
    old: Tokenizer, old_kind: str, kind: str, texts: Iterable[str], settings: JsonObject
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


def starting_tokenizer(text: TrainingText, part: ModelPart, own: Tokenizer | None) -> Tokenizer:
    """Return `own`, the run's tokenizer, or that of the recipe, or of the checkpoint.

    With the section `tokenizer`, that of the checkpoint gets more tokens from the text.

    Raises:
        UsageError: the tokenizer does not start with the tokens of `init_from`.
    """
    section = text.resolved.recipe.tokenizer
    home = part.source and any_layout.find_tokenizer(part.source)
    old = tokenizer_files.load(home) if home and tokenizer_files.is_there(home) else None
    if own is not None:
        tokenizer = own
    elif section is None or part.resumed is not None:
        assert home is not None  # checked by the recipe
        tokenizer = tokenizer_files.load(home)[1]
        bert_vocabulary.name_tokens(tokenizer, part.config, Path(str(part.source)))
    elif section.path is not None:
        tokenizer = vocabulary.load_or_train(text, section)
    elif section.sides is not None:
        raise UsageError(
            "tokenizer.source: with init_from the tokenizers are those of the checkpoint; remove "
            "the section tokenizer"
        )
    elif old is None:
        raise UsageError(f"tokenizer.kind: {part.source} has no tokenizer to grow; give a path")
    else:
        tokenizer = vocabulary.train(text, section, text.texts, old=old)
    _check_rows(part, old, tokenizer)
    made = vocabulary.with_special_tokens(text.resolved, tokenizer, part.config)
    new = [made.token(number) for number in range(tokenizer.vocab_size, made.vocab_size)]
    if new and own is None:
        said = f"tokenizer: {number_of(len(new), 'special tokens')} more than the checkpoint has, "
        remedy = " without lora.targets: token_embedding" if text.resolved.recipe.lora else ""
        remark = "" if part.base_hash is None else f"; they are not trained{remedy}"
        text.callbacks.note(f"{said}with new embeddings{remark}: {name_first(new)}")
    return made


def _check_rows(part: ModelPart, old: tuple[str, Tokenizer] | None, tokenizer: Tokenizer) -> None:
    """Raise `UsageError` unless row r of the checkpoint's embedding is token r of the tokenizer.

    Rows after the last token are cut where released models have them.
    """
    if old is not None:
        check_old_tokens(old[1], tokenizer, str(part.source))
    size = old[1].vocab_size if old else tokenizer.vocab_size
    if part.config.padded_vocabulary and (part.rows or 0) > size:  # as in released T5
        part.rows = size
        if part.start is not None:
            part.start = drop_padding(part.start, part.vocabulary, size)
    if part.rows not in (None, size):
        owner = "its" if old else "the recipe's"
        raise UsageError(
            f"init_from: the model in {part.source} has {part.rows} tokens and {owner} "
            f"tokenizer has {size}; use the tokenizer that belongs to the model"
        )
