"""The steps of a run whose settings change in its course (`train/phases.py`)."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from nlpkit.data.corpus import Corpus
from nlpkit.data.loader import Examples, Step, Stream, steps
from nlpkit.errors import DataError, UsageError
from nlpkit.recipe import Resolved
from nlpkit.recipe.settings import Recipe
from nlpkit.runs.run import Data, ModelPart, Run
from nlpkit.train import phases, shards
from nlpkit.train.optim import groups
from nlpkit.train.state import State

SIZE, DECAY, LENGTH = "train.tokens_per_step", "train.weight_decay", "objective.max_length"


def lists_of(recipe: Recipe) -> dict[str, phases.Phases]:
    """Return the lists of a recipe, by the names of their settings in it."""
    lengths = recipe.objective[0].lengths
    found: dict[str, phases.Phases] = {
        f"train.{name}": each for name, each in recipe.train.phases.items()
    }
    return found | ({LENGTH: lengths} if lengths else {})


def follow(run: Run, state: State, source: Stream, count: int) -> Iterator[Step]:
    """Yield the steps after `state`; before each, set what its phase has, and log what changes.

    With a budget of time the size of a step is known when it begins, so no worker prepares it.
    """
    settings, workers, before = run.settings, run.settings.workers, dict[str, float]()
    lists = lists_of(run.resolved.recipe)

    def now(name: str) -> float:
        return phases.value_at(lists[name], state.progress(settings))

    if settings.known_steps is None and SIZE in lists:
        workers = 0
        source.batches_per_step = lambda _: int(now(SIZE)) // settings.batch_budget
    made = steps(source, count, workers)
    if LENGTH in lists:
        made = _by_length(run, state, source, count, workers, lambda: int(now(LENGTH)))
    for step in made:
        values = {name: now(name) for name in lists}
        for name, value in values.items():
            if value == before.get(name):
                continue
            was = f" (before: {before[name]:g})" if before else ""
            run.log.info(f"step {state.step + 1}: {name} is {value:g}{was}")
            if name == DECAY:
                _set_decay(run, value)
        before = values
        yield replace(step, notes={"settings": values})


def _by_length(
    run: Run, state: State, source: Stream, count: int, workers: int, now: Callable[[], int]
) -> Iterator[Step]:
    """Yield the steps after `state`, each of examples of the `objective.max_length` of its time.

    A new length goes on at the position (epoch and bin) where the one before ended. So a resumed
    run needs nothing but the position, and the run equals one whose setting is changed by hand.
    A position behind the last bin of a shorter epoch is the next epoch's (`Stream.locate`).
    """
    while count:
        length = now()
        stream = Stream(
            run.data.by_length[length],
            budget=source.budget,
            batches_per_step=source.batches_per_step,
            start=state.position,
            progress=replace(source.progress, first_step=state.step),
            rank=source.rank,
            world_size=source.world_size,
        )
        for step in steps(stream, count, workers):
            if now() != length:  # the step is not taken: a new stream begins at its place
                break
            count -= 1
            yield step


def make_examples(resolved: Resolved, part: ModelPart, data: Data) -> dict[int, Examples]:
    """Return the training examples for each value of `objective.max_length`.

    Raises:
        UsageError: the objective or the model refuses a length.
        DataError: with a length there is no example.
    """
    section, found = resolved.recipe.objective[0], dict[int, Examples]()
    made: Any = section.objective
    assert isinstance(data.train, Corpus)  # a task is refused: `recipe.alternatives`
    for length in {int(each["value"]) for each in section.lengths or ()}:
        if length == section.config.max_length:  # the largest
            found[length] = data.examples
            continue
        settings = section.config.model_dump() | {"max_length": length}
        try:
            config = type(section.config).model_validate(settings)
            objective = made(config, data.tokenizer, part.config)
        except ValueError as error:
            raise UsageError(f"objective.max_length: {length}: {error}") from error
        objective.read_counts(data.train.histogram)
        found[length] = Examples(data.train, objective, data.examples.seed)
        if not len(found[length]):
            raise DataError(f"objective.max_length: {length}: no example is so short")
    return found


def _set_decay(run: Run, value: float) -> None:
    """Give each group the decay that it would have if this were `train.weight_decay`."""
    shards.release(run.training)  # an evaluation before leaves other objects in their place
    settings = run.settings.model_copy(update={"weight_decay": value})
    made = groups(run.unwrapped.model, settings)
    decays = {id(p): group.weight_decay for group in made for p in group.parameters}
    for optimizer in run.optimizers:
        for group in optimizer.param_groups:
            group["weight_decay"] = decays[id(group["params"][0])]
