"""The special and added tokens that files beside a vocabulary name, as transformers writes them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import AddedToken
from tokenizers import Tokenizer as Library

from nlpkit.disk import read_json
from nlpkit.errors import FileError
from nlpkit.json_types import JsonMapping, JsonObject
from nlpkit.tokenizers.library import text_files

_ADDED = "added_tokens.json"
# In our `tokenizer_config.json`: the tokens of roles, of which `eos_token` there may be another.
NAMES = "nlpkit_names"
ALIASES = "nlpkit_aliases"  # names by which a family knows special tokens, and theirs there
# Roles of which a kind may know nothing, and classes of transformers that have no tokens of theirs.
_KEPT = ("unk_token", "pad_token", "cls_token", "sep_token", "mask_token")
CLASSES = ("PreTrainedTokenizerFast", "TokenizersBackend")


def read_settings(folder: Path) -> JsonObject:
    """Return the content of `tokenizer_config.json`, and of what older versions had beside it."""
    found = _read(folder)
    if (folder / "chat_template.jinja").is_file():
        found["chat_template"] = text_files.read(folder, "chat_template.jinja")[0]
    names = found.get(NAMES)
    return {**found, **names} if isinstance(names, dict) else found


def find_aliases(settings: JsonMapping, file: Path) -> dict[str, str]:
    """Return the names by which a family knows special tokens; raise `FileError` if unfit."""
    found = settings.get(ALIASES, {})
    if not isinstance(found, dict) or not all(isinstance(each, str) for each in found.values()):
        raise FileError(f"{file.parent}/tokenizer_config.json: {ALIASES}: must be names of tokens")
    return found


def _read(folder: Path) -> JsonObject:
    found: JsonObject = {}
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        found |= read_json(folder / name) if (folder / name).is_file() else {}
    return found


def find_names(
    settings: JsonMapping, defaults: Mapping[str, str | None], library: Library, file: Path
) -> dict[str, str | None]:
    """Return the token of each role in `defaults`, None where the vocabulary lacks the default.

    Raises:
        FileError: the settings name a token that the vocabulary lacks.
    """
    names: dict[str, str | None] = {}
    for role, default in defaults.items():
        token = written(settings.get(role, default))
        known = isinstance(token, str) and library.token_to_id(token) is not None
        names[role] = token if known else None
        if not known and token not in (None, default):
            raise FileError(f"{file}: has no token {token!r}, which is the {role}")
    return names


def find_kept(folder: Path, library: Library) -> dict[str, str | None]:
    """Return the roles that files name beside what begins and ends a text, to be named again.

    Where the class has no tokens of its own, `bos_token` and `eos_token` that are not named are
    None: ModernBERT has neither.
    """
    settings = _read(folder)
    found = {role: written(settings.get(role)) for role in _KEPT}
    kept: dict[str, str | None] = {
        role: token
        for role, token in found.items()
        if isinstance(token, str) and library.token_to_id(token) is not None
    }
    if kept and settings.get("tokenizer_class") in CLASSES:
        kept |= {role: None for role in ("bos_token", "eos_token") if settings.get(role) is None}
    return kept


def add_tokens(library: Library, settings: JsonMapping, file: Path) -> None:
    """Add the tokens that lie beside a vocabulary, with the ids that are written there.

    They are those of `added_tokens_decoder` in tokenizer_config.json, else of `added_tokens.json`.

    Raises:
        FileError: an id is that of another token, or leaves ids without a token.
    """
    found = settings.get("added_tokens_decoder")
    if not isinstance(found, dict):
        path = file.parent / _ADDED
        numbers = read_json(path) if path.is_file() else {}
        roles = [written(each) for role, each in settings.items() if role.endswith("_token")]
        special = {each for each in roles if isinstance(each, str)}
        for role in ("additional_special_tokens", "extra_special_tokens"):
            more = settings.get(role)
            for each in more if isinstance(more, list) else ():
                special.add(_make_token({"content": written(each)}, file.parent)[0].content)
        found = {
            str(number): {"content": token, "special": token in special}
            for token, number in numbers.items()
        }
    for number, each in sorted(found.items(), key=lambda pair: pair[0].zfill(9)):
        token, is_special = _make_token(each, file.parent)
        expected = library.token_to_id(token.content)
        if expected is None:
            expected = library.get_vocab_size()
        if number != str(expected):
            raise FileError(
                f"{file.parent}: the added token {token.content!r} has the id {number}; with "
                f"{file.name} it is {expected}"
            )
        if is_special:
            library.add_special_tokens([token])
        elif library.token_to_id(token.content) is None:
            library.add_tokens([token])


def add_missing(library: Library, settings: JsonMapping, file: Path) -> bool:
    """Add the tokens that a `tokenizer.json` lacks and the settings have; return whether any.

    Raises:
        FileError: see `add_tokens`.
    """
    found = settings.get("added_tokens_decoder")
    there = {token.content for token in library.get_added_tokens_decoder().values()}
    missing = {
        number: each
        for number, each in (found.items() if isinstance(found, dict) else ())
        if _make_token(each, file.parent)[0].content not in there
    }
    add_tokens(library, {"added_tokens_decoder": missing}, file)
    return bool(missing)


def _make_token(found: object, folder: Path) -> tuple[AddedToken, bool]:
    if not isinstance(found, dict) or not isinstance(found.get("content"), str):
        raise FileError(f"{folder}: {found!r} among the added tokens is no token")
    flags = {name: bool(found.get(name)) for name in ("single_word", "lstrip", "rstrip")}
    is_special = bool(found.get("special"))
    normalized = bool(found.get("normalized", not is_special))
    return AddedToken(
        found["content"], normalized=normalized, special=is_special, **flags
    ), is_special


def written(token: Any) -> Any:
    """Return what a token is written as; it may be an object with its flags."""
    return token.get("content") if isinstance(token, dict) else token
