"""Training steps of the command line against `transformers.Trainer`: one table.

    python bench/steps.py [--workloads gpt-pretrain-full 'bert-*'] [--rounds 3] [--data FILE …]

A workload is FAMILY-VERB-LENGTHS: gpt, bert or cpm_ant; pretrain or finetune; full rows, or texts
of their own lengths (varied). Without --workloads, all are measured in the small size (4 x 256),
and gpt-pretrain-full in that of the paper (12 x 768). Subjects:
- nlpkit: `nlpkit pretrain` or `finetune`, from the recipe to metrics.jsonl, with AdamW.
- Trainer: as it comes, with transformers' model of the same sizes and dropout; the same texts in
  each update, padded to the longest.
- best flags: torch_compile for full rows, group_by_length for others (texts of the same stream,
  on the average as many tokens in an update).

Each subject has a process of its own; they take turns, round by round, in an order that changes.
The first round warms up. On a busy machine only ratios are usable, and only with `--threads 1
--clock cpu`. The table is on stdout, progress on stderr.
"""

import argparse
import json
import os
import shlex
import sys
import tempfile
from fnmatch import fnmatchcase
from pathlib import Path

from _steps_recipes import FAMILIES, LENGTHS, ROOT, SIZES, VERBS, Workload, usual_files

OF_PAPER = "gpt-pretrain-full"
TYPES, SUBJECTS = ("fp32", "bf16"), ("nlpkit", "Trainer", "best flags")


def main() -> None:
    given = _arguments()
    workloads = _workloads(given)
    # Not at the top: the process of a subject imports this file, too, but its own libraries alone.
    import torch
    from _steps_measure import Bench
    from _steps_plan import make
    from _steps_table import CPM_ANT, as_json, head, header, note, rows

    from nlpkit.train.machine import choose_precision

    torch.set_num_threads(given.threads)
    files = usual_files() | {
        name: [str(Path(file).absolute()) for file in named]
        for name in usual_files()
        if (named := getattr(given, name))
    }
    chosen, why = choose_precision("auto", torch.device("cpu"))
    types = given.types or TYPES[: 1 + (chosen == "bf16")]
    left_out = "" if given.types or chosen == "bf16" else f"; bf16 is left out: {why}"
    groups, notes = [], []
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder), given.threads, given.clock)
        for workload in workloads:
            place = Path(folder) / workload.size_name
            place.mkdir(exist_ok=True)
            rounds = given.paper_rounds if workload.size_name == "paper" else given.rounds
            per_round = 1 if workload.is_full else given.updates  # all full rows are alike
            plan = make(workload, files, place, 1 + rounds, per_round)
            notes.append(note(plan))
            for dtype in types:
                groups.append(bench.measure(plan, dtype, given.subjects))
                print(*rows(groups[-1]), sep="\n", file=sys.stderr)
                if given.json:
                    text = json.dumps([each for group in groups for each in as_json(group)])
                    given.json.write_text(text, encoding="utf-8")
    print(f"`{shlex.join(['python', 'bench/steps.py', *sys.argv[1:]])}`")
    print(header(given, {each.dtype: each.peak for each in groups}, left_out))
    print()
    print(head())
    for group in groups:
        print(*rows(group), sep="\n")
    print()
    read = {file for group in groups for file in files[group.plan.workload.source]}
    used = (os.path.relpath(file, ROOT) for file in read)
    notes += [*bench.notes, f"- text: {', '.join(sorted(used))}"]
    if any(group.plan.workload.family == "cpm_ant" for group in groups):
        notes.append(CPM_ANT)
    print(*notes, sep="\n")


def _workloads(given: argparse.Namespace) -> list[Workload]:
    """Return what is to be measured, the sizes one after another."""
    known = [
        Workload(family, verb, lengths, size)
        for size in given.sizes
        for verb in VERBS
        for family in FAMILIES
        for lengths in LENGTHS
    ]
    if given.workloads:
        found = [w for w in known if any(fnmatchcase(w.name, each) for each in given.workloads)]
        if not found:
            names = ", ".join(dict.fromkeys(workload.name for workload in known))
            raise SystemExit(f"bench/steps.py: --workloads: none of {names}")
        return found
    return [w for w in known if w.size_name != "paper" or w.name == OF_PAPER]


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--workloads", nargs="+", metavar="NAME", help="names or patterns")
    add("--subjects", nargs="+", choices=SUBJECTS, default=list(SUBJECTS))
    add("--types", nargs="+", choices=TYPES, help="default: bf16 only where it is faster")
    add("--sizes", nargs="+", choices=list(SIZES), default=["small", "paper"])
    add("--rounds", type=int, default=3, help="after the one that warms up")
    add("--paper-rounds", type=int, default=2, help="those of the paper's size")
    add("--updates", type=int, default=2, help="in each round of texts of their own lengths")
    add("--threads", type=int, default=len(os.sched_getaffinity(0)))
    add("--clock", choices=("wall", "cpu"), default="wall", help="cpu: processor time")
    add("--data", nargs="+", metavar="FILE", help="text to pretrain GPT-1 and BERT")
    add("--data-zh", nargs="+", metavar="FILE", help="text to pretrain CPM-Ant")
    add("--rows", nargs="+", metavar="FILE", help="rows of text and label")
    add("--rows-zh", nargs="+", metavar="FILE", help="rows of input and target, for CPM-Ant")
    add("--json", type=Path, metavar="FILE", help="the figures, after each workload and type")
    given = parser.parse_args()
    if min(given.rounds, given.paper_rounds, given.updates, given.threads) < 1:
        parser.error("--rounds, --paper-rounds, --updates and --threads: at least 1")
    return given


if __name__ == "__main__":
    main()
