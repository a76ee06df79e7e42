"""Members of a mixture of objectives: their settings, and checks that they can be mixed."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import numpy as np
from pydantic import Field as Setting

from nlpkit import registry
from nlpkit.config import Part, name_in
from nlpkit.contracts.batch import SOURCE_LENGTHS, Term
from nlpkit.contracts.objective import Objective


class Member(Part):
    """One of the objectives, with its own settings."""

    FOLDER = "objectives"
    name: Annotated[str, name_in("objectives"), Setting(description="training objective")]
    weight: float = Setting(1.0, gt=0, description="relative frequency of this objective")
    alias: str | None = Setting(
        None, min_length=1, description="name of its losses; default: the objective's name"
    )
    config: Any = None

    @property
    def label(self) -> str:
        return self.alias or self.name.rpartition(".")[2]

    @property
    def objective(self) -> type[Objective]:
        """The class of the objective."""
        objective: type[Objective] = registry.load(self.FOLDER, self.name).Objective
        return objective


def names(settings: object) -> Iterator[str]:
    """Yield the names of an objective and of its members, from its settings as read from YAML."""
    if not isinstance(settings, dict):
        return
    if isinstance(name := settings.get(Member.KEY), str):
        yield name
    members = settings.get("of")
    for member in members if isinstance(members, list) else []:
        yield from names(member)


def difference(one: Objective | type[Objective], other: Objective | type[Objective]) -> str:
    """Return why two objectives (or classes) cannot be mixed, or an empty string."""
    if {*one.inputs} != {*other.inputs}:
        ours, theirs = (", ".join(each.inputs) for each in (one, other))
        what = f"give the model other inputs: {ours}, and {theirs}"
        return "; ".join(filter(None, (what, one.beside_others, other.beside_others)))
    if one.drop_unknown != other.drop_unknown:
        return "do not both leave out unknown tokens"
    shared = one.fields.keys() & other.fields.keys()
    differing = sorted(name for name in shared if one.fields[name] != other.fields[name])
    of_source = {n for n, k in ({**one.fields, **other.fields}).items() if k.per == "source"}
    if differing := differing or sorted(of_source - shared):
        return f"have other fields {differing[0]}"
    return ""


def sum_terms(name: str, one: Term, other: Term) -> Term:
    """Return the sum of a term of two members; raise `ValueError` if its weights differ."""
    if one.weight != other.weight:
        raise ValueError(
            f"objective.of: two members have a loss {name}, with the weights {one.weight:g} and "
            f"{other.weight:g}; they must be equal"
        )
    return Term(
        one.loss_sum + other.loss_sum,
        one.num_targets + other.num_targets,
        one.weight,
        {**(one.parts or {}), **(other.parts or {})},
        one.is_text and other.is_text,
    )


def select_sequences(
    member: Objective, fields: Mapping[str, Any], sizes: np.ndarray, chosen: np.ndarray
) -> dict[str, Any]:
    """Return a member's fields for the sequences `chosen` (S,) bool, of `sizes` (S,) tokens."""
    picked = {"token": np.repeat(chosen, sizes), "sequence": chosen}
    found: dict[str, Any] = {}
    if SOURCE_LENGTHS in fields:
        lengths = np.array(fields[SOURCE_LENGTHS])
        picked["source"] = np.repeat(chosen, lengths)
        found[SOURCE_LENGTHS] = tuple(lengths[chosen].tolist())
    return found | {
        name: select_rows(fields[name], picked[kind.per]) for name, kind in member.fields.items()
    }


def select_rows(values: Any, chosen: np.ndarray) -> Any:
    """Return the rows `chosen` (N,) bool of an array or a tensor."""
    if isinstance(values, np.ndarray):
        return values[chosen]
    import torch

    return values[torch.from_numpy(np.flatnonzero(chosen)).to(values.device)]
