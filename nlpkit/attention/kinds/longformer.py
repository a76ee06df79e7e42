"""Each token sees a window, global tokens see all tokens, and all tokens see them (Longformer).

Beltagy et al. 2020, arXiv:2004.05150, sec. 3.1. A token sees `window` / 2 tokens to each side and
itself, as in the authors' code, or with `causal` those to its left. With a dilation d these are the
tokens at distances d, 2 d, …; each of several dilations is for an equal group of heads. Which
tokens are global is a rule. Projections of their own for global tokens belong to the family
`longformer`; in other families they have those of all tokens.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, field_validator

from nlpkit.attention.forms import sides
from nlpkit.contracts.kind import Range, Tokens, Visibility

if TYPE_CHECKING:
    from torch import Tensor

VISIBILITY: Visibility = "causal"
FIELDS = ("position", "token_type_ids", "text")
OPTIONAL = ("token_type_ids", "text")
COST = "N · (window + 2 · global tokens)"
visibility = sides.visibility
# The field that a rule reads, with its value; the other rules read positions.
_TEXTS = {"question": 1, "answer": 2}

Step = Annotated[int, Field(ge=1)]


class Config(sides.SidesConfig):
    """The window, its dilation, and the rule for global tokens."""

    window: int = Field(
        512, ge=2, description="tokens seen beside the token itself, half of them to each side"
    )
    dilation: Step | Annotated[tuple[Step, ...], Field(min_length=1, strict=False)] = Field(
        1,
        description="distance of two tokens of the window; of several, each is for an equal group "
        "of heads",
    )
    global_tokens: Literal["none", "first", "question", "answer", "type"] = Field(
        "first",
        description="the first token of a sequence; the first or second of its two texts, without "
        "delimiters; the tokens of a type; or none",
    )
    global_type: int = Field(0, ge=0, description="token type of global tokens of the rule type")

    @field_validator("window")
    @classmethod
    def _check_window(cls, window: int) -> int:
        if window % 2:
            raise ValueError(f"{window} is odd; half of the window is to each side")
        return window

    @property
    def dilations(self) -> tuple[int, ...]:
        """The dilation of each group of heads."""
        return (self.dilation,) if isinstance(self.dilation, int) else self.dilation

    def without_effect(self) -> dict[str, str]:
        if self.global_tokens == "type":
            return {}
        return {"global_type": f"with global_tokens {self.global_tokens}"}


def required_fields(config: Config) -> frozenset[str]:
    """Return the fields that the rule for global tokens reads."""
    if config.global_tokens == "type":
        return frozenset({"token_type_ids"})
    return frozenset({"text"} if config.global_tokens in _TEXTS else ())


def find_global(config: Config, tokens: Tokens) -> Tensor:
    """Return True where a token is global; without the fields of the rule, the first one is."""
    rule, place = config.global_tokens, tokens["position"]
    if rule == "none":
        return place < 0
    if rule == "type" and "token_type_ids" in tokens:
        return tokens["token_type_ids"] == config.global_type
    if rule in _TEXTS and "text" in tokens:
        return tokens["text"] == _TEXTS[rule]
    return place == 0


def mask(config: Config, q: Tokens, k: Tokens) -> Tensor:
    """Return True where the key is in the window, or the query or the key is global.

    With several dilations, what all heads see together.
    """
    distance = (q["position"] - k["position"]).abs()
    seen = find_global(config, q) | find_global(config, k)
    for step in config.dilations:
        seen = seen | ((distance % step == 0) & (distance <= config.window // 2 * step))
    return seen & sides.mask(config, q, k)


def head_groups(config: Config) -> tuple[Config, ...]:
    """Return the settings of each dilation, for equal groups of heads."""
    if len(config.dilations) == 1:
        return ()
    return tuple(config.model_copy(update={"dilation": step}) for step in config.dilations)


def keys_in_sight(config: Config) -> tuple[int, int] | None:
    """Return how many keys to the left and to the right a query sees without global tokens."""
    if config.global_tokens != "none" or config.dilations != (1,):
        return None
    half = config.window // 2
    return half, 0 if sides.is_causal(config) else half


def ranges(config: Config, q: Tokens, k: Tokens) -> list[Range]:
    """Return the window of local queries, the global keys, and the other keys of global queries.

    Of several dilations each is asked for alone.
    """
    import torch

    (step,), place = config.dilations, q["position"]
    far = config.window // 2 * step
    from_global, to_global = find_global(config, q), find_global(config, k)
    end = place if sides.is_causal(config) else torch.full_like(place, torch.iinfo(torch.int32).max)
    none = torch.full_like(place, -1)
    of_query = place % step
    of_key = torch.where(to_global, -1, k["position"] % step)
    last = torch.where(from_global, none, end.minimum(place + far))
    window = Range(place - far, last, of_query, of_key)
    if config.global_tokens == "none":
        return [window]
    zero = torch.zeros_like(place)
    return [
        window,
        Range(zero, end, zero, to_global.long() - 1),
        Range(zero, torch.where(from_global, end, none), zero, -to_global.long()),
    ]
