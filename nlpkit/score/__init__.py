"""Scores: `nlpkit score NAME …` and `eval: {metrics: [NAME]}`; the name is the file's name.

A score is one file of one of two forms, both described in `contract`:
- a *metric* compares lines: `OPTIONS`, `REFERENCES`, `score(hypotheses, references, **options)`;
- a *tool* reads files of its own kind: `add_arguments(parser)`, `run(arguments)`.

Nothing here imports torch, transformers, scipy, scikit-learn or pydantic, and numpy only where a
score needs it: in a pipeline of small files, what is imported is most of the time.
"""
