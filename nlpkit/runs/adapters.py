"""Writes what is trained of a run that leaves the weights of its base as they are, for peft.

`adapter_config.json` and `adapter_model.safetensors` have the LoRA adapters or the soft prompt, the
task's output layer, and the tables if the vocabulary has grown (`checkpoints/peft_layout.py`,
`checkpoints/prompt_layout.py`).
"""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from torch import Tensor
from torch.nn import functional as F

from nlpkit.checkpoints import hf_writing, peft_layout, prompt_layout
from nlpkit.checkpoints.peft_layout import SETTINGS, WEIGHTS
from nlpkit.contracts.format import HfFormat
from nlpkit.errors import UsageError
from nlpkit.json_types import JsonObject
from nlpkit.models import lora, soft_prompt
from nlpkit.models.adapter_config import Config
from nlpkit.models.formats import hf_format
from nlpkit.models.formats.hf_reading import current_name
from nlpkit.models.layers.head import CHOICE, HEAD, SEQUENCE
from nlpkit.runs.run import ModelPart
from nlpkit.runs.soft_prompts import VirtualTokens

# peft's `task_type` by the kind of task; other layers have none.
_TASK_TYPES = {
    SEQUENCE: "SEQ_CLS",
    CHOICE: "SEQ_CLS",
    "token_classification": "TOKEN_CLS",
    "question_answering": "QUESTION_ANS",
}


def remove(part: ModelPart, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the state dict of the model as it is without adapters or soft prompt."""
    return soft_prompt.remove(weights) if part.lora is None else lora.remove_adapters(weights)


def write(
    directory: Path,
    part: ModelPart,
    weights: Mapping[str, Tensor],
    merged: Mapping[str, Tensor],
    vocab_size: int,
) -> None:
    """Write the two files of peft.

    Args:
        weights: the model's state dict.
        merged: all tensors of the model without adapters by transformers' names.
    """
    form = part.module().FORMAT
    merged = {current_name(form, name): tensor for name, tensor in merged.items()}
    heads = part.head.names if HEAD in weights else {}
    tensors = {theirs: weights[ours] for ours, theirs in heads.items()}
    if part.new_tokens(vocab_size):
        saved = lora.table_names(form, part.vocabulary)
        if lost := [name for name in part.vocabulary if name in weights and name not in saved]:
            what = "has new tokens, and is not saved with adapters; train the whole model"
            raise UsageError(f"lora: {lost[0]} {what}")
        layer = part.targets.get(lora.TABLE)
        names = {f"{layer}.weight": f"{layer}.base_layer.weight"}
        tables = [name for name in saved.values() if name in merged]
        tensors |= {names.get(name, name): merged[name] for name in tables}
    kind = _find_task_type(form, part.head_kind if heads else None)
    settings: JsonObject = {
        "task_type": kind,
        "base_model_name_or_path": str(part.source),
        "modules_to_save": sorted({n.partition(".")[0] for n in heads.values()}) or None,
        "inference_mode": True,
    }
    if part.lora is None:
        rows = weights[soft_prompt.NAME]
        named = {f"{prompt_layout.PREFIX}{name}": tensor for name, tensor in tensors.items()}
        named[prompt_layout.ROWS] = rows
        assert isinstance(part.prompt, VirtualTokens)
        settings |= _describe_prompt(part, rows, part.prompt.text)
        settings["task_type"] = kind or "FEATURE_EXTRACTION"  # peft wants one; this adds nothing
    else:
        outputs: list[str] = []
        if lora.TABLE in part.targets and not heads:
            outputs = peft_layout.find_tied_outputs(form, weights)
        tensors |= _collect_adapters(part, weights, merged, outputs)
        named = {f"{peft_layout.PREFIX}{name}": tensor for name, tensor in tensors.items()}
        settings |= _describe_lora(part, part.lora, outputs)
    (directory / SETTINGS).write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
    hf_writing.save_tensors(directory / WEIGHTS, named, {"format": "pt"})


def _find_task_type(form: HfFormat, head_kind: str | None) -> str | None:
    """Return peft's name of the task of a layer, or of a language model; an encoder has none."""
    if head_kind is not None:
        return _TASK_TYPES.get(head_kind)
    if form.architecture.endswith(("ForConditionalGeneration", "MTModel")):
        return "SEQ_2_SEQ_LM"
    return "CAUSAL_LM" if form.architecture.endswith(("ForCausalLM", "LMHeadModel")) else None


def _describe_prompt(part: ModelPart, rows: Tensor, text: str | None) -> JsonObject:
    """Return the settings of peft's `PromptTuningConfig` alone."""
    return {
        "peft_type": prompt_layout.KIND,
        "num_virtual_tokens": len(rows),
        "token_dim": rows.shape[1],
        "num_transformer_submodules": 1,
        "num_attention_heads": part.config.setting("num_heads"),
        "num_layers": part.config.setting("num_layers"),
        "prompt_tuning_init": "RANDOM" if text is None else "TEXT",
        "prompt_tuning_init_text": text,
        "tokenizer_name_or_path": None if text is None else str(part.source),
    }


def _describe_lora(part: ModelPart, config: Config, outputs: Iterable[str]) -> JsonObject:
    """Return the settings of peft's `LoraConfig` alone."""
    form, targets = part.module().FORMAT, part.targets.values()
    return {
        "peft_type": "LORA",
        **{"r": config.rank, "lora_alpha": config.alpha, "lora_dropout": config.dropout},
        "target_modules": [*(lora.in_memory(form, theirs) for theirs in targets), *outputs],
        "fan_in_fan_out": any(lora.is_transposed(form, theirs) for theirs in targets),
        "bias": "none",
    }


def _collect_adapters(
    part: ModelPart,
    weights: Mapping[str, Tensor],
    merged: Mapping[str, Tensor],
    outputs: Iterable[str],
) -> dict[str, Tensor]:
    """Return the adapters by peft's names.

    In that of the table of tokens, A has a column for each row of transformers' table, which may
    have soft prompts. An output layer whose weight is the table has the same adapter, with A and B
    in turned places.
    """
    form = part.module().FORMAT
    found = {
        f"{lora.in_memory(form, theirs)}.{matrix}": weights[name]
        for ours, theirs in part.targets.items()
        for matrix, name in lora.name_matrices(ours).items()
    }
    if theirs := part.targets.get(lora.TABLE):
        layer = lora.in_memory(form, theirs)
        a, b = (found[f"{layer}.{name}"] for name in (lora.TABLE_A, lora.TABLE_B))
        rows = len(merged[hf_format.names_of(form, lora.TABLE)[0].theirs])
        found[f"{layer}.{lora.TABLE_A}"] = F.pad(a, (0, rows - a.shape[1]))
        for output in outputs:
            found[f"{output}.lora_A.weight"] = b.T.contiguous()
            found[f"{output}.lora_B.weight"] = a.T.contiguous()
    return found
