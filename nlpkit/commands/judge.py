"""Score texts as they are: minimal pairs, or the surprisal of each word."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from nlpkit.commands._checkpoint import check_folder, check_unread, open_as_asked
from nlpkit.commands._options import Checkpoint, Common, argument, option, shared
from nlpkit.errors import UsageError
from nlpkit.json_types import JsonObject

Files = Annotated[list[str], argument("FILE…", "texts, such as a txt file with a sentence a line")]


@dataclass(frozen=True)
class Judged:
    """What the files hold, and what is written."""

    pairs: bool = option(
        "--pairs",
        "FILEs are minimal pairs as BLiMP's jsonl, or directories of such files: how "
        "often the good sentence has the higher probability",
    )
    surprisal: str | None = option(
        "--surprisal OUT.tsv",
        "write -log p of each sentence, word, token and character to OUT.tsv",
        callback=check_folder,
    )
    predictions: str | None = option(
        "--predictions FILE", "with --pairs: write the scores of each pair", callback=check_folder
    )

    published: Literal["babylm-2026", "zhoblimp", "blimp"] | None = option(
        "--as NAME",
        "with --pairs: beside it what the published script prints for this checkpoint "
        "(babylm-2026, zhoblimp or blimp), and why they differ",
    )

    def __post_init__(self) -> None:
        if not self.pairs and self.surprisal is None:
            raise UsageError("nothing to do: give --pairs, or --surprisal OUT.tsv")
        if self.predictions is not None and not self.pairs:
            raise UsageError("--predictions: --surprisal OUT.tsv has the values of all sentences")
        if self.predictions is not None and self.predictions == self.surprisal:
            raise UsageError("--predictions: is the file of --surprisal; name another one")
        if self.published is not None and not self.pairs:
            raise UsageError(f"--as {self.published}: needs --pairs")


@shared("text_key", "method", "tokens_per_batch", "family", "device")
def command(checkpoint: Checkpoint, files: Files, common: Common, judged: Judged) -> None:
    """Score texts as they are: minimal pairs, or the surprisal of each word.

    --pairs prints how often the model gives the acceptable sentence of a pair the higher
    probability, in all and by paradigm; --surprisal writes -log p (in nats) of each sentence, word,
    token and character. Both may be given. The model is not tuned, and computes in float32.
    """
    from nlpkit.data.template import check_option

    check_option("--text-key", common.text_key)
    if "" in files:
        raise UsageError("FILE: a name is empty")
    for file in (judged.surprisal, judged.predictions):
        check_unread(file, files)
    from nlpkit.evaluate import published, surprisal, write_rows
    from nlpkit.runs import pairs

    log = common.open_log()
    if judged.pairs and common.text_key is not None:
        raise UsageError("--text-key: of texts; --pairs reads columns of its own")
    found = pairs.read_pairs(files) if judged.pairs else []
    texts = pairs.list_sentences(found) or pairs.read_texts(files, common.text_key, log.warn)
    name, theirs = judged.published, None
    from nlpkit.runs.likelihood import Likelihood  # loads torch

    with common.catch_signals() as stop:
        opened = open_as_asked(checkpoint, common, log)
        likelihood = Likelihood(opened, common.method, tokens_per_batch=common.tokens_per_batch)
        encoded = pairs.encode(texts, likelihood, log.warn)  # first: it refuses a text too long
        if name is not None:
            theirs = published.score(name, found, likelihood, stop.check)

        def done(count: int) -> None:
            stop.check()
            log.info_rarely(f"scored {count:,} of {len(texts):,} sentences")

        scores = pairs.Scores(encoded, likelihood.compute_log_probs(encoded, done))
    result: JsonObject = {"checkpoint": str(opened.path), "method": likelihood.method}
    table = ""
    if found:
        figures, rows = pairs.compute_figures(found, scores, log.warn)
        table = pairs.format_table(figures)
        result |= figures
        if name is not None:
            result["as"] = published.compute_figures(name, found, theirs, scores)
            table = published.format_report(figures, result["as"])
        if judged.predictions is not None:
            write_rows(Path(judged.predictions), rows)
    if judged.surprisal is not None:
        means = surprisal.write(Path(judged.surprisal), texts, scores)
        table = table or surprisal.format_table(means)
        result["surprisal"] = means
    common.print_result(table, **result)
