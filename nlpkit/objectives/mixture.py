"""Several objectives in one run: each example is made by one of them, drawn by weight.

`objective: {name: mixture, of: [{name: clm, weight: 2}, {name: mylab.denoise}]}`, as UniLM mixes
four masks (Dong et al. 2019, arXiv:1905.03197, sec. 2.3). A list of objectives is something else:
there every example has the losses of all.

The members cut documents alike and make examples of the same length and with the same inputs, so
that an epoch can be packed before anything is drawn. Terms of the same name are one term, a mean
over the targets of all its members. The weight of a term is the share of the examples that have it,
times its own weight.

N tokens of a pack, S sequences of it, T tokens of an example.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from pydantic import ConfigDict, field_validator
from pydantic import Field as Setting

from nlpkit import registry
from nlpkit.config import FrozenConfig
from nlpkit.data.marks import Marked
from nlpkit.data.pack import LENGTHS, SOURCE_LENGTHS, Batch
from nlpkit.errors import UsageError
from nlpkit.objectives._combined import joined
from nlpkit.objectives.contract import (
    IGNORE,
    Field,
    Filling,
    Generative,
    Loss,
    Spans,
    Term,
    TextObjective,
    TrainedModel,
)
from nlpkit.objectives.contract import Objective as Contract
from nlpkit.part import Part, name_in

if TYPE_CHECKING:
    import torch

    from nlpkit.tokenizers.contract import Tokenizer

MEMBER, TOKENS = "member", "tokens"  # fields of a sequence: who made it, and how long it is


def _open_schema(schema: dict[str, Any]) -> None:
    """Let the JSON schema of a member allow the settings of its objective."""
    del schema["properties"]["config"]
    schema["additionalProperties"] = True


class Member(Part):
    """One of the objectives, with its own settings."""

    model_config = ConfigDict(json_schema_extra=_open_schema)
    FOLDER = "objectives"
    KEY = "name"
    name: Annotated[str, name_in("objectives"), Setting(description="training objective")]
    weight: float = Setting(1.0, gt=0, description="how often it is drawn, beside the others")
    alias: str | None = Setting(
        None, min_length=1, description="what its losses are called; default: its name"
    )
    config: Any = None

    @property
    def label(self) -> str:
        """What its losses are called."""
        return self.alias or self.name.rpartition(".")[2]

    @property
    def objective(self) -> type[Contract]:
        """The class of the objective."""
        found: type[Contract] = registry.load(self.FOLDER, self.name).Objective
        return found


class Config(FrozenConfig):
    """Which objectives are mixed."""

    of: list[Member] = Setting(min_length=2, description="objectives, each with a weight")

    @field_validator("of")
    @classmethod
    def _told_apart(cls, of: list[Member]) -> list[Member]:
        labels = [member.label for member in of]
        if twice := [label for label in labels if labels.count(label) > 1]:
            raise ValueError(f"two of them are called {twice[0]}; give one of them an alias")
        return of


class Objective(TextObjective):
    """Examples and losses of the members."""

    parts: tuple[str, ...] = ()
    inputs: tuple[str, ...] = ()
    fields: Mapping[str, Field] = {}

    def __init__(self, config: Config, tokenizer: Tokenizer, model_config: Any):
        """Bind the members.

        Raises:
            ValueError: a member refuses its settings, or two members do not fit together.
        """
        self.config = config
        self.labels = tuple(member.label for member in config.of)
        self.members = tuple(
            _bound(number, member, tokenizer, model_config)
            for number, member in enumerate(config.of)
        )
        weights = np.array([member.weight for member in config.of])
        self.shares = weights / weights.sum()
        for one, other in combinations(range(len(self.members)), 2):
            if what := difference(self.members[one], self.members[other]):
                raise ValueError(
                    f"objective.of: {self.labels[one]} and {self.labels[other]} {what}"
                )
        first = self.members[0]
        self.inputs = first.inputs
        self.drop_unknown = first.drop_unknown
        self.needs = joined(member.needs for member in self.members)
        self.marks = joined(member.marks for member in self.members)
        self.mates = max(member.mates for member in self.members)
        self.predicts_text = any(member.predicts_text for member in self.members)
        self.parts = tuple(
            self._name(number, part)
            for number, member in enumerate(self.members)
            for part in member.parts
        )
        self.fields = {
            name: kind for member in self.members for name, kind in member.fields.items()
        }
        self.fields |= {
            MEMBER: Field(np.int64, per="sequence", names=self.labels),
            TOKENS: Field(np.int64, per="sequence"),
        }
        self.token_field = next(n for n, kind in self.fields.items() if kind.per == "token")
        self._generate_as(next((m for m in self.members if isinstance(m, Generative)), None))

    def _generate_as(self, member: Generative | None) -> None:
        """Generate text as the first member that can."""
        if member is None:
            return
        self.max_length, self.eos_token_ids = member.max_length, member.eos_token_ids
        self.suppress_tokens, self.continue_text = member.suppress_tokens, member.continue_text
        if isinstance(member, Filling):
            self.fill_blanks = member.fill_blanks

    def _name(self, number: int, part: str) -> str:
        """Return what a part of a member's loss is called."""
        alone = len(self.members[number].parts) == 1
        return self.labels[number] if alone else f"{self.labels[number]}.{part}"

    def spans(self, lengths: np.ndarray) -> Spans:
        """Return the spans of the members.

        Raises:
            UsageError: the members cut documents differently, or make examples of other lengths.
        """
        first, *others = (member.spans(lengths) for member in self.members)
        for number, other in enumerate(others, 1):
            names = f"{self.labels[0]} and {self.labels[number]}"
            if not _same_spans(first, other):
                raise UsageError(
                    f"objective.of: {names} cut documents differently; give both the same "
                    "max_length, and whatever else decides where a piece ends"
                )
            sizes = first.stop - first.start
            if not np.array_equal(self.length(sizes), self.members[number].length(sizes)):
                raise UsageError(
                    f"objective.of: {names} make examples of other lengths from the same piece; "
                    "members must have the same number of tokens beside it"
                )
        return first

    def length(self, pieces: np.ndarray) -> np.ndarray:
        """Return the tokens of the examples made from pieces of these lengths (I,)."""
        return self.members[0].length(pieces)

    def example(
        self, ids: Any, rng: np.random.Generator, mates: Sequence[Any] = ()
    ) -> dict[str, np.ndarray]:
        """Return an example of a member, with the fields of the others filled in."""
        bounds = np.cumsum(self.shares)[:-1]
        number = int(np.searchsorted(bounds, rng.random(), side="right"))
        member = self.members[number]
        texts = [ids, *mates[: member.mates]]
        if not member.marks:
            texts = [text.ids if isinstance(text, Marked) else text for text in texts]
        made = member.example(texts[0], rng, *([texts[1:]] if member.mates else []))
        sizes = made.get(LENGTHS, np.array([len(made[self.token_field])], np.int64))
        counts = {"token": int(sizes.sum()), "sequence": len(sizes)}
        made |= {MEMBER: np.full(len(sizes), number), TOKENS: sizes, LENGTHS: sizes}
        lacking = {name: kind for name, kind in self.fields.items() if name not in made}
        return made | {
            name: np.full(counts[kind.per], IGNORE if name == "labels" else 0, kind.dtype)
            for name, kind in lacking.items()
        }

    def num_targets(self, batch: Mapping[str, np.ndarray]) -> dict[str, int]:
        """Return the targets of each term of each member."""
        found: dict[str, int] = {}
        for number, member in enumerate(self.members):
            chosen = batch[MEMBER] == number
            own = self._taken(batch, batch[TOKENS], chosen, member)
            for name, count in member.num_targets(own).items():
                found[name] = found.get(name, 0) + count
        return found

    def loss(self, model: TrainedModel, hidden: torch.Tensor, batch: Batch) -> Loss:
        """Return the terms of all members, each from the sequences that the member made."""
        made_by = np.array(batch.fields[MEMBER].tolist())
        terms: dict[str, Term] = {}
        shares: dict[str, float] = {}
        for number, share in enumerate(self.shares.tolist()):
            for name, term in self._terms(number, made_by == number, model, hidden, batch).items():
                terms[name] = _sum(name, terms[name], term) if name in terms else term
                shares[name] = shares.get(name, 0.0) + share
        return Loss({n: replace(t, weight=t.weight * shares[n]) for n, t in terms.items()})

    def _terms(
        self,
        number: int,
        chosen: np.ndarray,
        model: TrainedModel,
        hidden: torch.Tensor,
        batch: Batch,
    ) -> dict[str, Term]:
        """Return the terms of a member from its sequences (S,) bool.

        Without any it judges a sequence of another member, times 0: all processes must have the
        same terms, and gradients for the same parameters.
        """
        member, present = self.members[number], bool(chosen.any())
        if not present:
            chosen = np.arange(len(chosen)) == 0
        sizes = np.array(batch.lengths)
        own = Batch(
            self._taken(batch.fields, sizes, chosen, member),
            tuple(sizes[chosen].tolist()),
            progress=batch.progress,
        )
        rows = np.repeat(chosen, sizes)
        found = member.loss(model, _rows(hidden, rows), own).terms
        return {name: self._named(number, name, term, present) for name, term in found.items()}

    def _named(self, number: int, name: str, term: Term, present: bool) -> Term:
        """Return a term of a member, its parts under the member's name; 0 if it is not present."""
        parts = term.parts or {name: (term.loss_sum.detach(), term.num_targets)}
        return replace(
            term,
            loss_sum=term.loss_sum * present,
            num_targets=term.num_targets * present,
            parts={
                self._name(number, part): (total * present, count * present)
                for part, (total, count) in parts.items()
            },
        )

    def _taken(
        self, fields: Mapping[str, Any], sizes: np.ndarray, chosen: np.ndarray, member: Contract
    ) -> dict[str, Any]:
        """Return the member's fields of the sequences that are `chosen` (S,) bool."""
        picked = {"token": np.repeat(chosen, sizes), "sequence": chosen}
        found: dict[str, Any] = {}
        if SOURCE_LENGTHS in fields:
            lengths = np.array(fields[SOURCE_LENGTHS])
            picked["source"] = np.repeat(chosen, lengths)
            found[SOURCE_LENGTHS] = tuple(lengths[chosen].tolist())
        return found | {
            name: _rows(fields[name], picked[kind.per]) for name, kind in member.fields.items()
        }


def names(settings: Any) -> Iterator[str]:
    """Yield the names in the plain settings of an objective: its own, and those of its members."""
    if not isinstance(settings, dict):
        return
    if isinstance(name := settings.get(Member.KEY), str):
        yield name
    members = settings.get("of")
    for member in members if isinstance(members, list) else []:
        yield from names(member)


def _bound(number: int, member: Member, tokenizer: Tokenizer, model_config: Any) -> Contract:
    """Return a member, bound; raise `ValueError` that says which one is wrong."""
    try:
        made: Contract = registry.load(member.FOLDER, member.name).Objective(
            member.config, tokenizer, model_config
        )
    except ValueError as error:
        raise ValueError(f"objective.of.{number}: {error}") from error
    return made


def difference(one: Contract | type[Contract], other: Contract | type[Contract]) -> str:
    """Return what keeps two objectives, or their classes, from being mixed, or nothing."""
    if {*one.inputs} != {*other.inputs}:
        return (
            f"give the model other inputs: {', '.join(one.inputs)}, and {', '.join(other.inputs)}"
        )
    if one.drop_unknown != other.drop_unknown:
        return "do not both leave out unknown tokens"
    shared = one.fields.keys() & other.fields.keys()
    differing = sorted(name for name in shared if one.fields[name] != other.fields[name])
    of_source = {n for n, k in ({**one.fields, **other.fields}).items() if k.per == "source"}
    if differing := differing or sorted(of_source - shared):
        return f"have other fields {differing[0]}"
    return ""


def _same_spans(one: Spans, other: Spans) -> bool:
    return (one.before, one.after) == (other.before, other.after) and all(
        np.array_equal(getattr(one, name), getattr(other, name))
        for name in ("document", "start", "stop")
    )


def _rows(values: Any, chosen: np.ndarray) -> Any:
    """Return the rows of an array, or a tensor, that are `chosen` (N,) bool."""
    if isinstance(values, np.ndarray):
        return values[chosen]
    import torch

    return values[torch.from_numpy(np.flatnonzero(chosen)).to(values.device)]


def _sum(name: str, one: Term, other: Term) -> Term:
    """Return a term that two members have as one; raise `ValueError` if its weights differ."""
    if one.weight != other.weight:
        raise ValueError(
            f"objective.of: two members have a loss called {name}, one with weight {one.weight:g}, "
            f"one with {other.weight:g}"
        )
    return Term(
        one.loss_sum + other.loss_sum,
        one.num_targets + other.num_targets,
        one.weight,
        {**(one.parts or {}), **(other.parts or {})},
        one.of_text and other.of_text,
    )
