"""Settings of rotary positions, and how transformers writes them. Imports no torch."""

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import ClassVar, Literal, get_args

from pydantic import Field, model_validator

from nlpkit.config import FrozenConfig, Layers, Size
from nlpkit.json_types import JsonMapping, JsonObject
from nlpkit.models.config import AttentionDropout, ModelConfig

Kind = Literal["default", "linear", "llama3", "yarn"]
# The settings that each kind has besides `theta`; those in the second row it needs.
_HAS: Mapping[str, tuple[str, ...]] = MappingProxyType({
    "default": (),
    "linear": ("factor",),
    "llama3": ("factor", "original_positions", "low_freq_factor", "high_freq_factor"),
    "yarn": (
        "factor", "original_positions", "beta_fast", "beta_slow", "attention_factor", "truncate"
    ),
})  # fmt: skip
_NEEDED = ("factor", "original_positions")
# Our settings with transformers' names.
_NAMES = {"original_positions": "original_max_position_embeddings"}


class Rope(FrozenConfig):
    """Rotary positions, and how they are stretched for sequences longer than those trained on."""

    theta: float = Field(10000.0, gt=1, description="base of the wavelengths")
    kind: Kind = Field("default", description="how wavelengths are stretched; default: not at all")
    factor: float | None = Field(None, gt=0, description="by how much they are stretched")
    original_positions: Size | None = Field(
        None, description="longest sequence before (llama3, yarn)"
    )
    low_freq_factor: float = Field(
        1.0, gt=0, description="llama3: turns in the longest sequence, below which all is stretched"
    )
    high_freq_factor: float = Field(4.0, gt=0, description="llama3: turns above which nothing is")
    beta_fast: float = Field(32.0, gt=0, description="yarn: turns above which nothing is stretched")
    beta_slow: float = Field(1.0, gt=0, description="yarn: turns below which all is stretched")
    attention_factor: float | None = Field(
        None, gt=0, description="yarn: of rotated queries and keys; null: 0.1 ln(factor) + 1"
    )
    truncate: bool = Field(True, description="yarn: whether the two limits are whole dimensions")

    @model_validator(mode="after")
    def _consistent(self) -> "Rope":
        has = _HAS[self.kind]
        for name in type(self).model_fields:
            if name not in ("theta", "kind", *has) and not self.is_default(name):
                raise ValueError(f"{name}: rotary positions of kind {self.kind} do not have it")
        if missing := [name for name in _NEEDED if name in has and getattr(self, name) is None]:
            raise ValueError(f"kind {self.kind} needs {' and '.join(missing)}")
        if self.kind == "llama3" and self.high_freq_factor <= self.low_freq_factor:
            raise ValueError("high_freq_factor must be greater than low_freq_factor")
        return self


class RotaryDecoderConfig(ModelConfig):
    """Sizes of a decoder with rotary positions; the defaults are those of LLaMA's 7B."""

    padded_vocabulary: ClassVar[bool] = True  # Qwen2, Pythia
    own_kind: ClassVar[str] = "causal"

    hidden_size: Size = Field(4096, description="width of the residual stream")
    num_layers: Layers = Field(32, description="number of blocks")
    num_heads: Size = Field(32, description="attention heads")
    intermediate_size: Size = Field(11008, description="width inside the feed-forward layers")
    max_positions: Size = Field(2048, description="the longest sequence")
    rope: Rope = Field(default_factory=Rope, description="rotary positions")
    tie: bool = Field(False, description="whether one table serves for input and output")
    norm_eps: float = Field(1e-6, gt=0, description="epsilon of the norms")
    attention_dropout: AttentionDropout = 0.0
    init_std: float = Field(0.02, gt=0, description="of the initial weights, normal around 0")

    @property
    def rotary_channels(self) -> int:
        """How many channels of a head turn: all of them."""
        return self.width_per_head


def write_rope(rope: Rope) -> JsonObject:
    """Return the settings in config.json, which transformers reads from version 4.43 on."""
    given = {name: getattr(rope, name) for name in _HAS[rope.kind]}
    scaling = {_NAMES.get(name, name): v for name, v in given.items() if v is not None}
    kind = {"rope_type": rope.kind}
    return {"rope_theta": rope.theta, "rope_scaling": kind | scaling if scaling else None}


def find_rope(settings: JsonMapping) -> JsonMapping:
    """Return the entry of config.json on rotary positions: of two, transformers reads the old."""
    return settings.get("rope_scaling") or settings.get("rope_parameters") or {}


def read_rope(settings: JsonMapping) -> JsonObject:
    """Return the arguments of `Rope` from config.json, as any version of transformers writes it.

    Raises:
        ValueError: the kind of positions is none of ours.
    """
    given = find_rope(settings)
    if any(isinstance(value, dict) for value in given.values()):
        raise ValueError("rope_parameters has one entry for each type of layer; here it is for all")
    kind = given.get("rope_type", given.get("type", "default"))
    if kind not in get_args(Kind):
        raise ValueError(f"rope_type is {kind!r}; this family has {', '.join(get_args(Kind))}")
    theta = given.get("rope_theta") or settings.get("rope_theta") or 10000.0
    found: JsonObject = {"theta": float(theta), "kind": kind}
    for name in _HAS[kind]:
        value = given.get(_NAMES.get(name, name))
        if value is not None:
            found[name] = value
    longest = settings.get("max_position_embeddings")
    if "original_positions" in _HAS[kind]:
        before = settings.get(_NAMES["original_positions"], found.get("original_positions"))
        found["original_positions"] = longest if before is None else before
    if kind == "yarn":
        if "factor" not in found and longest is not None:
            found["factor"] = longest / found["original_positions"]
        _read_scales(given, found)
    return found


def _read_scales(given: JsonMapping, found: JsonObject) -> None:
    """Add the factor that DeepSeek's two scales mean."""
    one, other = given.get("mscale"), given.get("mscale_all_dim")
    if "attention_factor" not in found and one and other:
        factor = found["factor"]
        found["attention_factor"] = yarn_scale(factor, one) / yarn_scale(factor, other)


def yarn_scale(factor: float, scale: float = 1.0) -> float:
    """Return what YaRN multiplies queries and keys by (Peng et al. 2023, eq. 22): 0.1 ln s + 1."""
    return 0.1 * scale * math.log(factor) + 1.0 if factor > 1 else 1.0
