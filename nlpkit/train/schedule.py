"""The learning rate as a function of the step. Importable without torch."""

import math

from nlpkit.train.settings import ResolvedTraining


def lr_factor(step: int, settings: ResolvedTraining) -> float:
    """Return the learning rate of step 1, 2, … `settings.steps`, relative to the peak.

    `noam` is Vaswani et al. 2017, eq. 3, scaled to 1 at its peak, the end of the warm-up. `wsd`
    (warm-up, stable, decay; Hu et al. 2024, MiniCPM, sec. 4) falls linearly in its last part, as in
    Hägele et al. 2024. `linear`, `cosine` and `wsd` reach `min_lr_ratio` one step after the last
    step, so that no step has rate 0.
    """
    warmup = settings.warmup_steps
    rising = min(1.0, step / warmup) if warmup else 1.0
    if settings.schedule == "wsd":
        stable = settings.steps - settings.decay_steps
        fallen = max(0, step - stable) / (settings.decay_steps + 1)
        return min(rising, _between(settings.min_lr_ratio, 1 - fallen))
    if step < warmup:
        return rising
    if settings.schedule == "constant":
        return 1.0
    if settings.schedule == "noam":
        return math.sqrt(warmup / step)
    if settings.zero_at_last_step:
        progress = (step - warmup) / max(1, settings.steps - warmup)
    else:
        peak = max(1, warmup)
        progress = (step - peak) / (settings.steps + 1 - peak)
    shape = (
        1 - progress if settings.schedule == "linear" else (1 + math.cos(math.pi * progress)) / 2
    )
    return _between(settings.min_lr_ratio, shape)


def stable_end(settings: ResolvedTraining) -> int | None:
    """Return the last step before the decay of `wsd`, or None. A longer run is equal up to it."""
    end = settings.steps - settings.decay_steps
    return end if 0 < end < settings.steps else None


def _between(low: float, shape: float) -> float:
    return low + (1 - low) * shape
