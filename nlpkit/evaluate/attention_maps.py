"""Pictures of attention: the weights of all heads for one example, or those to a source.

The heads are those of one example of the held-out data. The weights to a source are of what the
model itself writes, as Bahdanau et al. 2014 (arXiv:1409.0473, figure 3).

N tokens of the example, H heads, T written tokens with the end token, S source tokens.
"""

import json
from collections.abc import Sequence
from html import escape
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from nlpkit.attention.recorded import Weights, record
from nlpkit.contracts.abilities import Generative, ReadsSource
from nlpkit.contracts.batch import SOURCE_LENGTHS, Batch
from nlpkit.contracts.family_model import Aligned
from nlpkit.contracts.tokenizer import Tokenizer
from nlpkit.data.items import TaskDataset
from nlpkit.data.store import Corpus
from nlpkit.disk import whole_file
from nlpkit.errors import UsageError
from nlpkit.evaluate.held_out import Evaluation
from nlpkit.generate.engine import generate
from nlpkit.generate.rows import Rules
from nlpkit.generate.settings import Settings
from nlpkit.models import soft_prompt
from nlpkit.plural import number_of
from nlpkit.report.figures import READABLE, Alignment, Layer, alignment_figure, heads_figure
from nlpkit.runs.likelihood import Likelihood
from nlpkit.runs.open_checkpoint import Opened
from nlpkit.tokenizers.library.shown import show_token
from nlpkit.tokenizers.library.source_and_target import of_sources
from nlpkit.train.machine import to_device

PANELS = 4  # rows of which the weights to their sources are drawn


def draw(
    evaluation: Evaluation,
    generation: Settings,
    path: Path,
    layer: int | None = None,
    sentence: str | None = None,
) -> None:
    """Draw the weights of a sentence, or of held-out examples that are short enough.

    They are those to the source if the model tells them and `path` is no page, else those of all
    heads. `layer` is one layer, from 1; None: all, or of those to the source the model's choice.

    HTML has a page on which layer and head are chosen; PNG needs matplotlib.

    Raises:
        UsageError: there is no attention, no short example, or not this layer.
        Unsupported: a kind of attention has no weights; matplotlib is not installed.
    """
    objective, model = evaluation.opened.objective, evaluation.opened.model
    is_page = path.suffix.lower() in (".html", ".htm")
    if not is_page and isinstance(objective, ReadsSource) and isinstance(model, Aligned):
        panels, title = _compute_alignments(evaluation, generation, layer, sentence)
        alignment_figure(panels, title, path)
        return
    layers = _compute_heads(evaluation, sentence)
    if layer is not None:
        if not 1 <= layer <= len(layers):
            names = ", ".join(f"{n} {each.title}" for n, each in enumerate(layers, 1))
            raise UsageError(f"--attention-layer {layer}: the layers are {names}")
        layers = layers[layer - 1 : layer]
    if is_page:
        with whole_file(path) as file:
            file.write(_make_page(layers, str(evaluation.opened.path)))
    else:
        heads_figure(layers, path)


def _compute_heads(evaluation: Evaluation, sentence: str | None) -> list[Layer]:
    opened, model = evaluation.opened, evaluation.opened.model
    batch = _find_example(evaluation) if sentence is None else _read_sentence(opened, sentence)
    batch = to_device(batch, next(model.parameters()).device)
    given = {**batch.fields, "progress": batch.progress}
    with record(model) as found, torch.no_grad():
        # Without `rows`: the last layer computes all states.
        model(batch.lengths, **{name: given[name] for name in opened.objective.inputs})
    if not found:
        hint = "; FILE.png draws that to its source" if isinstance(model, Aligned) else ""
        raise UsageError(f"--attention: no layer of {opened.part.family} has heads to draw{hint}")
    batch = to_device(batch, torch.device("cpu"))
    tokens = _list_tokens(opened.tokenizer, batch.fields.get("input_ids"), sum(batch.lengths))
    prompt = [f"[prompt {n + 1}]" for n in range(len(getattr(model, soft_prompt.NAME, ())))]
    if (sources := batch.fields.get("source_ids")) is None:
        return [_label(each, prompt + tokens, []) for each in found]
    read = prompt + _list_tokens(of_sources(opened.tokenizer), sources, len(sources))
    return [_label(each, tokens, read) for each in found]


def _find_example(evaluation: Evaluation) -> Batch:
    short = np.flatnonzero(evaluation.examples.sizes <= READABLE)
    if not len(short):
        raise UsageError(
            f"--attention: no held-out example has {READABLE} tokens or fewer, to label them; give "
            "--sentence TEXT"
        )
    return evaluation.examples.batch(short[:1], 0)


def _read_sentence(opened: Opened, sentence: str) -> Batch:
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
    try:
        scorer = Likelihood(opened)
    except UsageError as error:
        raise UsageError(f"--sentence: {error}; leave it out") from error
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


def _list_tokens(tokenizer: Tokenizer | None, ids: torch.Tensor | None, number: int) -> list[str]:
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
    page = (Path(__file__).parent / "attention_maps.html").read_text(encoding="utf-8")
    # A token may be `</script>`.
    text = json.dumps(data, ensure_ascii=False).replace("<", "\\u003c")
    return page.replace("TITLE", escape(f"Attention of {name}")).replace("LAYERS", text)


def _compute_alignments(
    evaluation: Evaluation, generation: Settings, layer: int | None, sentence: str | None
) -> tuple[list[Alignment], str]:
    """Return the weights of a sentence, or of the first rows short enough, and what they are.

    A column is a token of the source, a row one that the model writes.
    """
    opened, objective = evaluation.opened, evaluation.opened.objective
    assert isinstance(objective, Generative)
    assert isinstance(objective, ReadsSource)
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
        read_as = _list_words(of_sources(opened.tokenizer), source.tolist())
        panels.append(Alignment(weights.numpy(), read_as, _list_words(opened.tokenizer, written)))
    return panels, title


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


def _list_words(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    """Return tokens as text; parts of characters and special tokens as `shown` has them."""
    found = []
    for token in ids:
        text = tokenizer.decode([token]).strip()
        readable = text.isprintable() and text and "\ufffd" not in text
        found.append(text if readable else show_token(tokenizer, token))
    return found
