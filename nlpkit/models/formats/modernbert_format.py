"""The layout of ModernBERT and its decoder in transformers: settings, kinds of layers, names."""

from collections.abc import Mapping
from types import MappingProxyType

from nlpkit.contracts.format import HfFormat, Settings, Values
from nlpkit.models.layers.alternating_config import read_types, repeat, shorten
from nlpkit.models.layers.head import TaskHead
from nlpkit.models.layers.modernbert import ModernHead
from nlpkit.models.layers.modernbert_config import ModernBertConfig
from nlpkit.models.layers.rotary_decoder import SIZES

_TYPES = ("full_attention", "sliding_attention")  # transformers' types of layers
_THETAS = dict(zip(("global_theta", "local_theta"), _TYPES, strict=True))
_EVERY = "global_attn_every_n_layers"  # of transformers before 5.0


def task_head(
    architecture: str, bias: bool = True, begin_as: Mapping[str, str] = MappingProxyType({})
) -> TaskHead:
    """Return transformers' model with a task's layer behind the layers of `ModernHead`."""
    modules = {"dense.weight": "head.dense.weight", "norm.weight": "head.norm.weight"}
    return TaskHead(architecture, "classifier", bias, ModernHead, modules, begin_as)


def make_format(config: type[ModernBertConfig], architecture: str, head: str) -> HfFormat:
    """Return the format of a family; `head` is what transformers calls the layers of its output."""

    def read(settings: Settings, sizes: Values) -> Values:
        layers = sizes["num_layers"]
        types = repeat([True, *[False] * (settings.get(_EVERY, 3) - 1)], layers)
        if (named := settings.get("layer_types")) is not None:
            types = read_types("layer_types", named, _TYPES, layers)
        # There the window has both sides, without the token itself.
        window = settings.get("sliding_window") or settings.get("local_attention", 128) // 2
        kinds = config.read_kinds(types, window + (not config.is_causal))
        thetas = {ours: _read_theta(settings, ours, kind) for ours, kind in _THETAS.items()}
        return sizes | thetas | {"attention": kinds}

    return HfFormat(
        architecture=architecture,
        pipeline="text-generation" if config.is_causal else "fill-mask",
        body="model.",
        names={
            "token_embedding": "model.embeddings.tok_embeddings.weight",
            "embedding_norm": "model.embeddings.norm",
            "layers.{num_layers}": "model.layers.{num_layers}",
            "final_norm": "model.final_norm",
            "attention_tensors": "attention_tensors",
            "output_dense": f"{head}.dense",
            "output_norm": f"{head}.norm",
            "token_bias": "decoder.bias",
            "output_embedding": "decoder.weight",
        },
        copies={"decoder.weight": "token_embedding"},
        sizes={
            **SIZES,
            "hidden_act": "hidden_activation",
            "embedding_dropout": "embedding_dropout",
            "mlp_dropout": "mlp_dropout",
        },
        defaults={"tie_word_embeddings": True},
        fixed={
            **dict.fromkeys(("attention_bias", "mlp_bias", "norm_bias", "classifier_bias"), False),
            "decoder_bias": True,
            "is_causal": config.is_causal,
            "classifier_activation": "gelu",
            "norm_eps": 1e-5,
            "rope_scaling": None,
        },
        has_padding=True,
        same_ids={"cls_token_id": "bos_token_id", "sep_token_id": "eos_token_id"},
        more_settings=_more_settings,
        read_config=read,
    )


def _more_settings(config: ModernBertConfig) -> Values:
    thetas = {name.replace("theta", "rope_theta"): getattr(config, name) for name in _THETAS}
    if not config.has_default_attention:
        return thetas
    return {
        **thetas,
        "local_attention": 2 * (config.window - (not config.is_causal)),
        "layer_types": [_TYPES[not sees_all] for sees_all in config.layer_types],
        _EVERY: len(shorten(config.layer_types)),
    }


def _read_theta(settings: Settings, ours: str, kind: str) -> float:
    """Return the base of a type of layers, as any version of transformers writes it."""
    by_type = settings.get("rope_parameters") or {}
    if unknown := {*by_type} - {*_TYPES}:
        raise ValueError(f"rope_parameters has {min(unknown)!r}; this family has {[*_TYPES]}")
    given = by_type.get(kind) or {}
    if (form := given.get("rope_type", "default")) != "default":
        raise ValueError(f"rope_type is {form!r}; this family has 'default' only")
    old = ours.replace("theta", "rope_theta")
    # A local base of null was the global one before transformers 5.
    null = settings.get("global_rope_theta") if old in settings else None
    usual = null or ModernBertConfig.model_fields[ours].default
    return float(given.get("rope_theta") or settings.get(old) or usual)
