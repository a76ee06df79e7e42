"""Trains the packaged recipes on what nlpkit ships: the curves of docs/gallery/recipes.md.

    OMP_NUM_THREADS=1 python bench/gallery.py FOLDER [NAME …] [--minutes 30] [--steps 100]

The quickest come first, by their line `# takes:`; a recipe that begins with the run of another one
comes after it. Runs lie in FOLDER/runs. What is finished there is not trained again, and a run that
was stopped goes on, so the same command continues. --minutes: no recipe begins later than that.
--steps: fewer steps than the recipe's own, which the page says. Recipes that need text of your own
are left out. After each recipe its figures are in --result; `python docs/gallery.py` makes the page
from there. The minutes are of processor time, so other programs change them little.
"""

import argparse
import json
import re
import resource
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from nlpkit import disk, recipe

ROOT = Path(__file__).resolve().parent.parent
RESULT = ROOT / "bench/results/gallery.json"
POINTS = 40  # of a curve of the training loss: each is the mean of as many steps
_UNITS = {"second": 1 / 60, "minute": 1.0}


def list_recipes() -> dict[str, str]:
    """Return the text of every packaged recipe that is no paper's size, by name."""
    files = recipe.packaged().items()
    return {name: path.read_text(encoding="utf-8") for name, path in files if "/" not in name}


def find_base(text: str) -> str | None:
    """Return the run that a recipe begins with."""
    found = re.search(r"^(?:init_from| +teacher): runs/(\w+)", text, re.MULTILINE)
    return found[1] if found else None


def needs_own_text(name: str, texts: dict[str, str]) -> bool:
    """Return whether a recipe, or one that it builds on or begins with, asks for own text."""
    if name not in texts or "name your own text" in texts[name]:
        return True
    above = re.search(r"^extends: (\w+)", texts[name], re.MULTILINE)
    needed = [find_base(texts[name]), above[1] if above else None]
    return any(needs_own_text(each, texts) for each in needed if each)


def find_minutes(text: str) -> float:
    """Return the minutes that a recipe says it takes."""
    found = re.search(r"^# takes: .*?(an?|[\d.]+) (second|minute)", text, re.MULTILINE)
    if found is None:
        return float("inf")
    return (1.0 if found[1].startswith("a") else float(found[1])) * _UNITS[found[2]]


def order(names: Sequence[str], texts: dict[str, str]) -> Iterator[str]:
    """Yield the recipes to train, with the runs that they begin with, the quickest first."""

    def total(name: str) -> float:
        base = find_base(texts[name])
        return find_minutes(texts[name]) + (total(base) if base else 0)

    done = set()
    for name in sorted(names, key=lambda each: (total(each), each)):
        chain = [name]
        while base := find_base(texts[chain[-1]]):
            chain.append(base)
        for each in reversed(chain):
            if each not in done:
                done.add(each)
                yield each


def train(name: str, folder: Path, text: str, steps: int | None) -> None:
    """Train a recipe in `folder`, and add its processor time to what earlier parts took.

    Raises:
        SystemExit: nlpkit failed, or was stopped.
    """
    verb = "finetune" if re.search(r"^init_from:", text, re.MULTILINE) else "pretrain"
    command = [sys.executable, "-m", "nlpkit", verb, name, "--device", "cpu"]
    if steps:
        command += ["--set", f"train.steps={steps}"]
    kept = folder / f"{name}.json"
    before, begun = resource.getrusage(resource.RUSAGE_CHILDREN), (folder / "runs" / name).exists()
    with (folder / f"{name}.log").open("a", encoding="utf-8") as log:
        process = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log)
        try:
            code = process.wait()
        except KeyboardInterrupt:  # nlpkit has it, too, and saves
            code = process.wait() or 130
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    # Of a run that this command did not begin, no one knows what was spent before.
    spent = json.loads(kept.read_text("utf-8"))["cpu_seconds"] if kept.exists() else 0.0
    if spent is not None and (kept.exists() or not begun):
        spent = round(spent + after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    else:
        spent = None
    git = ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"]
    commit = subprocess.check_output(git, text=True).strip()
    disk.write_json(kept, {"cpu_seconds": spent, "commit": commit})
    if code:
        raise SystemExit(f"{' '.join(command)}: exit {code}; see {log.name}")


def is_finished(run: Path) -> bool:
    """Return whether a run has come to its end."""
    file = run / "run.json"
    return file.exists() and bool(json.loads(file.read_text("utf-8"))["finished"])


def read_result(name: str, folder: Path) -> dict[str, Any]:
    """Return the figures of a finished run: curves, the last evaluation, minutes, machine."""
    place = folder / "runs" / name
    run = json.loads((place / "run.json").read_text("utf-8"))
    lines = (place / "metrics.jsonl").read_text("utf-8").splitlines()
    records = [record for record in map(json.loads, lines) if "step" in record]
    losses = [(record["step"], record["loss"]) for record in records if "loss" in record]
    held_out = [record for record in records if "held_out" in record]
    width = max(1, len(losses) // POINTS)
    groups = [losses[first : first + width] for first in range(0, len(losses), width)]
    kept = json.loads((folder / f"{name}.json").read_text("utf-8"))
    spent = kept["cpu_seconds"]
    last = held_out[-1]["held_out"]
    return {
        "steps": run["steps"],
        "own_steps": recipe.load(name).dump()["train"]["steps"],
        "train": [[g[-1][0], round(sum(x for _, x in g) / len(g), 4)] for g in groups],
        "held_out": [[r["step"], round(r["held_out"]["loss"], 4)] for r in held_out],
        "losses": {name: round(loss, 4) for name, loss in last["losses"].items()},
        "bits_per_character": last.get("bits_per_character"),
        "scores": last.get("metrics", {}),
        "cpu_minutes": None if spent is None else round(spent / 60, 2),
        "machine": run["machine"],
        "torch": run["torch"],
        "threads": run["threads"],
        "precision": run["precision"],
        "date": time.strftime("%Y-%m-%d", time.gmtime((place / "run.json").stat().st_mtime)),
        "commit": kept["commit"],
    }


def main() -> None:
    """Train what is missing, and keep the figures after each recipe."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--minutes", type=float, default=float("inf"))
    parser.add_argument("--steps", type=int)
    parser.add_argument("--result", type=Path, default=RESULT)
    given = parser.parse_args()
    texts = list_recipes()
    possible = [name for name in texts if not needs_own_text(name, texts)]
    if wrong := [name for name in given.names if name not in possible]:
        parser.error(f"no recipe that trains on what nlpkit ships: {', '.join(wrong)}")
    started, folder, file = time.monotonic(), given.folder.resolve(), given.result.resolve()
    (folder / "runs").mkdir(parents=True, exist_ok=True)
    results = json.loads(file.read_text("utf-8")) if file.exists() else {}
    for name in order(given.names or possible, texts):
        new = not is_finished(folder / "runs" / name)
        if new and time.monotonic() - started > given.minutes * 60:
            break
        if new:
            print(name, flush=True)
            train(name, folder, texts[name], given.steps)
        if new or name not in results:
            results[name] = read_result(name, folder)
            file.parent.mkdir(parents=True, exist_ok=True)
            rows = [f"{json.dumps(each)}: {json.dumps(results[each])}" for each in sorted(results)]
            disk.write_text(file, "{\n" + ",\n".join(rows) + "\n}\n")


if __name__ == "__main__":
    main()
