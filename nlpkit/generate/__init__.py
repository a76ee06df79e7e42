"""Decoding: text from a trained model, many inputs at once, each as if it were alone.

`texts.Writer` turns texts into prompts (by the objective) and tokens into texts; `engine.generate`
keeps a batch of sequences going, greedy, sampled or in beams; `settings.Settings` says which.
"""
