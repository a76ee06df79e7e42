"""What `nlpkit eval`, `judge` and `shots` compute with a checkpoint.

`held_out` has the loss and the scores of a task on held-out data. The others need no tuning, but
the log-probability of each token of a text (`runs/likelihood`): `surprisal` (values for each token,
word and character) and `shots` (tasks with K examples in the prompt). `prompts` shows the rows of a
task as text. Minimal pairs are in `runs/pairs`, since a run is judged by them, too.
"""

import json
from collections.abc import Sequence
from pathlib import Path

from nlpkit.disk import whole_file
from nlpkit.json_types import JsonMapping


def write_rows(path: Path, rows: Sequence[JsonMapping]) -> None:
    """Write a JSON object per line; raise `FileError`."""
    with whole_file(path) as file:
        file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
