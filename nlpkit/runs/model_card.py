"""The model card that `nlpkit convert` writes: the model, its data, its scores, how to open it."""

import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from nlpkit import __version__
from nlpkit.checkpoints import files, hf_layout
from nlpkit.checkpoints.run_directory import DATA_FILES, METRICS, RECIPE
from nlpkit.contracts.abilities import DecodesOutput, Generative
from nlpkit.contracts.family_model import FamilyModel
from nlpkit.disk import read_json
from nlpkit.json_types import JsonMapping, JsonObject
from nlpkit.models import families
from nlpkit.plural import number_of
from nlpkit.recipe import yaml
from nlpkit.text_table import markdown

CARD = "README.md"
_LICENCE = """\
## Licence

Not stated yet. Write here under which licence others may use the model, and write its short name
(such as `apache-2.0`) at `license` in the first lines of this file, without the `#`.
"""
GENERATING = ("text-generation", "text2text-generation")
_PIPELINE = """\
from transformers import pipeline

answer = pipeline("{{tag}}", model={{model}})
print(answer({0}))
"""
_TOKENIZER_AND_MODEL = """\
from transformers import AutoModelFor{0}, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained(".")
model = AutoModelFor{0}.from_pretrained(".")
"""
_SNIPPETS = {
    "feature-extraction": _PIPELINE.format('"A text."'),
    "image-feature-extraction": _PIPELINE.format('"picture.png"'),
    "image-classification": _PIPELINE.format('"picture.png"'),
    "text-classification": _PIPELINE.format('"A text to be classified."'),
    "token-classification": _PIPELINE.format('"Ada Lovelace lived in London."'),
    "fill-mask": _PIPELINE.format('f"Two {{answer.tokenizer.mask_token}} on the table."'),
    # For some classes a pipeline puts a text of its own in front, but for this prefix.
    "text-generation": _PIPELINE.format('"Once upon a time", prefix=""'),
    "question-answering": _TOKENIZER_AND_MODEL.format("QuestionAnswering")
    + """\
text = tokenizer("Who lived in London?", "Ada Lovelace lived in London.", return_tensors="pt")
scores = model(**text)  # start_logits and end_logits of each token
first, last = scores.start_logits.argmax(), scores.end_logits.argmax()
print(tokenizer.decode(text["input_ids"][0, first : last + 1]))
""",
    "multiple-choice": _TOKENIZER_AND_MODEL.format("MultipleChoice")
    + """\
options = ["It rained.", "The sun shone."]
texts = [tokenizer("The street was wet.", option, return_tensors="pt") for option in options]
print([float(model(**{{k: v[None] for k, v in text.items()}}).logits) for text in texts])
""",
    "text2text-generation": """\
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

source, target = (AutoTokenizer.from_pretrained(folder) for folder in {folders})
model = AutoModelForSeq2SeqLM.from_pretrained(".")
made = model.generate(**source("{given}", return_tensors="pt"))
print(target.decode(made[0], skip_special_tokens={skip}))
""",
}


def make_card(
    directory: Path,
    origin: Path,
    *,
    parameters: int,
    objective: object,
    averaged: Sequence[Path] = (),
) -> str:
    """Return the card of the checkpoint in a directory.

    Args:
        origin: the checkpoint that it was made from; that of a run says how the model came to be.
        averaged: the checkpoints whose mean the weights are, if they are one.
    """
    settings, notes = hf_layout.read_settings(directory), hf_layout.read_notes(directory)
    own = settings.get("nlpkit", {})
    family = own.get("family", settings["model_type"])
    named = notes.get("objective") or []
    names = [f"`{each['name']}`" for each in (named if isinstance(named, list) else [named])]
    trained = f"trained for {', '.join(names)} " if names else ""
    head, theirs = _describe_opening(settings, own.get("folders", ()), objective, family)
    ours = ["nlpkit eval . --data FILE", "nlpkit finetune RECIPE --from ."]
    if isinstance(objective, Generative):
        ours.insert(0, 'echo "Once upon a time" | nlpkit generate .')
    name, listed = read_name(origin), "".join(f"- {path}\n" for path in averaged)
    return "\n".join([
        "---", "# license: apache-2.0   (fill in: the licence of the model)", *head,
        f"tags: [nlpkit, {family}]", "---\n",
        f"# {name or 'model'}\n",
        f"A model of family `{family}` with "
        f"{parameters:,} parameters, {trained}with nlpkit {__version__}.\n",
        *(["The weights are the mean of several checkpoints:\n", listed] if averaged else []),
        _LICENCE,
        f"## How to use it\n\n{theirs}",
        "With nlpkit:\n\n```sh", *ours, "```\n",
        *(_describe_history(origin) if name else []),
    ])  # fmt: skip


def _describe_opening(
    settings: JsonMapping, folders: Sequence[str], objective: object, family: str
) -> tuple[list[str], str]:
    """Return what the Hub reads of the model, and how transformers opens it."""
    architectures = settings["architectures"]
    tag, folder = find_pipeline(families.load_model(family), architectures, folders)
    # A task for which transformers has no class keeps the class of the family, which generates.
    if not architectures or (tag in GENERATING and not isinstance(objective, Generative)):
        return [], "transformers has no model of this family for this task.\n"
    example = objective.sample_input if isinstance(objective, DecodesOutput) else None
    code = make_snippet(tag, folder, settings, example)
    head = ["library_name: transformers", f"pipeline_tag: {tag}"]
    return head, f"With transformers, in this directory:\n\n```python\n{code}```\n"


def read_name(checkpoint: Path) -> str:
    """Return the name in the recipe of a run's checkpoint; empty of any other directory."""
    run = checkpoint.resolve().parent.parent
    if not (run / RECIPE).is_file() or not (checkpoint / files.MANIFEST).is_file():
        return ""
    settings = yaml.read((run / RECIPE).read_bytes(), str(run / RECIPE)).data
    return str(settings.get("name", run.name))


def _describe_history(checkpoint: Path) -> list[str]:
    """Return how the model of a run's checkpoint came to be."""
    run = checkpoint.resolve().parent.parent
    state = hf_layout.read_if_there(files.training_file(checkpoint)).get("state", {})
    step, tokens = state.get("step", 0), state.get("tokens", 0)
    parts = []
    if step:
        seen = f"{number_of(step, 'steps')}, {number_of(tokens, 'tokens')} seen"
        parts.append(f"## Training\n\n{seen}.\n")
    if scores := _read_scores(run / METRICS, step):
        at = f"On the held-out data, at step {step}:"
        figures = [(name, f"{value:.4f}") for name, value in scores.items()]
        parts.append(f"## Scores\n\n{at}\n\n{markdown(('score', 'value'), figures)}\n")
    data = read_json(run / DATA_FILES) if (run / DATA_FILES).is_file() else {}
    sources = [(p, s) for p in ("train", "valid") for group in data.get(p) or [] for s in group]
    if sources:
        rows = [(part, each["name"], f"`{each['sha256']}`") for part, each in sources]
        parts.append(f"## Data\n\n{markdown(('part', 'file', 'SHA-256'), rows)}\n")
    recipe = (run / RECIPE).read_text(encoding="utf-8")
    fold = "<details><summary>All settings</summary>"
    parts.append(f"## Recipe\n\n{fold}\n\n```yaml\n{recipe}```\n\n</details>\n")
    return parts


def _read_scores(path: Path, step: int) -> dict[str, float]:
    """Return the figures of the evaluation at a step, {} if there is none."""
    found: JsonObject = {}
    if path.is_file():
        for line in path.read_text(encoding="utf-8", errors="replace").split("\n"):
            with suppress(ValueError):  # the last line of a killed run may be incomplete
                if '"held_out"' in line and (record := json.loads(line)).get("step") == step:
                    found = record["held_out"]
    figures = {name: found.get(name) for name in ("loss", "perplexity", "bits_per_character")}
    return {name: v for name, v in {**figures, **found.get("metrics", {})}.items() if v is not None}


def find_pipeline(
    family: FamilyModel, architectures: Sequence[str], folders: Sequence[str]
) -> tuple[str, str]:
    """Return the Hub's name of the task of a checkpoint, and the folder of the model that does it.

    Args:
        architectures: what the checkpoint names, such as `["BertForMaskedLM"]`.
        folders: models in folders of their own that the checkpoint has.
    """
    form = family.FORMAT
    if form.architecture not in architectures:
        for kind, head in family.TASK_HEADS.items():
            if head.is_of(architectures):
                return kind.replace("sequence_", "text_").replace("_", "-"), ""
    inner = [(form.folders[folder].pipeline, folder) for folder in folders]
    return next(iter(inner), (form.pipeline, ""))


def make_snippet(tag: str, folder: str, settings: JsonMapping, example: str | None) -> str:
    """Return the lines for a checkpoint with this `config.json`.

    Args:
        example: an input of the objective, if its outputs have marks that are not left out.
    """
    has_two = "decoder_vocab_size" in settings
    return _SNIPPETS[tag].format(
        tag=tag,
        model=f'"{folder}", tokenizer="."' if folder else '"."',
        folders=("source_tokenizer", "target_tokenizer") if has_two else (".", "."),
        given=example or "A text to be rewritten.",
        skip=example is None,
    )
