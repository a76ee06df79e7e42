"""The sections `lora:` and `prompt:` of a recipe: what is trained beside a model that is left as it
is (Hu et al. 2021, arXiv 2106.09685; Lester et al. 2021, arXiv 2104.08691). Importable without
torch.
"""

from pydantic import Field

from nlpkit.config import FrozenConfig, Size


class Config(FrozenConfig):
    """Low-rank adapters: h = W x + alpha / rank * B A x; only A and B are trained."""

    rank: Size = Field(8, description="rows of A, columns of B")
    alpha: float = Field(16.0, gt=0, description="what B A x is multiplied by, times rank")
    dropout: float = Field(0.0, ge=0, lt=1, description="on the input of A, if it is no table")
    targets: str | list[str] | None = Field(
        None,
        min_length=1,
        description="linear layers by name, ours (q) or transformers' (project_q), or all-linear: "
        "every one; token_embedding: the table of tokens; default: the family's, mostly queries "
        "and values",
    )


class Prompt(FrozenConfig):
    """Virtual tokens before every sequence; only their embeddings are trained."""

    tokens: Size | None = Field(None, description="virtual tokens; default: 20, or init_from's")
    text: str | None = Field(
        None,
        min_length=1,
        description="the embeddings are at first those of the words of this text, again and again; "
        "default: of random tokens, or those of init_from",
    )
