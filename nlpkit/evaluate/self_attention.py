"""Shows the weights of each layer and head of attention for one example of the held-out data.

N tokens of the example, H heads.
"""

import json
from collections.abc import Sequence
from html import escape
from pathlib import Path

import numpy as np
import torch

from nlpkit.attention.recorded import Weights, record
from nlpkit.contracts.abilities import Generative, ReadsSource
from nlpkit.contracts.batch import SOURCE_LENGTHS, Batch
from nlpkit.contracts.family_model import Aligned
from nlpkit.contracts.tokenizer import Tokenizer
from nlpkit.disk import whole_file
from nlpkit.errors import UsageError
from nlpkit.evaluate.held_out import Evaluation
from nlpkit.models import soft_prompt
from nlpkit.plural import number_of
from nlpkit.report.figures import READABLE, Layer, heads_figure
from nlpkit.runs.likelihood import Likelihood
from nlpkit.runs.open_checkpoint import Opened
from nlpkit.tokenizers.library.shown import show_token
from nlpkit.tokenizers.library.source_and_target import of_sources
from nlpkit.train.machine import to_device


def draw(
    evaluation: Evaluation, path: Path, layer: int | None = None, sentence: str | None = None
) -> None:
    """Write all layers, or one of them (from 1), of a sentence.

    Without one, of the first held-out example that is short enough, as the objective makes it.

    HTML has a page on which layer and head are chosen; PNG needs matplotlib.

    Raises:
        UsageError: there is no attention, no short example, or not this layer.
        Unsupported: a kind of attention has no weights; matplotlib is not installed.
    """
    layers = _compute(evaluation, sentence)
    if layer is not None:
        if not 1 <= layer <= len(layers):
            names = ", ".join(f"{n} {each.title}" for n, each in enumerate(layers, 1))
            raise UsageError(f"--attention-layer {layer}: the layers are {names}")
        layers = layers[layer - 1 : layer]
    if path.suffix.lower() in (".html", ".htm"):
        with whole_file(path) as file:
            file.write(_make_page(layers, str(evaluation.opened.path)))
    else:
        heads_figure(layers, path)


def _compute(evaluation: Evaluation, sentence: str | None) -> list[Layer]:
    opened, model = evaluation.opened, evaluation.opened.model
    batch = _find_example(evaluation) if sentence is None else _read(opened, sentence)
    batch = to_device(batch, next(model.parameters()).device)
    given = {**batch.fields, "progress": batch.progress}
    with record(model) as found, torch.no_grad():
        # Without `rows`: the last layer computes all states.
        model(batch.lengths, **{name: given[name] for name in opened.objective.inputs})
    if not found:
        hint = "; FILE.png draws that to its source" if isinstance(model, Aligned) else ""
        raise UsageError(f"--attention: no layer of {opened.part.family} has heads to draw{hint}")
    batch = to_device(batch, torch.device("cpu"))
    tokens = _show(opened.tokenizer, batch.fields.get("input_ids"), sum(batch.lengths))
    sources = batch.fields.get("source_ids")
    read = [] if sources is None else _show(of_sources(opened.tokenizer), sources, len(sources))
    prompt = [f"[prompt {n + 1}]" for n in range(len(getattr(model, soft_prompt.NAME, ())))]
    if sources is None:
        tokens = prompt + tokens
    else:
        read = prompt + read
    return [_label(each, tokens, read) for each in found]


def _find_example(evaluation: Evaluation) -> Batch:
    short = np.flatnonzero(evaluation.examples.sizes <= READABLE)
    if not len(short):
        raise UsageError(
            f"--attention: no held-out example has {READABLE} tokens or fewer, to label them; give "
            "--sentence TEXT"
        )
    return evaluation.examples.batch(short[:1], 0)


def _read(opened: Opened, sentence: str) -> Batch:
    """Return a sentence as the model reads it when it scores texts, but with no token masked.

    Where it reads a source, the sentence is the source, of which nothing is written yet.
    """
    objective = opened.objective
    if isinstance(objective, ReadsSource) and isinstance(objective, Generative):
        try:
            prompt = objective.continue_text(objective.encode_input(sentence), 1)
        except ValueError as error:
            raise UsageError(f"--sentence: {error}") from error
        source = {name: torch.from_numpy(np.array(value)) for name, value in prompt.source.items()}
        given = {name: torch.from_numpy(np.array(value)) for name, value in prompt.given.items()}
        sizes = {SOURCE_LENGTHS: (len(source["source_ids"]),)}
        return Batch({**given, **source, **sizes}, (len(given["input_ids"]),), progress=1.0)
    scorer = Likelihood(opened)
    (text,) = scorer.encode([sentence])
    if not 0 < len(text.ids) <= min(READABLE, scorer.max_text):
        limit = f"; at most {min(READABLE, scorer.max_text)} can be labelled"
        raise UsageError(f"--sentence: has {number_of(len(text.ids), 'tokens')}{limit}")
    first = scorer.objective.score_text(text.ids, text.words, 0, scorer.method)[0]
    fields = {name: torch.from_numpy(np.array(value)) for name, value in first.inputs.items()}
    if scorer.method.startswith("pll"):
        fields["input_ids"][first.rows] = torch.from_numpy(text.ids[first.targets])
    return Batch(fields, (len(fields["input_ids"]),), progress=1.0)


def _label(weights: Weights, tokens: list[str], sources: list[str]) -> Layer:
    """Return the layer with its tokens; `encoder` and `cross` are modules that read sources."""
    encodes = bool(sources) and weights.name.startswith("encoder")
    crosses = bool(sources) and "cross" in weights.name
    queries, keys = (sources if encodes else tokens), (sources if encodes or crosses else tokens)
    return Layer(weights.title, weights.values.cpu().numpy(), queries, keys)


def _show(tokenizer: Tokenizer | None, ids: torch.Tensor | None, number: int) -> list[str]:
    """Return the tokens, or where there are none, such as in images, their numbers."""
    if tokenizer is None or ids is None:
        return [str(place) for place in range(1, number + 1)]
    return [show_token(tokenizer, each) for each in ids.tolist()]


def _make_page(layers: Sequence[Layer], name: str) -> str:
    """Return a page without other files: a table of entropies, and the chosen head as a map."""
    data = [
        {
            "title": each.title,
            "queries": each.queries,
            "keys": each.keys,
            "entropies": each.entropies.round(3).tolist(),
            "weights": each.weights.round(4).tolist(),
        }
        for each in layers
    ]
    page = (Path(__file__).parent / "self_attention.html").read_text(encoding="utf-8")
    # A token may be `</script>`.
    text = json.dumps(data, ensure_ascii=False).replace("<", "\\u003c")
    return page.replace("TITLE", escape(f"Attention of {name}")).replace("LAYERS", text)
