"""Measures a workload of `bench/steps.py` in one type: its subjects take turns."""

import json
import sys
from functools import partial
from pathlib import Path

import numpy as np
import torch
from _steps_ours import Ours
from _steps_plan import Plan, Text, tokens
from _steps_table import BEST, OURS, Group, Measured
from _steps_trainer import TrainerSubject
from _turns import Worker, gemm_rate

from nlpkit.checkpoints.run_directory import METRICS

TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


class Bench:
    """Runs subjects below a folder."""

    def __init__(self, folder: Path, threads: int, clock: str):
        self.folder, self.threads, self.clock = folder, threads, clock
        self.notes: list[str] = []

    def measure(self, plan: Plan, dtype: str, subjects: list[str]) -> Group:
        """Return the figures of these subjects on all rounds of the plan but the first."""
        name = f"{plan.workload.name}, {plan.workload.size}, {dtype}"
        workers = {subject: self._worker(plan, dtype, subject) for subject in subjects}
        seconds: dict[str, list[float]] = {subject: [] for subject in subjects}
        peaks: list[float] = []
        memory: dict[str, int] = {}
        try:
            # Ours chooses its attention by the clock, so it begins when the others are loaded.
            for subject in sorted(subjects, key=lambda subject: subject == OURS):
                _progress(f"{name}: {subject} warms up")
                try:
                    workers[subject].train(0)
                except (EOFError, OSError):
                    if subject != BEST or not plan.workload.is_full:
                        raise
                    workers.pop(subject).stop()
                    why = _last_error(self._log(plan, dtype, subject))
                    self.notes.append(f"- {name}: torch_compile fails: {why}")
            for number in range(1, len(plan.updates) // plan.per_round):
                _progress(f"{name}: round {number}")
                peaks.append(gemm_rate(TYPES[dtype], self.threads, self.clock))
                for subject in np.random.default_rng(number).permutation(list(workers)):
                    spent = workers[subject].train(number)
                    seconds[subject].append(getattr(spent, self.clock))
            for subject, worker in workers.items():
                memory[subject] = worker.finish()
        except (EOFError, OSError):
            why = _last_error(self._log(plan, dtype, subject))
            raise SystemExit(f"bench/steps.py: {name}: {subject} has died: {why}") from None
        finally:
            for worker in workers.values():
                worker.stop()
        made = {
            subject: self._measured(plan, dtype, subject, seconds[subject], memory[subject])
            for subject in workers
        }
        return Group(plan, dtype, made, max(peaks))

    def _worker(self, plan: Plan, dtype: str, subject: str) -> Worker:
        log = self._log(plan, dtype, subject)
        if subject == OURS:
            command = [
                *(plan.workload.verb, str(plan.recipe), "--device", "cpu"),
                *("--set", f"seed={plan.seed}", "--set", f"train.precision={dtype}"),
                *("--out", str(log.with_suffix(""))),
            ]
            return Worker(Ours, self.threads, command, log, plan.per_round)
        best, full = subject == BEST, plan.workload.is_full
        make = partial(
            TrainerSubject, bf16=dtype == "bf16", grouped=best and not full, compiled=best and full
        )
        pickled = plan.recipe.with_suffix(".pickle")
        return Worker(make, self.threads, pickled, log, plan.per_round)

    def _log(self, plan: Plan, dtype: str, subject: str) -> Path:
        return plan.recipe.with_name(
            f"{plan.workload.name}-{dtype}-{subject.replace(' ', '-')}.log"
        )

    def _measured(
        self, plan: Plan, dtype: str, subject: str, seconds: list[float], memory: int
    ) -> Measured:
        """Return the figures; the tokens are those that the process counted.

        Raises:
            SystemExit: a process had other tokens than planned.
        """
        log = self._log(plan, dtype, subject)
        is_grouped = subject == BEST and not plan.workload.is_full
        updates = plan.grouped if is_grouped else plan.updates
        planned = tokens(updates)
        if subject == OURS:
            lines = (log.with_suffix("") / METRICS).read_text(encoding="utf-8").splitlines()
            counted = np.diff([0, *(json.loads(line)["tokens"] for line in lines)]).tolist()
        else:
            counted = json.loads(log.with_suffix(".json").read_text(encoding="utf-8"))
        if counted != planned:
            raise SystemExit(f"{log.stem}: tokens of updates {counted}, planned {planned}")
        rounds: list[list[list[Text]]] = [
            updates[start : start + plan.per_round]
            for start in range(plan.per_round, len(updates), plan.per_round)
        ]
        return Measured(
            subject,
            seconds,
            [sum(tokens(each)) for each in rounds],
            [sum(map(plan.flops, each)) for each in rounds],
            counted,
            memory,
        )


def _progress(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _last_error(log: Path) -> str:
    """Return the last error in the log of a process, or else its last line."""
    text = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
    lines = [line.strip() for line in text.splitlines() if line.strip()] or ["nothing is logged"]
    return next((line for line in reversed(lines) if "Error" in line), lines[-1])
