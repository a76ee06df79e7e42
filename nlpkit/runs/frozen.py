"""Models that an objective reads, such as a teacher: opened and hashed, not trained, not saved."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nlpkit.checkpoints import files, integrity
from nlpkit.checkpoints.tokenizer_files import reads_alike
from nlpkit.contracts.objective import Objective
from nlpkit.contracts.task import Task
from nlpkit.contracts.tokenizer import Tokenizer
from nlpkit.disk import user_path
from nlpkit.errors import FileError, UsageError
from nlpkit.plural import number_of
from nlpkit.recipe import Resolved, fit
from nlpkit.recipe.places import Problem
from nlpkit.runs.open_checkpoint import find_checkpoint, open_checkpoint
from nlpkit.runs.run import ModelPart
from nlpkit.train.log import Log


@dataclass
class Frozen:
    """A frozen model; `objective` is its objective's number, of a member of a mixture a second."""

    objective: tuple[int, ...]
    name: str
    checkpoint: Path
    sha256: str  # of its settings and weights
    is_base: bool = False  # of the adapters of this run, whose weights it reads
    parameters: int = 0  # of its own, once it is open
    part: ModelPart | None = None  # likewise

    @property
    def place(self) -> str:
        """The name of the model, with the number of its objective."""
        return ".".join(map(str, (*self.objective, self.name)))

    def has_hash(self, sha256: object) -> bool:
        """Return whether its hash is this, or was in an earlier version."""
        return sha256 == self.sha256 or integrity.has_hash(_list_files(self.checkpoint), sha256)


def find(resolved: Resolved) -> list[Frozen]:
    """Return the frozen models that the objectives of a recipe name.

    Raises:
        FileError: there is no such checkpoint; the message has the place in the recipe.
        UsageError: the model is that of `init_from`, and the recipe has none.
    """
    recipe, document = resolved.recipe, resolved.document
    found = []
    for number, section in _number(recipe.objective, fit.members_of):
        made = section.objective
        for name, path in (made.frozen(section.config) if made.frozen else {}).items():
            at = ("objective", *number[: len(recipe.objective) - 1], name)
            named = recipe.init_from if path is None else path
            if named is None:
                what = "it is by default the model of init_from, which the recipe does not have"
                raise UsageError(str(Problem.at(document.place(at), at, what)))
            try:
                is_base = path is None and recipe.lora is not None
                found.append(_describe(number, name, resolved.path(named), is_base))
            except FileError as error:
                what = f"frozen model {name}: {error}"
                raise FileError(str(Problem.at(document.place(at), at, what))) from error
    return found


def find_bound(objective: Objective) -> list[Frozen]:
    """Return those that a bound objective names, such as one of a checkpoint."""
    found = []
    for number, each in _number(objective.objectives or (objective,), lambda each: each.members):
        for name, path in (each.frozen(each.config) if each.frozen else {}).items():
            try:
                found.append(_describe(number, name, user_path(path)))
            except FileError as error:
                raise FileError(f"frozen model {name} of the objective: {error}") from error
    return found


def named(resolved: Resolved, frozen: Sequence[Frozen]) -> Resolved:
    """Return the recipe whose objectives name the checkpoints that were found, absolutely.

    So does `nlpkit.json` then; a member of a mixture keeps its own words.
    """
    sections = [*resolved.recipe.objective]
    for each in frozen:
        first, *inside = each.objective
        config = sections[first].config
        if not inside and each.name in type(config).model_fields:
            config = config.model_copy(update={each.name: str(each.checkpoint.absolute())})
            sections[first] = sections[first].model_copy(update={"config": config})
    return resolved.with_sections(objective=sections)


def _describe(number: tuple[int, ...], name: str, path: Path, is_base: bool = False) -> Frozen:
    checkpoint = find_checkpoint(path)
    sha256 = integrity.hash_weights(_list_files(checkpoint))
    return Frozen(number, name, checkpoint, sha256, is_base)


def _list_files(checkpoint: Path) -> list[Path]:
    """Return the settings and the weights, also those that a resumed run alone reads."""
    endings = ("config.json", "*.safetensors", "*.bin")
    read = {each for ending in endings for each in checkpoint.glob(ending)}
    return sorted(read - {checkpoint / files.OPTIMIZER_STATE})


def _number(
    parts: Sequence[Any], members: Callable[[Any], Sequence[Any]], inside: tuple[int, ...] = ()
) -> Iterator[tuple[tuple[int, ...], Any]]:
    for number, part in enumerate(parts):
        yield (*inside, number), part
        yield from _number(members(part), members, (*inside, number))


def attach(
    frozen: Sequence[Frozen],
    objective: Objective,
    tokenizer: Tokenizer | None,
    device: str,
    log: Log,
) -> None:
    """Open the models on a device, and give each to its objective."""
    for each in frozen:
        first, *inside = each.objective
        owner = (objective.objectives or (objective,))[first]
        for number in inside:
            owner = owner.members[number]
        opened = open_checkpoint(each.checkpoint, device=device, precision="fp32", warn=log.warn)
        owner.frozen_models = {**owner.frozen_models, each.name: opened.model.requires_grad_(False)}
        size = sum(parameter.numel() for parameter in opened.model.parameters())
        each.parameters, each.part = 0 if each.is_base else size, opened.part
        shared = ", the weights under the adapters" if each.is_base else ""
        log.info(
            f"frozen model {each.name}: {opened.part.family}, {number_of(size, 'parameters')}"
            f"{shared}, {each.checkpoint} (sha256 {each.sha256[:12]})"
        )
        if tokenizer and opened.tokenizer and not reads_alike(tokenizer, opened.tokenizer):
            remedy = f"tokenizer: {{path: {each.checkpoint}}}"
            if isinstance(owner, Task):
                remedy = "a checkpoint that has these tokens, such as one of objective generation"
            raise UsageError(
                f"frozen model {each.name}: {each.checkpoint} has another tokenizer than this run; "
                f"both must read the same ids, also of tokens that the objective adds: {remedy}"
            )
