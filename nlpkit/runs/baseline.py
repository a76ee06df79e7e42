"""The loss of n-grams of the training text on the held-out text (`eval.baseline`)."""

from typing import cast

import numpy as np

from nlpkit.data.corpus import Corpus
from nlpkit.data.ngram import NGram
from nlpkit.runs.run import Data, Run


def compute_loss(data: Data, order: int) -> float:
    """Return the loss in nats per token of the held-out text, of which there is some."""
    corpora = cast(Corpus, data.train), cast(Corpus, data.valid)  # rows are refused by the recipe
    train, valid = ([each.document(n) for n in range(len(each))] for each in corpora)
    nats = NGram(order, data.vocab_size).fit(train).nats(valid)
    return float(np.concatenate(nats).mean())


def announce(run: Run, order: int) -> None:
    """Log the loss, and note it in the status of the run."""
    nats = compute_loss(run.data, order)
    run.directory.set_status(held_out_ngram={"order": order, "nats": nats})
    run.log.info(f"held-out loss of {order}-grams: {nats:.4f} nats/token")
