"""Scores: `nlpkit score NAME …` and `eval: {metrics: [NAME]}`; the name is the file's name.

Nothing here imports torch, transformers, scipy, scikit-learn or pydantic, and numpy only where a
score needs it: in a pipeline of small files, what is imported is most of the time.
"""
