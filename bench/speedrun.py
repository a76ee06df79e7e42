"""How fast a recipe learns the shipped text: seconds of training to a fixed held-out loss.

    python bench/speedrun.py [RECIPE …] [--seeds 3] [--threads 2] [--out DIR]

Without RECIPE these are the records of docs/speedrun.md, which has the rules; they are checked
here. Prints a row for each recipe. The same command with --out resumes where it was stopped.
"""

import json
import statistics
import tempfile
from argparse import ArgumentParser, RawTextHelpFormatter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from _runs import Runs, mean_and_deviation
from _turns import machine

from nlpkit import recipe
from nlpkit.checkpoints.run_directory import METRICS

HERE = Path(__file__).parent
ROOT = HERE.parent


@dataclass(frozen=True)
class Track:
    """A text, and the bits a character of its held-out part that have to be reached."""

    name: str
    folder: str
    target: float

    @property
    def data(self) -> dict[str, list[str]]:
        """The files to train on and to be judged by."""
        return {part: [f"data/{self.folder}/{part}/*.jsonl"] for part in ("train", "valid")}


TRACKS = (Track("English", "en", 1.0), Track("Chinese", "zh", 4.4))


@dataclass(frozen=True)
class Result:
    """A run: seconds, steps and tokens until the target is reached, and where it ended."""

    seconds: float | None
    steps: int | None
    tokens: int | None
    end: float


def track_of(path: Path) -> Track:
    """Return the track of a recipe; exit if the recipe breaks a rule."""
    resolved = recipe.load(str(path))
    settings = resolved.dump()
    files = {
        part: [name for source in settings["data"][part] for name in source["files"]]
        for part in ("train", "valid")
    }
    for track in TRACKS:
        if files == track.data:
            break
    else:
        raise SystemExit(f"{path}: data.train and data.valid must be those of a track")
    names = [each.name for each in resolved.recipe.objective]
    if names != ["clm"]:
        raise SystemExit(f"{path}: objective must be clm, whose bits a character are comparable")
    if settings["init_from"] or settings["tokenizer"].get("path"):
        raise SystemExit(f"{path}: model and tokenizer must be made of data.train alone")
    if settings["data"].get("valid_fraction"):
        raise SystemExit(f"{path}: data.valid_fraction: all held-out text must be judged")
    return track


def trained(path: Path, track: Track, seed: int, runs: Runs) -> Result:
    """Train, unless that is done, and return the result."""
    name = f"{path.stem}-{seed}"
    run = runs.out / name
    options = ("--set", f"seed={seed}", "--out", str(run), "--quiet")
    runs.nlpkit("pretrain", str(path), *options, log=name)
    return result((run / METRICS).read_text(encoding="utf-8").splitlines(), track.target)


def result(lines: Sequence[str], target: float) -> Result:
    """Return the result of a run from the lines of its metrics, one for each step."""
    seconds, end = 0.0, float("nan")
    reached: tuple[float, int, int] | None = None
    for record in map(json.loads, lines):
        if "held_out" not in record:
            seconds += record["seconds"]
            continue
        end = record["held_out"]["bits_per_character"]
        if reached is None and end <= target:
            reached = seconds, record["step"], record["tokens"]
    return Result(*(reached or (None, None, None)), end)


def row(path: Path, track: Track, results: Sequence[Result]) -> str:
    """Return a row of the table."""
    seconds = [each.seconds for each in results if each.seconds is not None]
    ends = [each.end for each in results]
    cells = [track.name, path.stem]
    if len(seconds) < len(results):
        cells += [f"not reached by {len(results) - len(seconds)} of {len(results)}", "", ""]
    else:
        cells.append(mean_and_deviation(seconds, 1))
        cells.append(", ".join(str(each.steps) for each in results))
        cells.append(f"{statistics.fmean(each.tokens or 0 for each in results):,.0f}")
    return f"| {' | '.join([*cells, mean_and_deviation(ends)])} |"


def main() -> None:
    """Train all recipes and print the table."""
    made = ArgumentParser(description=__doc__, formatter_class=RawTextHelpFormatter)
    made.add_argument("recipes", nargs="*", type=Path)
    made.add_argument("--seeds", type=int, default=3)
    made.add_argument("--threads", type=int, default=2)
    made.add_argument("--out", type=Path)
    options = made.parse_args()
    paths = options.recipes or sorted((HERE / "speedrun").glob("*.yaml"))
    tracks = {path: track_of(path) for path in paths}
    print(f"{machine(options.threads)}; seeds 1 to {options.seeds}")
    for track in TRACKS:
        print(f"{track.name}: at most {track.target} bits a character")
    print("\n| text | recipe | seconds | steps | tokens | bits a character at the end |")
    print("|---|---|---|---|---|---|", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        out = (options.out or Path(folder)).resolve()
        runs = Runs(out, ROOT, options.threads)
        for path, track in tracks.items():
            seeds = range(1, options.seeds + 1)
            found = [trained(path, track, seed, runs) for seed in seeds]
            print(row(path, track, found), flush=True)


if __name__ == "__main__":
    main()
