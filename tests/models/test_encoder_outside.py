"""An encoder of a user's own, outside the package: oracles are transformers' BERT and hand counts.

The parts are `tests/parts/encoder`, `tests/parts/mlm.py`, `tests/parts/nsp.py`.
"""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import transformers

from nlpkit.checkpoints import hf_layout, hf_model, hf_writing
from nlpkit.contracts.batch import IGNORE
from nlpkit.errors import FileError
from nlpkit.tokenizers import wordpiece
from tests import _tiny
from tests.parts import mlm, nsp
from tests.parts.encoder import Config
from tests.parts.encoder.model import Model

FAMILY = "tests.parts.encoder"
SIZES = {
    "hidden_size": 32, "num_layers": 2, "num_heads": 4, "intermediate_size": 48,
    "max_positions": 64,
}  # fmt: skip
THEIRS = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48,
    "max_position_embeddings": 64,
}  # fmt: skip
LENGTHS = (9, 4, 12)


def _theirs(architecture: str = "BertForPreTraining", **settings: int) -> torch.nn.Module:
    """Return a BERT of transformers, every tensor drawn, in evaluation mode."""
    torch.manual_seed(0)
    config = transformers.BertConfig(vocab_size=70, **THEIRS, **settings)
    model = getattr(transformers, architecture)(config).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    return model


def _ours(directory: Path, **allowed: tuple[str, ...]) -> tuple[Model, hf_model.Loaded]:
    settings, tensors = hf_layout.read(directory)
    loaded = hf_model.from_hf(FAMILY, directory, settings, tensors, **allowed)
    model = Model(loaded.config, 70).eval()
    model.load_state_dict(loaded.state, strict=not loaded.missing)
    return model, loaded


def _pack() -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(1)
    ids = torch.randint(70, (sum(LENGTHS),), generator=draw)
    return ids, torch.cat([(torch.arange(n) > n // 2).long() for n in LENGTHS])


def _padded(flat: torch.Tensor, value: int = 0) -> torch.Tensor:
    return torch.nn.utils.rnn.pad_sequence(flat.split(LENGTHS), True, padding_value=value)


def _seen(padded: torch.Tensor) -> torch.Tensor:
    """Return (N, …) of what transformers gives padded."""
    return torch.cat([row[:n] for row, n in zip(padded, LENGTHS, strict=True)])


def test_model_equals_transformers_logits_losses_and_gradients(tmp_path: Path) -> None:
    theirs = _theirs()
    theirs.save_pretrained(tmp_path)
    ours, loaded = _ours(tmp_path)
    assert not loaded.missing
    assert not loaded.unexpected
    ids, types = _pack()
    labels = torch.full_like(ids, IGNORE)
    labels[::3] = ids.flip(0)[::3]
    pairs = torch.tensor([0, 1, 1])
    expected = theirs(
        input_ids=_padded(ids), token_type_ids=_padded(types),
        attention_mask=_padded(torch.ones_like(ids)), labels=_padded(labels, IGNORE),
        next_sentence_label=pairs,
    )  # fmt: skip
    hidden = ours(LENGTHS, input_ids=ids, token_type_ids=types)
    close = {"atol": 1e-5, "rtol": 1e-5}
    torch.testing.assert_close(ours.logits(hidden), _seen(expected.prediction_logits), **close)
    scores = ours.pair_logits(hidden, LENGTHS)
    torch.testing.assert_close(scores, expected.seq_relationship_logits, **close)
    index = (labels != IGNORE).nonzero().squeeze(1)
    total, _ = ours.token_loss(hidden, index, labels[index])
    loss = total / len(index) + F.cross_entropy(scores, pairs)
    torch.testing.assert_close(loss, expected.loss, **close)
    expected.loss.backward()
    loss.backward()
    gradients = {name: p.grad for name, p in ours.named_parameters()}
    written = hf_writing.to_hf(FAMILY, loaded.config, gradients)[""][1]
    for name, parameter in theirs.named_parameters():
        torch.testing.assert_close(written[name], parameter.grad, **close)


def test_checkpoints_open_in_transformers_bit_for_bit(tmp_path: Path) -> None:
    torch.manual_seed(2)
    model = Model(Config(**SIZES), 70).eval()
    hf_writing.write_folders(
        tmp_path, hf_writing.to_hf(FAMILY, Config(**SIZES), model.state_dict())
    )
    theirs, said = transformers.BertForPreTraining.from_pretrained(
        tmp_path, output_loading_info=True
    )
    assert not any(said.values()), said
    theirs.save_pretrained(tmp_path / "again")
    again, loaded = _ours(tmp_path / "again")
    assert loaded.config == Config(**SIZES)
    assert all(torch.equal(again.state_dict()[k], v) for k, v in model.state_dict().items())


def test_masked_model_without_pooler_loads_with_a_report(tmp_path: Path) -> None:
    theirs = _theirs("BertForMaskedLM")
    theirs.save_pretrained(tmp_path)
    ours, loaded = _ours(tmp_path)
    assert sorted(loaded.missing) == [
        "bert.pooler.dense.bias", "bert.pooler.dense.weight",
        "cls.seq_relationship.bias", "cls.seq_relationship.weight",
    ]  # fmt: skip
    ids, types = _pack()
    expected = theirs(_padded(ids), _padded(torch.ones_like(ids)), _padded(types)).logits
    found = ours.logits(ours(LENGTHS, input_ids=ids, token_type_ids=types))
    torch.testing.assert_close(found, _seen(expected), atol=1e-5, rtol=1e-5)


def test_bare_model_without_prefix_loads_where_its_head_may_be_missing(tmp_path: Path) -> None:
    theirs = _theirs("BertModel")
    theirs.save_pretrained(tmp_path)
    with pytest.raises(FileError, match=r"5 tensors are missing: cls\.predictions"):
        _ours(tmp_path)
    ours, loaded = _ours(tmp_path, allow_missing=("cls",))
    assert len(loaded.missing) == 7
    ids, types = _pack()
    expected = theirs(_padded(ids), _padded(torch.ones_like(ids)), _padded(types))
    found = ours(LENGTHS, input_ids=ids, token_type_ids=types)
    close = {"atol": 1e-5, "rtol": 1e-5}
    torch.testing.assert_close(found, _seen(expected.last_hidden_state), **close)
    torch.testing.assert_close(ours.summary(found, LENGTHS), expected.pooler_output, **close)


@pytest.mark.parametrize(
    "settings", [{"hidden_act": "relu"}, {"position_embedding_type": "relative_key"}]
)
def test_another_bert_is_refused(tmp_path: Path, settings: dict[str, str]) -> None:
    _theirs().save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | settings))
    with pytest.raises(FileError, match=next(iter(settings))):
        _ours(tmp_path)


@pytest.fixture(scope="module")
def tokenizer() -> wordpiece.Tokenizer:
    settings = wordpiece.Config(vocab_size=120, min_frequency=1)
    return wordpiece.Tokenizer.train(["".join(_tiny.WORDS)] * 2, settings)


def test_masking_has_the_shares_of_the_paper(tokenizer: wordpiece.Tokenizer) -> None:
    objective = mlm.Objective(mlm.Config(max_length=60), tokenizer, Config(**SIZES))
    mask, start, end = (tokenizer.special_id(t) for t in ("[MASK]", "[CLS]", "[SEP]"))
    special = [tokenizer.special_id(f"[{name}]") for name in ("PAD", "UNK", "CLS", "SEP", "MASK")]
    draw, rng = np.random.default_rng(0), np.random.default_rng(1)
    words = np.setdiff1d(np.arange(tokenizer.vocab_size), special)
    fates = np.zeros(3)
    for _ in range(1000):
        piece = draw.choice(words, 40)
        piece[[3, 7]] = tokenizer.unk_id, mask
        made = objective.example(piece, rng)
        source = np.concatenate([[start], piece, [end]])
        chosen = made["labels"] != IGNORE
        assert chosen.sum() == round(0.15 * 38)  # two of the 40 are special
        assert (made["labels"][chosen] == source[chosen]).all()
        assert (made["input_ids"][~chosen] == source[~chosen]).all()
        assert not np.isin(source[chosen], special).any()
        found = made["input_ids"][chosen]
        assert np.isin(found, [*words, mask]).all()
        same = found == source[chosen]
        fates += [(found == mask).sum(), (~same & (found != mask)).sum(), same.sum()]
    # 6,000 targets; one of len(words) random tokens is the old one. Four standard errors.
    wrong = 0.1 / len(words)
    shares = np.array([0.8, 0.1 - wrong, 0.1 + wrong])
    assert (abs(fates / 6000 - shares) < 4 * np.sqrt(shares * (1 - shares) / 6000)).all()


def test_shortest_piece_has_a_target(tokenizer: wordpiece.Tokenizer) -> None:
    objective = mlm.Objective(mlm.Config(max_length=60), tokenizer, Config(**SIZES))
    made = objective.example(np.array([tokenizer.encode("天")[0]]), np.random.default_rng(0))
    assert (made["labels"] != IGNORE).tolist() == [False, True, False]


def test_pairs_are_adjacent_or_of_two_documents_and_as_long_as_said(
    tokenizer: wordpiece.Tokenizer,
) -> None:
    objective = nsp.Objective(nsp.Config(max_length=60), tokenizer, Config(**SIZES))
    start, end = tokenizer.special_id("[CLS]"), tokenizer.special_id("[SEP]")
    rng, labels = np.random.default_rng(0), []
    for size, other in [(2, 1), (2, 40), (30, 3), (57, 57)] * 200:
        piece, negative = np.arange(100, 100 + size), np.arange(1000, 1000 + other)
        made = objective.example(piece, rng, [negative])
        ids, types = made["input_ids"], made["token_type_ids"]
        assert len(ids) == len(types) == objective.length(np.array([size]))[0]
        cut = int(types.argmax())
        assert (types == (np.arange(len(ids)) >= cut)).all()
        assert (ids[0], ids[cut - 1], ids[-1]) == (start, end, end)
        first, second = ids[1 : cut - 1], ids[cut:-1]
        label = int(made["next_sentence_label"][0])
        following = negative if label else piece[len(first) :]
        assert (first == piece[: len(first)]).all()
        assert (second == following[: len(second)]).all()
        assert min(len(first), len(second)) > 0
        labels.append(label)
    assert abs(np.mean(labels) - 0.5) < 4 * 0.5 / np.sqrt(len(labels))


def test_classifier_of_transformers_loads_and_must_be_whole(tmp_path: Path) -> None:
    theirs = _theirs("BertForSequenceClassification", num_labels=3)
    theirs.save_pretrained(tmp_path)
    settings, tensors = hf_layout.read(tmp_path)
    loaded = hf_model.from_hf(FAMILY, tmp_path, settings, tensors, allow_missing=("cls",))
    assert torch.equal(loaded.state["head.weight"], theirs.classifier.weight)
    assert torch.equal(loaded.state["head.bias"], theirs.classifier.bias)
    assert not loaded.unexpected
    tensors.pop("classifier.bias")
    with pytest.raises(FileError, match=r"classifier\.bias is missing, but classifier\.weight"):
        hf_model.from_hf(FAMILY, tmp_path, settings, tensors, allow_missing=("cls",))


def test_shown_targets_are_those_without_a_mask(tokenizer: wordpiece.Tokenizer) -> None:
    settings = mlm.Config(max_length=60, share=1.0, masked=0.5)
    objective = mlm.Objective(settings, tokenizer, Config(**SIZES))
    piece = np.array(tokenizer.encode("天地人山水花鸟鱼虫"))
    made = objective.example(piece, np.random.default_rng(0))
    masked = made["input_ids"][1:-1] == tokenizer.special_id("[MASK]")
    assert 0 < masked.sum() < len(piece)
    assert objective.shown(made).tolist() == [False, *~masked, False]
    assert objective.shown_rate == 0.5
