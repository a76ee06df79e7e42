"""Scores: `nlpkit score NAME …` and `eval: {metrics: [NAME]}`; the name is the file's name.

Nothing here imports torch, transformers, scipy, scikit-learn or pydantic, and numpy is
imported only if a score needs it: for small files, imports take most of the time.
"""
