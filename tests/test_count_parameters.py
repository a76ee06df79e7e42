"""`Config.count_parameters` against the parameters of the model on the meta device."""

import pytest
import torch

from nlpkit import registry
from nlpkit.attention.contract import Choice
from nlpkit.models import families

SMALL = {"hidden_size": 24, "num_layers": 3, "num_heads": 4}
CELLS = {"hidden_size": 24, "num_layers": 3}
COMPRESSED = (Choice.of("memory_compressed", stride=2), Choice.of("causal"))
VARIANTS = {
    "albert": [{}, {"num_groups": 2, "inner_layers": 2, "embedding_size": 10, "tie": False}],
    "bert": [{}, {"tie": False, "type_vocab_size": 3, "intermediate_size": 50}],
    "cpm_ant": [{}, {"head_dim": 5, "prompt_length": 3, "segment_types": 4}],
    "electra": [
        {"hidden_size": 64},
        {"hidden_size": 64, "embedding_size": 10, "generator_layers": 0.5, "tie": False},
        {"generator_size": None},
    ],
    "gpt": [{}, {"max_positions": 40, "attention": COMPRESSED}],
    "gpt2": [{}, {"intermediate_size": 31, "attention": (Choice.of("aft", max_length=40),)}],
    "gru": [{}, {"num_directions": 2, "embedding_size": 10}],
    "lstm": [{}, {"tie_embeddings": False, "num_directions": 2}],
    "rnn": [{}, {"num_layers": 1, "embedding_size": 10}],
    "roberta": [{}, {"padding_idx": 7}],
    "seq2seq": [
        {},
        {"num_directions": 2, "context": "both", "score": "additive", "source_vocab_size": 30},
        {"score": "dot", "window": "local_p", "input_feeding": True, "cell": "gru"},
        {"score": None, "context": "every_step", "previous_output": False, "cell": "rnn"},
        {"num_directions": 2, "embedding_size": 10, "tie_embeddings": False},
    ],
    "t5": [{}, {"gated": True, "hidden_act": "gelu_new", "tie": False, "encoder_layers": 1}],
    "transformer": [
        {},
        {"positions": "learned", "output_bias": True, "source_vocab_size": 30, "tie": False},
        {"encoder_layers": 1},
    ],
    "vit": [{}, {"qkv_bias": False, "pooler": True, "pooler_output_size": 9, "num_channels": 1}],
    "xlm": [{}, {"num_languages": 1, "sinusoidal": True, "tie": False}],
    "xlnet": [{}, {"max_distance": 9}],
}


@pytest.mark.parametrize(
    ("family", "settings"), [(name, each) for name, found in VARIANTS.items() for each in found]
)
def test_count_is_that_of_the_model(family, settings):
    kind = families.load(family).Config
    small = SMALL if "num_heads" in kind.model_fields else CELLS
    config = kind(**{**small, **settings})
    vocab_size = 53 if config.has_vocabulary else 0
    with torch.device("meta"):
        model = families.load_model(family).Model(config, vocab_size, "auto")
    assert config.count_parameters(vocab_size) == sum(p.numel() for p in model.parameters())


def test_every_family_is_tried():
    assert sorted(VARIANTS) == registry.names("models")
