"""FLOPs of a training step: 3 x 2 x (rows x weights + 2 x width x visible pairs), by hand."""

from typing import Any

from nlpkit.attention.choice import AttentionChoice
from nlpkit.models import families
from nlpkit.models.flops import step_flops

V, C, F = 100, 32, 48  # vocabulary, hidden_size, intermediate_size
LAYER = 4 * C * C + 2 * C * F
PAIRS = 15  # that 5 tokens see in causal attention


def _products(
    family: str, tokens: list[int], targets: int, sources: tuple[int, ...] = (), **settings: Any
) -> float:
    fields = families.load(family).Config.model_fields
    sizes = {"hidden_size": C, "num_layers": 3, "num_heads": 4, "intermediate_size": F}
    made = {name: size for name, size in sizes.items() if name in fields} | settings
    config = families.load(family).Config(**made)
    vocab_size = V if config.can("has_vocabulary") else 0
    return step_flops(family, config, vocab_size, tokens, targets, sources) / 6


def test_decoder_counts_weights_pairs_and_output() -> None:
    assert _products("gpt2", [5], 4) == 5 * 3 * LAYER + 3 * 2 * C * PAIRS + 4 * V * C
    # Layers 0 and 2 see 15 pairs, layer 1 sees 9.
    banded = (AttentionChoice.of("causal"), AttentionChoice.of("local_window", window=2))
    found = _products("gpt2", [5], 0, attention=banded)
    assert found == 5 * 3 * LAYER + 2 * C * (15 + 9 + 15)
    # A gated layer has 3 matrices; CPM-Ant's own attention counts two thirds of the pairs.
    gated = 4 * C * C + 3 * C * F
    assert _products("cpm_ant", [6], 0) == 6 * 3 * gated + 3 * 2 * C * 24


def test_head_of_masked_tokens_counts_at_targets_alone() -> None:
    encoder = 5 * 3 * LAYER + 3 * 2 * C * 25
    assert _products("bert", [5], 2) == encoder + 2 * (C * C + V * C)
    assert _products("bert", [5], 2, tie=False) == encoder + 2 * (C * C + V * C)


def test_shared_layers_count_as_often_as_they_are_applied() -> None:
    narrow = {"embedding_size": 10}
    shared = 5 * 3 * LAYER + 5 * 10 * C + 3 * 2 * C * 25
    assert _products("albert", [5], 1, **narrow) == shared + C * 10 + V * 10
    assert _products("albert", [5], 1, **narrow, num_groups=3) == shared + C * 10 + V * 10
    twice = _products("albert", [5], 0, **narrow, inner_layers=2)
    assert twice == _products("albert", [5], 0, **narrow, num_layers=6)


def test_both_models_of_electra_and_both_streams_of_xlnet_count() -> None:
    alone = _products("electra", [5], 0, generator_size=None)
    half = 4 * 16 * 16 + 2 * 16 * F
    generator = {"generator_size": 0.5, "generator_heads": 2, "generator_intermediate_size": F}
    both = _products("electra", [5], 2, **generator)
    assert both - alone == 5 * (3 * half + C * 16) + 3 * 2 * 16 * 25 + 2 * (16 * C + V * C)
    # Relative attention has two products for each pair; 2 of 4 tokens go through both streams.
    assert _products("xlnet", [4], 2) == 1.5 * (4 * 3 * LAYER + 3 * 2 * C * 32) + 2 * V * C


def test_sources_count_in_the_encoder_and_as_keys_and_values() -> None:
    # A target's token meets 6 matrices of attention in a layer, a source's 4 and then 2.
    of_target = 3 * (6 * C * C + 2 * C * F)
    of_source = 3 * (LAYER + 2 * C * C)
    seen = 3 * (PAIRS + 49 + 5 * 7)
    expected = 5 * of_target + 7 * of_source + 2 * C * seen + 4 * V * C
    assert _products("transformer", [5], 4, (7,)) == expected
    assert _products("bart", [5], 4, (7,)) == expected
    # T5's heads may be of any width, 4 x 6 here.
    of_target, of_source = 3 * (6 * C * 24 + 2 * C * F), 3 * (6 * C * 24 + 2 * C * F)
    expected = 5 * of_target + 7 * of_source + 2 * 24 * seen + 4 * V * C
    assert _products("t5", [5], 4, (7,), head_dim=6) == expected


def test_cells_count_their_gates() -> None:
    # 2 layers of 4 gates from 8 numbers and 6 + 6 in the second; the output of its own.
    settings = {"hidden_size": 6, "num_layers": 2, "embedding_size": 8, "tie_embeddings": False}
    gates = 4 * 6 * ((8 + 6) + (6 + 6))
    assert _products("lstm", [3, 2], 4, **settings) == 5 * gates + 4 * V * 6
    # Encoder and decoder; W_a of 5 sources, W_c of 7 targets, 12 for each pair of their own.
    sizes = {"hidden_size": 6, "num_layers": 2, "tie_embeddings": False}
    cells = 4 * 6 * ((6 + 6) + (6 + 6))
    expected = (5 + 7) * cells + 5 * 36 + 7 * 72 + (3 * 1 + 4 * 4) * 12 + 7 * V * 6
    assert _products("seq2seq", [3, 4], 7, (1, 4), **sizes) == expected
    # The maxout of 7 targets: 12 numbers of context, state and token, 6 each. No attention.
    settings = {**sizes, "score": None, "joined": "maxout"}
    expected = (5 + 7) * cells + 7 * 12 * (6 + 6 + 6) + 7 * V * 6
    assert _products("seq2seq", [3, 4], 7, (1, 4), **settings) == expected


def test_image_counts_its_patches() -> None:
    image = {"image_size": 8, "patch_size": 4, "num_channels": 1}
    expected = 10 * (3 * LAYER + 16 * C) + 3 * 2 * C * 2 * 25
    assert _products("vit", [5, 5], 2, **image) == expected
