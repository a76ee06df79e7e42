"""CPM-Ant's pretraining: infilling (random mask) and generation (tail mask), half of each.

OpenBMB/CPM-Live, branch cpm-ant, `pretrain_cpm_ant.py`. An example is the soft prompt of its task
followed by `<s> piece </s>`. Hidden tokens (`context` False) are predicted from all context tokens
and the hidden tokens before them. The mask rate is uniform on (0, 1).

N tokens of the pack, T = prompt_length + len(piece) + 2 tokens of one example.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from pydantic import Field as Setting

from nlpkit.config import FrozenConfig
from nlpkit.contracts.abilities import Prompt, ScoringInput
from nlpkit.contracts.batch import IGNORE, Batch, Field, Spans
from nlpkit.contracts.tokenizer import Tokenizer
from nlpkit.objectives.examples import soft_prompt
from nlpkit.objectives.examples.soft_prompt import TASK_SEGMENTS, PromptSettings, text_frame
from nlpkit.objectives.examples.text import LabelTargets, TextObjective, cut_documents

if TYPE_CHECKING:
    import torch


class Config(FrozenConfig):
    """Settings for cutting documents and for the rate of each task."""

    max_length: int = Setting(
        512, gt=0, description="longest example: prompt, <s>, piece and </s> together"
    )
    min_piece: int = Setting(
        32, ge=1, description="a document's last piece is dropped if it is shorter (in tokens)"
    )
    infilling_rate: float = Setting(
        0.5, ge=0, le=1, description="share of infilling examples; the others are generation"
    )


class Objective(LabelTargets, TextObjective):
    """Examples and loss of CPM-Ant's pretraining."""

    term = "cpm_ant"
    parts = ("infilling", "generation")
    inputs = tuple(soft_prompt.INPUTS)
    fields: Mapping[str, Field] = {
        **soft_prompt.INPUTS,
        "labels": Field(np.int64),
        "task": Field(np.int64, per="sequence"),  # 0 infilling, 1 generation: index into `parts`
    }
    drop_unknown = True
    needs = ("prompt_length", "prompts")
    scoring_methods = ("infilling", "infilling-word", "generation")
    answer_method = "generation"

    def __init__(self, config: Config, tokenizer: Tokenizer, model_config: PromptSettings):
        self.config, self.tokenizer = config, tokenizer
        self.prompt_length = model_config.prompt_length
        prompts = model_config.prompts.infilling, model_config.prompts.generation
        vocab_size = tokenizer.vocab_size
        self.soft = tuple(soft_prompt.prompt_ids(n, vocab_size, model_config) for n in prompts)
        self.bos_id, self.eos_id = text_frame(tokenizer)
        self.max_piece = self.max_text = config.max_length - self.prompt_length - 2
        self.max_length = self.max_piece + 1  # a text to be continued has no `</s>`
        self.eos_token_ids = (self.eos_id,)
        if self.max_piece < max(config.min_piece, 1):
            raise ValueError(
                f"objective.max_length: {config.max_length} leaves {self.max_piece} tokens for "
                f"text after {self.prompt_length} prompt tokens, <s> and </s>; min_piece is "
                f"{config.min_piece}"
            )

    def spans(self, lengths: np.ndarray) -> Spans:
        return cut_documents(lengths, self.max_piece, self.config.min_piece)

    def length(self, pieces: np.ndarray) -> np.ndarray:
        return pieces + self.prompt_length + 2

    def example(self, ids: np.ndarray, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """Return the arrays of `fields`, each (T,) except `task`."""
        size = len(ids) + 2
        task = 0 if rng.random() < self.config.infilling_rate else 1
        hidden = rng.integers(1, size)  # n ~ U{1 … size-1}
        context = np.ones(size, np.bool_)
        if task == 0:
            context[rng.choice(size - 1, hidden, replace=False) + 1] = False  # never `<s>`
        else:
            context[size - hidden :] = False
        text = np.concatenate([[self.bos_id], ids, [self.eos_id]])
        example = soft_prompt.make_context(self.soft[task], text, TASK_SEGMENTS[task])
        example["context"][self.prompt_length :] = context
        labels = np.full(len(example["input_ids"]), IGNORE)
        labels[:-1] = np.where(example["context"][1:], IGNORE, example["input_ids"][1:])
        return example | {"labels": labels, "task": np.array(task, np.int64)}

    def loss_parts(
        self, batch: Batch, index: torch.Tensor, each: torch.Tensor
    ) -> dict[str, tuple[torch.Tensor, int]]:
        """Return the losses of infilling and of generation."""
        task = batch.fields["task"]
        sizes = task.new_tensor(batch.lengths)
        task = task.repeat_interleave(sizes, output_size=sum(batch.lengths))[index]
        chosen = {name: task == number for number, name in enumerate(self.parts)}
        return {name: (each[here].sum(), int(here.sum())) for name, here in chosen.items()}

    @property
    def suppress_tokens(self) -> tuple[int, ...]:
        """Tokens that are never targets; unknown tokens are removed from documents."""
        ids = (self.bos_id, self.tokenizer.pad_id, self.tokenizer.unk_id)
        return tuple(token_id for token_id in ids if token_id is not None)

    def continue_text(self, ids: Sequence[int], new_tokens: int) -> Prompt:
        from nlpkit.objectives.examples import prompt_slots

        return prompt_slots.continue_text(
            self.soft[1], self.bos_id, ids, new_tokens, self.max_length
        )

    def fill_blanks(self, parts: Sequence[Sequence[int]], blanks: Sequence[int]) -> Prompt:
        from nlpkit.objectives.examples import prompt_slots

        frame = (self.bos_id, self.eos_id)
        return prompt_slots.fill_blanks(self.soft[0], frame, parts, blanks, self.max_piece)

    def score_text(
        self, ids: np.ndarray, words: np.ndarray, given: int, method: str
    ) -> list[ScoringInput]:
        """Return inputs in which the tokens to be scored are hidden.

        `infilling` hides each token alone, `infilling-word` each word, whose tokens are predicted
        from left to right; `generation` hides all at once.
        """
        from nlpkit.objectives.examples import prompt_slots

        frame: tuple[int, ...] = (self.bos_id, self.eos_id)
        task, groups = 0, [[token] for token in range(given, len(ids))]
        if method == "infilling-word":
            number = words[given:]
            starts = np.flatnonzero(np.diff(number)) + 1
            groups = [part.tolist() for part in np.split(np.arange(given, len(ids)), starts)]
        elif method == "generation":
            task, frame, groups = 1, (self.bos_id,), [list(range(given, len(ids)))]
        return [
            prompt_slots.hide_tokens(self.soft[task], frame, ids, group, task)
            for group in groups
            if group
        ]
