"""What `nlpkit eval` computes with a checkpoint.

`held_out` has the loss and the scores of a task on held-out data. The others need no tuning:
`likelihood` has the log-probability of each token of a text, and `pairs` (minimal pairs),
`surprisal` (values for each token, word and character) and `shots` (tasks with K examples in the
prompt) use it. `prompts` shows the rows of a task as text.
"""
