"""The objective and the tokenizer of a checkpoint, for its model."""

import json
from collections.abc import Container
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from nlpkit import registry
from nlpkit.checkpoints import (
    any_layout,
    bert_vocabulary,
    hf_layout,
    hf_writing,
    prompt_layout,
    tokenizer_files,
)
from nlpkit.checkpoints.hf_model import Loaded
from nlpkit.config import FrozenConfig
from nlpkit.contracts.abilities import Generative
from nlpkit.contracts.objective import PREPROCESSOR, Objective
from nlpkit.contracts.tokenizer import Extendable, Tokenizer
from nlpkit.data.lines import name_first
from nlpkit.errors import FileError, UsageError
from nlpkit.json_types import JsonMapping, JsonObject
from nlpkit.models import families
from nlpkit.models.formats.hf_format import vocabulary_size
from nlpkit.models.formats.rows import drop_padding
from nlpkit.models.layers.head import HEAD, SEQUENCE, kind_of
from nlpkit.objectives.examples.text import longest_sequence
from nlpkit.objectives.several import members
from nlpkit.objectives.several.combined import combine
from nlpkit.outside_parts import check_named_by
from nlpkit.recipe.fit import missing_needs
from nlpkit.recipe.problems import in_words
from nlpkit.tokenizers.library.hf import find_begin
from nlpkit.tokenizers.library.source_and_target import check_sources

# The task of a published model, by the kind of its output layer.
_TASKS = {
    SEQUENCE: "classification",
    "token_classification": "tagging",
    "question_answering": "question_answering",
    "multiple_choice": "multiple_choice",
    "image_classification": "image_classification",
}


def load_tokenizer(
    directory: Path, family: str, loaded: Loaded, vocabulary: Path | None = None
) -> Tokenizer | None:
    """Return the tokenizer of a checkpoint, or None if the family has no vocabulary.

    Rows of `loaded` behind the last token, as released T5 has, are cut off.

    Args:
        vocabulary: file or directory of the tokenizer; None: that of the checkpoint.

    Raises:
        FileError: there is no tokenizer, or the model has another number of tokens.
    """
    tables = families.load(family).VOCABULARY
    if not tables:
        return None
    tokenizer = tokenizer_files.load(vocabulary or any_layout.find_tokenizer(directory))[1]
    bert_vocabulary.name_tokens(tokenizer, loaded.config, directory)
    rows = vocabulary_size(loaded.state, tables)
    if loaded.config.padded_vocabulary and rows > tokenizer.vocab_size:
        rows = tokenizer.vocab_size
        loaded.state.update(drop_padding(loaded.state, tables, rows))
    if rows not in (0, tokenizer.vocab_size):
        name = "its tokenizer" if vocabulary is None else f"the tokenizer {vocabulary}"
        raise FileError(
            f"{directory}: the model has {rows} tokens and {name} has {tokenizer.vocab_size}"
        )
    check_sources(directory, loaded.config.source_vocab_size, tokenizer)
    return tokenizer


def load_objective(
    directory: Path, family: str, loaded: Loaded, tokenizer: Tokenizer | None
) -> Objective:
    """Return the objective that the notes of a checkpoint name, bound to the model.

    Default: the task of the output layer, or without one the family's objective.

    Raises:
        FileError: it cannot be made, or does not fit the model.
    """
    named = any_layout.read_notes(directory).get("objective")
    source = f"{directory}: the objective of {family}"
    if named is not None:
        source = f"{directory / hf_layout.NOTES}: objective"
    try:
        default = _TASKS.get(kind_of(families.load_model(family), loaded.head))
        default = default or families.load(family).DEFAULT_OBJECTIVE
        if named is None and default is None:
            raise ValueError(f"none is named, and family {family} has no DEFAULT_OBJECTIVE")
        listed = named if isinstance(named, list) else [named or {"name": default}]
        weights = [float(each.get("weight", 1.0)) for each in listed]
        bound = [_bind(directory, each, named is None, tokenizer, loaded) for each in listed]
        if named is None and tokenizer is not None and isinstance(bound[0], Generative):
            ends = _read_ends(directory, tokenizer.vocab_size)
            bound[0].eos_token_ids = ends or bound[0].eos_token_ids
        return combine(bound, weights)
    except ValidationError as error:
        raise FileError(f"{source}.{in_words(error)}") from error
    except KeyError as error:
        raise FileError(f"{source}: {error} is missing") from error
    except (UsageError, ValueError, TypeError, AttributeError) as error:
        raise FileError(f"{source}: {error}") from error


def _bind(
    directory: Path,
    named: JsonMapping,
    is_default: bool,
    tokenizer: Tokenizer | None,
    loaded: Loaded,
) -> Any:
    """Return an objective for the model, with the settings in `named`.

    A classifier that has no layer to predict tokens, as those of transformers, has no loss of them.
    """
    model_config = loaded.config
    settings = {key: value for key, value in named.items() if key != "weight"}
    name = settings.pop("name")
    for each in members.names(named):
        check_named_by(directory / hf_layout.NOTES, each, "run nlpkit where it lies")
    module = registry.load("objectives", name)
    if is_default:
        fields = module.Config.model_fields
        settings = _read_classes(directory, loaded, fields)
        # Each text begins with a token, such as LLaMA's `<s>`: without it, the model writes other
        # texts, and gives them other probabilities.
        if find_begin(tokenizer) is not None and "contiguous" in fields:
            settings["contiguous"] = False
    else:
        settings = _add_earlier(module.Config, settings)
    rows = prompt_layout.read_rows(directory)
    if (is_default or rows is not None) and (field := module.Config.model_fields.get("max_length")):
        limit = longest_sequence(model_config) - (0 if rows is None else len(rows))
        if settings.get("max_length", field.default) > limit:
            settings["max_length"] = int(limit)
    if loaded.lacks_output and "lm_weight" in module.Config.model_fields:
        settings["lm_weight"] = 0.0
    config = module.Config.model_validate_json(json.dumps(settings))
    preprocessor = hf_layout.read_if_there(directory / PREPROCESSOR)
    config = module.Objective.with_preprocessor(config, preprocessor)
    if lacking := missing_needs(module.Objective, model_config):
        raise ValueError(f"{name} needs {', '.join(lacking)}, which the model does not have")
    if isinstance(tokenizer, Extendable):
        named = module.Objective.special_tokens(config, model_config)
        if lacking := [token for token in named if tokenizer.special_id(token) is None]:
            raise ValueError(
                f"{name} needs the special tokens {name_first(lacking)}, which the tokenizer does "
                "not have"
            )
    return module.Objective(config, tokenizer, model_config)


def _add_earlier(config: type[FrozenConfig], settings: JsonObject) -> JsonObject:
    """Return the settings, of members too, with the earlier values of those that are missing."""
    settings = {**config.EARLIER, **settings}
    if isinstance(members := settings.get("of"), list):  # of a mixture
        settings["of"] = [
            _add_earlier(registry.load("objectives", member["name"]).Config, member)
            for member in members
        ]
    return settings


def _read_ends(directory: Path, size: int) -> tuple[int, ...]:
    """Return the ids of `eos_token_id` of a foreign checkpoint, each of which ends a text.

    A single one in `config.json` may be a class' default, an id of another vocabulary.
    """
    for home in any_layout.find_homes(directory):
        named = hf_layout.read_if_there(home / hf_writing.GENERATION)
        ends = (named or hf_layout.read_if_there(home / "config.json")).get("eos_token_id")
        ends = [ends] if named and ends in range(size) else ends
        if isinstance(ends, list):
            if wrong := [each for each in ends if type(each) is not int]:
                raise FileError(f"{home}: eos_token_id: {json.dumps(wrong[0])} is no id of a token")
            return tuple(each for each in ends if each in range(size))  # no other is ever written
    return ()


def _read_classes(directory: Path, loaded: Loaded, fields: Container[str]) -> JsonObject:
    """Return `labels` from `id2label` of a foreign checkpoint, or the names that it implies.

    transformers writes none where the classes are two and have no names of their own.
    """
    if "labels" not in fields or HEAD not in loaded.state:
        return {}
    settings, outputs = hf_layout.read_settings(directory), len(loaded.state[HEAD])
    kind = settings.get("problem_type") or ("regression" if outputs == 1 else None)
    if kind not in (None, "single_label_classification"):
        raise ValueError(f"problem_type {kind}: read are only outputs for one class of several")
    names = settings.get("id2label")
    if not isinstance(names, dict):
        names = {number: f"LABEL_{number}" for number in range(outputs)}
    if len(names) != outputs:
        raise ValueError(f"id2label names {len(names)} classes; the output layer has {outputs}")
    labels = [names[number] for number in sorted(names, key=int)]
    # Rows of published data often have the number of the class.
    is_clear = "choices" in fields and not any(str(each).isdecimal() for each in labels)
    return {"labels": labels, "choices": labels} if is_clear else {"labels": labels}
