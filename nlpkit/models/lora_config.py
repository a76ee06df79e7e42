"""The `lora:` section of a recipe (Hu et al. 2021, arXiv 2106.09685). Importable without torch."""

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
