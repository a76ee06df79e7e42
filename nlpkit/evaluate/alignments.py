"""Draws which tokens of the source a model attends to while it writes.

As Bahdanau et al. 2014 (arXiv:1409.0473, figure 3), of what the model itself writes.

T written tokens with the end token, S source tokens.
"""

from itertools import islice
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from nlpkit.contracts.abilities import Generative, ReadsSource
from nlpkit.contracts.batch import SOURCE_LENGTHS
from nlpkit.contracts.family_model import Aligned
from nlpkit.contracts.tokenizer import Tokenizer
from nlpkit.data.items import TaskDataset
from nlpkit.data.store import Corpus
from nlpkit.errors import UsageError
from nlpkit.evaluate.held_out import Evaluation
from nlpkit.generate.engine import generate
from nlpkit.generate.rows import Rules
from nlpkit.generate.settings import Settings
from nlpkit.plural import number_of
from nlpkit.report.figures import READABLE, Alignment, alignment_figure
from nlpkit.tokenizers.library.shown import show_token
from nlpkit.tokenizers.library.source_and_target import of_sources

PANELS = 4  # rows that are drawn


def draw_alignments(
    evaluation: Evaluation,
    generation: Settings,
    path: Path,
    layer: int | None = None,
    sentence: str | None = None,
) -> None:
    """Draw the weights of `sentence`, or of the first rows short enough to label their tokens.

    A column is a token of the source, a row one that the model writes. `layer` is one of the
    decoder, from 1; None: the model's choice.

    Raises:
        UsageError: the model has no attention to a source, or not this layer; the held-out data
            are running text; matplotlib is not installed.
    """
    opened, objective = evaluation.opened, evaluation.opened.objective
    if not isinstance(opened.model, Aligned) or not isinstance(objective, ReadsSource):
        raise UsageError(f"--attention: family {opened.part.family} has no cross attention to draw")
    assert isinstance(objective, Generative)
    try:
        title = opened.model.alignment_title(layer)
    except ValueError as error:
        raise UsageError(f"--attention: {error}") from error
    new = generation.max_new_tokens or min(READABLE, objective.max_new_tokens)
    texts = _find_texts(evaluation.corpus) if sentence is None else [sentence]
    try:
        sources = [objective.encode_input(text) for text in texts]
        prompts = [objective.continue_text(source, new) for source in sources]
    except ValueError as error:
        raise UsageError(f"--sentence: {error}") from error
    if sentence is not None and len(sources[0]) > READABLE:
        size = number_of(len(sources[0]), "tokens")
        raise UsageError(f"--sentence: has {size}; at most {READABLE} can be labelled")
    rules = Rules(tuple(objective.eos_token_ids), tuple(objective.suppress_tokens), None)
    panels = []
    for prompt, answers in zip(
        prompts, generate(opened.model, prompts, generation, rules), strict=True
    ):
        source = prompt.source["source_ids"]
        written = [*answers[0].ids, *(objective.eos_token_ids[:1] if answers[0].ended else ())]
        read = np.concatenate([prompt.given["input_ids"], written[:-1]])
        weights = _compute_weights(opened.model, read, source, layer)
        read_as = _show(of_sources(opened.tokenizer), source.tolist())
        panels.append(Alignment(weights.numpy(), read_as, _show(opened.tokenizer, written)))
    alignment_figure(panels, title, path)


def _find_texts(corpus: TaskDataset | Corpus) -> list[str]:
    if not isinstance(corpus, TaskDataset):
        raise UsageError(
            "--attention: this checkpoint was trained on running text; name a text by --sentence"
        )
    fitting = (item.text for item in corpus.items if item.text and item.size <= READABLE)
    if found := list(islice(fitting, PANELS)):
        return found
    raise UsageError(f"--attention: no row has {READABLE} tokens or fewer, to label them")


@torch.no_grad()
def _compute_weights(
    model: Aligned, read: np.ndarray, source: np.ndarray, layer: int | None
) -> Tensor:
    assert isinstance(model, torch.nn.Module)
    device = next(model.parameters()).device
    ids, source_ids = (torch.from_numpy(each).long().to(device) for each in (read, source))
    lengths = {SOURCE_LENGTHS: (len(source_ids),)}
    (weights,) = model.alignments((len(ids),), ids, source_ids=source_ids, layer=layer, **lengths)
    return weights.float().cpu()


def _show(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    """Return tokens as text; parts of characters and special tokens as `shown` has them."""
    found = []
    for token in ids:
        text = tokenizer.decode([token]).strip()
        readable = text.isprintable() and text and "\ufffd" not in text
        found.append(text if readable else show_token(tokenizer, token))
    return found
