"""Causal language modelling with tokens of roles, and a chat template for transformers."""

from pydantic import Field

from nlpkit.objectives import clm

TEMPLATE = "{% for message in messages %}{{ message['content'] }}\n{% endfor %}"


class Config(clm.Config):
    """The settings of `clm`, and the tokens that begin a message."""

    roles: list[str] = Field(["<|user|>", "<|bot|>"], description="special tokens of roles")


class Objective(clm.Objective):
    """`clm` with a file more, and with special tokens that its settings name."""

    @classmethod
    def special_tokens(cls, config, model_config):
        """Return the tokens of the roles."""
        return tuple(config.roles)

    def checkpoint_files(self) -> dict[str, str]:
        """Return the chat template."""
        return {"chat_template.jinja": TEMPLATE}
