"""Saves and loads tokenizers of all kinds. Imports no torch."""

import json
import math
from pathlib import Path
from typing import NamedTuple, TypeGuard

from nlpkit import registry
from nlpkit.contracts.abilities import Generative, ReadsSource
from nlpkit.contracts.objective import Objective
from nlpkit.contracts.tokenizer import Extendable, Template, Tokenizer
from nlpkit.disk import read_json
from nlpkit.errors import FileError
from nlpkit.json_types import JsonObject
from nlpkit.models.config import ModelConfig
from nlpkit.objectives.examples.text import longest_sequence
from nlpkit.tokenizers.library import source_and_target
from nlpkit.tokenizers.library.source_and_target import SourceAndTarget

SETTINGS = "tokenizer_config.json"
_PAD = "<pad>"  # pads where a tokenizer has no token of its own for it, but an objective added this
# Tokenizers of published models that no kind reads, by the `model_type` in config.json.
_FOREIGN = {
    "marian": "Marian's (source.spm and target.spm, of SentencePiece)",
    "xlm": "XLM's (pairs within words that Moses' scripts cut)",
}
KIND = "nlpkit_tokenizer.json"  # has the dotted name of a kind that the user wrote


def _list_files() -> list[str]:
    """Return the file names of all kinds; a directory with one of them has a tokenizer."""
    kinds = (registry.load("tokenizers", kind) for kind in registry.names("tokenizers"))
    return sorted({KIND, *(name for module in kinds for name in module.Tokenizer.files)})


def is_there(directory: Path) -> bool:
    """Return whether a directory has a file of a tokenizer, valid or not."""
    two = any((directory / name).is_dir() for name in source_and_target.FOLDERS)
    return two or any((directory / name).is_file() for name in _list_files())


class Use(NamedTuple):
    """How a model uses its tokenizer, which transformers reads in the tokenizer's files."""

    settings: JsonObject  # of `tokenizer_config.json`
    template: Template | None = None  # None: as the tokenizer's files have it
    end: str | None = None  # the token that ends a generated text


def describe_use(
    objective: Objective | None, model_config: ModelConfig, tokenizer: Tokenizer
) -> Use:
    """Return how a model reads its texts in an objective."""
    settings: JsonObject = {}
    if model_config.can("pairs"):
        settings["model_input_names"] = ["input_ids", "token_type_ids", "attention_mask"]
    longest = longest_sequence(model_config)
    if objective is not None:
        longest = objective.config.setting("max_length", longest)
    if not math.isinf(longest):
        settings["model_max_length"] = int(longest)
    if isinstance(objective, Generative) and not isinstance(objective, ReadsSource):
        # It goes on from the last token: the start of a text that is too long is cut off.
        settings |= {"truncation_side": "left", "padding_side": "left"}
    elif model_config.summary_token:  # the last one, which must be no padding
        settings["padding_side"] = "left"
    ends = objective.eos_token_ids if isinstance(objective, Generative) else ()
    end = tokenizer.token(ends[0]) if len(ends) == 1 else None
    return Use(settings, None if objective is None else objective.template, end)


def save(tokenizer: Tokenizer, directory: Path, use: Use | None = None) -> None:
    """Write the tokenizer's files, and the name of its kind if it is not a kind of nlpkit.

    With `use` they also say how a model uses it.
    """
    if isinstance(tokenizer, SourceAndTarget):
        sides = zip(source_and_target.FOLDERS, (tokenizer.source, tokenizer.target), strict=True)
        for folder, side in sides:
            save(side, directory / folder, use)
        return
    tokenizer.save(directory)
    if use is not None and (directory / SETTINGS).is_file():
        _write_use(tokenizer, directory, use)
    module = type(tokenizer).__module__
    if not module.startswith("nlpkit.tokenizers."):
        (directory / KIND).write_text(json.dumps({"kind": module}) + "\n", encoding="utf-8")


def _write_use(tokenizer: Tokenizer, directory: Path, use: Use) -> None:
    settings = directory / SETTINGS
    content = read_json(settings) | use.settings
    if isinstance(tokenizer, Extendable):
        if use.end is not None:
            content["eos_token"] = use.end
        if tokenizer.special_id(_PAD) is not None:
            content.setdefault("pad_token", _PAD)
    settings.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    file = directory / "tokenizer.json"
    if use.template is None or not file.is_file():
        return
    from nlpkit.tokenizers.library.template import with_template, with_words

    text = with_template(file.read_text(encoding="utf-8"), use.template)
    if isinstance(tokenizer, Extendable):
        words = use.template.words
        text = with_words(text, (w for w in words if tokenizer.special_id(w) is not None))
    file.write_text(text, encoding="utf-8")


def reads_alike(one: Tokenizer, other: Tokenizer) -> bool:
    """Return whether texts have the same ids, whatever transformers puts around them."""
    return fingerprint(one) == fingerprint(other)


def fingerprint(tokenizer: Tokenizer) -> str:
    """Return a hash of what decides the ids of texts."""
    if isinstance(tokenizer, SourceAndTarget):
        return f"{fingerprint(tokenizer.source)} {fingerprint(tokenizer.target)}"
    from nlpkit.tokenizers.library.hf import LibraryTokenizer

    if isinstance(tokenizer, LibraryTokenizer):
        return tokenizer.fingerprint_of_ids()
    return tokenizer.fingerprint()


def is_extendable(tokenizer: Tokenizer) -> TypeGuard[Extendable]:
    """Return whether special tokens can be added to a tokenizer, to each of two."""
    if isinstance(tokenizer, SourceAndTarget):
        return is_extendable(tokenizer.source) and is_extendable(tokenizer.target)
    return isinstance(tokenizer, Extendable)


def load(directory: str | Path) -> tuple[str, Tokenizer]:
    """Return the kind and the `Tokenizer` in a directory or file; raise `FileError`.

    The kind is the one in the file `nlpkit_tokenizer.json` or, without this file, the first kind
    whose `Tokenizer.load` accepts the files. `load` refuses the files of other kinds. Two folders,
    for sources and for targets, have a tokenizer each.
    """
    path = Path(directory)
    if not path.exists():
        raise FileError(f"{path}: no such directory; expected a tokenizer")
    if path.is_dir() and not is_there(path):
        raise FileError(f"{path}: no tokenizer here, neither {' nor '.join(_list_files())}")
    if any((path / folder).is_dir() for folder in source_and_target.FOLDERS):
        sides = [load(path / folder)[1] for folder in source_and_target.FOLDERS]
        return source_and_target.KIND, source_and_target.join_sides(*sides)
    if (path / KIND).is_file():
        kind = _read_kind(path / KIND)
        return kind, registry.load("tokenizers", kind).Tokenizer.load(path)
    refused = []
    for kind in registry.names("tokenizers"):
        made = registry.load("tokenizers", kind).Tokenizer
        if path.is_dir() and not any((path / name).exists() for name in made.files):
            continue
        try:
            return kind, made.load(path)
        except FileError as error:
            refused.append(f"{kind}: {error}")
    settings = read_json(path / "config.json") if (path / "config.json").is_file() else {}
    if known := _FOREIGN.get(str(settings.get("model_type"))):
        raise FileError(
            f"{path}: its tokenizer is {known}, which nlpkit does not read; it reads a "
            "tokenizer.json with the same ids"
        )
    raise FileError(f"{path}: no known kind of tokenizer: {'; '.join(refused)}")


def _read_kind(file: Path) -> str:
    """Return the dotted kind in a file; raise `FileError` if it must not be imported."""
    try:
        kind = json.loads(file.read_text(encoding="utf-8"))["kind"]
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise FileError(f"{file}: names no kind of tokenizer: {error}") from error
    if not isinstance(kind, str) or "." not in kind:
        raise FileError(f"{file}: names no kind of tokenizer: {kind!r} is not a dotted name")
    from nlpkit.outside_parts import check_named_by

    check_named_by(file, kind, "run nlpkit where it lies")
    return kind
