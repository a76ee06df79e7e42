"""Low-rank adapters on any family's linear layers, on disk as peft has them.

h = W x + alpha / r * B A x (Hu et al. 2021, eq. 3); A is drawn as peft draws it (Kaiming uniform),
B is 0, so that training starts from the model as it is. W and all else are frozen, but for the
task's layer. A family says what its linear layers are called in transformers: `linear_names`.
"""

import hashlib
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch.nn.functional as F
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from nlpkit.errors import FileError, UsageError
from nlpkit.models import _hf
from nlpkit.models._lora_config import Config

SETTINGS, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_PREFIX = "base_model.model."


class LoraLinear(nn.Linear):
    """A linear layer whose weight is frozen, and the two matrices that are trained beside it."""

    def __init__(self, base: nn.Linear, config: Config):
        super().__init__(base.in_features, base.out_features, base.bias is not None, device="meta")
        self.weight, self.bias = base.weight, base.bias
        self.scale, self.dropout = config.alpha / config.rank, config.dropout
        self.lora_A = nn.Parameter(base.weight.new_empty(config.rank, base.in_features))
        self.lora_B = nn.Parameter(base.weight.new_zeros(base.out_features, config.rank))
        nn.init.kaiming_uniform_(self.lora_A, a=math.sqrt(5))

    def forward(self, x: Tensor) -> Tensor:
        low = F.linear(F.dropout(x, self.dropout, self.training), self.lora_A)
        return super().forward(x) + F.linear(low, self.lora_B) * self.scale


def targeted(config: Config, module: Any, model_config: Any) -> dict[str, str]:
    """Return the layers that get adapters: our names and transformers'.

    Raises:
        UsageError: a target is no linear layer of the family.
    """
    names: dict[str, str] = module.linear_names(model_config)
    wanted = list(module.LORA_TARGETS) if config.targets is None else config.targets
    found: dict[str, str] = {}
    for target in wanted:
        hits = {
            ours: theirs
            for ours, theirs in names.items()
            if any(name == target or name.endswith(f".{target}") for name in (ours, theirs))
        }
        if not hits:
            known = sorted({ours.rpartition(".")[2] for ours in names})
            raise UsageError(
                f"lora.targets: no linear layer {target!r} in this model; it has {', '.join(known)}"
            )
        found |= hits
    return found


def adapt(model: nn.Module, config: Config, targets: Mapping[str, str]) -> None:
    """Freeze `model`, but for the task's layer, and give the targets their adapters."""
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name == _hf.HEAD)
    for name in targets:
        parent, _, leaf = name.rpartition(".")
        owner = model.get_submodule(parent)
        setattr(owner, leaf, LoraLinear(getattr(owner, leaf), config))


def write(
    directory: Path,
    module: Any,
    config: Config,
    targets: Mapping[str, str],
    weights: Mapping[str, Tensor],
    table: Tensor | None,
    base: Path,
) -> None:
    """Write `adapter_config.json` and `adapter_model.safetensors` as peft does.

    Args:
        module: the family's `model.py`.
        weights: the model's state dict; of it the adapters and the task's layer are kept.
        table: transformers' token table, where it has grown.
        base: the checkpoint that the adapters belong to.
    """
    tensors = {}
    for ours, theirs in targets.items():
        for matrix in ("lora_A", "lora_B"):
            tensors[f"{_PREFIX}{theirs}.{matrix}.weight"] = weights[f"{ours}.{matrix}"]
    if _hf.HEAD in weights:
        tensors[f"{_PREFIX}{_hf.THEIR_HEAD}"] = weights[_hf.HEAD]
    if table is not None:
        tensors[f"{_PREFIX}{module.EMBEDDING}"] = table
    settings = {
        "peft_type": "LORA",
        "task_type": "SEQ_CLS" if _hf.HEAD in weights else "CAUSAL_LM",
        "base_model_name_or_path": str(base),
        "r": config.rank,
        "lora_alpha": config.alpha,
        "lora_dropout": config.dropout,
        "target_modules": sorted({theirs.rpartition(".")[2] for theirs in targets.values()}),
        "fan_in_fan_out": module.TRANSPOSED,
        "bias": "none",
        "modules_to_save": [_hf.THEIR_HEAD.split(".")[0]] if _hf.HEAD in weights else None,
        "inference_mode": True,
    }
    text = json.dumps(settings, indent=2)
    (directory / SETTINGS).write_text(text + "\n", encoding="utf-8")
    whole = {name: tensor.contiguous() for name, tensor in tensors.items()}
    save_file(whole, directory / WEIGHTS, metadata={"format": "pt"})


def read_state(
    directory: Path, module: Any, targets: Mapping[str, str], vocab_size: int
) -> dict[str, Tensor]:
    """Return the part of a state dict that a directory of our adapters holds.

    Raises:
        KeyError: an adapter is missing.
    """
    tensors = _read_tensors(directory)
    state = {
        f"{ours}.{matrix}": tensors[f"{_PREFIX}{theirs}.{matrix}.weight"]
        for ours, theirs in targets.items()
        for matrix in ("lora_A", "lora_B")
    }
    if _PREFIX + _hf.THEIR_HEAD in tensors:
        state[_hf.HEAD] = tensors[_PREFIX + _hf.THEIR_HEAD]
    if _PREFIX + module.EMBEDDING in tensors:
        # Behind the words there may be other rows, such as soft prompts.
        state["token_embedding"] = tensors[_PREFIX + module.EMBEDDING][:vocab_size].clone()
    return state


def read(directory: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return settings and tensors of a checkpoint, adapters merged into their base.

    Raises:
        FileError: something is missing or damaged, or the base is not the one they were made for.
    """
    adapter = read_settings(directory)
    if adapter is None:
        return _hf.read(directory)
    base = base_of(directory, adapter)
    settings, tensors = _hf.read(base)
    if (directory / "config.json").is_file():
        settings = _hf.read_settings(directory)
    return settings, merged(tensors, adapter, _read_tensors(directory), directory / SETTINGS)


def base_of(directory: Path, adapter: Mapping[str, Any]) -> Path:
    """Return the checkpoint that adapters belong to, its content compared where it is known."""
    named = adapter.get("base_model_name_or_path")
    if not isinstance(named, str):
        raise FileError(f"{directory / SETTINGS}: names no base_model_name_or_path")
    places = [Path(named), directory / named]
    base = next((place for place in places if (place / "config.json").is_file()), None)
    if base is None:
        raise FileError(
            f"{directory}: its base {named} is not there; put it back, or change "
            f"base_model_name_or_path in {SETTINGS}"
        )
    wanted = _hf.read_notes(directory).get("base")
    if wanted is not None and wanted != content_hash(base):
        raise FileError(f"{directory}: {base} is another model than these adapters were made for")
    return base


def _read_tensors(directory: Path) -> dict[str, Tensor]:
    path = directory / WEIGHTS
    try:
        return load_file(path)
    except (SafetensorError, OSError) as error:
        raise FileError(f"{path}: not a readable safetensors file: {error}") from error


def merged(
    base: Mapping[str, Tensor],
    settings: Mapping[str, Any],
    adapters: Mapping[str, Tensor],
    where: Path,
) -> dict[str, Tensor]:
    """Return the base's tensors, W + alpha / r * B A where there is an adapter.

    Raises:
        FileError: another method than LoRA, or an adapter of a layer that the base has not.
    """
    _check(settings, where)
    tensors = dict(base)
    rank = settings["r"]
    scale = settings["lora_alpha"] / (math.sqrt(rank) if settings.get("use_rslora") else rank)
    for name, tensor in adapters.items():
        layer = name.removeprefix(_PREFIX)
        if layer.endswith(".lora_B.weight"):
            continue
        if not layer.endswith(".lora_A.weight"):
            tensors[layer] = tensor
            continue
        layer = layer.removesuffix(".lora_A.weight")
        weight, other = f"{layer}.weight", name.replace(".lora_A.", ".lora_B.")
        if weight not in tensors or other not in adapters:
            raise FileError(f"{where}: an adapter of {layer}, which the base has not")
        delta = scale * (adapters[other].float() @ tensor.float())
        delta = delta.T if settings.get("fan_in_fan_out") else delta
        if delta.shape != tensors[weight].shape:
            raise FileError(
                f"{where}: the adapter of {layer} is {tuple(delta.shape)}, the base's layer "
                f"{tuple(tensors[weight].shape)}"
            )
        tensors[weight] = (tensors[weight].float() + delta).to(tensors[weight].dtype)
    return tensors


def _check(settings: Mapping[str, Any], where: Path) -> None:
    odd = [
        name
        for name in ("use_dora", "rank_pattern", "alpha_pattern", "trainable_token_indices")
        if settings.get(name)
    ]
    if settings.get("peft_type") != "LORA" or odd:
        what = ", ".join(odd) or f"peft_type {settings.get('peft_type')}"
        raise FileError(f"{where}: {what}: only plain LoRA adapters are read")
    if not all(isinstance(settings.get(name), (int, float)) for name in ("r", "lora_alpha")):
        raise FileError(f"{where}: needs the numbers r and lora_alpha")


def content_hash(directory: Path) -> str:
    """Return a SHA-256 over the weights of a checkpoint directory."""
    digest = hashlib.sha256()
    for path in sorted(directory.glob("*.safetensors")):
        if path.name == "optimizer.safetensors":
            continue
        with open(path, "rb") as file:
            while chunk := file.read(1 << 20):
                digest.update(chunk)
    return digest.hexdigest()


def read_settings(directory: Path) -> dict[str, Any] | None:
    """Return `adapter_config.json` of a directory, or None if it holds no adapters."""
    path = directory / SETTINGS
    if not path.is_file():
        return None
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise FileError(f"{path}: cannot be read: {error}") from error
    if not isinstance(content, dict):
        raise FileError(f"{path}: not a JSON object")
    return content
