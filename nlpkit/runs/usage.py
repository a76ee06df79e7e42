"""The lines of Python that open a checkpoint with `transformers`, by the class of its model."""

from collections.abc import Mapping
from typing import Any

# Ends of the names of classes, with the pipeline that answers with them.
_PIPELINES = {
    "ForSequenceClassification": "text-classification",
    "ForTokenClassification": "token-classification",
    "ForImageClassification": "image-classification",
    "ForMaskedLM": "fill-mask",
    "XLMWithLMHeadModel": "fill-mask",
    "BertForPreTraining": "fill-mask",  # ALBERT's, too
    "ElectraForPreTraining": "fill-mask",
    "LMHeadModel": "text-generation",
    "ForCausalLM": "text-generation",
    "ForConditionalGeneration": "text2text-generation",
    "MTModel": "text2text-generation",
    "ForQuestionAnswering": "question-answering",
    "ForQuestionAnsweringSimple": "question-answering",
    "ForMultipleChoice": "multiple-choice",
}
_INPUTS = {
    "text-classification": '"A text to be classified."',
    "token-classification": '"Ada Lovelace lived in London."',
    "image-classification": '"picture.png"',
    "fill-mask": 'f"Two {answer.tokenizer.mask_token} on the table."',
    "text-generation": '"Once upon a time"',
}
_PIPELINE = """\
from transformers import pipeline

answer = pipeline("{tag}", model={model})
print(answer({given}))
"""
_WRITING = """\
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

{tokenizers}
model = AutoModelForSeq2SeqLM.from_pretrained(".")
made = model.generate(**{source}("{given}", return_tensors="pt"))
print({target}.decode(made[0], skip_special_tokens={skip}))
"""
_ANSWERING = """\
from transformers import AutoModelForQuestionAnswering, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained(".")
model = AutoModelForQuestionAnswering.from_pretrained(".")
text = tokenizer("Who lived in London?", "Ada Lovelace lived in London.", return_tensors="pt")
scores = model(**text)  # start_logits and end_logits of each token
first, last = scores.start_logits.argmax(), scores.end_logits.argmax()
print(tokenizer.decode(text["input_ids"][0, first : last + 1]))
"""
_CHOOSING = """\
from transformers import AutoModelForMultipleChoice, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained(".")
model = AutoModelForMultipleChoice.from_pretrained(".")
options = ["It rained.", "The sun shone."]
texts = [tokenizer("The street was wet.", option, return_tensors="pt") for option in options]
print([float(model(**{k: v[None] for k, v in text.items()}).logits) for text in texts])
"""
_STATES = """\
from transformers import AutoModel, AutoTokenizer

tokenizer, model = AutoTokenizer.from_pretrained("."), AutoModel.from_pretrained(".")
print(model(**tokenizer("A text.", return_tensors="pt")).last_hidden_state.shape)
"""


def has_class(settings: Mapping[str, Any], generates: bool) -> bool:
    """Return whether transformers has the model of the objective.

    A task for which it has none keeps the class of the family, which generates.
    """
    return bool(settings["architectures"]) and (
        generates or pipeline_tag(settings) != "text-generation"
    )


def pipeline_tag(settings: Mapping[str, Any]) -> str | None:
    """Return the name of the task on the Hub, or None."""
    architecture: str = (settings["architectures"] or [""])[0]
    ends = [end for end in _PIPELINES if architecture.endswith(end)]
    return _PIPELINES[max(ends, key=len)] if ends else None


def lines(settings: Mapping[str, Any], objective: str) -> str:
    """Return the lines for a model with this `config.json`."""
    architecture = settings["architectures"][0]
    tag = pipeline_tag(settings)
    if tag == "text2text-generation":
        return _writing(settings, objective)
    if tag in ("question-answering", "multiple-choice"):
        return _ANSWERING if tag == "question-answering" else _CHOOSING
    if tag is None:
        return _STATES
    model, given = '"."', _INPUTS[tag]
    if architecture.startswith("Electra") and tag == "fill-mask":
        model = '"generator", tokenizer="."'
    if architecture.startswith("XLNet") and tag == "text-generation":
        given += ', prefix=""'
    return _PIPELINE.format(tag=tag, model=model, given=given)


def _writing(settings: Mapping[str, Any], objective: str) -> str:
    """Return the lines for a model with an encoder and a decoder."""
    sides = {"tokenizer": "."}
    if "decoder_vocab_size" in settings:
        sides = {name: f"{name}_tokenizer" for name in ("source", "target")}
    names = [*sides]
    fills = objective == "span_corruption"
    return _WRITING.format(
        tokenizers="\n".join(
            f'{name} = AutoTokenizer.from_pretrained("{folder}")' for name, folder in sides.items()
        ),
        source=names[0],
        target=names[-1],
        given="Two <extra_id_0> on the table." if fills else "A text to be rewritten.",
        skip=not fills,
    )
