"""Training objectives. Each makes examples (numpy) and computes a loss (torch).

The file `objectives/NAME.py` defines `Config` (a `FrozenConfig`) and
`Objective(config, tokenizer, model_config)` with the members of `nlpkit.contracts.objective`.
No file here imports torch at import time: checks of recipes and preparation of data do not need it.
"""
