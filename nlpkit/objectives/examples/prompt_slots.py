"""CPM-Ant's inputs for generation and for scores: soft prompt and text, and slots for new tokens.

M slots.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from nlpkit.contracts.abilities import Prompt, ScoringInput
from nlpkit.objectives.examples.soft_prompt import (
    GENERATION_SEGMENT,
    INFILLING_SEGMENT,
    TASK_SEGMENTS,
    make_context,
)
from nlpkit.objectives.examples.text import lay_out


def continue_text(
    soft: np.ndarray, bos_id: int, ids: Sequence[int], new_tokens: int, max_tokens: int
) -> Prompt:
    """Return soft prompt, `<s>` and text as context, followed by `new_tokens` slots.

    Text and slots have at most `max_tokens` tokens. A text that is too long loses its start.
    """
    kept = np.asarray(ids, np.int64)[max(len(ids) + new_tokens - max_tokens, 0) :]
    given = make_context(soft, np.concatenate([[bos_id], kept]), GENERATION_SEGMENT)
    return add_slots(given, GENERATION_SEGMENT, new_tokens, kept, len(ids) - len(kept))


def add_slots(
    given: Mapping[str, np.ndarray], segment: int, new_tokens: int, text: np.ndarray, cut: int
) -> Prompt:
    """Return `given` followed by `new_tokens` slots; `text` and `cut` are as in `Prompt`."""
    size = len(given["input_ids"])
    source = np.full(new_tokens, -1)
    source[0] = size - 1
    slots = _targets(segment, size + np.arange(new_tokens))
    return Prompt(given, slots, source, text, penalize_text=False, cut=cut)


def fill_blanks(
    soft: np.ndarray,
    frame: tuple[int, int],
    parts: Sequence[Sequence[int]],
    blanks: Sequence[int],
    max_tokens: int,
) -> Prompt:
    """Return soft prompt, `<s>`, text and `</s>` as context, and one slot for each blank token.

    `frame` has the ids of `<s>` and `</s>`. Positions count text and blanks. Text and slots have
    at most `max_tokens` tokens; a longer text loses its start, up to the first blank, then its end.

    Raises:
        ValueError: the text from the first blank to the last is too long.
    """
    text, is_blank, cut = lay_out(parts, blanks, max_tokens)
    hole = np.concatenate([[False], is_blank, [False]])
    given = make_context(soft, np.concatenate([frame[:1], text, frame[1:]]), INFILLING_SEGMENT)
    given["position"][len(soft) :] = len(soft) + np.flatnonzero(~hole)
    index = np.flatnonzero(hole)
    # The token before a hole is another hole or the last given token so far.
    given_so_far = np.cumsum(~hole)[index - 1]
    source = np.where(hole[index - 1], -1, len(soft) + given_so_far - 1)
    slots = _targets(INFILLING_SEGMENT, len(soft) + index)
    return Prompt(given, slots, source, text, penalize_text=False, open=False, cut=cut)


def hide_tokens(
    soft: np.ndarray, frame: Sequence[int], ids: np.ndarray, targets: Sequence[int], task: int
) -> ScoringInput:
    """Return soft prompt, `<s>` and text, in which the tokens `targets` are hidden.

    `frame` has the id of `<s>` and, if the text ends with it, of `</s>`; `task` is 0 for infilling
    and 1 for generation.
    """
    tokens = np.concatenate([frame[:1], ids, frame[1:]]).astype(np.int64)
    inputs = make_context(soft, tokens, TASK_SEGMENTS[task])
    index = np.asarray(targets)
    rows = len(soft) + index  # the token before: `<s>` is before the text's first token
    inputs["context"][rows + 1] = False
    return ScoringInput(inputs, rows, index)


def _targets(segment: int, position: np.ndarray) -> dict[str, np.ndarray]:
    return {
        "segment": np.full(len(position), segment),
        "position": position,
        "context": np.zeros(len(position), np.bool_),
    }
