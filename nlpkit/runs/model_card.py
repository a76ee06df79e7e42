"""The model card of a checkpoint, `README.md`: what it is, its data and scores, how to open it.

A run writes it into its best and its latest checkpoint when it ends, and `nlpkit convert` into what
it writes: these are handed to others. Users edit it: a card that is there is never written again,
and the manifest of a checkpoint does not name it.
"""

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nlpkit import __version__
from nlpkit.checkpoints import files, hf_layout, peft_layout
from nlpkit.checkpoints.run_directory import METRICS, RECIPE
from nlpkit.disk import name_path_in_errors, read_json
from nlpkit.objectives._abilities import Generative
from nlpkit.plural import number_of
from nlpkit.runs import data_files
from nlpkit.runs.usage import has_class, lines, pipeline_tag

CARD = "README.md"
_NOT_STATED = """\
Not stated yet. Write here under which licence others may use the model, and write its short name
(such as `apache-2.0`) at `license` in the first lines of this file, without the `#`.
"""
# Of a run's checkpoint, for resuming; whoever opens the model needs none of them.
PRIVATE = ("*optimizer*", "trained.safetensors", "training*", files.MANIFEST)


@dataclass(frozen=True)
class History:
    """How a model came to be; what is not known is empty."""

    name: str = "model"
    step: int = 0
    tokens: int = 0
    scores: Mapping[str, Any] = field(default_factory=dict)  # of the evaluation at this step
    data: Sequence[tuple[str, str, str]] = ()  # part, file, SHA-256
    recipe: str = ""


def history_of(checkpoint: Path) -> History:
    """Return the history of a run's checkpoint; an empty one of any other directory."""
    run = checkpoint.resolve().parents[1]
    if not (run / RECIPE).is_file() or not (checkpoint / files.MANIFEST).is_file():
        return History()
    recipe = (run / RECIPE).read_text(encoding="utf-8")
    state = read_json(files.training_file(checkpoint)).get("state", {})
    named = (line.removeprefix("name: ") for line in recipe.split("\n") if line[:6] == "name: ")
    return History(
        next(named, run.name),
        state.get("step", 0),
        state.get("tokens", 0),
        _scores(run / METRICS, state.get("step")),
        _data(run / data_files.DATA_FILES),
        recipe,
    )


def _scores(path: Path, step: int | None) -> dict[str, Any]:
    """Return the figures of the evaluation at a step, {} if there is none."""
    found: dict[str, Any] = {}
    if path.is_file():
        for line in path.read_text(encoding="utf-8").splitlines():
            if '"held_out"' in line and (record := json.loads(line)).get("step") == step:
                found = record["held_out"]
    figures = {name: found.get(name) for name in ("loss", "perplexity", "bits_per_character")}
    return {name: v for name, v in {**figures, **found.get("metrics", {})}.items() if v is not None}


def _data(path: Path) -> list[tuple[str, str, str]]:
    if not path.is_file():
        return []
    content = read_json(path)
    return [
        (part, each["name"], each["sha256"])
        for part in ("train", "valid")
        for source in content.get(part) or []
        for each in source
    ]


def text(
    directory: Path,
    history: History,
    *,
    parameters: int,
    objective: object,
    sources: Sequence[Path] = (),
) -> str:
    """Return the card of the checkpoint in a directory.

    Args:
        sources: the checkpoints whose mean the weights are, if they are one.
    """
    settings, notes = hf_layout.read_settings(directory), hf_layout.read_notes(directory)
    family = settings.get("nlpkit", {}).get("family", settings["model_type"])
    named = notes.get("objective") or {}
    names = [each["name"] for each in (named if isinstance(named, list) else [named]) if each]
    base = peft_layout.read_settings(directory)
    theirs = has_class(settings, isinstance(objective, Generative))
    what = f"Adapters (LoRA) of {base['base_model_name_or_path']}, a" if base else "A"
    parts = [
        _head(settings, family, "peft" if base else "transformers" if theirs else ""),
        f"# {history.name}\n",
        f"{what} model of family `{family}` with {parameters:,} parameters, "
        + (f"trained for `{', '.join(names)}` " if names else "")
        + f"with nlpkit {__version__}.\n",
    ]
    if history.step:
        seen = f"{number_of(history.step, 'steps')}, {number_of(history.tokens, 'tokens')} seen"
        parts.append(f"Training: {seen}.\n")
    if sources:
        parts.append("The weights are the mean of several checkpoints:\n")
        parts.append("".join(f"- {path}\n" for path in sources))
    parts += [f"## Licence\n\n{_NOT_STATED}", *_use(settings, names, objective, base is not None)]
    if history.scores:
        rows = "".join(f"| {name} | {value:.4f} |\n" for name, value in history.scores.items())
        at = f"On the held-out data, at step {history.step}:"
        parts.append(f"## Scores\n\n{at}\n\n| score | value |\n|---|---|\n{rows}")
    if history.data:
        rows = "".join(f"| {part} | {name} | `{sha}` |\n" for part, name, sha in history.data)
        parts.append(f"## Data\n\n| part | file | SHA-256 |\n|---|---|---|\n{rows}")
    if history.recipe:
        fold = "<details><summary>All settings</summary>"
        parts.append(f"## Recipe\n\n{fold}\n\n```yaml\n{history.recipe}```\n\n</details>\n")
    return "\n".join(parts)


def _head(settings: Mapping[str, Any], family: str, library: str) -> str:
    """Return what the Hub reads."""
    rows = ["# license: apache-2.0   (fill in: the licence of the model)"]
    if library:
        rows.append(f"library_name: {library}")
    if library == "transformers" and (tag := pipeline_tag(settings)):
        rows.append(f"pipeline_tag: {tag}")
    rows.append(f"tags: [nlpkit, {family}]")
    return "---\n" + "\n".join(rows) + "\n---\n"


def _use(
    settings: Mapping[str, Any], names: Sequence[str], objective: object, is_adapters: bool
) -> list[str]:
    """Return the section that says how the model is opened."""
    generates = isinstance(objective, Generative)
    if is_adapters:
        theirs = "`nlpkit convert . DIRECTORY` merges the adapters, for transformers, too.\n"
    elif has_class(settings, generates):
        python = lines(settings, names[0] if names else "")
        theirs = f"With transformers, in this directory:\n\n```python\n{python}```\n"
    else:
        theirs = "transformers has no model of this family for this task.\n"
    shell = ["nlpkit eval . --data FILE"]
    if generates:
        shell.insert(0, 'echo "Once upon a time" | nlpkit generate .')
    shell.append("nlpkit finetune RECIPE --from .")
    ours = "With nlpkit:\n\n```sh\n" + "\n".join(shell) + "\n```\n"
    return ["## How to use it\n", theirs, ours]


def write(directory: Path, content: str) -> None:
    """Write a card, unless there is one."""
    path = directory / CARD
    if not path.exists():
        with name_path_in_errors(path):
            path.write_text(content, encoding="utf-8")


def upload(directory: Path, name: str) -> str:
    """Return the command that uploads a directory to the Hub, without what nobody else needs."""
    left_out = [each for each in PRIVATE if any(directory.glob(each))]
    excluded = [part for each in left_out for part in ("--exclude", each)]
    return shlex.join(["hf", "upload", f"USER/{name}", str(directory), ".", *excluded])


def write_for_run(run: Path, parameters: int, objective: object) -> str | None:
    """Write the cards of a finished run; return how to upload the checkpoint to use."""
    found = [files.read_pointer(run, name) for name in ("best", "latest")]
    for path in dict.fromkeys(filter(None, found)):
        history = history_of(path)
        write(path, text(path, history, parameters=parameters, objective=objective))
    chosen = files.chosen(run)
    return None if chosen is None else upload(chosen[0], history_of(chosen[0]).name)
