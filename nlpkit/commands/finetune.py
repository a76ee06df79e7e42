"""Adapt a checkpoint to a task."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from nlpkit.commands._options import Common, RecipeName, RunOptions, option, shared
from nlpkit.commands.pretrain import SHARED, train
from nlpkit.disk import user_path
from nlpkit.errors import FileError, UsageError

if TYPE_CHECKING:
    from nlpkit.recipe import Resolved

DEFAULT_RECIPE = "cpm_ant_nlg"
# Adapters need about ten times the learning rate of full tuning (Schulman et al. 2025,
# "LoRA Without Regret"), but beyond the second of these they diverge: docs/lab/cpm_ant.md.
LORA_LR, LORA_LR_MAX = 10, 1e-2


@dataclass(frozen=True)
class Start:
    """What is tuned, and how."""

    start: str | None = option(
        "--from CKPT", "start from this checkpoint or run, instead of init_from"
    )
    lora: bool = option("--lora", "train low-rank adapters only, even if RECIPE has no lora:")


@shared(*SHARED, "family")
def command(
    common: Common, runs: RunOptions, start: Start, recipe: RecipeName = DEFAULT_RECIPE
) -> None:
    """Adapt a checkpoint to a task.

    Without RECIPE, the recipe is cpm_ant_nlg, which starts from the best checkpoint of
    runs/cpm_ant. Prints the directory of the best checkpoint, or of the latest if the run was not
    evaluated.

    With --lora the run is runs/NAME-lora. Its learning rate is ten times that of the recipe, at
    most 0.01, unless the recipe has a section lora or --set gives a rate. Its checkpoints hold
    adapters only: peft opens them, and `nlpkit convert` merges them into the model.

    With --seeds N there are N runs, with the seed of the recipe and the seeds after it. With --grid
    there is a run for each combination of the values. Each has a separate directory inside the
    directory of the run. All are checked before the first one begins. A run that fails does not
    stop the others. The same command again does what is left. `nlpkit report DIR` is their table.
    """
    options = {"--from": start.start, "--family": common.family}
    words = [word for name, value in options.items() if value for word in (name, value)]
    words += ["--lora"] if start.lora else []
    load = partial(load_task, common, recipe, start)
    train(("finetune", recipe, *words), load, common, runs)


def load_task(common: Common, recipe: str, start: Start, more: Sequence[str] = ()) -> "Resolved":
    """Return the recipe with the changes of the options; check that `init_from` exists."""
    from nlpkit import recipe as recipes
    from nlpkit.checkpoints import files
    from nlpkit.checkpoints.nearest import suggest_start

    sets = common.list_changes()
    if start.start is not None:
        sets.append(f"init_from={json.dumps(start.start)}")
    if start.lora:
        sets += _choose_lora_settings(recipes.load(recipe, sets))
    if common.out is not None:
        sets.append(f"out={json.dumps(common.out)}")
    sets += more
    resolved = recipes.load(recipe, sets)
    if start.start is not None and (link := _find_old_link(start.start, resolved.recipe.out)):
        sets.append(f"init_from={json.dumps(link)}")
        resolved = recipes.load(recipe, sets)
    named = resolved.recipe.init_from
    path = None if named is None else resolved.path(named)
    if path is not None and not path.exists() and not files.find_named(path):
        raise FileError(f"{named}: no such checkpoint to start from{suggest_start(path)}")
    if common.family is not None:
        if path is None:
            raise UsageError("--family: the recipe has no init_from; give --from CKPT")
        section = json.loads(build_section(path, common.family))
        given = resolved.recipe.model
        if given is not None and given.family is None and given.config:  # dropout rates
            section |= given.config
        resolved = recipes.load(recipe, [*sets, f"model={json.dumps(section)}"])
    return resolved


def _find_old_link(start: str, out: str) -> str | None:
    """Return the link to the latest checkpoint of `start` if the run in `out` began with it.

    f0ab896 recorded it in place of a run, and such runs must resume.
    """
    from nlpkit.checkpoints.run_directory import RECIPE
    from nlpkit.recipe import load

    link, kept = str(Path(start) / "checkpoints/latest"), user_path(out) / RECIPE
    return link if kept.is_file() and load(str(kept)).recipe.init_from == link else None


def build_section(directory: Path, family: str) -> str:
    """Return the section `model`: the family, with the sizes in the checkpoint's `config.json`."""
    from nlpkit.checkpoints import files, hf_layout
    from nlpkit.models import families
    from nlpkit.models.formats import hf_reading

    light = families.load(family)
    directory = files.find_named(directory) or directory  # RUN/best
    if found := files.choose_checkpoint(directory):
        directory = found[0]
    settings = hf_layout.read_settings(directory)
    try:
        config = hf_reading.read_config(families.load_model(family).FORMAT, light.Config, settings)
    except (KeyError, ValueError, TypeError, ArithmeticError) as error:
        what = " ".join(str(error).split("\n")[:3])
        what = f"no {what}" if isinstance(error, KeyError) else what
        raise FileError(
            f"{directory}/config.json: cannot be read as family {family}: {what}; its model_type "
            f"is {settings.get('model_type')!r}"
        ) from error
    return json.dumps({"family": family} | config.model_dump(mode="json", exclude={"attention"}))


def _choose_lora_settings(resolved: "Resolved") -> list[str]:
    from nlpkit.recipe import COMMAND_LINE, DEFAULT

    recipe, origin = resolved.recipe, resolved.origin
    sets = [f"out={json.dumps(recipe.out + '-lora')}"]
    if recipe.lora is None:
        sets.append("lora={}")
    origins = {source for name, source in origin.items() if name.startswith("lora.")}
    if origins <= {DEFAULT, COMMAND_LINE} and origin["train.lr"] != COMMAND_LINE:
        rate = recipe.train.lr
        sets.append(f"train.lr={max(rate, min(LORA_LR * rate, LORA_LR_MAX)):.6g}")
    return sets
