"""Draw the loss curve of a run: python docs/loss_curve.py RUN_DIRECTORY OUT.png"""

import json
import sys
from pathlib import Path

from nlpkit.plots import loss_figure
from nlpkit.rundir import RunDirectory


def main() -> None:
    run, out = Path(sys.argv[1]), Path(sys.argv[2])
    lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    records = [json.loads(line) for line in lines]
    loss_figure(
        [r for r in records if "loss" in r],
        [r for r in records if "held_out" in r],
        RunDirectory(run).status()["held_out_unigram_entropy"],
        out,
    )


if __name__ == "__main__":
    main()
