"""nlpkit: pretrain and fine-tune classic language models from one YAML recipe."""

__version__ = "0.1.0"
