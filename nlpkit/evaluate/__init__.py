"""What `nlpkit eval`, `judge` and `shots` compute with a checkpoint.

`held_out` has the loss and the scores of a task on held-out data. The others need no tuning, but
the log-probability of each token of a text (`runs/likelihood`): `surprisal` (values for each token,
word and character) and `shots` (tasks with K examples in the prompt). `prompts` shows the rows of a
task as text. Minimal pairs are in `runs/pairs`, since a run is judged by them, too.
"""

import json
from collections.abc import Sequence
from pathlib import Path

from nlpkit.contracts.reader import Counts
from nlpkit.disk import whole_file
from nlpkit.json_types import JsonMapping
from nlpkit.plural import number_of


def write_rows(path: Path, rows: Sequence[JsonMapping]) -> None:
    """Write a JSON object per line; raise `FileError`."""
    with whole_file(path) as file:
        file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def list_left_out(counts: Counts) -> list[str]:
    """Return lines about what is not evaluated: how much, and the first malformed rows."""
    kinds = {
        "malformed rows": counts.bad,
        "empty texts": counts.empty,
        "rows that choices leave out": counts.left_out,
    }
    out = ", ".join(number_of(n, what) for what, n in kinds.items() if n)
    skipped = [f"skipped {bad}" for bad in counts.first_bad]
    return [f"left out of what is evaluated: {out}", *skipped] if out else []
