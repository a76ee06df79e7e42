"""Judges a run by minimal pairs at each of its evaluations (`eval.pairs`).

The pairs are the first ones of an order that is the same for all runs: other seeds and settings are
judged by the same pairs, and fewer pairs are among those of a larger number.
"""

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from accelerate import PartialState
from accelerate.utils import gather_object

from nlpkit.checkpoints.run_directory import RunDirectory
from nlpkit.contracts.objective import TrainedModel
from nlpkit.data.cache import content_hash
from nlpkit.data.loader import Stream
from nlpkit.disk import user_path
from nlpkit.errors import DataError, Stopped, TryAgain, UsageError
from nlpkit.json_types import JsonObject
from nlpkit.plural import number_of
from nlpkit.recipe import Resolved
from nlpkit.runs import pairs
from nlpkit.runs.likelihood import Encoded, Likelihood
from nlpkit.runs.open_checkpoint import Opened
from nlpkit.runs.run import Data, ModelPart
from nlpkit.train.log import Log
from nlpkit.train.processes import is_sharded
from nlpkit.train.schedule import ResolvedTraining
from nlpkit.train.step_sizes import batches_per_epoch, mean_batches

NAME = "pairs"  # of the score
# The most of a run that its pairs cost by default. A token that is scored counts as one that is
# trained on: it needs a third of the products, but in float32 (measured: docs/lab/evaluation.md).
_SHARE = 0.05
_ORDER = 43  # the seed of the order
_AT_ONCE = 256  # pairs that are encoded together


@dataclass
class Judge:
    """The pairs of each evaluation of a run, and what they cost."""

    likelihood: Likelihood
    found: int  # pairs in the files
    encoded: list[Encoded]  # of the pairs that are scored, good and bad in turn
    tokens: int  # of the sequences that score them
    share: float | None  # of the tokens that the run trains on, if they are known

    def compute_scores(self, model: TrainedModel) -> Mapping[str, float]:
        """Return the accuracy; of several processes each scores a part, with FSDP all of it.

        If one process is told to stop, it returns no score, soon: the evaluation is void.
        """
        processes = PartialState()
        first, step = processes.process_index, processes.num_processes
        if is_sharded(step):
            first, step = 0, 1
        numbers = range(first, len(self.encoded) // 2, step)
        encoded = [self.encoded[2 * number + each] for number in numbers for each in (0, 1)]
        self.likelihood.opened = replace(self.likelihood.opened, model=model)
        trained: Any = model
        backend = getattr(trained, "backend", "auto")
        trained.backend = "auto"  # as `nlpkit judge`: a named one may refuse float32
        try:
            with torch.autocast(processes.device.type, enabled=False):  # as `nlpkit judge`
                log_probs = self.likelihood.compute_log_probs(encoded)
        except (Stopped, TryAgain):
            return {}
        finally:
            trained.backend = backend
        credit = pairs.Scores(encoded, log_probs).credit().tolist()
        return {NAME: float(np.mean(gather_object(credit) if step > 1 else credit))}

    def describe(self) -> JsonObject:
        """Return the figures of the plan."""
        judged, share = len(self.encoded) // 2, self.share and round(self.share, 4)
        return {"found": self.found, "judged": judged, "tokens": self.tokens, "run_share": share}


def attach(
    resolved: Resolved,
    part: ModelPart,
    data: Data,
    settings: ResolvedTraining,
    stream: Stream,
    log: Log,
    should_stop: Callable[[], None] = lambda: None,
) -> Judge:
    """Give the objective of a run the score `pairs`, and log what it costs.

    A run of one process ends an evaluation when `should_stop` raises.

    Raises:
        DataError, FileError: a file is missing, or a pair is malformed or too long.
        UsageError: the model cannot score text.
    """
    section, found = resolved.recipe.eval, pairs.read_named(resolved)
    path, objective = user_path(resolved.recipe.out), data.objective
    opened = Opened(path, part, None, data.tokenizer, objective, {})  # without its model
    likelihood = Likelihood(opened, section.pairs_method)
    if PartialState().num_processes == 1:
        likelihood.should_stop = should_stop
    trained = _count_trained(data, settings, stream)
    most = math.inf if section.max_pairs or trained is None else _SHARE * trained
    limit = len(found) if section.max_pairs == "all" else section.max_pairs
    chosen: list[pairs.Pair] = []
    total = 0
    try:
        for pair, tokens in _count_tokens(likelihood, found, limit):
            if chosen and total + tokens > most:
                break
            chosen.append(pair)
            total += tokens
        encoded = pairs.encode(pairs.list_sentences(chosen), likelihood, log.warn)
    except (DataError, UsageError) as error:
        raise type(error)(resolved.document.locate(f"eval.pairs: {error}")) from error
    share = None if trained is None else total / trained
    judge = Judge(likelihood, len(found), encoded, total, share)
    _record(resolved, data, likelihood.method, len(chosen), log)
    bound: Any = objective  # a method of this object alone
    own, bound.scores = objective.compute_scores, (*objective.scores, NAME)
    bound.compute_scores = lambda model: {**own(model), **judge.compute_scores(model)}
    cost = "" if share is None else f": at most {100 * share:.1f} % of the run"
    log.info(f"{len(chosen):,} of {len(found):,} pairs at each evaluation{cost}")
    return judge


def _record(resolved: Resolved, data: Data, method: str, number: int, log: Log) -> None:
    """Let the run record its pairs and their files; warn if it was judged by others before."""
    inputs = pairs.find_files(resolved.recipe.eval.pairs or (), resolved.base)[1]
    hashes = [content_hash(each, lambda: None) for entry in inputs for each in entry.files]
    sha256 = hashlib.sha256("\n".join(hashes).encode()).hexdigest()
    now = {"judged": number, "method": method, "sha256": sha256}
    data.inputs[NAME], data.facts[NAME] = inputs, now
    before = RunDirectory(user_path(resolved.recipe.out)).status().get(NAME)
    if before not in (None, now):
        log.warn(
            f"eval.pairs: this run was judged by other pairs so far ({describe(before)}) than from "
            f"here on ({describe(now)}): the accuracies are not comparable"
        )


def describe(record: JsonObject) -> str:
    """Return what a run records of its pairs, in words."""
    files = f"files {str(record['sha256'])[:12]}"
    return f"{number_of(record['judged'], 'pairs')}, {record['method']}, {files}"


def _count_trained(data: Data, settings: ResolvedTraining, stream: Stream) -> float | None:
    """Return how many tokens the run trains on for each evaluation; with a budget, if it is set."""
    steps = settings.known_steps
    every = settings.eval_every or steps
    if every is None:
        return None
    tokens = float(data.examples.sizes @ data.examples.weights)
    tokens *= mean_batches(settings, stream) / float(batches_per_epoch(stream))
    return tokens * (every if steps is None else steps / math.ceil(steps / every))


def _count_tokens(
    likelihood: Likelihood, found: Sequence[pairs.Pair], most: int | None
) -> Iterator[tuple[pairs.Pair, int]]:
    """Yield the pairs in their order, with the tokens of the sequences that score each."""
    order = np.random.default_rng(_ORDER).permutation(len(found))[:most]
    for first in range(0, len(order), _AT_ONCE):
        some = [found[number] for number in order[first : first + _AT_ONCE]]
        counts = []
        for text in pairs.encode(pairs.list_sentences(some), likelihood, lambda _: None):
            scored = likelihood.objective.score_text(text.ids, text.words, 0, likelihood.method)
            for each in scored[:1]:
                likelihood.check_inputs(each.inputs)
            counts.append(sum(len(each.inputs["input_ids"]) for each in scored))
        yield from zip(some, np.reshape(counts, (-1, 2)).sum(1).tolist(), strict=True)
