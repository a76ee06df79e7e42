"""From a recipe to its parts: tokenizer, corpora, objective, examples, model.

Used by `run` to train and by `planning` to say what training would do.
"""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from nlpkit import registry
from nlpkit.data import corpus, store
from nlpkit.data._cache import content_hash
from nlpkit.data.loader import HELD_OUT, Examples
from nlpkit.data.store import Corpus, Watch
from nlpkit.errors import DataError, FileError, UsageError
from nlpkit.models import _hf
from nlpkit.recipe import Resolved
from nlpkit.tokenizers import _load

TOKENIZER = "tokenizer"  # where a run keeps its own


@dataclass
class Data:
    """Tokenised training and held-out text, and the examples of the objective over them."""

    tokenizer: Any
    objective: Any
    train: Corpus
    valid: Corpus | None
    examples: Examples
    held_out: Examples | None

    @property
    def fingerprint(self) -> str:
        """A hash of everything that the stream of examples depends on beside the recipe."""
        parts = [self.tokenizer.fingerprint(), self.train.fingerprint]
        parts += [self.valid.fingerprint] if self.valid else []
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()


@dataclass
class ModelPart:
    """A family's module and the settings of the model to build."""

    family: str
    config: Any
    start: dict[str, Any] | None  # weights of `init_from`

    def module(self) -> Any:
        """Return `models/FAMILY/model.py`."""
        return registry.load("models", f"nlpkit.models.{self.family}.model")


def model_part(resolved: Resolved) -> ModelPart:
    """Return the family and sizes that the recipe, or its `init_from`, names; reads weights."""
    recipe = resolved.recipe
    if recipe.init_from is None:
        assert recipe.model is not None  # the recipe's own check
        return ModelPart(recipe.model.family, recipe.model.config, None)
    directory = resolved.path(recipe.init_from)
    settings, tensors = _hf.read(directory)
    family, _ = _hf.family_of(settings, directory)
    part = ModelPart(family, None, None)
    try:
        config, state = part.module().from_hf(settings, tensors)
    except KeyError as error:
        raise FileError(f"{directory}: {error} is missing from config.json or weights") from error
    if recipe.model is not None and recipe.model.config != config:
        differ = [k for k, v in config if getattr(recipe.model.config, k, None) != v]
        raise UsageError(
            f"init_from: {directory} has other {', '.join(differ)} than the section model; "
            "remove the section"
        )
    return ModelPart(family, config, state)


def build_model(part: ModelPart, vocab_size: int, backend: str) -> nn.Module:
    """Return the model, with fresh weights (drawn from torch's generator) or `init_from`'s."""
    model = part.module().Model(part.config, vocab_size, backend)
    if part.start is not None:
        rows = len(part.start["token_embedding"])
        if rows != vocab_size:
            raise UsageError(
                f"init_from: that model has {rows} tokens and the tokenizer {vocab_size}; "
                "use the tokenizer that lies beside the model"
            )
        model.load_state_dict(part.start)
    return model


def build_data(resolved: Resolved, part: ModelPart, run_path: Path, watch: Watch) -> Data:
    """Tokenise (or find tokenised) the recipe's text and bind its objective.

    Raises:
        DataError: malformed text, or none that gives an example.
        UsageError: settings that do not fit together.
    """
    config = resolved.recipe.data
    cache = store.cache_directory(config.cache, run_path / "cache", watch)
    train_inputs, valid_inputs = corpus.resolve(config, resolved.base, cache, watch.should_stop)
    held_out_share = bool(config.valid_fraction)
    train_part: Any = "train" if held_out_share else "all"
    tokenizer = build_tokenizer(resolved, train_inputs, train_part, run_path, cache, watch)
    objective = bind_objective(resolved, tokenizer, part)

    def build(inputs: Any, which: Any) -> Corpus:
        return store.build_corpus(
            inputs,
            config,
            tokenizer,
            drop_unknown=objective.drop_unknown,
            cache_dir=cache,
            part=which,
            watch=watch,
        )

    train = build(train_inputs, train_part)
    valid = None
    if valid_inputs or held_out_share:
        valid = build(valid_inputs or train_inputs, "valid" if held_out_share else "all")
    seed = resolved.recipe.seed
    examples = Examples(train, objective, seed)
    held_out = Examples(valid, objective, seed, HELD_OUT) if valid else None
    for name, made in (("data.train", examples), ("data.valid", held_out)):
        if made is not None and not len(made):
            raise DataError(
                f"{name}: {len(made.corpus):,} documents and no example; left out: "
                + ", ".join(f"{n:,} {what}" for what, n in made.pieces.dropped.items())
            )
    return Data(tokenizer, objective, train, valid, examples, held_out)


def bind_objective(resolved: Resolved, tokenizer: Any, part: ModelPart) -> Any:
    """Return the recipe's objective, checked against the model that it is to train.

    Raises:
        UsageError: the model lacks what the objective needs, or sizes do not fit.
    """
    first, *others = resolved.recipe.objective
    if others:
        raise UsageError(
            f"objective: {first.name} makes whole examples and cannot be combined with "
            f"{', '.join(other.name for other in others)}; name one objective"
        )
    objective_class = registry.load("objectives", first.name).Objective
    missing = [name for name in objective_class.needs if not hasattr(part.config, name)]
    if missing:
        raise UsageError(
            f"objective {first.name} needs model.{', model.'.join(missing)}; "
            f"family {part.family} has no such setting"
        )
    try:
        return objective_class(first.config, tokenizer, part.config)
    except ValueError as error:
        raise UsageError(str(error)) from error


def build_tokenizer(
    resolved: Resolved,
    inputs: list[corpus.Input],
    which: corpus.Part,
    run_path: Path,
    cache: Path,
    watch: Watch,
) -> Any:
    """Return the run's own tokenizer if it has one, else the recipe's: loaded, or trained now."""
    own = run_path / TOKENIZER
    section = resolved.recipe.tokenizer
    if own.is_dir():
        return _load.load(own)[1]
    named = section.path if section else resolved.recipe.init_from
    if section is None or section.kind is None:
        assert named is not None  # the recipe's own check
        return _load.load(resolved.path(named))[1]
    key = {
        "kind": section.kind,
        "config": section.config.model_dump(),
        "files": [
            [content_hash(file, cache / "hashes", watch.should_stop), file.format]
            for entry in inputs
            for file in entry.files
        ],
        "data": resolved.recipe.data.model_dump(include={"text_key", "line_break", "on_error"}),
        "part": [which, resolved.recipe.data.valid_fraction],
    }
    digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:32]
    place = cache / "tokenizers" / digest
    if place.is_dir():
        return _load.load(place)[1]
    counts = corpus.Counts()
    documents = corpus.documents(
        inputs, resolved.recipe.data, counts, part=which, should_stop=watch.should_stop
    )
    module = registry.load("tokenizers", section.kind)
    tokenizer = module.Tokenizer.train((d.text for d in documents), section.config)
    draft = place.with_name(f".{place.name}.{id(tokenizer)}")
    tokenizer.save(draft)
    try:
        draft.rename(place)
    except OSError:  # another process trained the same one meanwhile
        watch.note(f"tokenizer: {place} was there already")
    watch.note(
        f"tokenizer: {section.kind}, {tokenizer.vocab_size:,} tokens trained on "
        f"{counts.documents:,} documents"
    )
    return tokenizer
