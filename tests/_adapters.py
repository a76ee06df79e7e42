"""Small models of the families with adapters, ours and peft's, and runs that train them."""

import json
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor, nn
from transformers import (
    AutoModelForCausalLM,
    AutoModelForImageClassification,
    AutoModelForMaskedLM,
    AutoModelForPreTraining,
    AutoModelForSeq2SeqLM,
    CpmAntForCausalLM,
    GPT2LMHeadModel,
    GPTNeoForCausalLM,
    GPTNeoXForCausalLM,
    OpenAIGPTLMHeadModel,
    Qwen2ForCausalLM,
)

from nlpkit.checkpoints import hf_layout, hf_writing
from nlpkit.models import (
    albert,
    bart,
    bert,
    cpm_ant,
    deberta_v2,
    distilbert,
    electra,
    families,
    gpt,
    gpt2,
    gpt_neo,
    gpt_neox,
    llama,
    longformer,
    lora,
    modernbert,
    modernbert_decoder,
    roberta,
    t5,
    transformer,
    vit,
    xlm,
    xlnet,
)
from nlpkit.models.adapter_config import Config
from nlpkit.models.cpm_ant.model import Model as CpmAnt
from nlpkit.runs import adapters
from nlpkit.runs.run import ModelPart
from nlpkit.tokenizers.cpm_ant import SPECIAL_TOKENS, Tokenizer
from tests import _tiny
from tests._formats import to_hf

WORDS = [*SPECIAL_TOKENS, *dict.fromkeys(_tiny.WORDS)]
CONFIGS: dict[str, Any] = {
    "cpm_ant": cpm_ant.Config(
        hidden_size=32, num_layers=2, num_heads=4, intermediate_size=48, prompt_types=4,
        prompt_length=5, segment_types=4, num_buckets=32, max_distance=40,
    ),
    "gpt": gpt.Config(hidden_size=32, num_layers=2, num_heads=4, max_positions=40),
    "gpt2": gpt2.Config(
        hidden_size=32, num_layers=2, num_heads=4, max_positions=40, intermediate_size=48
    ),
    "gpt_neo": gpt_neo.Config(
        hidden_size=32, num_layers=2, num_heads=4, max_positions=40, intermediate_size=48
    ),
    "gpt_neox": gpt_neox.Config(
        hidden_size=32, num_layers=2, num_heads=4, intermediate_size=48, max_positions=40, tie=True
    ),
    "llama": llama.Config(
        hidden_size=32, num_layers=2, num_heads=4, intermediate_size=48, max_positions=40,
        num_key_heads=2, variant="qwen2", tie=True,
    ),
}  # fmt: skip
TRANSPOSED = {
    "cpm_ant": False,
    "gpt": True,
    "gpt2": True,
    "gpt_neo": False,
    "gpt_neox": False,
    "llama": False,
}  # transformers' Conv1D
THEIRS = {
    "cpm_ant": CpmAntForCausalLM,
    "gpt": OpenAIGPTLMHeadModel,
    "gpt2": GPT2LMHeadModel,
    "gpt_neo": GPTNeoForCausalLM,
    "gpt_neox": GPTNeoXForCausalLM,
    "llama": Qwen2ForCausalLM,
}
# Exactly those; CPM-Ant's of the feed-forward layer have a different number of inputs and outputs.
TARGETS = {
    "cpm_ant": ["project_q", "w_out"],
    "gpt": ["c_attn", "mlp.c_proj"],
    "gpt2": ["c_attn", "mlp.c_proj"],
    "gpt_neo": ["q_proj", "mlp.c_proj"],
    "gpt_neox": ["query_key_value", "dense_4h_to_h"],
    "llama": ["v_proj", "mlp.down_proj"],
    "modernbert": ["Wqkv", "mlp.Wo"],
    "modernbert_decoder": ["k_proj", "mlp.Wi"],
    "distilbert": ["q_lin", "ffn.lin2"],
    "deberta_v2": ["value_proj", "intermediate.dense"],
}
# Encoders, which transformers opens with both their heads.
_ENCODER = {"hidden_size": 32, "num_layers": 2, "num_heads": 4, "intermediate_size": 48}
ENCODERS = {
    "albert": albert, "bert": bert, "deberta_v2": deberta_v2, "distilbert": distilbert,
    "electra": electra,
    "longformer": longformer, "roberta": roberta,
}  # fmt: skip
CONFIGS |= {name: light.Config(**_ENCODER) for name, light in ENCODERS.items()}
TRANSPOSED |= dict.fromkeys(ENCODERS, False)
_PLAIN = {name: size for name, size in _ENCODER.items() if name != "intermediate_size"}
CONFIGS |= {
    "xlnet": xlnet.Config(**_ENCODER),
    "bart": bart.Config(**_ENCODER),
    "t5": t5.Config(**_ENCODER, head_dim=8),
    "transformer": transformer.Config(**_ENCODER),
    "xlm": xlm.Config(**_PLAIN),
}
TRANSPOSED |= dict.fromkeys(("xlnet", "bart", "t5", "transformer", "xlm"), False)
CONFIGS |= {"modernbert": modernbert.Config(**_ENCODER)}
CONFIGS |= {"modernbert_decoder": modernbert_decoder.Config(**_ENCODER)}
TRANSPOSED |= dict.fromkeys(("modernbert", "modernbert_decoder"), False)
CONFIGS["vit"], TRANSPOSED["vit"] = vit.Config(**_ENCODER, image_size=8, patch_size=4), False
IDS = torch.arange(11, 31)


def module(family: str) -> Any:
    return families.load_model(family)


def base(family: str, directory: Path) -> nn.Module:
    """Return a model of ours with random weights; write it, with a tokenizer, as a base."""
    model = module(family).Model(CONFIGS[family], len(WORDS)).eval()
    with torch.no_grad():  # large enough for every part to matter
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    directory.mkdir(parents=True)
    hf_writing.write(directory, *to_hf(family, CONFIGS[family], model.state_dict()))
    Tokenizer(WORDS).save(directory)
    return model


def theirs(family: str, directory: Path) -> nn.Module:
    """Return transformers' model of a directory."""
    kind: Any = AutoModelForPreTraining if family in ENCODERS else AutoModelForCausalLM
    if family in ("modernbert", "distilbert", "deberta_v2"):
        kind = AutoModelForMaskedLM
    if family == "vit":
        kind = AutoModelForImageClassification
    if family in ("bart", "t5", "transformer"):
        kind = AutoModelForSeq2SeqLM
    # Marian's default is an id of its own vocabulary.
    more = {"pad_token_id": 0} if family == "transformer" else {}
    return kind.from_pretrained(directory, **more).eval()


def peft_model(family: str, directory: Path, **settings: Any) -> nn.Module:
    """Return transformers' model of a base with peft's adapters, B not 0."""
    settings = {"r": 4, "lora_alpha": 6, "target_modules": TARGETS[family]} | settings
    transposed = {"fan_in_fan_out": TRANSPOSED[family]}
    model = get_peft_model(theirs(family, directory), LoraConfig(**(transposed | settings)))
    randomise(model, "lora_B")
    return model.eval()


def randomise(model: nn.Module, part: str) -> None:
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if part in name:
                parameter.normal_(std=0.3)


def inputs(model: Any, ids: Tensor = IDS) -> tuple[tuple[int, ...], dict[str, Tensor]]:
    """Return what `forward` takes so that transformers' forward computes the same."""
    if not isinstance(model, CpmAnt):
        return (len(ids),), {"input_ids": ids}
    size = model.config.prompt_length
    prompt = model.vocab_size + model.config.prompts.generation * size + torch.arange(size)
    length = size + len(ids)
    return (length,), {
        "input_ids": torch.cat([prompt, ids]),
        "segment": torch.tensor([0] * size + [2] * len(ids)),
        "position": torch.arange(length),
        "context": torch.ones(length, dtype=torch.bool),
    }


def logits(model: Any, ids: Tensor = IDS) -> Tensor:
    """Return (T, V) of our model, or of transformers', for the same text."""
    if not hasattr(model, "token_loss"):
        return model(input_ids=ids[None]).logits[0]
    lengths, fields = inputs(model, ids)
    return model.logits(model(lengths, **fields))[-len(ids) :]


def adapted(family: str, model: nn.Module, **settings: Any) -> dict[str, str]:
    """Put adapters on our model, B not 0; return their layers, our names and transformers'."""
    config = Config(**({"rank": 4, "alpha": 6.0, "targets": TARGETS.get(family)} | settings))
    targets = lora.find_targets(config, module(family), CONFIGS[family])
    lora.adapt(model, config, targets)
    randomise(model, "lora_B")
    return targets


def write_adapters(
    family: str, model: nn.Module, directory: Path, base_path: Path, **settings: Any
) -> None:
    """Write the adapters of our model as a run does."""
    config = Config(**({"rank": 4, "alpha": 6.0, "targets": TARGETS.get(family)} | settings))
    targets = lora.find_targets(config, module(family), CONFIGS[family])
    directory.mkdir()
    settings, tensors = hf_layout.read(base_path)
    hf_writing.write_settings(directory, settings)
    Tokenizer(WORDS).save(directory)
    part = ModelPart(family, CONFIGS[family], None, base_path, lora=config, targets=targets)
    adapters.write(directory, part, model.state_dict(), tensors, len(WORDS))


def tuning_recipe(folder: Path, start: Path, *lines: str) -> Path:
    """Write a recipe that goes on from a checkpoint on the corpus of `_tiny.write`."""
    path = folder / "tune.yaml"
    path.write_text(
        "\n".join(
            (
                "name: tune",
                f"init_from: {json.dumps(str(start))}",
                f"data: {{train: [{folder}/train.txt], valid: [{folder}/valid.txt]}}",
                "objective: {name: cpm_ant, max_length: 64, min_piece: 4}",
                "train: {steps: 8, tokens_per_step: 512, tokens_per_batch: 256, lr: 1.0e-2,"
                " warmup_steps: 2, precision: fp32, eval_every: 4, save_every: 3, keep: 9}",
                *lines,
            )
        ),
        encoding="utf-8",
    )
    return path
