"""What transformers calls the settings, parameters and task heads of DeBERTa-v2.

transformers has two heads of masked tokens that compute the same. Written is the one that all its
versions have (`legacy`); read is that of Microsoft's files, too. The generator is a model of its
own on disk, in a folder. `word_embeddings` of the discriminator are the sum of both tables; what it
learns itself is beside the head, so that a run goes on bit for bit.
"""

from dataclasses import replace
from functools import partial

import torch.nn.functional as F

from nlpkit.contracts.format import FOLDERS, Settings, State, Values
from nlpkit.models.deberta_v2 import Config
from nlpkit.models.formats import encoder_format
from nlpkit.models.formats.encoder_format import ENCODER
from nlpkit.models.formats.hf_reading import check_fixed
from nlpkit.models.layers.head import DenseHead

GENERATOR = "generator"  # the folder of its checkpoint


_POOLER = partial(DenseHead, activation=F.gelu, drops_first=False)
TASK_HEADS = encoder_format.task_heads("DebertaV2", "pooler.dense", _POOLER)
_BODY = "deberta."
_LAYER = encoder_format.LAYER | {
    "query": "attention.self.query_proj",
    "key": "attention.self.key_proj",
    "value": "attention.self.value_proj",
    "position_key": "attention.self.pos_key_proj",
    "position_query": "attention.self.pos_query_proj",
}
_GENERATORS = "generator.token_embedding"
_TERMS = {"both": "c2p|p2c", "c2p": "c2p", "p2c": "p2c"}


def _distance_settings(config: Config) -> Values:
    return {
        "relative_attention": True,
        "position_buckets": config.position_buckets or -1,
        "max_relative_positions": config.max_distance or -1,
        "pos_att_type": _TERMS[config.terms],
        "norm_rel_ebd": "layer_norm" if config.distance_norm else "none",
    }


def _more_settings(config: Config) -> Values:
    settings = _distance_settings(config)
    if config.has_generator:
        shared = ("generator_layers", "embedding_sharing")
        settings["nlpkit"] = {name: getattr(config, name) for name in shared}
        settings["architectures"] = ["DebertaV2Model"]
    return settings


def _read_config(settings: Settings, sizes: Values) -> Values:
    width = sizes["hidden_size"]
    same = dict.fromkeys(("embedding_size", "pooler_hidden_size"), width)
    own = {"relative_attention": True, "attention_head_size": width // sizes["num_heads"]}
    check_fixed(own | same, {"relative_attention": False, **settings})
    limits = "position_buckets", "max_relative_positions"
    buckets, limit = (settings.get(name, -1) for name in limits)
    return sizes | {
        "position_buckets": max(buckets, 0),
        "max_distance": limit if limit > 0 else None,
        "terms": _read_terms(settings.get("pos_att_type") or ""),
        "distance_norm": "layer_norm" in str(settings.get("norm_rel_ebd", "none")),
        **_read_generator(settings, sizes),
    }


def _read_terms(named: str | list[str]) -> str:
    """Return our name of the terms, such as `p2c|c2p`."""
    parts = {part.strip() for part in (named.split("|") if isinstance(named, str) else named)}
    for ours, theirs in _TERMS.items():
        if parts == {*theirs.split("|")}:
            return ours
    raise ValueError(f"pos_att_type is {named!r}; this family has c2p, p2c and both")


def _read_generator(settings: Settings, sizes: Values) -> Values:
    inner = settings.get(FOLDERS, {}).get(GENERATOR)
    if inner is None:
        return {"generator_layers": None}
    notes = settings.get("nlpkit", {})
    share = notes.get("generator_layers") or 0.5
    if inner and "generator_layers" not in notes:
        share = inner["num_hidden_layers"] / sizes["num_layers"]
    return {"generator_layers": share, "embedding_sharing": notes.get("embedding_sharing", "gdes")}


def _join(config: Config, state: State) -> State:
    """Return the state dict with the table of the discriminator, too."""
    joined = ENCODER.join(config, state)
    if not config.has_generator or _GENERATORS not in state:
        return joined
    table = state[_GENERATORS]
    sums = table + state["embedding_delta"] if config.has_delta else table.clone()
    return {**joined, "token_embedding": sums}


def _split(config: Config, settings: Settings, state: State) -> State:
    """Return the state dict with what the discriminator adds to the generator's table."""
    rest = dict(ENCODER.split(config, settings, state))
    if not config.has_generator:
        return rest
    sums = rest.pop("token_embedding", None)
    if sums is not None and config.has_delta and _GENERATORS in rest:
        rest.setdefault("embedding_delta", sums - rest[_GENERATORS])
    return rest


_DECODER, _BIAS = "cls.predictions.decoder", "cls.predictions.bias"


def _names(depth: str) -> dict[str, str]:
    """Return the names of an encoder with its head; the setting `depth` is its number of layers."""
    number = f"{{{depth}}}"
    return {
        **encoder_format.body_names(_BODY, number, f"encoder.layer.{number}", _LAYER),
        "layers.distance_embedding": f"{_BODY}encoder.rel_embeddings.weight",
        "layers.distance_norm": f"{_BODY}encoder.LayerNorm",
        "output_dense": "cls.predictions.transform.dense",
        "output_norm": "cls.predictions.transform.LayerNorm",
        "output_embedding": f"{_DECODER}.weight",
        "token_bias": _BIAS,
    }


_SIZES = {
    **ENCODER.sizes,
    "shared_projections": "share_att_key",
    "absolute_positions": "position_biased_input",
}
_OLD = (  # Microsoft's head of masked tokens, and its spelling
    ("lm_predictions.lm_head.dense", "cls.predictions.transform.dense"),
    ("lm_predictions.lm_head.LayerNorm", "cls.predictions.transform.LayerNorm"),
    ("mask_predictions.classifer", "mask_predictions.classifier"),
)
_MASKED = replace(
    ENCODER,
    architecture="DebertaV2ForMaskedLM",
    body=_BODY,
    more_settings=_distance_settings,
    old_ends={
        **ENCODER.old_ends,
        "lm_predictions.lm_head.bias": _BIAS,
        **{f"{old}.{end}": f"{new}.{end}" for end in ("weight", "bias") for old, new in _OLD},
    },
)
_OF_GENERATOR = replace(
    _MASKED,
    names={f"generator.{ours}": name for ours, name in _names("num_generator_layers").items()},
    copies={f"{_DECODER}.weight": _GENERATORS, f"{_DECODER}.bias": "generator.token_bias"},
    sizes={
        **{ours: theirs for ours, theirs in _SIZES.items() if ours != "num_layers"},
        "num_generator_layers": "num_hidden_layers",
    },
    present=lambda config: config.has_generator,
)
_FORMAT = replace(
    _MASKED,
    names={
        **_names("num_layers"),
        "replaced_dense": "mask_predictions.dense",
        "replaced_norm": "mask_predictions.LayerNorm",
        "replaced_score": "mask_predictions.classifier",
        "embedding_delta": "mask_predictions.embedding_delta",
    },
    optional=("mask_predictions",),  # DebertaV2ForMaskedLM has none
    beside=("mask_predictions",),
    ignored=(*ENCODER.ignored, "mask_predictions", "position_embeddings"),
    fixed={
        **ENCODER.fixed,
        "conv_kernel_size": 0,
        "pooler_dropout": 0,
        "pooler_hidden_act": "gelu",
    },
    sizes=_SIZES,
    defaults={
        **ENCODER.defaults,
        "type_vocab_size": 0,
        "layer_norm_eps": 1e-7,
        "share_att_key": False,
        "position_biased_input": True,
    },
    more_settings=_more_settings,
    read_config=_read_config,
    join=_join,
    split=_split,
    folders={GENERATOR: _OF_GENERATOR},
)
FORMAT = encoder_format.with_decoder(_FORMAT, _DECODER, _BIAS)
