"""Tagging and question answering on the tokenizer of `_masked.py`: objectives, rows, items."""

from typing import Any

import numpy as np
import torch
import transformers

from nlpkit import registry
from nlpkit.contracts.batch import Batch
from nlpkit.contracts.tokenizer import Tokenizer
from nlpkit.data.items import Row
from nlpkit.data.pack import collate
from nlpkit.models.bert import Config as BertConfig
from nlpkit.models.bert.model import FORMAT
from nlpkit.models.formats import hf_reading
from nlpkit.models.gpt import Config as GptConfig
from tests._masked import tokenizer

SMALL = {"hidden_size": 32, "num_layers": 2, "num_heads": 4, "max_positions": 128}
BERT = BertConfig(**SMALL, intermediate_size=48, dropout=0.0, attention_dropout=0.0)
GPT = GptConfig(**SMALL, embedding_dropout=0.0, attention_dropout=0.0, residual_dropout=0.0)
FAMILIES = {"bert": BERT, "gpt": GPT}


def words_of(family: str) -> Tokenizer:
    """Return the tokenizer with the special tokens of a family's tasks."""
    known = tokenizer()
    tokens = FAMILIES[family].task_tokens
    return known.extended([t for t in dict.fromkeys(tokens) if known.special_id(t) is None])


def bound(name: str, family: str = "bert", **settings: Any) -> Any:
    """Return the objective `name` for a family."""
    module = registry.load("objectives", name)
    config = module.Config(**{"max_length": 40, **settings})
    return module.Objective(config, words_of(family), FAMILIES[family])


def row(**values: Any) -> Row:
    return Row(values, "rows.jsonl", 7)


def items(objective: Any, *rows: Row) -> list[Any]:
    """Return the items of rows, made as `build_items` does."""
    found = []
    for each in rows:
        texts = objective.texts(each)
        found.append(objective.item(each, objective.encode(list(texts))))
    return found


def batch_of(objective: Any, made: list[Any]) -> Batch:
    """Return the items as one batch of tensors."""
    rng = np.random.default_rng(0)
    batch = collate([objective.example(item, rng) for item in made], objective.fields)
    batch.num_targets = objective.num_targets(batch.fields)
    batch.fields = {name: torch.from_numpy(value) for name, value in batch.fields.items()}
    return batch


def their_config(vocab_size: int, **more: Any) -> transformers.BertConfig:
    """Return transformers' settings of `BERT`."""
    return transformers.BertConfig(
        vocab_size=vocab_size, hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
        intermediate_size=48, max_position_embeddings=128, hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0, **more,
    )  # fmt: skip


def take_body(ours: torch.nn.Module, theirs: transformers.PreTrainedModel) -> None:
    """Give our BERT the body of theirs."""
    settings = theirs.config.to_dict()
    state, _ = hf_reading.read_state(FORMAT, BERT, settings, theirs.state_dict(), ours)
    ours.load_state_dict(ours.state_dict() | state)
