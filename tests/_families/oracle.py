"""Families against the models of transformers with the same weights, on packs of sequences."""

from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn

from nlpkit.checkpoints import hf_layout, hf_model, hf_writing
from nlpkit.contracts.batch import IGNORE
from nlpkit.models import families

VOCAB = 70
LENGTHS = (9, 4, 12)
CLOSE = {"atol": 1e-5, "rtol": 1e-5}
_FIRST = 5  # id of the first token that can be no padding token of transformers


def drawn(architecture: str, config: Any) -> nn.Module:
    """Return a model of transformers in evaluation mode; large values, so that every part counts.

    Its eager attention computes as the papers say.
    """
    torch.manual_seed(0)
    model = getattr(transformers, architecture)(config).eval()
    model.set_attn_implementation("eager")
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.2)
    return model


def ours(family: str, directory: Path, **allowed: tuple[str, ...]) -> tuple[Any, Any]:
    """Return the family's model of a checkpoint directory, and how it was loaded."""
    settings, tensors = hf_layout.read(directory)
    loaded = hf_model.from_hf(family, directory, settings, tensors, **allowed)
    model = families.load_model(family).Model(loaded.config, VOCAB).eval()
    body = {name: value for name, value in loaded.state.items() if not name.startswith("head.")}
    model.load_state_dict(body, strict=not loaded.missing and loaded.head is None)
    return model, loaded


def tokens() -> Tensor:
    """Return the ids of a pack, none of which transformers takes as padding."""
    draw = torch.Generator().manual_seed(1)
    return torch.randint(_FIRST, VOCAB, (sum(LENGTHS),), generator=draw)


def types() -> Tensor:
    """Return the token types of a pack: the second half of each sequence is another text."""
    return torch.cat([(torch.arange(n) > n // 2).long() for n in LENGTHS])


def masked_labels(ids: Tensor) -> Tensor:
    """Return targets at every third token, other ones than the tokens."""
    labels = torch.full_like(ids, IGNORE)
    labels[::3] = ids.flip(0)[::3]
    return labels


def padded(flat: Tensor, value: int = 0) -> Tensor:
    """Return a row for each sequence, as transformers takes them."""
    return nn.utils.rnn.pad_sequence(flat.split(LENGTHS), True, padding_value=value)


def seen(rows: Tensor) -> Tensor:
    """Return (N, …), the tokens of rows without padding."""
    return torch.cat([row[:n] for row, n in zip(rows, LENGTHS, strict=True)])


def inputs(ids: Tensor, pad: int = 0, token_types: Tensor | None = None) -> dict[str, Tensor]:
    """Return what a model of transformers takes."""
    given = {"input_ids": padded(ids, pad), "attention_mask": padded(torch.ones_like(ids))}
    return given if token_types is None else given | {"token_type_ids": padded(token_types)}


def assert_gradients_equal(family: str, loaded: Any, model: Any, theirs: nn.Module) -> None:
    """Assert that all gradients of transformers' model are ours, under its names."""
    gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    written = hf_writing.to_hf(family, loaded.config, gradients)[""][1]
    compared = 0
    for name, parameter in theirs.named_parameters():
        if parameter.grad is not None:
            torch.testing.assert_close(written[name], parameter.grad, **CLOSE, msg=name)
            compared += 1
    assert compared > 10


def assert_opens_both_ways(family: str, config: Any, architecture: str, directory: Path) -> None:
    """Assert that our checkpoint opens in transformers without a report, and comes back exactly."""
    torch.manual_seed(2)
    model = families.load_model(family).Model(config, VOCAB).eval()
    written = hf_writing.to_hf(family, config, model.state_dict())
    hf_writing.write_folders(directory, written)
    theirs, report = getattr(transformers, architecture).from_pretrained(
        directory, output_loading_info=True
    )
    assert not any(report.values()), report
    theirs.save_pretrained(directory / "again")
    again, loaded = ours(family, directory / "again")
    assert loaded.config == config
    assert not loaded.unexpected
    state = model.state_dict()
    assert again.state_dict().keys() == state.keys()
    assert all(torch.equal(again.state_dict()[name], value) for name, value in state.items())
