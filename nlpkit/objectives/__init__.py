"""Objectives: what is predicted from what. One file a name; examples are numpy, losses torch.

A file `objectives/NAME.py` holds `Config` (a `FrozenConfig`) and
`Objective(config, tokenizer, model_config)` with the methods of `nlpkit.objectives.contract`.
Nothing here imports torch at import time, so that a recipe is checked and data is prepared without
it.
"""
