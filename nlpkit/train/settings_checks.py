"""Checks of the section `train` that few recipes need."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from nlpkit.units import format_number

if TYPE_CHECKING:
    from nlpkit.train.settings import Config


def check(settings: Config) -> None:
    """Raise `ValueError` for settings that do not go with each other."""
    if not settings.tokens_per_step and not settings.rows_per_step:
        raise ValueError("tokens_per_step: null needs rows_per_step")
    for before, words in pairwise(settings.save_at):
        if words <= before:
            raise ValueError(
                f"save_at: {format_number(words)} after {format_number(before)}; the numbers of "
                "words must rise"
            )
    if settings.words and settings.save_at and settings.save_at[-1] > settings.words:
        raise ValueError(
            f"save_at: {format_number(settings.save_at[-1])} is beyond the words of the run, "
            f"train.words: {format_number(settings.words)}"
        )
    if settings.patience and not settings.eval_every:
        raise ValueError("patience: needs eval_every")
    if settings.budget and settings.average and settings.average.name == "last":
        raise ValueError(
            "average: last counts steps from the end, which is not known before with "
            "train.budget; take ema"
        )
    if settings.budget and settings.log_every > 1:
        raise ValueError(
            f"log_every: {settings.log_every} must be 1 with train.budget: every step is logged, "
            "so that a killed run takes the same steps again"
        )
    if "tokens_per_step" in settings.phases:
        other = "memory" if settings.memory else "rows_per_step" if settings.rows_per_step else None
        if settings.schedule.module.batches is not None:
            other = f"schedule: {settings.schedule.name}, which decides the batches of each step"
        if other:
            raise ValueError(f"tokens_per_step: a list does not go with train.{other}")
        for each in settings.phases["tokens_per_step"]:
            if each["value"] % settings.batch_budget:
                raise ValueError(
                    f"tokens_per_step: {each['value']} is not a multiple of "
                    f"tokens_per_batch {settings.batch_budget}"
                )
