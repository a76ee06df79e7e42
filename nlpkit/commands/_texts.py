"""`nlpkit eval` with --pairs and --surprisal: texts are scored as they are."""

from pathlib import Path
from typing import Any

from nlpkit.commands._call import Call, write_rows


def run_texts(call: Call) -> None:
    """Score the sentences, write what was asked for, and print the figures."""
    from nlpkit.evaluate import pairs, sentences, surprisal
    from nlpkit.train.log import Log

    log = Log(call.common.verbosity)
    found = sentences.read_pairs([*call.pairs, *call.files]) if call.pairs else []
    texts = pairs.both(found) or sentences.read_texts(call.data, call.text_key)
    from nlpkit.cli import exit_now
    from nlpkit.evaluate.likelihood import Likelihood
    from nlpkit.runs.opened import open_checkpoint
    from nlpkit.train.signals import catch_signals

    with catch_signals(exit_now) as stop:
        opened = open_checkpoint(
            call.checkpoint, device=call.common.device, precision="fp32", family=call.family,
            info=log.info, warn=log.warn,
        )  # fmt: skip
        likelihood = Likelihood(opened, call.method, tokens_per_batch=call.tokens_per_batch)

        def done(count: int) -> None:
            stop.check()
            log.scoring(count, len(texts), "sentences")

        scores = pairs.score(texts, likelihood, done, log.warn)
    result: dict[str, Any] = {"checkpoint": str(opened.path), "method": likelihood.method}
    table = ""
    if found:
        figures, rows = pairs.figures(found, scores, log.warn)
        table = pairs.table(figures)
        result |= figures
        if call.predictions is not None:
            write_rows(Path(call.predictions), rows)
    if call.surprisal is not None:
        means = surprisal.write(Path(call.surprisal), texts, scores)
        table = table or pairs.aligned(surprisal.table(means))
        result["surprisal"] = means
    call.common.result(table, **result)
