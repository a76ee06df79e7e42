"""What transformers calls the original Transformer, in Marian's and BART's layout.

V tokens of the vocabulary.
"""

from nlpkit.contracts.format import HfFormat, Settings, State, Values
from nlpkit.models.layers.encoder_config import PostNormPairConfig

BIAS = "final_logits_bias"
POSITIONS = "embed_positions.weight"
_BLOCK = {
    "attention.query": "self_attn.q_proj",
    "attention.key": "self_attn.k_proj",
    "attention.value": "self_attn.v_proj",
    "attention.project": "self_attn.out_proj",
    "attention_norm": "self_attn_layer_norm",
    "cross.query": "encoder_attn.q_proj",
    "cross.key": "encoder_attn.k_proj",
    "cross.value": "encoder_attn.v_proj",
    "cross.project": "encoder_attn.out_proj",
    "cross_norm": "encoder_attn_layer_norm",
    "up": "fc1",
    "down": "fc2",
    "output_norm": "final_layer_norm",
}
_SIDES = {"encoder.{encoder_depth}": "model.encoder.layers.{encoder_depth}",
          "decoder.{num_layers}": "model.decoder.layers.{num_layers}"}  # fmt: skip


def more_settings(config: PostNormPairConfig) -> Values:
    """Return further settings of `config.json`."""
    return {
        "is_encoder_decoder": True,
        "encoder_layers": config.encoder_depth,
        "encoder_attention_heads": config.num_heads,
        "encoder_ffn_dim": config.intermediate_size,
        "activation_dropout": 0.0,
        "forced_eos_token_id": None,  # transformers' default is an id of the original vocabulary
        "nlpkit": {"output_bias": config.output_bias},
    }


def read_settings(settings: Settings, sizes: Values) -> Values:
    """Return the arguments of `Config`; raise `ValueError` for two stacks of different widths."""
    for name in ("attention_heads", "ffn_dim"):
        ours, theirs = settings[f"decoder_{name}"], settings[f"encoder_{name}"]
        if ours != theirs:
            raise ValueError(
                f"encoder_{name} is {theirs} and decoder_{name} {ours}; this family has the same"
            )
    if sizes["hidden_act"] == "silu":
        sizes["hidden_act"] = "swish"
    return sizes | {
        "encoder_layers": settings["encoder_layers"],
        # A checkpoint of others may have a bias that is not 0.
        "output_bias": settings.get("nlpkit", {}).get("output_bias", True),
    }


def join(config: PostNormPairConfig, state: State) -> State:
    """Return the state dict with the bias in transformers' form, (1, V)."""
    table = state["token_embedding"]
    bias = state.get("token_bias", table.new_zeros(len(table)))
    rest = {name: tensor for name, tensor in state.items() if name != "token_bias"}
    return {**rest, BIAS: bias[None]}


def split(config: PostNormPairConfig, settings: Settings, state: State) -> State:
    """Return the state dict with our form of the bias."""
    rest = {name: tensor for name, tensor in state.items() if name != BIAS}
    return rest | ({"token_bias": state[BIAS][0]} if config.output_bias and BIAS in state else {})


POST_NORM = HfFormat(
    architecture="",
    pipeline="text2text-generation",
    body="model.",
    names={
        "token_embedding": "model.shared.weight",
        "output_embedding": "lm_head.weight",
        "token_bias": BIAS,
        BIAS: BIAS,
        "source_positions": f"model.encoder.{POSITIONS}",
        "target_positions": f"model.decoder.{POSITIONS}",
        "attention_tensors": "attention_tensors",
        "encoder_tensors": "encoder_tensors",
        **{
            f"{ours}.{name}": f"{theirs}.{their}"
            for ours, theirs in _SIDES.items()
            for name, their in _BLOCK.items()
            if "decoder" in ours or "cross" not in name
        },
    },
    copies={
        "lm_head.weight": "token_embedding",
        "model.encoder.embed_tokens.weight": "token_embedding",
        "model.decoder.embed_tokens.weight": "token_embedding",
    },
    optional=(BIAS,),
    sizes={
        "hidden_size": "d_model",
        "num_layers": "decoder_layers",
        "num_heads": "decoder_attention_heads",
        "intermediate_size": "decoder_ffn_dim",
        "max_positions": "max_position_embeddings",
        "hidden_act": "activation_function",
        "dropout": "dropout",
        "attention_dropout": "attention_dropout",
        "tie": "tie_word_embeddings",
    },
    defaults={"tie_word_embeddings": True},
    fixed={"is_causal": None, "normalize_before": False, "add_final_layer_norm": False},
    more_settings=more_settings,
    read_config=read_settings,
    join=join,
    split=split,
)
