"""CPM-Ant as CPM-Live computes it, from the original's weights: factors at run time, dense, slow.

Written after spec/cpm_ant.md and OpenBMB/CPM-Live (cpm_live/layers, branch cpm-ant); shares nothing
with nlpkit or transformers. Also how it makes examples (`training_tasks/ant_plus/pretrain.py` of
branch cpm-ant-plus, `examples/tune.py` of branch cpm-ant).
"""

import json
import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

SIZES: dict[str, Any] = {
    "dim_model": 32, "num_heads": 4, "dim_head": 8, "dim_ff": 48, "num_layers": 2,
    "vocab_size": 61, "position_bias_num_buckets": 32, "position_bias_max_distance": 40,
    "prompt_types": 4, "prompt_length": 5, "segment_types": 4, "eps": 1e-6, "dropout_p": 0.0,
    "mask_modules": None, "half": True,
}  # fmt: skip


# The type of segment that is decoded in each task: a summary, an answer, two ways of translation.
DECODED = {3: 2, 4: 3, 5: 2, 6: 2}


def example_of_segments(
    task: int,
    segments: list[tuple[int, list[int]]],
    prompt_length: int,
    vocab_size: int,
    branch: str = "cpm-ant-plus",
) -> dict[str, list[int]]:
    """Return input, context, segment, position and target of (type, ids), `<s>` and `</s>` inside.

    In branch cpm-ant the row is decoded from its second token on; its prompts have a table of
    their own, whose rows are here behind the words as in the later branch.
    """
    made: dict[str, list[int]] = {"input": [], "context": [], "segment": [], "target": []}
    for k in range(prompt_length):
        made["input"].append(vocab_size + prompt_length * task + k)
        made["context"].append(1)
        made["segment"].append(0)
        made["target"].append(-100)
    decoding = False
    for kind, ids in segments:
        begins = kind == DECODED[task] and not decoding
        decoding = decoding or begins
        for place, token in enumerate(ids):
            last = place == len(ids) - 1
            made["input"].append(token)
            made["context"].append(int(not decoding or (begins and place == 0)))
            made["segment"].append(kind)
            made["target"].append(ids[place + 1] if decoding and not last else -100)
    if decoding and branch == "cpm-ant":
        made["context"][prompt_length + 1 :] = [0] * (len(made["input"]) - prompt_length - 1)
    return made | {"position": list(range(len(made["input"])))}


def tuning_example(given: list[int], target: list[int], prompt: list[int]) -> dict[str, list[int]]:
    """Return the tensors of a tuned row: `given` begins with `<s>`, `target` ends with `</s>`.

    Of an option of a choice, all is given.
    """
    text = given + target
    shifted = [-100] * (len(prompt) + len(given) - 1) + target
    return {
        "input": prompt + text,
        "position": list(range(len(prompt + text))),
        "context": [1] * len(prompt + given) + [0] * len(target),
        "segment": [0] * len(prompt) + [2] * len(text),
        "target": shifted + [-100] * (len(prompt + text) - len(shifted)),
    }


def weights(sizes: dict[str, Any]) -> dict[str, Tensor]:
    """Return a state dict of random weights, large enough for every part to matter."""
    width, wide, inner = sizes["dim_model"], sizes["dim_ff"], sizes["num_heads"] * sizes["dim_head"]
    rows = sizes["segment_types"] ** 2 + sizes["position_bias_num_buckets"]
    state = {
        "input_embedding.weight": torch.randn(sizes["vocab_size"], width),
        "prompt_embedding.weight": torch.randn(
            sizes["prompt_types"] * sizes["prompt_length"], width
        ),
        "segment_embedding.weight": torch.randn(sizes["segment_types"], width),
        "position_bias.relative_attention_bias": torch.randn(rows, sizes["num_heads"]),
        "encoder.output_layernorm.weight": 1 + 0.2 * torch.randn(width),
    }
    for i in range(sizes["num_layers"]):
        name = f"encoder.layers.{i}"
        attention = f"{name}.self_att.self_attention"
        state[f"{name}.self_att.layernorm_before_attention.weight"] = 1 + 0.2 * torch.randn(width)
        for part in ("project_q", "project_k", "project_v"):
            state[f"{attention}.{part}.weight"] = torch.randn(inner, width)
        state[f"{attention}.attention_out.weight"] = torch.randn(width, inner)
        state[f"{name}.ffn.layernorm_before_ffn.weight"] = 1 + 0.2 * torch.randn(width)
        state[f"{name}.ffn.ffn.w_in.w_0.weight"] = torch.randn(wide, width)
        state[f"{name}.ffn.ffn.w_in.w_1.weight"] = torch.randn(wide, width)
        state[f"{name}.ffn.ffn.w_out.weight"] = torch.randn(width, wide)
    return state


def release(
    folder: Path, state: dict[str, Tensor], sizes: dict[str, Any], tokens: list[str]
) -> Path:
    """Write `cpm-ant-tiny.pt`, its json and vocab.txt; return the first."""
    folder.mkdir(parents=True, exist_ok=True)
    torch.save(state, folder / "cpm-ant-tiny.pt")
    (folder / "cpm-ant-tiny.json").write_text(json.dumps(sizes))
    (folder / "vocab.txt").write_text("\n".join(tokens), encoding="utf-8")
    return folder / "cpm-ant-tiny.pt"


def logits(
    state: dict[str, Tensor],
    sizes: dict[str, Any],
    *,
    block: int,
    ids: Tensor,
    segment: Tensor,
    context: Tensor,
) -> Tensor:
    """Return (T, V) for a text behind the soft prompt of a block.

    Args:
        ids: (T,) of the text alone.
        segment: (T,) of the text; the prompt's is 0.
        context: (T,) of the text; the prompt is context.
    """
    size, width = sizes["prompt_length"], sizes["dim_model"]
    prompt = state["prompt_embedding.weight"][block * size : (block + 1) * size]
    words = state["input_embedding.weight"][ids]
    segment = torch.cat([torch.zeros(size, dtype=torch.long), segment])
    context = torch.cat([torch.ones(size, dtype=torch.bool), context])
    x = torch.cat([prompt, words]) / math.sqrt(width)
    x = x + state["segment_embedding.weight"][segment] / math.sqrt(width)
    position = torch.arange(len(x))
    seen = context[None, :] | (~context[:, None] & (position[None, :] <= position[:, None]))
    bias = _bias(state, sizes, segment, position)
    for i in range(sizes["num_layers"]):
        name = f"encoder.layers.{i}"
        normed = _norm(x, state[f"{name}.self_att.layernorm_before_attention.weight"], sizes)
        x = x + _attention(state, f"{name}.self_att.self_attention", normed, bias, seen, sizes)
        normed = _norm(x, state[f"{name}.ffn.layernorm_before_ffn.weight"], sizes)
        gate = _linear(normed, state[f"{name}.ffn.ffn.w_in.w_0.weight"])
        up = _linear(normed, state[f"{name}.ffn.ffn.w_in.w_1.weight"])
        gelu = 0.5 * gate * (1 + torch.erf(gate / math.sqrt(2)))
        x = x + _linear(gelu * up, state[f"{name}.ffn.ffn.w_out.weight"])
    x = _norm(x, state["encoder.output_layernorm.weight"], sizes)
    return ((x / math.sqrt(width)) @ state["input_embedding.weight"].T)[size:]


def _linear(x: Tensor, weight: Tensor) -> Tensor:
    return x @ weight.T / math.sqrt(weight.shape[1])


def _project(state: dict[str, Tensor], name: str, x: Tensor) -> Tensor:
    """Return a linear layer's output, with that of OpenDelta's parallel LoRA module, if any."""
    out = _linear(x, state[f"{name}.weight"])
    if f"{name}.lora.lora_A" not in state:
        return out
    a, b = state[f"{name}.lora.lora_A"], state[f"{name}.lora.lora_B"]
    return out + (x @ a.T @ b.T) * (16 / a.shape[0])


def _norm(x: Tensor, weight: Tensor, sizes: dict[str, Any]) -> Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + sizes["eps"]) * weight


def _attention(
    state: dict[str, Tensor], name: str, x: Tensor, bias: Tensor, seen: Tensor, sizes: dict
) -> Tensor:
    heads = sizes["num_heads"]
    q, k, v = (
        _project(state, f"{name}.project_{part}", x).unflatten(1, (heads, -1)).transpose(0, 1)
        for part in "qkv"
    )
    scores = q @ k.transpose(1, 2) / math.sqrt(sizes["dim_head"]) + bias
    mixed = scores.masked_fill(~seen, -math.inf).softmax(-1) @ v  # (H, T, D)
    merged = mixed.transpose(0, 1).flatten(1)
    return _linear(merged, state[f"{name}.attention_out.weight"])


def _bias(state: dict[str, Tensor], sizes: dict, segment: Tensor, position: Tensor) -> Tensor:
    """Return (H, T, T): query, key."""
    buckets = torch.empty(len(segment), len(segment), dtype=torch.long)
    for query in range(len(segment)):
        for key in range(len(segment)):
            if segment[query] == segment[key]:
                buckets[query, key] = _bucket(int(position[key] - position[query]), sizes)
            else:
                pair = int(segment[query]) * sizes["segment_types"] + int(segment[key])
                buckets[query, key] = sizes["position_bias_num_buckets"] + pair
    return state["position_bias.relative_attention_bias"][buckets].permute(2, 0, 1)


def _bucket(distance: int, sizes: dict[str, Any]) -> int:
    half = sizes["position_bias_num_buckets"] // 2
    start, distance, exact = (half if distance > 0 else 0), abs(distance), half // 2
    if distance < exact:
        return start + distance
    ratio = math.log(distance / exact) / math.log(sizes["position_bias_max_distance"] / exact)
    return start + min(exact + int(ratio * (half - exact)), half - 1)
