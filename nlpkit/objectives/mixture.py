"""Mixes several objectives in one run: one of them, drawn by weight, makes each example.

`objective: {name: mixture, of: [{name: clm, weight: 2}, {name: mylab.denoise}]}`; UniLM mixes four
masks in this way (Dong et al. 2019, arXiv:1905.03197, sec. 2.3). In a list of objectives, in
contrast, every example has the losses of all.

An epoch is packed before members are drawn. So the members must give the model the same inputs and
cut documents in the same way; where one cuts at sentences (`sop`), the others take its pieces. If
one adds more tokens to a piece than another, batches are planned for the longest example. Terms of
the same name are one term, a mean over the targets of all its members. The weight of a term is its
own weight times the share of the examples that have it.

N tokens, S sequences of a pack, T tokens of an example.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import Field as Setting
from pydantic import field_validator

from nlpkit.config import FrozenConfig
from nlpkit.contracts.abilities import MEMBERS, Generative
from nlpkit.contracts.batch import IGNORE, LENGTHS, Batch, Field, FlaggedIds, Loss, Spans, Term
from nlpkit.contracts.objective import ModelSettings, TrainedModel
from nlpkit.contracts.tokenizer import Tokenizer
from nlpkit.errors import UsageError
from nlpkit.objectives.examples.text import TextObjective
from nlpkit.objectives.several import members
from nlpkit.objectives.several.combined import joined
from nlpkit.objectives.several.members import Member

if TYPE_CHECKING:
    import torch
    from torch import nn


MEMBER, TOKENS = "member", "tokens"  # fields of a sequence: index of its member, length


class Config(FrozenConfig):
    """The objectives to be mixed."""

    of: list[Member] = Setting(min_length=2, description="objectives, each with a weight")

    @field_validator("of")
    @classmethod
    def _unique_labels(cls, of: list[Member]) -> list[Member]:
        labels = [member.label for member in of]
        if twice := [label for label in labels if labels.count(label) > 1]:
            raise ValueError(f"two members have the name {twice[0]}; give one of them an alias")
        return of


class Objective(TextObjective):
    """Examples and losses of the members."""

    parts: tuple[str, ...] = ()
    inputs: tuple[str, ...] = ()
    fields: Mapping[str, Field] = {}

    def __init__(self, config: Config, tokenizer: Tokenizer, model_config: ModelSettings):
        self.config, self.tokenizer, self.model_config = config, tokenizer, model_config
        self.labels = tuple(member.label for member in config.of)
        for number, member in enumerate(config.of):
            try:
                made = member.objective(member.config, tokenizer, model_config)
            except ValueError as error:
                raise ValueError(f"objective.of.{number}: {error}") from error
            self.members = (*self.members, made)
        weights = np.array([member.weight for member in config.of])
        self.shares = weights / weights.sum()
        for one, other in combinations(range(len(self.members)), 2):
            if reason := members.difference(self.members[one], self.members[other]):
                raise ValueError(
                    f"objective.of: {self.labels[one]} and {self.labels[other]} {reason}"
                )
        first = self.members[0]
        self.inputs = first.inputs
        self.drop_unknown = first.drop_unknown
        unlearned = {member.unlearned_id for member in self.members}
        self.unlearned_id = unlearned.pop() if len(unlearned) == 1 else None
        self.needs = joined(member.needs for member in self.members)
        self.token_flags = joined(member.token_flags for member in self.members)
        self.negatives = max(member.negatives for member in self.members)
        self.predicts_text = any(member.predicts_text for member in self.members)
        self.repeats_after = min(member.repeats_after for member in self.members)
        self.parts = tuple(
            self._name(number, part) for number, m in enumerate(self.members) for part in m.parts
        )
        self.fields = {name: kind for m in self.members for name, kind in m.fields.items()}
        self.fields |= {
            MEMBER: Field(np.int64, per="sequence", names=self.labels),
            TOKENS: Field(np.int64, per="sequence"),
        }
        if cuts := {member.cut_at for member in self.members} - {""}:
            self.cut_at = cuts.pop()
            if cuts:
                raise ValueError("objective.of: members cut documents at different token flags")
        self.token_field = next(n for n, kind in self.fields.items() if kind.per == "token")
        templates = (member.template for member in self.members)
        self.template = next((each for each in templates if each is not None), None)
        self._generate_as(next((m for m in self.members if isinstance(m, Generative)), None))

    def _generate_as(self, member: Any) -> None:
        if member is None:
            return
        has = (name for name in MEMBERS if name != "drop_unknown" and hasattr(member, name))
        vars(self).update({name: getattr(member, name) for name in has})
        self.template = member.template or self.template

    def _name(self, number: int, part: str) -> str:
        """Return the name of a part of a member's loss."""
        label, parts = self.labels[number], self.members[number].parts
        if len(parts) == 1:
            return label
        if all(each.startswith(parts[0]) for each in (part, *parts)):  # sop, sop_accuracy
            return label + part.removeprefix(parts[0])
        return f"{label}.{part}"

    def spans(self, lengths: np.ndarray) -> Spans:
        return self._agree([member.spans(lengths) for member in self.members], self.labels)

    def spans_cut_at(self, lengths: np.ndarray, starts: np.ndarray) -> Spans:
        """Return the spans of the members that have `cut_at`; the others take the same pieces."""
        labelled = [*zip(self.labels, self.members, strict=True)]
        cutting = [label for label, member in labelled if member.cut_at]
        cutters = [member for member in self.members if member.cut_at]
        spans = self._agree([m.spans_cut_at(lengths, starts) for m in cutters], cutting)
        for label, member in labelled:
            limit = member.config.setting("max_length")
            longest = int(member.length(spans.stop - spans.start).max(initial=0))
            if limit is not None and longest > limit:
                raise UsageError(
                    f"objective.of: {label} takes the pieces of {cutting[0]}, which make "
                    f"examples of up to {longest} tokens, and has max_length {limit}; raise it"
                )
        return spans

    def _agree(self, found: Sequence[Spans], labels: Sequence[str]) -> Spans:
        """Return the spans that members have in common; raise `UsageError` if they differ."""
        first, *others = found
        for label, other in zip(labels[1:], others, strict=True):
            pairs = [(vars(first)[n], vars(other)[n]) for n in vars(first) if n != "dropped"]
            if not all(np.array_equal(ours, theirs) for ours, theirs in pairs):
                ours, theirs = ((s.stop - s.start).max(initial=0) for s in (first, other))
                raise UsageError(
                    f"objective.of: {labels[0]} and {label} cut documents differently, in pieces "
                    f"of up to {ours} and {theirs} tokens; choose each max_length so that these "
                    "are equal, and give both the same other settings of pieces"
                )
        lengths = [member.length(first.stop - first.start) for member in self.members]
        shorter = (np.max(lengths, axis=0) - np.min(lengths, axis=0)).max(initial=0)
        self.max_shrink = int(shorter) + max(member.max_shrink for member in self.members)
        return first

    def length(self, pieces: np.ndarray) -> np.ndarray:
        """Return the tokens that examples made from pieces of these lengths (I,) have at most.

        They are packed before their members are drawn, and one member may add more tokens to a
        piece than another.
        """
        return np.max([member.length(pieces) for member in self.members], axis=0)

    def example(
        self, ids: Any, rng: np.random.Generator, negatives: Sequence[Any] = ()
    ) -> dict[str, np.ndarray]:
        """Return the example of a drawn member; fields of other members have neutral values."""
        bounds = np.cumsum(self.shares)[:-1]
        number = int(np.searchsorted(bounds, rng.random(), side="right"))
        member = self.members[number]
        texts = [ids, *negatives[: member.negatives]]
        if not member.token_flags:
            texts = [text.ids if isinstance(text, FlaggedIds) else text for text in texts]
        example = member.example(texts[0], rng, *([texts[1:]] if member.negatives else []))
        sizes = example.get(LENGTHS, np.array([len(example[self.token_field])], np.int64))
        counts = {"token": int(sizes.sum()), "sequence": len(sizes)}
        example |= {MEMBER: np.full(len(sizes), number), TOKENS: sizes, LENGTHS: sizes}
        missing = {name: kind for name, kind in self.fields.items() if name not in example}
        return example | {
            name: np.full(counts[kind.per], IGNORE if name == "labels" else 0, kind.dtype)
            for name, kind in missing.items()
        }

    def at_progress(self, example: dict[str, np.ndarray], progress: float) -> dict[str, np.ndarray]:
        """Return the example as its member has it when this share of the run is done."""
        member = self.members[int(example[MEMBER][0])]
        return member.at_progress(example, progress)

    def heads(self) -> dict[str, nn.Module]:
        return {n: layer for member in self.members for n, layer in member.heads().items()}

    def num_targets(self, batch: Mapping[str, np.ndarray]) -> dict[str, int]:
        counts: dict[str, int] = {}
        for number, member in enumerate(self.members):
            chosen = batch[MEMBER] == number
            own = members.select_sequences(member, batch, batch[TOKENS], chosen)
            own[LENGTHS] = batch[TOKENS][chosen]
            for name, count in member.num_targets(own).items():
                counts[name] = counts.get(name, 0) + count
        return counts

    def loss(self, model: TrainedModel, hidden: torch.Tensor, batch: Batch) -> Loss:
        """Return the terms of all members, each computed on the member's sequences."""
        import torch

        made_by = np.array(batch.fields[MEMBER].tolist())
        terms: dict[str, Term] = {}
        shares: dict[str, float] = {}
        text = [torch.empty(0, dtype=torch.int64, device=hidden.device)]
        for number, share in enumerate(self.shares.tolist()):
            loss = self._loss_of(number, made_by == number, model, hidden, batch)
            text += [] if loss.text_targets is None else [loss.text_targets]
            for name, term in loss.terms.items():
                terms[name] = members.sum_terms(name, terms[name], term) if name in terms else term
                shares[name] = shares.get(name, 0.0) + share
        terms = {n: replace(t, weight=t.weight * shares[n]) for n, t in terms.items()}
        # Tokens that an objective behind the mixture predicts are the text where no member does.
        return Loss(terms, torch.cat(text) if self.predicts_text else None)

    def _loss_of(
        self,
        number: int,
        chosen: np.ndarray,
        model: TrainedModel,
        hidden: torch.Tensor,
        batch: Batch,
    ) -> Loss:
        """Return the loss of a member on its sequences, `chosen` (S,) bool.

        If it has none, its loss on another member's sequence is multiplied by 0: all processes
        must have the same terms, and gradients for the same parameters.
        """
        member, present = self.members[number], bool(chosen.any())
        if not present:
            chosen = np.arange(len(chosen)) == 0
        sizes = np.array(batch.lengths)
        fields = members.select_sequences(member, batch.fields, sizes, chosen)
        own = Batch(fields, tuple(sizes[chosen].tolist()), progress=batch.progress)
        loss = member.loss(model, members.select_rows(hidden, np.repeat(chosen, sizes)), own)
        terms = {}
        for name, term in loss.terms.items():
            parts = term.parts or {name: (term.loss_sum.detach(), term.num_targets)}
            terms[name] = replace(
                term,
                loss_sum=term.loss_sum * present,
                num_targets=term.num_targets * present,
                parts={self._name(number, n): (s * present, c * present)
                       for n, (s, c) in parts.items()},
            )  # fmt: skip
        if not present or not member.predicts_text:
            return Loss(terms)
        return Loss(terms, loss.targets_of_text(fields["labels"]))
