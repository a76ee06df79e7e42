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

    def __init__(self, folder: Path, threads: int, clock: str, per_round: int):
        self.folder, self.threads, self.clock, self.per_round = folder, threads, clock, per_round
        self.notes: list[str] = []

    def measure(self, plan: Plan, dtype: str, subjects: list[str]) -> Group:
        """Return the figures of these subjects on all rounds of the plan but the first."""
        name = f"{plan.workload.name}, {plan.workload.size}, {dtype}"
        workers: dict[str, Worker] = {}
        seconds: dict[str, list[float]] = {}
        peaks: list[float] = []
        try:
            for subject in subjects:
                _progress(f"{name}: {subject} warms up")
                worker = self._warm(plan, dtype, subject)
                if worker is not None:
                    workers[subject], seconds[subject] = worker, []
            rounds = len(plan.updates) // self.per_round
            for number in range(1, rounds):
                _progress(f"{name}: round {number} of {rounds - 1}")
                peaks.append(gemm_rate(TYPES[dtype], self.threads, self.clock))
                for subject in np.random.default_rng(number).permutation(list(workers)):
                    spent = workers[subject].train(number)
                    seconds[subject].append(getattr(spent, self.clock))
            memory = {subject: worker.finish() for subject, worker in workers.items()}
        except (EOFError, OSError):
            raise SystemExit(f"{name}: a subject has died: {self._last_lines()}") from None
        finally:
            for worker in workers.values():
                worker.stop()
        made = {
            subject: self._measured(plan, dtype, subject, seconds[subject], memory[subject])
            for subject in workers
        }
        return Group(plan, dtype, made, max(peaks))

    def _warm(self, plan: Plan, dtype: str, subject: str) -> Worker | None:
        """Return the process of a subject after its first round; None: no flag is left for it."""
        worker = self._worker(plan, dtype, subject)
        if subject != BEST or not plan.workload.is_full:
            worker.train(0)
            return worker
        try:
            worker.train(0)
        except (EOFError, OSError):
            worker.stop()
            where = f"{plan.workload.name}, {plan.workload.size}, {dtype}"
            self.notes.append(f"- {where}: torch_compile fails: {self._last_lines()}")
            return None
        return worker

    def _worker(self, plan: Plan, dtype: str, subject: str) -> Worker:
        log = self._log(plan, dtype, subject)
        if subject == OURS:
            command = [
                *(plan.workload.verb, str(plan.recipe), "--device", "cpu"),
                *("--set", f"seed={plan.seed}", "--set", f"train.precision={dtype}"),
                *("--out", str(log.with_suffix(""))),
            ]
            return Worker(Ours, self.threads, command, log, self.per_round)
        best, full = subject == BEST, plan.workload.is_full
        make = partial(
            TrainerSubject, bf16=dtype == "bf16", grouped=best and not full, compiled=best and full
        )
        pickled = plan.recipe.with_suffix(".pickle")
        return Worker(make, self.threads, pickled, log, self.per_round)

    def _log(self, plan: Plan, dtype: str, subject: str) -> Path:
        return plan.recipe.with_name(
            f"{plan.workload.name}-{dtype}-{subject.replace(' ', '-')}.log"
        )

    def _last_lines(self) -> str:
        """Return the end of the log that was written last."""
        newest = max(self.folder.rglob("*.log"), key=lambda path: path.stat().st_mtime_ns)
        lines = newest.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return " / ".join(lines[-3:])

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
            updates[start : start + self.per_round]
            for start in range(self.per_round, len(updates), self.per_round)
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
