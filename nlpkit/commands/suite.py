"""Tune a base on several tasks, beside the same model from nothing."""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

from nlpkit.commands._options import Common, Limits, argument, option, shared
from nlpkit.disk import name_path_in_errors, user_path
from nlpkit.errors import FileError, UsageError
from nlpkit.plural import number_of

SuiteName = Annotated[
    str, argument("SUITE", "a file, or shipped, shipped_zh, real_en, real_zh, glue or clue")
]


@dataclass(frozen=True)
class Asked:
    """What is tuned."""

    start: str | None = option("--from CKPT", "the base; default: suite.from of SUITE")
    seeds: int | None = option("--seeds N", "runs of each; default: suite.seeds of SUITE", min=1)
    nothing: str | None = option(
        "--nothing DIR",
        "the suite of a base of the same shape and tokenizer, whose runs from nothing are taken",
    )


@shared("overrides", "out", "device", "dry_run")
def command(common: Common, limits: Limits, asked: Asked, suite: SuiteName = "shipped") -> None:
    """Tune a base on several tasks, beside the same model from nothing.

    SUITE names recipes of tasks; without it they are the English ones that nlpkit ships. --set
    changes all of them. Each is trained with several seeds from the base, and from nothing: the
    same model and tokenizer, random weights. Scores are those after the last step. Beside them
    stand whether the two differ, and what counted words and the commonest answer score.

    All is checked before the first run begins. A run that fails does not stop the others. The same
    command again does what is left. The table is also suite.md in --out, by default
    runs/SUITE-BASE.
    """
    from nlpkit.commands import _runs, _suite
    from nlpkit.evaluate import suite as suites
    from nlpkit.evaluate import suite_table as table

    of_suite = [each for each in common.overrides or () if each.strip().startswith("suite.")]
    (found, document), log = suites.load(suite, of_suite), common.open_log()
    settings = found.suite
    start = asked.start or settings.start
    if start is None:
        raise UsageError(f"{suite}: names no base; give --from RUN")
    runner = _runs.Runner(log, limits.max_time)
    out = user_path(common.out or f"runs/{found.name}-{user_path(start).resolve().name}")
    nothing = user_path(asked.nothing or out)
    _check_base(start, out)
    starts = {
        table.PRETRAINED: ([f"init_from={json.dumps(start)}"], out),
        table.NOTHING: (_list_random(start, asked.nothing), nothing),
    }
    given = [each for each in common.overrides or () if each not in of_suite]
    options = replace(common, overrides=given)
    folder = settings.folder if limits.folder is None else limits.folder
    planned = _suite.plan((found, document), starts, options, folder, asked.seeds or settings.seeds)
    every = [run for task in planned for runs in task.runs.values() for run in runs]
    for run in every if asked.nothing else []:  # those from nothing are not trained, but taken
        path = run.path  # a searched one lies at the rate that was chosen
        there = path.is_dir() or any(path.parent.parent.glob(f"lr-*/{path.name}"))
        if table.NOTHING in path.parts and not there:
            raise UsageError(f"--nothing {asked.nothing}: has no {run.name}: other seeds or rates")
    _runs.check_device(every[0], common)
    if common.dry_run:
        more = f", and at most {_suite.MAX_MORE} more for each side of a task"
        log.info(f"{number_of(len(every), 'runs')} in {out}{more if settings.rates else ''}")
        return
    with name_path_in_errors(out):
        out.mkdir(parents=True, exist_ok=True)
    rows, failed = _suite.train(planned, runner)
    for each in planned:
        for side, runs in each.runs.items():
            runner.warn_of_other_data(f"{each.row['task']}/{side}", [run.path for run in runs])
    text = table.write(rows, f"{found.name}: {start}", out / "suite.md")
    common.print_result(text, suite=found.name, base=start, tasks=rows)
    _runs.raise_failures(failed, len(every))


def _check_base(start: str, out: Path) -> None:
    """Raise `UsageError` if runs of the suite began with other weights than the base has."""
    from nlpkit.checkpoints.run_directory import STATUS, RunDirectory
    from nlpkit.commands import _runs
    from nlpkit.evaluate.suite_table import PRETRAINED

    paths = [path.parent for path in sorted(out.glob(f"*/{PRETRAINED}/**/{STATUS}"))]
    begun = {str(path.relative_to(out)): RunDirectory(path).status() for path in paths}
    hashes = {name: said["source"]["sha256"] for name, said in begun.items() if said.get("source")}
    path = _find_checkpoint(start)
    current = _runs.call(_find_current, path, {*hashes.values()}) if hashes else set()
    if others := [name for name, sha256 in hashes.items() if sha256 not in current]:
        what = f"other weights than those that {number_of(len(others), 'runs')} in {out} began with"
        raise UsageError(f"--from {start}: has {what} ({others[0]}); give another --out")


def _find_current(checkpoint: Path, hashes: set[str]) -> set[str]:
    from nlpkit.runs import init_from

    return {sha256 for sha256 in hashes if init_from.is_source(checkpoint, sha256)}


def _find_checkpoint(start: str) -> Path:
    from nlpkit.checkpoints import files

    path = user_path(start)
    chosen = files.choose_checkpoint(path)
    return chosen[0] if chosen else files.find_named(path) or path


def _list_random(start: str, other: str | None) -> list[str]:
    """Return the settings of a model like that of the base, with its tokenizer and random weights.

    The tokenizer is that of the runs from nothing in the suite `other`, if it is given.
    """
    from nlpkit.checkpoints import tokenizer_files
    from nlpkit.checkpoints.nearest import suggest_start
    from nlpkit.commands import _runs

    path = _find_checkpoint(start)
    if not path.exists():
        raise FileError(f"{start}: no such checkpoint to start from{suggest_start(path)}")
    if not (path / "config.json").is_file() or not tokenizer_files.is_there(path):
        raise FileError(f"{start}: no text checkpoint (config.json and a tokenizer) to start from")
    # These import libraries with threads of their own; a process that has some cannot fork runs.
    sections = _runs.call(_describe_model, path.resolve())
    if other is not None:
        path = _runs.call(_find_tokenizer, path, user_path(other))
    return [*sections, "init_from=null", f"tokenizer={json.dumps({'path': str(path)})}"]


def _find_tokenizer(own: Path, suite: Path) -> Path:
    """Return the tokenizer of the runs from nothing in a suite; it has to read as `own` does."""
    from nlpkit.checkpoints import tokenizer_files
    from nlpkit.checkpoints.run_directory import RECIPE
    from nlpkit.evaluate.suite_table import NOTHING
    from nlpkit.recipe import load

    recipe = next(iter(sorted(suite.glob(f"*/{NOTHING}/**/{RECIPE}"))), None)
    named = None if recipe is None else load(str(recipe)).recipe.tokenizer
    if named is None or named.path is None:
        raise UsageError(f"--nothing {suite}: no suite with runs from nothing")
    path = user_path(named.path)
    mine, theirs = (tokenizer_files.load(each)[1] for each in (own, path))
    if not tokenizer_files.reads_alike(mine, theirs):
        raise UsageError(f"--nothing {suite}: its runs have the tokenizer {path}, another one")
    return path


def _describe_model(checkpoint: Path) -> list[str]:
    """Return the sections `model` and `attention` of a recipe for the model of a checkpoint."""
    from nlpkit.checkpoints import hf_layout, hf_model
    from nlpkit.checkpoints.run_directory import RECIPE
    from nlpkit.commands.finetune import build_section
    from nlpkit.evaluate.suite import without_target
    from nlpkit.recipe import load

    recipe = checkpoint.parent.parent / RECIPE
    if recipe.is_file() and (run := load(str(recipe))).recipe.init_from is None:
        told = without_target(run.dump())
        return [f"{key}={json.dumps(told[key])}" for key in ("model", "attention")]
    settings = hf_layout.read_settings(checkpoint)
    family = hf_model.find_family(settings, checkpoint)
    kinds = settings.get("nlpkit", {}).get("attention")
    more = [f"attention={json.dumps({'layers': kinds})}"] if kinds else []
    return [f"model={build_section(checkpoint, family)}", *more]
