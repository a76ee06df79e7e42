"""Two halves as ELECTRA has them, queries and keys in one tensor as GPT-NeoX, a bias as BERT."""

import torch
from torch import nn

from nlpkit.contracts.format import HfFormat, Settings, State, Transposed
from tests._families.halves import Config

LORA_TARGETS = ("out",)


class Layer(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.q = nn.Linear(width, width, bias=False)
        self.k = nn.Linear(width, width, bias=False)
        self.out = nn.Linear(width, 2 * width)


class Model(nn.Module):
    """No more than its parameters."""

    def __init__(self, config: Config, vocab_size: int, backend: str = "auto"):
        super().__init__()
        width = config.hidden_size
        self.token_embedding = nn.Parameter(torch.randn(vocab_size, width))
        self.token_bias = nn.Parameter(torch.randn(vocab_size))
        self.layers = nn.ModuleList(Layer(width) for _ in range(config.num_layers))
        self.pooler = nn.Linear(width, width)
        self.generator = nn.Linear(width, 3)


def _join(config: Config, state: State) -> State:
    found = dict(state)
    for name in [name for name in state if name.endswith(".q.weight")]:
        layer = name.removesuffix(".q.weight")
        both = [found.pop(f"{layer}.{part}.weight") for part in ("q", "k")]
        found[f"{layer}.qk.weight"] = torch.cat(both)
    return found


def _split(config: Config, settings: Settings, state: State) -> State:
    found = dict(state)
    for name in [name for name in state if name.endswith(".qk.weight")]:
        layer = name.removesuffix(".qk.weight")
        q, k = found.pop(name).chunk(2)
        found |= {f"{layer}.q.weight": q, f"{layer}.k.weight": k}
    return found


FORMAT = HfFormat(
    architecture="Halves",
    body="halves.",
    names={
        "token_embedding": "halves.words.weight",
        "token_bias": "cls.bias",
        "layers.{num_layers}": "halves.layer.{num_layers}",
        "layers.{num_layers}.out": Transposed("halves.layer.{num_layers}.dense.out"),
        "layers.{num_layers}.qk.weight": "halves.layer.{num_layers}.query_key.weight",
        "pooler": "halves.pooler.dense",
    },
    sizes={"hidden_size": "width", "num_layers": "depth", "dropout": "dropout_p"},
    copies={"cls.decoder.weight": "token_embedding"},
    optional=("pooler",),
    ignored=("position_ids",),
    join=_join,
    split=_split,
    folders={
        "generator": HfFormat(
            architecture="Half",
            names={"generator": "head", "token_embedding": "words.weight"},
            sizes={"num_layers": "depth"},
            more_settings=lambda config: {"width": config.hidden_size // 2},
        )
    },
)
