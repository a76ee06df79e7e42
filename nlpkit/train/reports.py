"""Reports the steps and the evaluations of a run: metrics.jsonl, the log, the best value."""

import math
import time
from typing import TYPE_CHECKING, Any

from nlpkit.errors import DivergedError
from nlpkit.train import best_evaluation
from nlpkit.train.memory import used
from nlpkit.train.state import State

if TYPE_CHECKING:
    from nlpkit.train.loop import Job


def note_evaluation(job: "Job", state: State, figures: dict[str, Any]) -> bool:
    """Log the held-out figures and update the best value; return whether it has improved.

    Raises:
        DivergedError: the held-out loss is not finite.
    """
    state.evaluated_step = state.step
    best_by = job.settings.best_by
    value = best_evaluation.value(figures, best_by)
    improved = best_evaluation.is_better(value, state.best_value, best_by)
    state.evaluations_without_gain += 1
    if improved:
        state.best_value, state.best_step = value, state.step
        state.evaluations_without_gain = 0
    if job.metrics:
        record = {"step": state.step, "tokens": state.tokens, "held_out": figures}
        job.metrics.write(record | job.pace.spent())
    parts = "  ".join(f"{name} {value:.4f}" for name, value in figures["losses"].items())
    news = f"loss {figures['loss']:.4f} ({parts})"
    if figures["perplexity"] is not None:
        news += f"  perplexity {figures['perplexity']:.2f}"
    for name, value in figures.get("metrics", {}).items():
        news += f"  {name} {'undefined' if value is None else format(value, '.4f')}"
    if figures["bits_per_character"] is not None:
        news += f"  bits/character {figures['bits_per_character']:.3f}"
    job.log.info(f"held-out at step {state.step}: {news}{'  best' if improved else ''}")
    if warning := job.overfitting.warning(state.step, figures["loss"]):
        job.log.warn(warning)
    if state.is_over(job.settings) and state.progress(job.settings) < 1:
        job.log.info(
            f"no improvement in {job.settings.patience} evaluations: "
            f"stopping early at step {state.step}"
        )
    if not math.isfinite(figures["loss"]):
        raise DivergedError(
            f"step {state.step}: held-out loss {figures['loss']} is not finite; it is not saved"
        )
    return improved


class Speed:
    """Tokens per second, smoothed over the last steps."""

    def __init__(self) -> None:
        self.start()
        self.seconds = 0.0
        self.rate = 0.0

    def start(self) -> None:
        """Start to measure a step."""
        self.started = time.perf_counter()

    def add(self, step_tokens: int) -> None:
        """Add a step of `step_tokens` tokens that ends now."""
        self.seconds = time.perf_counter() - self.started
        current = step_tokens / self.seconds
        self.rate = current if not self.rate else 0.9 * self.rate + 0.1 * current


def report(job: "Job", state: State, record: dict[str, Any], speed: Speed) -> None:
    """Write the record of a step, and show how far the run is."""
    settings, progress = job.settings, state.progress(job.settings)
    if job.metrics and (state.step % settings.log_every == 0 or progress == 1):
        job.metrics.write(
            record
            | job.pace.spent()
            | {
                "seconds": round(speed.seconds, 4),
                "tokens_per_second": round(speed.rate, 1),
                "memory_bytes": used(job.accelerator.device)[1],
            }
        )
    left = job.pace.seconds_left(state, speed.rate)
    total = settings.known_steps
    job.log.step(state.step, total, progress, record["loss"], speed.rate, left)
