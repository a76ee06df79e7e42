"""The lines of Python in a model card that open the model with `transformers`: one for each task.

A task has the Hub's name of its pipeline: the family says it of its model (`HfFormat.pipeline`),
and the kind of a task's head is one.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from nlpkit.contracts.family_model import FamilyModel

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
            if head.architecture in architectures:
                return kind.replace("sequence_", "text_").replace("_", "-"), ""
    inner = [(form.folders[folder].pipeline, folder) for folder in folders]
    return next(iter(inner), (form.pipeline, ""))


def make_snippet(tag: str, folder: str, settings: Mapping[str, Any], example: str | None) -> str:
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
