"""Merges adapters that another program trained into their base, by `peft` itself.

`peft` is optional: nlpkit's own adapters (`checkpoints/peft_layout.py`) are read without it.
"""

import tempfile
import textwrap
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor
from transformers.utils import logging

from nlpkit.checkpoints import hf_layout
from nlpkit.checkpoints.peft_layout import SETTINGS, find_tied_outputs, read_tensors
from nlpkit.contracts.format import State
from nlpkit.errors import FileError, UsageError, not_installed
from nlpkit.json_types import JsonMapping
from nlpkit.models import families, lora
from nlpkit.models.layers.head import HEAD, head_names

# transformers' classes by the `task_type` of adapters that do not name their class.
_CLASSES = {
    "CAUSAL_LM": "AutoModelForCausalLM",
    "SEQ_2_SEQ_LM": "AutoModelForSeq2SeqLM",
    "SEQ_CLS": "AutoModelForSequenceClassification",
    "TOKEN_CLS": "AutoModelForTokenClassification",
    "QUESTION_ANS": "AutoModelForQuestionAnswering",
}


def merge(
    directory: Path, adapter: JsonMapping, family: str, base: Path, stored: State
) -> hf_layout.Content:
    """Return `config.json` and tensors of the base with the adapters merged, in float32.

    Args:
        adapter: the content of `adapter_config.json`.
        family: the family of the base.
        stored: the tensors of the base, whose precision those keep that do not change.

    Raises:
        FileError: a file is damaged, or `peft` cannot merge the adapters.
        UsageError: `peft` is not installed.
    """
    try:
        from peft import PeftModel
    except ImportError as error:
        raise UsageError(
            f"{directory}: adapters of another program need peft: {not_installed('peft')}"
        ) from error
    tensors = read_tensors(directory)
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        with warnings.catch_warnings(), tempfile.TemporaryDirectory() as draft:
            warnings.simplefilter("ignore")
            warnings.filterwarnings("error", message="Found missing adapter keys")
            model, missing = _load_base(adapter, tensors, family, base)
            model = PeftModel.from_pretrained(model, directory).merge_and_unload()
            model.save_pretrained(draft)
            settings, merged = hf_layout.read(Path(draft))
    except Exception as error:  # transformers and peft raise errors of any kind
        cause = textwrap.shorten(str(error), 300, placeholder=" …")
        raise FileError(
            f"{directory / SETTINGS}: peft cannot merge these adapters: {cause}"
        ) from error
    form = families.load_model(family).FORMAT
    # What the base lacks has random values in `model`.
    found = {n: t for n, t in merged.items() if lora.in_memory(form, n) not in missing}
    same = {n: t for n, t in stored.items() if n in found and t.float().equal(found[n])}
    return settings, found | same


def _load_base(
    adapter: JsonMapping, tensors: Mapping[str, Tensor], family: str, base: Path
) -> tuple[Any, set[str]]:
    """Return transformers' model of the base, and the tensors that neither directory has."""
    mapping = adapter.get("auto_mapping") or {}
    name = mapping.get("base_model_class") or _CLASSES.get(str(adapter.get("task_type")))
    settings = hf_layout.read_settings(base)
    name = name or next(iter(settings.get("architectures") or ()), "")
    model_class = getattr(transformers, name, None)
    if model_class is None:
        raise ValueError(f"transformers has no model {name!r}")
    module = families.load_model(family)
    heads = [theirs for ours, theirs in head_names(module) if ours == HEAD and theirs in tensors]
    sizes = {"num_labels": len(tensors[heads[0]])} if heads else {}
    model, found = model_class.from_pretrained(
        base, dtype=torch.float32, local_files_only=True, output_loading_info=True, **sizes
    )
    tables = lora.table_names(module.FORMAT, families.load(family).VOCABULARY).values()
    rows = max((len(tensors[table]) for table in tables if table in tensors), default=0)
    if rows and rows > len(model.get_input_embeddings().weight):
        model.resize_token_embeddings(rows)
    if model.get_output_embeddings() is not None and settings.get("tie_word_embeddings", True):
        outputs = find_tied_outputs(module.FORMAT, ())
        if any("lora_emb" in name or name.rpartition(".lora_")[0] in outputs for name in tensors):
            raise ValueError("the token embedding has adapters, and the output layer is tied to it")
    return model, set(found["missing_keys"]) - tensors.keys()
