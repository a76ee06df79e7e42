"""`transformers.Trainer` on masked language modelling, as a subject of `train_encoder.py`."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from _turns import Turns
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertTokenizerFast,
    DataCollatorForLanguageModeling,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

from nlpkit.models.bert import Config

Round = list[list[np.ndarray]]  # batches of texts of like lengths, ids without [CLS] and [SEP]


def texts_of(batches: Round) -> list[np.ndarray]:
    """Return the texts of a round."""
    return [ids for batch in batches for ids in batch]


class TrainerSubject:
    """`transformers.Trainer`, one run over all rounds, which waits between them."""

    def __init__(
        self,
        config: Config,
        folder: Path,
        rounds: list[Round],
        *,
        bf16: bool,
        grouped: bool,
    ):
        tokenizer = BertTokenizerFast.from_pretrained(folder)
        model = BertForMaskedLM(
            BertConfig(
                vocab_size=len(tokenizer),
                hidden_size=config.hidden_size,
                num_hidden_layers=config.num_layers,
                num_attention_heads=config.num_heads,
                intermediate_size=config.intermediate_size,
                max_position_embeddings=config.max_positions,
                attention_probs_dropout_prob=config.attention_dropout,
            )
        )
        settings = TrainingArguments(
            output_dir=str(folder / "out"),
            use_cpu=True,
            bf16=bf16,
            per_device_train_batch_size=len(rounds[0][0]),
            max_steps=len(rounds) * len(rounds[0]),
            # The rounds are in the order of the sampler that is measured.
            train_sampling_strategy="sequential",
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
        )
        self.trainer = Trainer(
            model,
            settings,
            data_collator=DataCollatorForLanguageModeling(tokenizer),
            train_dataset=list(_framed(tokenizer, rounds, grouped)),
        )
        self.updates = len(rounds[0])

    def run(self, turns: Turns) -> None:
        """Train on the texts of all rounds."""
        next(turns)
        self.trainer.add_callback(_Pause(turns, self.updates))
        self.trainer.train()


class _Pause(TrainerCallback):
    """Waits after the updates of a round."""

    def __init__(self, turns: Turns, updates: int):
        self.turns, self.updates = turns, updates

    def on_step_end(self, args, state, control, **kwargs) -> None:
        if state.global_step % self.updates == 0:
            next(self.turns, None)


def _framed(
    tokenizer: BertTokenizerFast, rounds: list[Round], grouped: bool
) -> Iterator[dict[str, list[int]]]:
    """Yield the texts as a tokenizer returns them, in the order of the sampler."""
    rng = np.random.default_rng(0)
    for batches in rounds:
        pieces = texts_of(batches)
        order = range(len(pieces)) if grouped else rng.permutation(len(pieces))
        for index in order:
            ids = [tokenizer.cls_token_id, *pieces[index].tolist(), tokenizer.sep_token_id]
            yield {
                "input_ids": ids,
                "token_type_ids": [0] * len(ids),
                "attention_mask": [1] * len(ids),
                "special_tokens_mask": [1, *([0] * (len(ids) - 2)), 1],
            }
