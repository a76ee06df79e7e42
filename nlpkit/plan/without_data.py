"""Plans a run by its recipe alone: what it would cost, before there is any data.

Made-up text stands in for `data`: documents so long that examples are as long as `objective` lets
them be. Its tokens are those of the recipe's tokenizer, which is not trained: the vocabulary is
taken to become as large as `tokenizer.vocab_size` says. Of a task, whose rows only files have,
sequences are taken to be of the greatest length, and the layer for its classes is left out.
"""

from dataclasses import dataclass

import numpy as np

from nlpkit import registry
from nlpkit.checkpoints import tokenizer_files
from nlpkit.contracts.batch import SOURCE_LENGTHS, Batch, bit
from nlpkit.contracts.reader import Counts
from nlpkit.contracts.task import Task
from nlpkit.contracts.tokenizer import Tokenizer
from nlpkit.data.corpus import Corpus, TokenStore
from nlpkit.data.loader import Examples, Stream
from nlpkit.errors import UsageError
from nlpkit.json_types import JsonObject
from nlpkit.models.flops import count_projections, step_flops
from nlpkit.plan import describe_model
from nlpkit.recipe import Resolved, sections
from nlpkit.recipe.fit import reads_text
from nlpkit.runs import build, two_tokenizers
from nlpkit.runs.planned import PlannedModel
from nlpkit.runs.run import ModelPart
from nlpkit.runs.vocabulary import with_special_tokens
from nlpkit.tokenizers.library.source_and_target import join_sides
from nlpkit.train.schedule import resolve_steps
from nlpkit.train.step_sizes import mean_batches

_SENTENCE = 25  # tokens of a made-up sentence


@dataclass
class Sketch(PlannedModel):
    """The model of a run, and a batch such as it would have."""

    batch: Batch
    projections: int  # states of the batch that are multiplied by the output table

    @property
    def tokens_per_step(self) -> float:
        """The tokens of a full optimizer step, those of sources included."""
        return mean_batches(self.settings, None) * self.settings.batch_budget

    @property
    def flops_per_step(self) -> float:
        """The FLOPs of a full optimizer step."""
        sources = self.batch.fields.get(SOURCE_LENGTHS, ())
        flops = step_flops(
            *(self.part.family, self.part.config, self.vocab_size),
            *(self.batch.lengths, self.projections, sources),
        )
        return flops * self.tokens_per_step / self.batch.tokens


def make(resolved: Resolved) -> Sketch:
    """Return the run as far as the recipe says it.

    Raises:
        UsageError: the recipe leaves the length or the model to data or to a checkpoint.
    """
    recipe = resolved.recipe
    if recipe.init_from is not None:
        raise UsageError(f"--no-data: the model is that of init_from: {recipe.init_from}")
    if recipe.train.steps is None:
        given = next(n for n in ("budget", "words", "epochs") if getattr(recipe.train, n))
        raise UsageError(f"--no-data: train.{given} depends on data or machine; set train.steps")
    if recipe.train.rows_per_step is not None:
        raise UsageError(
            "--no-data: train.rows_per_step depends on data, how long rows are; set tokens_per_step"
        )
    part = build.model_part(resolved)
    tokenizer = _make_tokenizer(resolved, part)
    vocab_size = 0 if tokenizer is None else tokenizer.vocab_size
    settings = resolve_steps(recipe.train.model_copy(update={"memory": None}), None)
    budget = settings.batch_budget
    if issubclass(recipe.objective[0].objective, Task):
        batch, projections = _batch_of_task(resolved, part, budget)
    else:
        batch, projections = _batch_of_text(resolved, part, tokenizer, budget)
    return Sketch(resolved, settings, part, vocab_size, batch, projections)


def _make_tokenizer(resolved: Resolved, part: ModelPart) -> Tokenizer | None:
    """Return the recipe's tokenizer, untrained, but of its size; None if no text is read."""
    section = resolved.recipe.tokenizer
    if section is None or not reads_text(resolved.recipe.objective):
        return None
    sides = [_make_side(resolved, side) for side in section.sides or (section,)]
    tokenizer = sides[0] if len(sides) == 1 else join_sides(*sides)
    tokenizer = with_special_tokens(resolved, tokenizer, part.config)
    two_tokenizers.set_source_vocabulary(resolved, part, tokenizer)
    return tokenizer


def _make_side(resolved: Resolved, section: sections.Tokenizer | sections.Side) -> Tokenizer:
    if section.path is not None:
        return tokenizer_files.load(resolved.path(section.path))[1]
    assert section.kind is not None
    kind: type[Tokenizer] = registry.load("tokenizers", section.kind).Tokenizer
    wanted = section.config.setting("vocab_size")
    if wanted is None:
        raise UsageError(f"--no-data: tokenizer {section.kind} has no vocab_size")
    made = kind.train(["made up, made up"] * 2, section.config)
    lacking = wanted - made.vocab_size
    if "vocab_size" in vars(made):
        vars(made)["vocab_size"] += lacking
        return made
    # Special tokens that are added to it count beside those that it lacks.
    size = property(lambda own: kind.vocab_size.__get__(own) + lacking)
    made.__class__ = type("Untrained", (kind,), {"vocab_size": size})
    return made


class _MadeUpText(TokenStore):
    """Documents of one length, with all token flags that an objective may ask for."""

    def __init__(self, documents: int, length: int, ids: np.ndarray):
        place = np.arange(length)
        flags = np.full(length, bit("word_start"), np.uint8)
        flags[place % _SENTENCE == 0] |= bit("sentence_start")
        flags[length // 2 :] |= bit("second_side")
        self.tokens = documents * length
        self.counts, self.fingerprint = Counts(documents=documents), ""
        self._offsets = np.arange(documents + 1) * length
        self._ids = np.resize(ids, self.tokens)
        self._flags = np.tile(flags, documents)


def _batch_of_text(
    resolved: Resolved, part: ModelPart, tokenizer: Tokenizer | None, budget: int
) -> tuple[Batch, int]:
    """Return the first batch of made-up text, and how many of its states are predicted."""
    assert tokenizer is not None  # an objective without one is a task
    objective = build.bind_objective(resolved, tokenizer, part)
    longest = objective.config.setting("max_length", budget)
    length = 64 * longest + 8 * budget  # the last piece of a document is shorter
    if "second_side" in objective.token_flags:  # a pair is an example, and is not cut
        length = 2 * longest - int(objective.length(np.array([longest]))[0])
    special: tuple[int | None, ...] = (tokenizer.bos_id, tokenizer.eos_id, tokenizer.unk_id)
    if tokenizer_files.is_extendable(tokenizer):
        special += tokenizer.special_ids
    ids = np.setdiff1d(np.arange(tokenizer.vocab_size), [i for i in special if i is not None])
    text = _MadeUpText(max(2, 16 * budget // length), length, ids.astype(np.int32))
    examples = Examples(Corpus([(text, 1.0)]), objective, resolved.recipe.seed)
    if not len(examples):
        what = f"{_SENTENCE} tokens, make no example of objective.max_length {longest}"
        raise UsageError(f"--no-data: made-up sentences, of {what}; plan with data")
    batch = Stream(examples, budget=budget, batches_per_step=1)[0].batches[0]
    return batch, count_projections(objective, batch)


def _batch_of_task(resolved: Resolved, part: ModelPart, budget: int) -> tuple[Batch, int]:
    """Return a batch of the longest sequences, without fields, and the states that are predicted.

    Raises:
        UsageError: sequences have no greatest length.
    """
    section = resolved.recipe.objective[0]
    length = section.config.setting("max_length") or part.config.position_limit
    if length is None:
        raise UsageError(f"--no-data: objective {section.name} has rows of any length")
    both = part.config.can("encodes_source")
    lengths = (length,) * max(1, budget // (2 * length if both else length))
    predicted = sum(lengths) if section.objective.predicts_text else 0
    return Batch({SOURCE_LENGTHS: lengths} if both else {}, lengths), predicted


def describe(plan: Sketch) -> JsonObject:
    """Return what `plan.describe` says of a run, as far as it does not depend on data."""
    settings, batch = plan.settings, plan.batch
    share = round(plan.projections / batch.tokens, 4) if batch.num_targets else None  # of a task
    return {
        "data": {"vocabulary": plan.vocab_size},
        "packing": {
            "tokens_per_batch": settings.batch_budget,
            "batches_per_step": mean_batches(settings, None),
            "steps": settings.steps,
            "warmup_steps": settings.warmup_steps,
            "longest_sequence": max(batch.lengths),
            "longest_source": max(batch.fields.get(SOURCE_LENGTHS, ()), default=None),
            "share_of_tokens_with_loss": share,
        },
        "model": describe_model(plan, plan.flops_per_step),
        "settings": plan.resolved.dump(),
    }
