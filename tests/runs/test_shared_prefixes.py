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

TEXTS = [
    "The cats sleep.", "The cats sleep", "The cats sleeps.", "The cat sleeps.", "The cat sleeps.",
    "A dog barks, and it runs.", "A dog bark, and it runs.", "A", "A dog", "It runs and runs.",
]  # fmt: skip


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
    for name, config in (("gpt2", gpt2), ("llama", llama), ("gpt_neox", neox)):
        small.save(place / name)
        transformers.AutoModelForCausalLM.from_config(config).save_pretrained(place / name)
    return place


@pytest.mark.parametrize("name", ["gpt2", "llama", "gpt_neox"])
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
