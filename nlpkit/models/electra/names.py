"""What transformers calls the settings, parameters and task heads of ELECTRA.

The generator is a model of its own on disk, in a folder.
"""

from dataclasses import replace
from functools import partial

import torch.nn.functional as F

from nlpkit.contracts.format import FOLDERS, HfFormat, Settings, Values
from nlpkit.models.electra import Config
from nlpkit.models.formats import encoder_format
from nlpkit.models.formats.encoder_format import ENCODER
from nlpkit.models.layers.head import DenseHead, TaskHead

GENERATOR = "generator"  # the folder of its checkpoint


_CLASSIFIER = partial(DenseHead, activation=F.gelu)
TASK_HEADS = encoder_format.task_heads("Electra") | {
    "sequence_classification": TaskHead.of_two(
        "ElectraForSequenceClassification", "classifier.out_proj", "classifier.dense", _CLASSIFIER
    ),
    "multiple_choice": TaskHead.of_two(
        "ElectraForMultipleChoice",
        "classifier",
        "sequence_summary.summary",
        partial(_CLASSIFIER, drops_first=False),
    ),
}

_OWN = ("generator_size", "generator_layers", "generator_heads", "generator_intermediate_size")
_SIZES = {
    "generator_width": "hidden_size",
    "num_generator_layers": "num_hidden_layers",
    "num_generator_heads": "num_attention_heads",
    "generator_inner_size": "intermediate_size",
}


def _more_settings(config: Config) -> Values:
    notes = {name: getattr(config, name) for name in _OWN if config.has_generator}
    return {"embedding_size": config.embedding_width, "nlpkit": notes}


def _read_config(settings: Settings, sizes: Values) -> Values:
    width = settings.get("embedding_size", sizes["hidden_size"])
    sizes["embedding_size"] = None if width == sizes["hidden_size"] else width
    inner = settings.get(FOLDERS, {}).get(GENERATOR)
    if inner is None:
        return sizes | {"generator_size": None}
    if not inner:  # it may be missing, and gets the default size
        return sizes
    if (other := inner.get("embedding_size", inner["hidden_size"])) != width:
        raise ValueError(
            f"the generator's embedding_size is {other}; it shares the embeddings of the "
            f"discriminator, which are {width} wide"
        )
    return sizes | _generator_sizes(settings, sizes, inner)


def _generator_sizes(settings: Settings, sizes: Values, inner: Settings) -> Values:
    notes = settings.get("nlpkit", {})
    as_written = {name: notes[name] for name in _OWN if name in notes}
    shares = {
        "generator_size": inner["hidden_size"] / sizes["hidden_size"],
        "generator_layers": inner["num_hidden_layers"] / sizes["num_layers"],
    }
    exact = {
        "generator_heads": inner["num_attention_heads"],
        "generator_intermediate_size": inner["intermediate_size"],
    }
    # What was written, if it gives these sizes; else the shares, with as many defaults as possible.
    for found in (as_written, shares, *(shares | {n: exact[n]} for n in exact)):
        config = Config.model_construct(**{**sizes, **found})
        if all(getattr(config, ours) == inner[theirs] for ours, theirs in _SIZES.items()):
            return found
    return shares | exact


def _names(half: str, depth: str) -> dict[str, str]:
    """Return the names of the encoder `half`, whose number of layers is the setting `depth`."""
    number = f"{{{depth}}}"
    layer = f"encoder.layer.{number}"
    body = encoder_format.body_names("electra.", number, layer, half=f"{half}.")
    return body | {f"{half}.widen": "electra.embeddings_project"}


_SHARED = ("max_positions", "type_vocab_size", "hidden_act", "dropout", "attention_dropout",
           "norm_eps", "init_std", "tie")  # fmt: skip
_DECODER = "generator_lm_head"
_OF_GENERATOR = HfFormat(
    architecture="ElectraForMaskedLM",
    pipeline="fill-mask",
    body="electra.",
    names={
        **_names("generator", "num_generator_layers"),
        "generator.output_dense": "generator_predictions.dense",
        "generator.output_norm": "generator_predictions.LayerNorm",
        "generator.token_bias": f"{_DECODER}.bias",
        "generator.output_embedding": f"{_DECODER}.weight",
    },
    copies={f"{_DECODER}.weight": "token_embedding"},
    sizes={
        **{name: ENCODER.sizes[name] for name in _SHARED},
        **_SIZES,
        "embedding_width": "embedding_size",
    },
    present=lambda config: config.has_generator,
)
FORMAT = replace(
    ENCODER,
    architecture="ElectraForPreTraining",
    pipeline="feature-extraction",
    body="electra.",
    names={
        **_names("discriminator", "num_layers"),
        "replaced_dense": "discriminator_predictions.dense",
        "replaced_score": "discriminator_predictions.dense_prediction",
    },
    optional=("discriminator_predictions",),  # ElectraForSequenceClassification has none
    fixed={
        **ENCODER.fixed,
        "summary_type": "first",
        "summary_use_proj": True,
        "summary_activation": "gelu",
    },
    more_settings=_more_settings,
    read_config=_read_config,
    folders={GENERATOR: _OF_GENERATOR},
)
