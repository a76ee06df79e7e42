"""`models/NAME/__init__.py`: a family as recipes need it; `family_model` is about its model."""

from typing import Protocol

from nlpkit.config import FrozenConfig


class Family(Protocol):
    """A family without its model. Importable without torch."""

    Config: type[FrozenConfig]  # a `ModelConfig`: sizes, kinds of attention, capabilities
    MODEL_TYPE: str  # transformers' name of the family, `model_type` in config.json
    MORE_MODEL_TYPES: tuple[str, ...] = ()  # further names of it, whose checkpoints it opens
    DEFAULT_OBJECTIVE: str = ""  # of a checkpoint that names no objective
    # Parameters whose first dimension is the vocabulary; empty: it reads and predicts no tokens.
    VOCABULARY: tuple[str, ...] = ("token_embedding",)


CONTRACTS = (Family,)
