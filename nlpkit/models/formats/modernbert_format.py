"""The layout of ModernBERT and its decoder in transformers: settings, kinds of layers, names."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from nlpkit.contracts.format import HfFormat, Settings, Values
from nlpkit.models.layers.head import TaskHead
from nlpkit.models.layers.modernbert import ModernHead
from nlpkit.models.layers.modernbert_config import LOCAL, ModernBertConfig
from nlpkit.models.layers.rotary_decoder import SIZES

_SEES_ALL = {"full_attention": True, "sliding_attention": False}  # transformers' types of layers
_THETAS = {"global_theta": "full_attention", "local_theta": "sliding_attention"}
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
        types = _read_types(settings, sizes["num_layers"])
        kinds = config.layer_kinds(_shorten(types), settings.get("local_attention", 128))
        own = config().default_attention
        repeated = [own[n % len(own)] for n in range(len(types))]
        if [kinds[n % len(kinds)] for n in range(len(types))] == repeated:
            kinds = ()  # the family's own
        thetas = {ours: _read_theta(settings, ours, kind) for ours, kind in _THETAS.items()}
        return sizes | thetas | {"attention": kinds}

    return HfFormat(
        architecture=architecture,
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
    kinds = [config.kinds[n % len(config.kinds)] for n in range(config.num_layers)]
    types = [kind.kind != LOCAL for kind in kinds]
    names = {sees_all: name for name, sees_all in _SEES_ALL.items()}
    return {
        **thetas,
        "local_attention": config.window,
        "layer_types": [names[each] for each in types],
        _EVERY: len(_shorten(types)),
    }


def _read_types(settings: Settings, layers: int) -> list[bool]:
    """Return for each layer whether it sees all tokens; raise `ValueError`."""
    types = settings.get("layer_types")
    if types is None:
        return [number % settings.get(_EVERY, 3) == 0 for number in range(layers)]
    if unknown := {*types} - {*_SEES_ALL}:
        raise ValueError(f"layer_types has {min(unknown)!r}; this family has {[*_SEES_ALL]}")
    if len(types) != layers:
        raise ValueError(f"layer_types has {len(types)} entries for {layers} layers")
    return [_SEES_ALL[each] for each in types]


def _shorten(types: Sequence[bool]) -> Sequence[bool]:
    """Return the beginning that is repeated over the layers."""
    for size in range(1, len(types)):
        if all(each == types[number % size] for number, each in enumerate(types)):
            return types[:size]
    return types


def _read_theta(settings: Settings, ours: str, kind: str) -> float:
    """Return the base of a type of layers, as any version of transformers writes it."""
    by_type = settings.get("rope_parameters") or {}
    if unknown := {*by_type} - {*_SEES_ALL}:
        raise ValueError(f"rope_parameters has {min(unknown)!r}; this family has {[*_SEES_ALL]}")
    given = by_type.get(kind) or {}
    if (form := given.get("rope_type", "default")) != "default":
        raise ValueError(f"rope_type is {form!r}; this family has 'default' only")
    old = ours.replace("theta", "rope_theta")
    # A local base of null was the global one before transformers 5.
    null = settings.get("global_rope_theta") if old in settings else None
    usual = null or ModernBertConfig.model_fields[ours].default
    return float(given.get("rope_theta") or settings.get(old) or usual)
