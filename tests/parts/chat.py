"""Causal language modelling whose checkpoints have a chat template for transformers."""

from nlpkit.objectives import clm

TEMPLATE = "{% for message in messages %}{{ message['content'] }}\n{% endfor %}"


class Config(clm.Config):
    """The settings of `clm`."""


class Objective(clm.Objective):
    """`clm` with a file more."""

    def checkpoint_files(self) -> dict[str, str]:
        """Return the chat template."""
        return {"chat_template.jinja": TEMPLATE}
