"""A recurrent model whose states shrink in the course of the run."""

from tests.parts import recurrent

MODEL_TYPE = "test-fading"
DEFAULT_OBJECTIVE = "tests.parts.progress_input"
VOCABULARY = ("token_embedding",)


class Config(recurrent.Config):
    """Sizes, as of the recurrent model."""

    inputs = ("input_ids", "progress")
