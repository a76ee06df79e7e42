"""The steps of a run whose settings change in its course (`train/phases.py`)."""

from collections.abc import Iterator

from nlpkit.data.loader import Step, Stream, steps
from nlpkit.runs.run import Run
from nlpkit.train import phases
from nlpkit.train.optim import groups
from nlpkit.train.state import State


def follow(run: Run, state: State, source: Stream, count: int) -> Iterator[Step]:
    """Yield the steps after `state`; before each, set what its phase has, and log what changes.

    With a budget of time the size of a step is known when it begins, so no worker prepares it.
    """
    settings, workers, before = run.settings, run.settings.workers, dict[str, float]()

    def now(name: str) -> float:
        return phases.value_at(settings.phases[name], state.progress(settings))

    if settings.known_steps is None and "tokens_per_step" in settings.phases:
        workers = 0
        source.batches_per_step = lambda _: int(now("tokens_per_step")) // settings.batch_budget
    for step in steps(source, count, workers):
        for name in settings.phases:
            value, old = now(name), before.get(name)
            if value == old:
                continue
            was = "" if old is None else f" (before: {old:g})"
            run.log.info(f"step {state.step + 1}: train.{name} is {value:g}{was}")
            if name == "weight_decay":
                _set_decay(run, value)
            before[name] = value
        yield step


def _set_decay(run: Run, value: float) -> None:
    """Give each group the decay that it would have if this were `train.weight_decay`."""
    settings = run.settings.model_copy(update={"weight_decay": value})
    made = groups(run.unwrapped.model, settings)
    decays = {id(p): group.weight_decay for group in made for p in group.parameters}
    for optimizer in run.optimizers:
        for group in optimizer.param_groups:
            group["weight_decay"] = decays[id(group["params"][0])]
