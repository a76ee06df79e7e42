"""Models that an objective reads, such as a teacher: opened and hashed, not trained, not saved."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from nlpkit import registry
from nlpkit.checkpoints import files
from nlpkit.checkpoints.tokenizer_files import reads_alike
from nlpkit.contracts.objective import Objective
from nlpkit.contracts.tokenizer import Tokenizer
from nlpkit.disk import file_sha256, user_path
from nlpkit.errors import FileError
from nlpkit.plural import number_of
from nlpkit.recipe import Resolved, fit
from nlpkit.runs.open_checkpoint import find_checkpoint, open_checkpoint
from nlpkit.train.log import Log


@dataclass
class Frozen:
    """A frozen model; `objective` is its objective's number, of a member of a mixture a second."""

    objective: tuple[int, ...]
    name: str
    checkpoint: Path
    sha256: str  # of its settings and weights
    parameters: int = 0  # once it is open

    @property
    def place(self) -> str:
        """The name of the model, with the number of its objective."""
        return ".".join(map(str, (*self.objective, self.name)))


def find(resolved: Resolved) -> list[Frozen]:
    """Return the frozen models that the objectives of a recipe name; raise `FileError`."""
    sections = _number(resolved.recipe.objective, fit.members_of)
    load = partial(registry.load, "objectives")
    parts = ((number, load(each.name).Objective, each.config) for number, each in sections)
    return list(_find(parts, resolved.path))


def find_bound(objective: Objective) -> list[Frozen]:
    """Return those that a bound objective names, such as one of a checkpoint."""
    bound = _number(objective.objectives or (objective,), lambda each: each.members)
    return list(_find(((number, each, each.config) for number, each in bound), user_path))


def _find(
    objectives: Iterable[tuple[tuple[int, ...], Any, Any]], locate: Callable[[str], Path]
) -> Iterator[Frozen]:
    for number, made, config in objectives:
        for name, path in (made.frozen(config) if made.frozen else {}).items():
            try:
                checkpoint = find_checkpoint(locate(path))
            except FileError as error:
                raise FileError(f"frozen model {name} of the objective: {error}") from error
            endings = ("config.json", "*.safetensors", "*.bin")
            read = {each for ending in endings for each in checkpoint.glob(ending)}
            read -= {checkpoint / files.OPTIMIZER_STATE}
            yield Frozen(number, name, checkpoint, file_sha256(*sorted(read)))


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
        each.parameters = sum(parameter.numel() for parameter in opened.model.parameters())
        log.info(
            f"frozen model {each.name}: {opened.part.family}, "
            f"{number_of(each.parameters, 'parameters')}, {each.checkpoint} "
            f"(sha256 {each.sha256[:12]})"
        )
        if tokenizer and opened.tokenizer and not reads_alike(tokenizer, opened.tokenizer):
            log.warn(f"frozen model {each.name}: it was trained with another tokenizer")
