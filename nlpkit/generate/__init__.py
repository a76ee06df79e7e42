"""Generates text with a trained model. An output does not depend on the other inputs of the batch.

`texts.Writer` converts texts to prompts (with the objective) and tokens to texts. `engine.generate`
decodes a batch of sequences: greedy, by sampling or by beam search, as `settings.Settings` selects.
"""
