"""Decoders against the models of transformers with the same weights: one proof for all families."""

from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

from nlpkit.attention.cache import Cache
from nlpkit.checkpoints import hf_layout, hf_model, hf_writing
from nlpkit.models import families
from tests._formats import from_hf, to_hf

VOCAB = 61
LENGTHS = (9, 30, 1, 17)
CLOSE = {"atol": 1e-5, "rtol": 1e-5}


def drawn(architecture: type[nn.Module], config: Any) -> Any:
    """Return a model of transformers, whose weights are so large that every part matters."""
    torch.manual_seed(0)
    model = architecture(config).eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    return model


def opened(family: str, directory: Path) -> Any:
    """Return our model of a checkpoint directory, all of whose tensors are read."""
    loaded = hf_model.from_hf(family, directory, *hf_layout.read(directory))
    assert loaded.unexpected == ()
    model = families.load_model(family).Model(loaded.config, VOCAB).eval()
    model.load_state_dict(loaded.state)
    return model


def tokens(total: int = sum(LENGTHS), seed: int = 0) -> Tensor:
    """Return ids (N,), none of which is 0."""
    return torch.randint(1, VOCAB, (total,), generator=torch.Generator().manual_seed(seed))


def padded(ids: Tensor) -> dict[str, Tensor]:
    """Return what a model of transformers takes: a row for each sequence."""
    parts = ids.split(LENGTHS)
    ones = [torch.ones_like(part) for part in parts]
    rows, mask = (nn.utils.rnn.pad_sequence([*each], batch_first=True) for each in (parts, ones))
    return {"input_ids": rows, "attention_mask": mask}


def logits(theirs: Any, ids: Tensor) -> Tensor:
    """Return the logits (N, V) of a model of transformers, which reads a padded batch."""
    given = padded(ids)
    return theirs(**given).logits[given["attention_mask"].bool()]


def assert_is_theirs(family: str, theirs: Any, folder: Path) -> Any:
    """Assert that a model of transformers is ours; return ours.

    Logits, loss and gradients of a pack are those of its padded batch; what we write opens there
    without a report and comes back exactly; steps with a cache give the states of the whole.
    """
    theirs.save_pretrained(folder)
    model = opened(family, folder)
    _assert_trains_alike(family, theirs, model)
    _assert_files_come_back(family, theirs, model, folder / "ours")
    ids = tokens(24)
    with torch.no_grad():
        whole, cache = model((24,), ids), Cache()
        states = [model((7,), ids[:7], cache=cache)]
        states += [model((1,), ids[i : i + 1], cache=cache) for i in range(7, 24)]
    torch.testing.assert_close(torch.cat(states), whole, **CLOSE)
    return model


def _assert_trains_alike(family: str, theirs: Any, model: Any) -> None:
    ids, labels = tokens(), tokens(seed=1)
    expected = logits(theirs, ids)
    for backend in ("reference", "sdpa", "auto"):
        model.backend = backend
        hidden = model(LENGTHS, ids)
        torch.testing.assert_close(model.logits(hidden), expected, **CLOSE)
    loss, _ = model.token_loss(hidden, torch.arange(len(ids)), labels)
    right = F.cross_entropy(expected, labels, reduction="sum")
    torch.testing.assert_close(loss, right, rtol=1e-6, atol=0)
    (loss / len(ids)).backward()
    (right / len(ids)).backward()
    _, ours = to_hf(family, model.config, {name: p.grad for name, p in model.named_parameters()})
    wanted = {}
    for name, parameter in theirs.named_parameters():  # a tied table once
        for on_disk, in_memory in families.load_model(family).FORMAT.in_memory.items():
            name = name.replace(in_memory, on_disk)
        wanted[name] = parameter.grad
    assert len(ours.keys() - wanted.keys()) == model.config.setting("tie", True)
    for name, grad in wanted.items():
        torch.testing.assert_close(ours[name], grad, atol=1e-5, rtol=1e-4, msg=name)


def _assert_files_come_back(family: str, theirs: Any, model: Any, folder: Path) -> None:
    folder.mkdir()
    hf_writing.write(folder, *to_hf(family, model.config, model.state_dict()))
    again, report = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert type(again) is type(theirs)
    assert not any(report.values()), report
    found, expected = (logits(each.eval(), tokens()) for each in (again, theirs))
    torch.testing.assert_close(found, expected, **CLOSE)
    config, state = from_hf(family, folder)
    written = {"head_dim": model.config.width_per_head} if "head_dim" in vars(config) else {}
    assert config == model.config.model_copy(update=written)
    assert all(torch.equal(state[name], value) for name, value in model.state_dict().items())
