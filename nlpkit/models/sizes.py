"""Width, layers and heads of a model from one number: of its parameters, or of its layers.

A rule for all families, by the names of their settings: the width is `hidden_size`, about
`width_per_layer` times `num_layers`; a head is about HEAD wide, in steps of 8; inside feed-forward
layers the width grows as in the family's defaults. Parameters are counted on models without
numbers. Importable without torch.
"""

import math
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

from pydantic import ValidationError

from nlpkit.json_types import JsonMapping
from nlpkit.models.config import ModelConfig
from nlpkit.units import parse_number

WIDTH, LAYERS, HEADS, INSIDE = SIZES = "hidden_size", "num_layers", "num_heads", "intermediate_size"
HEAD, NARROWEST, WIDEST = 64, 48, 96  # width of a head: usual, and limits
NEAR = 0.01  # a size that is this near counts as reached
FAR = 0.1  # a model that is so far from the size is refused
_STEP, _MAX_WIDTH, _MAX_LAYERS = 8, 32768, 256


def parse_size(size: str | int) -> int:
    """Return the number in `15M`, `1.5B`, `800k` or 15000000; raise `ValueError`."""
    return parse_number(size, "parameters")


def sized_settings(config: type[ModelConfig]) -> list[str]:
    """Return the settings that a size decides in a family."""
    fields = config.model_fields
    return [name for name in SIZES if name in fields and fields[name].default is not None]


@dataclass(frozen=True)
class Family:
    """A family, with what the recipe says of its settings itself.

    `given` are the settings of the section `model`; `more` those that the run sets: kinds of
    attention, the size of a second vocabulary.
    """

    name: str
    config: type[ModelConfig]
    given: JsonMapping
    more: JsonMapping
    vocab_size: int
    _counted: dict[tuple[int, int], int] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        fields = self.config.model_fields
        lacking = [name for name in (WIDTH, LAYERS) if name not in fields]
        if lacking:
            raise ValueError(f"family {self.name} has no {' and no '.join(lacking)}; set its sizes")

    def settings(self, width: int, layers: int) -> dict[str, int]:
        """Return the settings of this width and depth that the recipe does not say itself."""
        found = {WIDTH: width, LAYERS: layers}
        if HEADS in self.config.model_fields:
            found[HEADS] = self._heads(width) or self.given[HEADS]
        inside, usual = self._default(INSIDE), self._default(WIDTH)
        if inside and usual:
            found[INSIDE] = max(_STEP, round(width * inside / usual / _STEP) * _STEP)
        return {name: value for name, value in found.items() if name not in self.given}

    def _default(self, name: str) -> int | None:
        field = self.config.model_fields.get(name)
        return field.get_default() if field is not None and not field.is_required() else None

    def _heads(self, width: int) -> int | None:
        """Return the number of heads of a width, or None if no number is right."""
        free = self.given.get("head_dim") or self._default("head_dim")
        if HEADS in self.given:
            return self.given[HEADS] if free or width % self.given[HEADS] == 0 else None
        if free:
            return max(1, round(width / free))
        if width < NARROWEST:
            return 1
        if WIDTH in self.given:
            divisors = [n for n in range(1, width + 1) if width % n == 0]
            return min(divisors, key=lambda n: abs(math.log(width / n / HEAD)))
        wide = range(NARROWEST, WIDEST + 1, _STEP)
        fitting = [head for head in wide if width % head == 0]
        return width // min(fitting, key=lambda h: abs(math.log(h / HEAD))) if fitting else None

    def count(self, width: int, layers: int) -> int:
        """Return the parameters of a model of this width and depth."""
        if (width, layers) not in self._counted:
            # Imported late: only recipes with a target size need torch.
            from nlpkit.models import families, meta

            settings = {**self.given, **self.settings(width, layers), **self.more}
            config = self.config.model_construct(**settings)
            model = meta.meta_model(families.load_model(self.name).Model, config, self.vocab_size)
            self._counted[width, layers] = sum(p.numel() for p in model.parameters())
        return self._counted[width, layers]

    def estimate(self, width: int, layers: int) -> float:
        """Return `count`, by two shallow models: a layer adds the same number at any depth.

        Layers whose kinds of attention learn different tensors count with their mean.
        """
        low = max(2, len(self.more.get("attention", ())))
        more = (self.count(width, 2 * low) - self.count(width, low)) / low
        return self.count(width, low) + (layers - low) * more

    def problem(self, width: int, layers: int, attention: bool = True) -> str | None:
        """Return why the family, or its `attention`, does not take these sizes, or None."""
        try:
            config = self.config.model_validate({**self.given, **self.settings(width, layers)})
        except ValidationError as error:
            return " ".join(error.errors()[0]["msg"].removeprefix("Value error, ").split())
        config = config.model_copy(update=dict(self.more))
        kinds = config.attention if attention else ()
        return next(filter(None, map(config.refuses_attention, kinds)), None)

    def widths(self) -> list[int]:
        """Return the widths that heads divide, smallest first; that of the recipe alone if any."""
        if WIDTH in self.given:
            return [self.given[WIDTH]]
        all_of_them = range(_STEP, _MAX_WIDTH + 1, _STEP)
        if HEADS not in self.config.model_fields:
            return list(all_of_them)
        return [width for width in all_of_them if self._heads(width)]

    def shape_cost(self, width: int, layers: int) -> float:
        """Return how far a shape is from the usual one; 0 is best."""
        cost = abs(math.log(width / (layers * self.config.width_per_layer)))
        heads = {**self.given, **self.settings(width, layers)}.get(HEADS)
        return cost + (0.5 * abs(math.log(width / heads / HEAD)) if heads else 0)


def fit_to_size(family: Family, size: int) -> dict[str, int]:
    """Return the settings of a model with about `size` parameters, as near as usual shapes allow.

    Raises:
        ValueError: no model of the family is near.
    """
    found = [
        (20 * max(0.0, abs(math.log(family.estimate(width, layers) / size)) - NEAR), width, layers)
        for width, layers in _around(family, size)
    ]
    found.sort(key=lambda each: each[0] + family.shape_cost(*each[1:]))
    width, layers = _first_right(family, [each[1:] for each in found])
    number = family.count(width, layers)
    if abs(math.log(number / size)) > math.log1p(FAR):
        raise ValueError(_too_far(family, size, number, width, layers))
    return family.settings(width, layers)


def _first_right(family: Family, shapes: Sequence[tuple[int, int]]) -> tuple[int, int]:
    # A kind of attention that takes no shape is a mistake of its own, which is named elsewhere.
    for attention in (True, False):
        for shape in shapes:
            if family.problem(*shape, attention=attention) is None:
                return shape
    raise ValueError(f"no sizes fit the other settings: {family.problem(*shapes[0])}")


def _around(family: Family, size: int) -> Iterator[tuple[int, int]]:
    """Yield for each depth the widths whose models are nearest to the size."""
    widths = family.widths()
    depths = [family.given[LAYERS]] if LAYERS in family.given else range(1, _MAX_LAYERS + 1)
    for layers in depths:
        low = bisect_left(widths, float(size), key=partial(family.estimate, layers=layers))
        for width in widths[max(0, low - 3) : low + 3]:
            yield width, layers
        # Deeper models of this size are ever narrower.
        if low < len(widths) and 4 * widths[low] < layers * family.config.width_per_layer:
            return


def _too_far(family: Family, size: int, number: int, width: int, layers: int) -> str:
    sizes = {**family.given, **family.settings(width, layers)}
    named = ", ".join(f"{name} {sizes[name]}" for name in SIZES if sizes.get(name))
    tokens = f" and {family.vocab_size:,} tokens" if family.vocab_size else ""
    said = [name for name in SIZES if name in family.given]
    remedy = f"remove {', '.join(said)}, or change the size" if said else "take another size"
    return (
        f"{size:,} parameters; the nearest {family.name}, with {named}{tokens}, has {number:,}; "
        f"{remedy}"
    )


def fit_to_depth(family: Family, depth: int) -> dict[str, int]:
    """Return the settings of a model with this number of layers, in the usual shape.

    Raises:
        ValueError: the recipe has another number of layers.
    """
    if family.given.get(LAYERS, depth) != depth:
        raise ValueError(f"{depth}, and {LAYERS} is {family.given[LAYERS]}; remove one of them")
    widths = sorted(family.widths(), key=lambda width: family.shape_cost(width, depth))
    return family.settings(*_first_right(family, [(width, depth) for width in widths]))
