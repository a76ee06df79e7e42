"""How checkpoints of models are called and read in transformers."""
