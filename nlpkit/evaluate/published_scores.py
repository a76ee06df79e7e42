"""Scores of sentences as published scripts of minimal pairs compute them, with `transformers`.

The steps are the scripts', batches and padding included, so that what they print follows to the
last digit, also where a 16-bit sum makes two sentences equal:
- `babylm-2026`: github.com/babylm-org/babylm-eval, commit 45fe2c11,
  strict/evaluation_pipeline/sentence_zero_shot/{run,dataset,compute_results}.py; the same lines as
  babylm/evaluation-pipeline-2025, commit bf55c113;
- `zhoblimp`: github.com/sjtu-compling/ZhoBLiMP, commit 1122b47f, eval.py (Liu et al. 2024,
  arXiv:2411.06096).

B sentences, T tokens of the longest, V vocabulary, R sequences with one masked token.
"""

import math
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers.utils import logging

from nlpkit.checkpoints.hf_layout import read_adapters
from nlpkit.errors import DataError, UsageError
from nlpkit.json_types import JsonObject
from nlpkit.runs.pairs import Pair, Sentence

_PAIRS = 64  # at once: babylm's default, and what the README of ZhoBLiMP gives
_MASKED = 64  # sequences at once: babylm's --non_causal_batch_size


@dataclass
class Opened:
    """A checkpoint as `transformers` opens it, where a script reads one."""

    model: Any
    tokenizer: Any
    device: torch.device
    check: Callable[[], None]  # raises to stop
    seen: JsonObject = field(default_factory=dict)  # what the scores depend on, for the report

    def logits(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Return (B, T, V) for right-padded `ids` and `mask` (B, T)."""
        self.check()
        with torch.no_grad():
            return self.model(
                input_ids=ids.to(self.device), attention_mask=mask.to(self.device)
            ).logits

    def pad(self, rows: Sequence[Tensor], value: int) -> Tensor:
        return pad_sequence(list(rows), batch_first=True, padding_value=value)

    def mask(self, rows: Sequence[Tensor]) -> Tensor:
        """Return 1 for tokens, 0 for padding."""
        return self.pad([torch.ones_like(row) for row in rows], 0)


def open_checkpoint(
    name: str,
    folder: Path,
    device: torch.device,
    dtype: torch.dtype | None,
    check: Callable[[], None],
) -> Opened:
    """Return model and tokenizer; `dtype` None is that of the file, transformers 5's default.

    `name` is the class of transformers that opens the checkpoint.

    Raises:
        UsageError: transformers does not open the checkpoint, or some weights would be random.
    """
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    given = {} if dtype is None else {"dtype": dtype}
    said = f"--as: the script opens {folder} by {name}"
    try:
        model, found = getattr(transformers, name).from_pretrained(
            folder, output_loading_info=True, **given
        )
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder, padding_side="right")
    except Exception as error:  # transformers raises errors of any kind
        cause = textwrap.shorten(str(error), 200, placeholder=" …")
        if read_adapters(folder) is not None:
            cause += f"; merge its adapters: nlpkit convert {folder} DIR"
        raise UsageError(f"{said}, which fails: {cause}") from error
    if missing := sorted(found["missing_keys"]):
        raise UsageError(
            f"{said}, with random values for {len(missing)} tensors that it does not have, such as "
            f"{missing[0]}"
        )
    return Opened(model.to(device).eval(), tokenizer, device, check)


def score_babylm_causal(opened: Opened, pairs: Sequence[Pair]) -> np.ndarray:
    """Return the sums of log-probabilities (P, 2), good and bad, of the backend `causal`.

    What the tokenizer puts before a text is its context; without it, the first token has no score.

    Raises:
        DataError: a sentence of one token, on which the script stops.
        UsageError: the tokenizer has neither a padding nor an end token.
    """
    tokenizer = opened.tokenizer
    pad = _choose_pad(tokenizer, tokenizer.eos_token_id)
    made = []
    for sentences in _split(pairs):
        ids, scored = [], []
        for sentence in sentences:
            tokens, offsets = _encode(tokenizer, sentence)
            if len(tokens) == 1:
                raise DataError(f"{sentence.place}: one token, on which the script stops")
            ids.append(torch.tensor(tokens))
            begin = offsets[0][0]
            scored.append(torch.tensor([int(end > begin) for _, end in offsets]))
        _note(opened, ids)
        padded = opened.pad(ids, pad)
        logits = opened.logits(padded[:, :-1], opened.mask(ids)[:, :-1])
        logs = torch.log_softmax(logits / 1.0, dim=-1)
        each = logs.gather(-1, padded[:, 1:, None].to(opened.device)).squeeze(-1)
        kept = opened.pad(scored, 0)[:, 1:].to(opened.device)
        made.append(torch.sum(each * kept, dim=1).cpu())
    return _pair_up(made)


def score_babylm_masked(opened: Opened, pairs: Sequence[Pair]) -> np.ndarray:
    """Return the sums of log-probabilities (P, 2) of the backend `mlm`.

    Each token of the text is masked alone; special tokens are not scored.

    Raises:
        UsageError: the tokenizer has no mask token, or no padding token.
    """
    tokenizer = opened.tokenizer
    pad = _choose_pad(tokenizer, tokenizer.cls_token_id)
    if tokenizer.mask_token_id is None:
        raise UsageError("--as: the tokenizer has no mask token")
    made = []
    for sentences in _split(pairs):
        rows, places, targets, counts = [], [], [], []
        for sentence in sentences:
            tokens, offsets = _encode(tokenizer, sentence)
            text = [place for place, (_, end) in enumerate(offsets) if end > 0]
            for place in text:
                row = torch.tensor(tokens)
                row[place] = tokenizer.mask_token_id
                rows.append(row)
            places += text
            targets += [tokens[place] for place in text]
            counts.append(len(text))
        ids, mask = opened.pad(rows, pad), opened.mask(rows)
        where, aims = torch.tensor(places), torch.tensor(targets)
        logs = []
        for first in range(0, len(ids), _MASKED):
            part = slice(first, first + _MASKED)
            logits = opened.logits(ids[part], mask[part])
            masked = logits[torch.arange(len(logits)), where[part].to(opened.device)]
            each = torch.log_softmax(masked / 1.0, dim=-1)
            logs.append(each.gather(-1, aims[part, None].to(opened.device)).squeeze(-1).cpu())
        sums = [torch.sum(values).item() for values in torch.cat(logs).split(counts)]
        made.append(torch.tensor(sums))
    return _pair_up(made)


def score_zhoblimp(opened: Opened, pairs: Sequence[Pair]) -> np.ndarray:
    """Return the sums of log-probabilities (P, 2) of ZhoBLiMP's eval.py.

    The end token pads, and stands before all texts of a batch if one of them begins with no special
    token. `Opened.seen` gets the accuracy of the means, and the perplexity of the good sentences.

    Raises:
        UsageError: the tokenizer has no end token.
    """
    tokenizer = opened.tokenizer
    if tokenizer.eos_token is None:
        raise UsageError("--as zhoblimp: the script pads with the end token; there is none")
    tokenizer.pad_token = tokenizer.eos_token
    made, means = [], []
    for sentences in _split(pairs):
        texts = [sentence.text for sentence in sentences]
        inputs = tokenizer(texts, return_tensors="pt", padding=True)
        if any(first not in tokenizer.all_special_ids for first in inputs.input_ids[:, 0].tolist()):
            texts = [tokenizer.pad_token + text for text in texts]
            inputs = tokenizer(texts, return_tensors="pt", padding=True)
        _note(opened, inputs.input_ids)
        logits = opened.logits(inputs.input_ids, inputs.attention_mask)
        logs = logits[:, :-1].log_softmax(dim=-1)
        each = logs.gather(-1, inputs.input_ids[:, 1:, None].to(opened.device)).squeeze(-1)
        mask = inputs.attention_mask[:, 1:].to(opened.device)
        sums = torch.sum(each * mask, dim=1)
        made.append(sums.cpu())
        means.append((sums / mask.sum(dim=-1)).cpu())
    mean = _pair_up(means)
    opened.seen["meanLP"] = float((mean[:, 0] > mean[:, 1]).mean())
    perplexity = float(_pair_up([torch.exp(-each) for each in means])[:, 0].mean())
    opened.seen["PPL"] = perplexity if math.isfinite(perplexity) else None  # float16 ends at 65,504
    return _pair_up(made)


def _split(pairs: Sequence[Pair]) -> Iterator[list[Sentence]]:
    """Yield the good sentences of `_PAIRS` pairs, then the bad ones of the same pairs."""
    for first in range(0, len(pairs), _PAIRS):
        part = pairs[first : first + _PAIRS]
        yield [pair.good for pair in part]
        yield [pair.bad for pair in part]


def _pair_up(made: Sequence[Tensor]) -> np.ndarray:
    """Return (P, 2) of what `_split` yields in turn."""
    sides = [torch.cat(list(made[side::2])) for side in (0, 1)]
    return torch.stack(sides, 1).double().numpy()


def _encode(tokenizer: Any, sentence: Sentence) -> tuple[list[int], list[tuple[int, int]]]:
    found = tokenizer(text=sentence.text, return_offsets_mapping=True)
    if not found["input_ids"]:
        raise DataError(f"{sentence.place}: no tokens that the model knows")
    return found["input_ids"], found["offset_mapping"]


def _choose_pad(tokenizer: Any, other: int | None) -> int:
    pad = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else other
    if pad is None:
        raise UsageError("--as: the script pads, and the tokenizer has no token for it")
    return int(pad)


def _note(opened: Opened, ids: Sequence[Tensor] | Tensor) -> None:
    """Keep whether all texts begin with a special token."""
    special = opened.tokenizer.all_special_ids
    begins = all(int(row[0]) in special for row in ids)
    opened.seen["begin_token"] = begins and opened.seen.get("begin_token", True)
