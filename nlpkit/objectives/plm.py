"""Permutation language modelling (XLNet, Yang et al. 2019, arXiv:1906.08237, sec. 2.2 and 2.3).

An order of the tokens is drawn; the last 1/K of them are predicted, each from its position and the
tokens before it in the order. The others are seen by all. Predicted tokens are runs of 1 to
`longest` tokens, each run somewhere in K times as many tokens, as in the authors' data; their order
is a random one. With `longest: 1` single tokens are predicted. Nothing in the input is masked: the
family's second stream (`two_streams`) does not see the token that it predicts.

The example is the piece and the family's end tokens, which are seen by all. Differs from the paper:
one text, not two of one document or of two.

A text is continued, or blanks in it are filled, from left to right: what is given is seen by all,
and a new token by those after it; each is predicted from its position and what it sees.

T tokens of an example, M tokens of text in it.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from pydantic import Field as Setting

from nlpkit.config import FrozenConfig
from nlpkit.contracts.abilities import Prompt, ScoringInput
from nlpkit.contracts.batch import IGNORE, Batch, Field
from nlpkit.contracts.objective import ModelSettings
from nlpkit.contracts.tokenizer import Extendable
from nlpkit.objectives.examples.frame import FramedText
from nlpkit.objectives.examples.text import LabelTargets, lay_out
from nlpkit.plural import number_of


class Config(FrozenConfig):
    """How text is cut, and which tokens are predicted."""

    max_length: int = Setting(512, ge=4, description="longest example, in tokens")
    one_in: float = Setting(6.0, ge=1, description="K: one of K tokens is predicted")
    longest: int = Setting(5, ge=1, description="longest run of predicted tokens")
    order: Literal["random", "left_to_right"] = Setting(
        "random",
        description="of the predicted tokens; left_to_right with one_in: 1 is language modelling "
        "from left to right",
    )
    part_length: int | None = Setting(
        None,
        ge=2,
        description="an example is cut into parts of this length, in order; a part sees only "
        "itself and the memory before it (model.memory); null: it is not cut",
    )


class Objective(LabelTargets, FramedText):
    """Examples and loss of permutation language modelling."""

    term = "plm"
    parts = ("plm",)
    inputs: tuple[str, ...] = (*FramedText.inputs, "rank", "part_start")
    fields: Mapping[str, Field] = {
        **FramedText.fields,
        "rank": Field(np.int64),  # 0: seen by all; else the place in the order of the predicted
        "part_start": Field(np.int64),
        "labels": Field(np.int64),
    }
    needs = ("two_streams",)
    scoring_methods = ("plm",)
    eos_token_ids: tuple[int, ...] = ()  # no token that ends a text is ever predicted
    answer_method = "plm"

    def __init__(self, config: Config, tokenizer: Extendable, model_config: ModelSettings):
        super().__init__(config, tokenizer, model_config)
        if config.part_length is None:
            if memory := model_config.setting("memory", 0):
                raise ValueError(
                    f"objective.part_length: model.memory is {memory}, which needs text that is "
                    "cut in order; set part_length, or memory: 0"
                )
            self.leave_out("part_start")
        self.max_text = config.max_length - self.extra
        self.max_length = config.max_length
        self.suppress_tokens = tokenizer.special_ids

    def example(self, ids: np.ndarray, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """Return the piece as it is, with the place of its predicted tokens in an order."""
        example = self._framed(ids)
        chosen = len(self.frame.start) + self.predicted(len(ids), rng)
        shuffled = self.config.order == "random"
        order = rng.permutation(len(chosen)) if shuffled else np.arange(len(chosen))
        example["rank"][chosen] = 1 + order
        labels = np.full(len(example["rank"]), IGNORE)
        labels[chosen] = example["input_ids"][chosen]
        return example | {"labels": labels}

    def _framed(self, ids: np.ndarray) -> dict[str, np.ndarray]:
        example = self.enclose(ids)
        size = len(example["input_ids"])
        example["rank"] = np.zeros(size, np.int64)
        if self.config.part_length:
            position = np.arange(size)
            example["part_start"] = position - position % self.config.part_length
        return example

    def predicted(self, size: int, rng: np.random.Generator) -> np.ndarray:
        """Return the indices of the predicted tokens of a text of `size` tokens, at least one.

        The text is part of a row of windows, each K times as long as the run that it contains.
        It begins anywhere in the row, so that every token is predicted with probability 1/K.
        """
        runs = np.arange(1, self.config.longest + 1)
        chosen = np.zeros(size, np.bool_)
        # A place in the row is in a long window more often.
        run = int(rng.choice(runs, p=runs / runs.sum()))
        at = -rng.random() * run * self.config.one_in
        while at < size:
            start = int(np.floor(at + rng.random() * run * (self.config.one_in - 1)))
            chosen[max(start, 0) : max(start + run, 0)] = True
            at += run * self.config.one_in
            run = int(rng.choice(runs))
        if not chosen.any():
            chosen[rng.integers(size)] = True
        return np.flatnonzero(chosen)

    def restore(self, example: dict[str, np.ndarray]) -> list[np.ndarray]:
        return self.frame.texts(example["input_ids"], 1)

    def tokens_read(self, batch: Batch) -> None:
        """Return None: all states of the stream without content are computed."""

    def continue_text(self, ids: Sequence[int], new_tokens: int) -> Prompt:
        """Return the text and `new_tokens` slots; nothing stands behind them.

        A text that is too long loses its start.
        """
        kept = np.asarray(ids, np.int64)[max(len(ids) + new_tokens - self.max_length, 0) :]
        if not len(kept):
            raise ValueError("the text is empty, and no token begins a text")
        hole = np.arange(len(kept) + new_tokens) >= len(kept)
        types = np.zeros(len(hole), np.int64)
        return self._prompt(kept, hole, types, kept, open=True, cut=len(ids) - len(kept))

    def fill_blanks(self, parts: Sequence[Sequence[int]], blanks: Sequence[int]) -> Prompt:
        """Return the text in its frame, and one slot for each token of the blanks.

        A text that is too long loses its start, up to the first blank, then its end.
        """
        text, is_blank, cut = lay_out(parts, blanks, self.max_text)
        ends = (len(self.frame.start), len(self.frame.end))
        hole = np.pad(is_blank, ends)
        length = self.config.part_length
        if self.model_config.setting("memory", 0) and length and len(hole) > length:
            raise ValueError(
                "with model.memory, blanks are filled in texts of at most "
                f"{number_of(length - self.extra, 'tokens')}, which are one part"
            )
        types = self.frame.types_of_one(len(hole))
        framed = self.frame.ids([text], np.int64)
        return self._prompt(framed, hole, types, text, open=False, cut=cut)

    def _prompt(
        self, ids: np.ndarray, hole: np.ndarray, types: np.ndarray, text: np.ndarray, **more: Any
    ) -> Prompt:
        """Return the given `ids` (T,) and slots where the sequence (T + M,) has holes.

        Given tokens are seen by all. A slot sees those before it, too, and its token asks for the
        next slot; for the first one asks a given token of the same text.
        """
        place = np.arange(len(hole))
        slots = place[hole]
        following = np.append(slots[1:], -1)
        given = {"token_type_ids": types[~hole], "position": place[~hole]}
        asks = int(np.flatnonzero(given["token_type_ids"] == types[slots[0]])[-1])
        given |= {"input_ids": ids, "rank": np.zeros(len(ids), np.int64)}
        given["next_position"] = np.full(len(ids), -1)
        given["next_position"][asks] = slots[0]
        new = {"token_type_ids": types[hole], "position": slots, "next_position": following,
               "rank": 1 + np.arange(len(slots))}  # fmt: skip
        if length := self.config.part_length:
            for fields in (given, new):
                for name in ("", "next_"):
                    at = fields[f"{name}position"]
                    fields[f"{name}part_start"] = at - at % length
        predicted_from = np.full(len(slots), -1)
        predicted_from[0] = asks
        return Prompt(given, new, predicted_from, text, **more)

    def score_text(
        self, ids: np.ndarray, words: np.ndarray, given: int, method: str
    ) -> list[ScoringInput]:
        """Return the text in the order from left to right; one pass scores all its tokens.

        The probabilities are those of a text of known length: positions after a token are seen as
        ends of the sequence, not by their tokens.
        """
        example = self._framed(ids)
        targets = np.arange(given, len(ids))
        example["rank"][len(self.frame.start) + targets] = 1 + np.arange(len(targets))
        return [ScoringInput(example, len(self.frame.start) + targets, targets)]
