"""`transformers.Trainer` as a subject of `bench/steps.py`."""

import json
import pickle
from pathlib import Path
from typing import Any

import torch
from _turns import Turns, redirect
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertForSequenceClassification,
    CpmAntConfig,
    CpmAntForCausalLM,
    OpenAIGPTConfig,
    OpenAIGPTForSequenceClassification,
    OpenAIGPTLMHeadModel,
    PreTrainedModel,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

_PADDING = 0  # as an id; what CPM-Ant's class takes for padding
_IGNORED = -100


class TrainerSubject:
    """`transformers.Trainer`, one run over all rounds, which waits between them."""

    def __init__(
        self, plan: Path, log: Path, per_round: int, *, bf16: bool, grouped: bool, compiled: bool
    ):
        redirect(log)
        about = pickle.loads(plan.read_bytes())
        batches = about["batches"][grouped]
        self.per_round, self.sizes = per_round, log.with_suffix(".json")
        self.counts: list[int] = []  # tokens of each update
        self.is_left = about["family"] == "cpm_ant"
        settings = TrainingArguments(
            output_dir=str(log.with_suffix("")),
            use_cpu=True,
            bf16=bf16,
            torch_compile=compiled,
            # A row of the data set is a whole batch, in the order of the sampler that is measured.
            per_device_train_batch_size=1,
            train_sampling_strategy="sequential",
            max_steps=len(batches),
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
        )
        self.trainer = Trainer(
            _model(about), settings, data_collator=self._padded, train_dataset=batches
        )

    def run(self, turns: Turns) -> None:
        """Train on all rounds."""
        next(turns)
        self.trainer.add_callback(_Pause(turns, self.per_round))
        self.trainer.train()
        self.sizes.write_text(json.dumps(self.counts))

    def _padded(self, rows: list[list[dict[str, Any]]]) -> dict[str, torch.Tensor]:
        """Return the batch that is the only row, padded to its longest text."""
        (texts,) = rows
        self.counts.append(sum(text["size"] for text in texts))
        fill = {"input_ids": _PADDING, "labels": _IGNORED, "attention_mask": 0}
        side = "left" if self.is_left else "right"
        columns: dict[str, list[Any]] = {
            "input_ids": [torch.as_tensor(text["input_ids"]) for text in texts],
            "labels": [torch.as_tensor(text["labels"]) for text in texts],
        }
        columns["attention_mask"] = [torch.ones_like(ids) for ids in columns["input_ids"]]
        return {
            name: torch.stack(each)
            if each[0].dim() == 0
            else torch.nn.utils.rnn.pad_sequence(each, True, fill[name], side)
            for name, each in columns.items()
        }


class _Pause(TrainerCallback):
    """Waits after the updates of a round."""

    def __init__(self, turns: Turns, per_round: int):
        self.turns, self.per_round = turns, per_round

    def on_step_end(self, args, state, control, **kwargs) -> None:
        if state.global_step % self.per_round == 0:
            next(self.turns, None)


def _model(about: dict[str, Any]) -> PreTrainedModel:
    """Return transformers' model with our sizes and dropout, and random weights."""
    size, classes = about["size"], about["classes"]
    width, layers, heads = size["width"], size["layers"], size["width"] // 64
    if about["family"] == "gpt":
        gpt = OpenAIGPTConfig(
            vocab_size=about["vocabulary"], n_positions=size["length"], n_embd=width,
            n_layer=layers, n_head=heads, attn_pdrop=0.0, pad_token_id=_PADDING,
            num_labels=classes or 2,
        )  # fmt: skip
        return OpenAIGPTForSequenceClassification(gpt) if classes else OpenAIGPTLMHeadModel(gpt)
    if about["family"] == "bert":
        bert = BertConfig(
            vocab_size=about["vocabulary"], hidden_size=width, num_hidden_layers=layers,
            num_attention_heads=heads, intermediate_size=4 * width,
            max_position_embeddings=size["length"], attention_probs_dropout_prob=0.0,
            num_labels=classes or 2,
        )  # fmt: skip
        return BertForSequenceClassification(bert) if classes else BertForMaskedLM(bert)
    return CpmAntForCausalLM(
        CpmAntConfig(
            vocab_size=about["vocabulary"], hidden_size=width, num_hidden_layers=layers,
            num_attention_heads=heads, dim_head=width // heads, dim_ff=width * 5 // 2,
            prompt_types=4, prompt_length=about["prompt"], segment_types=8,
            position_bias_num_buckets=128, position_bias_max_distance=512,
        )
    )  # fmt: skip
