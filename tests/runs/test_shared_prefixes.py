"""Beginnings that sentences share: the same losses as from packs of whole sentences."""

from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

from nlpkit.runs import shared_prefixes
from nlpkit.runs.likelihood import Likelihood
from nlpkit.runs.open_checkpoint import open_checkpoint
from nlpkit.tokenizers import bpe
from tests import _tiny

TEXTS = [
    "The cats sleep.", "The cats sleep", "The cats sleeps.", "The cat sleeps.", "The cat sleeps.",
    "A dog barks, and it runs.", "A dog bark, and it runs.", "A", "A dog", "It runs and runs.",
]  # fmt: skip
HYBRID = """\
name: hybrid
model: {family: gpt2, hidden_size: 32, num_layers: 2, num_heads: 4, intermediate_size: 48,
  init_std: 0.3}
tokenizer: {kind: bpe, vocab_size: 290}
data: {train: [TRAIN]}
attention: {kind: hybrid}
objective: {name: hybrid, max_length: 32}
train: {steps: 1, tokens_per_step: 64, lr: 1.0e-2, warmup_steps: 1, precision: fp32}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Random models in transformers' layout."""
    place = tmp_path_factory.mktemp("models")
    torch.manual_seed(0)
    small = bpe.Tokenizer.train(TEXTS, bpe.Config(vocab_size=290))
    sizes = {"vocab_size": small.vocab_size, "initializer_range": 0.3}
    gpt2 = transformers.GPT2Config(**sizes, n_positions=32, n_embd=32, n_layer=2, n_head=4)
    llama = transformers.LlamaConfig(
        **sizes, max_position_embeddings=32, hidden_size=32, num_hidden_layers=2,
        intermediate_size=48, num_attention_heads=4, num_key_value_heads=2,
    )  # fmt: skip
    neox = transformers.GPTNeoXConfig(
        **sizes, max_position_embeddings=32, hidden_size=32, num_hidden_layers=2,
        intermediate_size=48, num_attention_heads=4,
    )  # fmt: skip
    neo = transformers.GPTNeoConfig(
        **sizes, max_position_embeddings=32, hidden_size=32, num_layers=2, num_heads=4,
        attention_types=[[["global", "local"], 1]], window_size=3,
    )  # fmt: skip
    modern = transformers.ModernBertDecoderConfig(
        **sizes, max_position_embeddings=32, hidden_size=32, num_hidden_layers=2,
        intermediate_size=48, num_attention_heads=4, local_attention=6,
        global_attn_every_n_layers=2, pad_token_id=0,
    )  # fmt: skip
    made = {"gpt2": gpt2, "llama": llama, "gpt_neox": neox, "gpt_neo": neo, "modernbert": modern}
    for name, config in made.items():
        small.save(place / name)
        transformers.AutoModelForCausalLM.from_config(config).save_pretrained(place / name)
    recipe = _tiny.write(place, text=HYBRID)
    (place / "train.txt").write_text("\n".join(TEXTS) + "\n", encoding="utf-8")
    _tiny.pretrain(recipe, place / "run").rename(place / "hybrid")
    return place


@pytest.mark.fast_cases(4)
@pytest.mark.parametrize("name", ["gpt2", "llama", "gpt_neox", "gpt_neo", "modernbert", "hybrid"])
@pytest.mark.parametrize("budget", [16, 4096])
def test_log_probs_equal_those_of_whole_sentences(
    folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, budget: int
) -> None:
    opened = open_checkpoint(folder / name, device="cpu", precision="fp32")
    likelihood = Likelihood(opened, tokens_per_batch=budget)
    tokens: list[int] = []
    plain = opened.model.forward

    def count(lengths: object, input_ids: torch.Tensor, **fields: object) -> torch.Tensor:
        tokens.append(len(input_ids))
        return plain(lengths, input_ids, **fields)

    monkeypatch.setattr(opened.model, "forward", count)
    texts = likelihood.encode(TEXTS)
    found = likelihood.compute_log_probs(texts)
    shared = sum(tokens)
    monkeypatch.setattr(shared_prefixes, "can_share", lambda *_: False)
    expected = likelihood.compute_log_probs(texts)
    assert shared < 0.8 * (sum(tokens) - shared)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5, rtol=0)


def test_tree_computes_each_beginning_once() -> None:
    sequences = [np.array(ids) for ids in ([3, 1, 2], [3, 1], [3, 1, 4], [5], [3, 1, 2])]
    tree = shared_prefixes.arrange(sequences)
    assert tree is not None
    assert tree.order.tolist() == [1, 0, 4, 2, 3]
    # Distinct beginnings by hand: 3; 3 1; 3 1 2; 3 1 4; 5.
    assert shared_prefixes._find_new(tree.tokens).sum() == 5
    parts = [list(range(5))[part] for part in tree.split(3)]
    assert [number for part in parts for number in part] == [0, 1, 2, 3, 4]


def test_sequences_that_share_nothing_are_no_tree() -> None:
    assert shared_prefixes.arrange([np.array([number, 1, 2]) for number in range(5)]) is None
    assert shared_prefixes.arrange([np.zeros(200, np.int64)] * 5) is None
    assert shared_prefixes.arrange([]) is None
