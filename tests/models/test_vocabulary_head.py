"""The head that families share, against the heads of transformers' BERT and ELECTRA.

Tolerances: a product of 24 terms and a norm in float32, 1e-5.
"""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import BertConfig, ElectraConfig
from transformers.models.bert.modeling_bert import BertOnlyMLMHead
from transformers.models.electra.modeling_electra import ElectraGeneratorPredictions

from nlpkit.models.layers import vocabulary_head
from nlpkit.models.layers.vocabulary_head import TiedHead

N, C, E, V = 40, 24, 16, 97


class _Head(TiedHead):
    """A head with everything: dense, GELU and norm before a table of width E, and a bias."""

    def __init__(self, width: int):
        super().__init__()
        self.token_embedding = nn.Parameter(torch.randn(V, width))
        self.bias = nn.Parameter(torch.randn(V))
        self.dense, self.norm = nn.Linear(C, width), nn.LayerNorm(width, 1e-12)

    def output_bias(self) -> Tensor:
        return self.bias

    def output_states(self, hidden: Tensor) -> Tensor:
        return self.norm(F.gelu(self.dense(hidden)))


class _Plain(TiedHead):
    def __init__(self) -> None:
        super().__init__()
        self.token_embedding = nn.Parameter(torch.randn(V, C))


def _bert(head: _Head) -> nn.Module:
    """Return transformers' masked-LM head with the weights of `head`."""
    config = BertConfig(hidden_size=C, vocab_size=V, num_attention_heads=2, hidden_act="gelu")
    theirs = BertOnlyMLMHead(config)
    predictions = theirs.predictions
    predictions.transform.dense.load_state_dict(head.dense.state_dict())
    predictions.transform.LayerNorm.load_state_dict(head.norm.state_dict())
    predictions.decoder.weight, predictions.decoder.bias = head.token_embedding, head.bias
    return theirs


def _electra(head: _Head) -> nn.Module:
    """Return transformers' generator head, whose decoder has a bias, likewise."""
    config = ElectraConfig(
        hidden_size=C, embedding_size=E, vocab_size=V, num_attention_heads=2, hidden_act="gelu"
    )
    predictions, decoder = ElectraGeneratorPredictions(config), nn.Linear(E, V)
    predictions.dense.load_state_dict(head.dense.state_dict())
    predictions.LayerNorm.load_state_dict(head.norm.state_dict())
    decoder.weight, decoder.bias = head.token_embedding, head.bias
    return nn.Sequential(predictions, decoder)


@pytest.mark.parametrize("soft", [False, True])
def test_each_loss_has_its_gradient_for_tokens_and_for_probabilities(
    soft: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vocabulary_head, "CHUNK", 5)  # 14 targets are three chunks
    head, hidden = _Head(E), torch.randn(N, C, requires_grad=True)
    index, factors = torch.arange(0, N, 3), torch.randn(14)
    targets = torch.rand(14, V).softmax(1) if soft else torch.randint(0, V, (14,))
    losses = head.token_losses(hidden, index, targets)
    wanted = hidden, head.token_embedding, head.bias
    found = torch.autograd.grad((losses * factors).sum(), wanted)
    right = targets if soft else F.one_hot(targets, V)
    plain = -(head.logits(hidden)[index].log_softmax(1) * right).sum(1)
    torch.testing.assert_close(losses, plain, atol=1e-5, rtol=1e-5)
    for ours, other in zip(found, torch.autograd.grad((plain * factors).sum(), wanted),
                           strict=True):  # fmt: skip
        torch.testing.assert_close(ours, other, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(("width", "oracle"), [(C, _bert), (E, _electra)])
def test_head_with_layers_and_bias_equals_transformers(width: int, oracle) -> None:
    head, hidden = _Head(width), torch.randn(N, C, requires_grad=True)
    theirs = oracle(head)
    index, targets = torch.arange(0, N, 3), torch.randint(0, V, (14,))
    expected = theirs(hidden)
    torch.testing.assert_close(head.logits(hidden), expected, atol=1e-5, rtol=1e-5)
    weights = torch.rand(14)
    loss_sum, token_losses = head.token_loss(hidden, index, targets, weights)
    losses = F.cross_entropy(expected[index], targets, reduction="none")
    torch.testing.assert_close(token_losses, losses.detach(), atol=1e-5, rtol=1e-5)
    wanted = hidden, head.token_embedding, head.bias
    found = torch.autograd.grad(loss_sum, wanted)
    for ours, other in zip(found, torch.autograd.grad((losses * weights).sum(), wanted),
                           strict=True):  # fmt: skip
        torch.testing.assert_close(ours, other, atol=1e-4, rtol=1e-4)


def test_head_smooths_labels_while_it_trains_alone() -> None:
    head, hidden = _Head(C), torch.randn(N, C)
    targets = torch.randint(0, V, (N,))
    logits = head.logits(hidden)
    for mode, smoothing in ((True, 0.1), (False, 0.0)):
        head.train(mode)
        loss_sum, _ = head.token_loss(hidden, torch.arange(N), targets, label_smoothing=0.1)
        expected = F.cross_entropy(logits, targets, reduction="sum", label_smoothing=smoothing)
        torch.testing.assert_close(loss_sum, expected, atol=1e-4, rtol=1e-5)


def test_head_adds_the_z_loss_while_it_trains_alone() -> None:
    head, hidden = _Head(C), torch.randn(N, C)
    head.z_loss = 0.1
    targets = torch.randint(0, V, (N,))
    logits = head.logits(hidden)
    for mode, z in ((True, 0.1), (False, 0.0)):
        head.train(mode)
        loss_sum, _ = head.token_loss(hidden, torch.arange(N), targets)
        expected = F.cross_entropy(logits, targets, reduction="sum")
        expected = expected + z * logits.logsumexp(1).square().sum()
        torch.testing.assert_close(loss_sum, expected, atol=1e-4, rtol=1e-5)


def test_plain_head_is_the_table_alone() -> None:
    head, hidden = _Plain(), torch.randn(N, C)
    assert list(head.state_dict()) == ["token_embedding"]
    assert torch.equal(head.logits(hidden), hidden @ head.token_embedding.T)
    loss_sum, _ = head.token_loss(hidden, torch.arange(3), torch.tensor([1, 2, 3]))
    expected = F.cross_entropy(head.logits(hidden)[:3], torch.tensor([1, 2, 3]), reduction="sum")
    torch.testing.assert_close(loss_sum, expected, atol=1e-4, rtol=1e-5)
