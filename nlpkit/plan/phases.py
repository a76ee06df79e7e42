"""What is planned of a run whose settings change in its course (`train/phases.py`)."""

from dataclasses import replace
from fractions import Fraction
from math import ceil
from typing import NamedTuple

import numpy as np

from nlpkit.data.loader import Stream
from nlpkit.json_types import JsonObject
from nlpkit.runs.phased import LENGTH, SIZE, lists_of
from nlpkit.runs.planned import Planned
from nlpkit.runs.trial import Measured, measure
from nlpkit.train.phases import value_at
from nlpkit.train.schedule import make_stream
from nlpkit.train.step_sizes import mean_batches


class Phase(NamedTuple):
    """A part of the run in which no setting changes."""

    start: Fraction  # share of the run
    until: Fraction
    values: dict[str, float]  # of the settings that have lists
    stream: Stream  # of its examples
    batches: float  # of a step

    @property
    def share(self) -> float:
        """The share of the run that it takes."""
        return float(self.until - self.start)


class Cost(NamedTuple):
    """Of a phase: its share of the run's steps, and seconds and tokens of a step."""

    share: float
    seconds: float
    tokens: float


def list_phases(plan: Planned) -> list[Phase]:
    """Return the phases of the run; [] if no setting has a list."""
    lists, settings, found = lists_of(plan.resolved.recipe), plan.settings, list[Phase]()
    ends = {
        Fraction(repr(each["until"])) for of in lists.values() for each in of if "until" in each
    }
    start = Fraction(0)
    for until in sorted(ends | {Fraction(1)}) if lists else ():
        values = {name: value_at(of, float(start)) for name, of in lists.items()}
        examples = plan.data.by_length.get(int(values.get(LENGTH, 0)), plan.data.examples)
        stream = make_stream(settings)(examples)
        batches = mean_batches(settings, stream)  # of all phases, if there is a list of sizes
        if SIZE in values:
            batches = values[SIZE] // settings.batch_budget
        found.append(Phase(start, until, values, stream, batches))
        start = until
    return found


def describe(plan: Planned) -> list[JsonObject]:
    """Return until when each phase holds, its settings and, if the length is known, its size."""
    steps, found = plan.settings.known_steps, []
    for phase in list_phases(plan):
        sizes: JsonObject = {}
        if steps is not None:
            number = ceil(phase.until * steps) - ceil(phase.start * steps)
            bins, lengths = phase.stream.plan(0), phase.stream.examples.sizes
            tokens = int(lengths[bins.items % len(lengths)].sum()) / len(bins)
            sizes = {"steps": number, "tokens": round(number * phase.batches * tokens)}
        found.append({"until": float(phase.until), **phase.values, **sizes})
    return found


def measure_costs(plan: Planned, found: Measured) -> list[Cost]:
    """Return what each phase costs; [] if there are none, or nothing was timed.

    `found` is of the longest examples; batches of others are timed now.

    With a budget the phases are shares of its time, and so have steps as these are long.
    """
    by_length, precision = {id(plan.data.examples): found.times}, found.precision
    costs = []
    for phase in list_phases(plan) if found.times.batches else ():
        examples = phase.stream.examples
        if id(examples) not in by_length:
            data = replace(plan.data, examples=examples)
            other = replace(plan, data=data, stream=phase.stream)
            by_length[id(examples)] = measure(other, precision._replace(is_open=False)).times
        of = by_length[id(examples)]
        batch, tokens = (float(np.mean(each)) for each in (of.batches, of.tokens))
        seconds = batch * phase.batches + of.update
        share = phase.share / (seconds if plan.settings.budget_seconds is not None else 1)
        costs.append(Cost(share, seconds, tokens * phase.batches))
    total = sum(each.share for each in costs)
    return [each._replace(share=each.share / total) for each in costs]
