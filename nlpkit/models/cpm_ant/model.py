"""CPM-Ant (OpenBMB, 2022) over packed sequences, in `transformers`' folded form.

Pre-norm blocks without any bias, RMS norms, gated GELU, one relative-position and segment bias
shared by all layers, soft prompts, and one table for input and output.
N tokens of the pack, C hidden_size, H heads, D width of a head, V vocabulary.

Differs from transformers' port: a target sees the context, itself and earlier targets (the port
marks every position as context), and the prompts have a separate table in memory.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nlpkit import attention
from nlpkit.contracts.format import HfFormat, Settings, State, Values
from nlpkit.contracts.request import Heads
from nlpkit.models.cpm_ant import Config
from nlpkit.models.layers.packs import Dropout, RMSNorm, compute_dtype, dropout, select_rows
from nlpkit.models.layers.vocabulary_head import TiedHead

if TYPE_CHECKING:  # what training does not need is not imported
    from nlpkit.attention.cache import Cache

LORA_TARGETS = ("q", "v")  # Hu et al. 2021, sec. 4.2, and the original's tuning


class Block(nn.Module):
    """x + attention(norm(x)), then x + ffn(norm(x))."""

    def __init__(self, config: Config):
        super().__init__()
        width, inner = config.hidden_size, config.num_heads * config.width_per_head
        self.heads = config.num_heads
        self.attention_norm = RMSNorm(width, config.norm_eps)
        self.q = nn.Linear(width, inner, bias=False)
        self.k = nn.Linear(width, inner, bias=False)
        self.v = nn.Linear(width, inner, bias=False)
        self.out = nn.Linear(inner, width, bias=False)
        self.ffn_norm = RMSNorm(width, config.norm_eps)
        self.gate = nn.Linear(width, config.intermediate_size, bias=False)
        self.up = nn.Linear(width, config.intermediate_size, bias=False)
        self.down = nn.Linear(config.intermediate_size, width, bias=False)
        self.drop = Dropout(config.dropout)

    def forward(self, x: Tensor, attend: attention.Attend, rows: Tensor | None = None) -> Tensor:
        """Return (N, C) from (N, C), or (M, C), those of the `rows` (M,) alone."""
        normed = self.attention_norm(x)
        q, k, v = (part(normed).unflatten(1, (self.heads, -1)) for part in (self.q, self.k, self.v))
        seen = attend(q, k, v).flatten(1)
        x = select_rows(x, rows) + self.drop(self.out(select_rows(seen, rows)))
        normed = self.ffn_norm(x)
        # transformers also has dropout inside the feed-forward layer (CpmAntFeedForward).
        inner = self.drop(F.gelu(self.gate(normed)) * self.up(normed))
        return x + self.drop(self.down(inner))


class Model(TiedHead):
    """CPM-Ant with its language-model head."""

    def __init__(self, config: Config, vocab_size: int, backend: str = "auto"):
        super().__init__()
        width = config.hidden_size
        self.config, self.vocab_size, self.backend = config, vocab_size, backend
        self.token_embedding = nn.Parameter(torch.empty(vocab_size, width))
        rows = config.prompt_types * config.prompt_length
        self.prompt_embedding = nn.Parameter(torch.empty(rows, width))
        self.segment_embedding = nn.Parameter(torch.empty(config.segment_types, width))
        biases = config.num_buckets + config.segment_types**2
        self.position_bias = nn.Parameter(torch.empty(biases, config.num_heads))
        self.layers = nn.ModuleList(Block(config) for _ in range(config.num_layers))
        self.norm = RMSNorm(width, config.norm_eps)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the initial weights from torch's current generator.

        All are normal around 0. `folded` has the original's deviations with its run-time factors
        folded in. `scaled` has larger tables, so that the outputs of the first layers do not
        dominate the embeddings, a smaller bias, and divides the weights of layers that add to the
        residual stream by sqrt(2 layers) (Radford et al. 2019, sec. 2.3).
        """
        config, width = self.config, self.config.hidden_size
        folded = config.init == "folded"
        for table in (self.token_embedding, self.prompt_embedding, self.segment_embedding):
            nn.init.normal_(table, std=(0.02 if folded else 1.0) / math.sqrt(width))
        nn.init.normal_(self.position_bias, std=1.0 if folded else 0.02)
        for name, module in self.named_modules():
            if isinstance(module, nn.Linear):
                adds = name.endswith(("out", "down")) and not folded
                depth = 2 * config.num_layers if adds else 1
                nn.init.normal_(module.weight, std=1 / math.sqrt(module.in_features * depth))

    def embed(self, input_ids: Tensor, segment: Tensor) -> Tensor:
        """Return (N, C); ids from `vocab_size` on are soft prompts."""
        last = self.vocab_size - 1
        words = F.embedding(input_ids.clamp(max=last), self.token_embedding)
        prompts = F.embedding((input_ids - self.vocab_size).clamp(min=0), self.prompt_embedding)
        chosen = torch.where((input_ids > last)[:, None], prompts, words)
        return chosen + F.embedding(segment, self.segment_embedding)

    def forward(
        self,
        lengths: Sequence[int],
        input_ids: Tensor,
        segment: Tensor,
        position: Tensor,
        context: Tensor,
        cache: Cache | None = None,
        rows: Tensor | None = None,
    ) -> Tensor:
        """Return the last hidden states (N, C) of a pack of sequences of these `lengths`.

        `input_ids` (N,) from `vocab_size` on are soft prompts, `segment` is in [0, segment_types),
        `position` from 0 in every sequence, `context` False where the token is a target. `cache`
        has keys and values of the earlier tokens; this call adds those of its tokens. With `rows`
        (M,), in the order of the pack, these are the states of these tokens alone.
        """
        config = self.config
        layout = attention.layout_of(lengths, input_ids.device, cache)
        heads = Heads(
            config.num_heads,
            config.width_per_head,
            compute_dtype(self.position_bias),
            self.training,
            dropout=config.dropout,
            backend=self.backend,
        )
        attend = attention.prepare(
            config.kinds[0],
            heads,
            layout.with_fields({"segment": segment, "position": position, "context": context}),
            tensors={"table": self.position_bias},
            cache=cache,
        )
        self.attention_choice = attend.reason
        x = dropout(self.embed(input_ids, segment), config.dropout, self.training)
        *before, last = self.layers
        for layer in before:
            x = layer(x, attend)
        return self.norm(last(x, attend, rows))


def prompt_blocks(config: Config) -> list[int]:
    """Return the block on disk of each of our prompt blocks.

    transformers' forward always reads block 2, so this is the generation prompt. Block 1 is the
    infilling prompt, as in the original pretraining. The other blocks follow in order.
    """
    on_disk = {config.prompts.generation: 2, config.prompts.infilling: 1}
    blocks = range(config.prompt_types)
    free = (block for block in blocks if block not in on_disk.values())
    return [on_disk[block] if block in on_disk else next(free) for block in blocks]


def _join(config: Config, state: State) -> State:
    """Return the state dict with words and soft prompts in one table, in the order on disk."""
    ours = state["prompt_embedding"].unflatten(0, (config.prompt_types, config.prompt_length))
    words = state["token_embedding"]
    table = words.new_empty(len(words) + len(ours.flatten(0, 1)), config.hidden_size)
    table[: len(words)] = words
    table[len(words) :].view_as(ours)[prompt_blocks(config)] = ours
    others = {name: tensor for name, tensor in state.items() if name != "prompt_embedding"}
    return {**others, "token_embedding": table}


def _split(config: Config, settings: Settings, state: State) -> State:
    if "token_embedding" not in state:
        return state
    blocks = settings.get("nlpkit", {}).get("prompt_blocks") or prompt_blocks(config)
    table, vocab_size = state["token_embedding"], settings["vocab_size"]
    theirs = table[vocab_size:].unflatten(0, (config.prompt_types, config.prompt_length))
    return {
        **state,
        "token_embedding": table[:vocab_size].clone(),
        "prompt_embedding": theirs[blocks].flatten(0, 1),
    }


def _more_settings(config: Config) -> Values:
    notes = {"prompt_blocks": prompt_blocks(config), "prompts": config.prompts.model_dump()}
    return {"dim_head": config.width_per_head, "nlpkit": notes}


def _read_config(settings: Settings, sizes: Values) -> Values:
    # None, as in a recipe, if it follows from the other sizes.
    is_default = sizes["hidden_size"] == sizes["num_heads"] * settings["dim_head"]
    notes = settings.get("nlpkit", {})
    prompts = {"prompts": notes["prompts"]} if "prompts" in notes else {}
    return {**sizes, **prompts, "head_dim": None if is_default else settings["dim_head"]}


_OURS, _THEIRS = "layers.{num_layers}", "cpmant.encoder.layers.{num_layers}"
FORMAT = HfFormat(
    architecture="CpmAntForCausalLM",
    pipeline="text-generation",
    body="cpmant.",
    names={
        "token_embedding": "cpmant.input_embedding.weight",  # followed by the soft prompts
        "segment_embedding": "cpmant.segment_embedding.weight",
        "position_bias": "cpmant.position_bias.relative_attention_bias",
        f"{_OURS}.attention_norm": f"{_THEIRS}.self_att.layernorm_before_attention",
        f"{_OURS}.q": f"{_THEIRS}.self_att.self_attention.project_q",
        f"{_OURS}.k": f"{_THEIRS}.self_att.self_attention.project_k",
        f"{_OURS}.v": f"{_THEIRS}.self_att.self_attention.project_v",
        f"{_OURS}.out": f"{_THEIRS}.self_att.self_attention.attention_out",
        f"{_OURS}.ffn_norm": f"{_THEIRS}.ffn.layernorm_before_ffn",
        f"{_OURS}.gate": f"{_THEIRS}.ffn.ffn.w_in.w_0",
        f"{_OURS}.up": f"{_THEIRS}.ffn.ffn.w_in.w_1",
        f"{_OURS}.down": f"{_THEIRS}.ffn.ffn.w_out",
        "norm": "cpmant.encoder.output_layernorm",
    },
    copies={"lm_head.weight": "token_embedding"},
    sizes={
        "hidden_size": "hidden_size",
        "num_layers": "num_hidden_layers",
        "num_heads": "num_attention_heads",
        "intermediate_size": "dim_ff",
        "prompt_types": "prompt_types",
        "prompt_length": "prompt_length",
        "segment_types": "segment_types",
        "num_buckets": "position_bias_num_buckets",
        "max_distance": "position_bias_max_distance",
        "norm_eps": "eps",
        "dropout": "dropout_p",
    },
    more_settings=_more_settings,
    read_config=_read_config,
    join=_join,
    split=_split,
)
