"""From the layout of `transformers` to a model: its family, its settings and its tensors.

The tables of names and settings are those of the family (`FORMAT`, `models/formats/hf_format.py`).
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError
from torch import Tensor

from nlpkit import registry
from nlpkit.attention.choice import AttentionChoice
from nlpkit.checkpoints import hf_layout
from nlpkit.contracts.family_model import FamilyModel
from nlpkit.contracts.format import HfFormat
from nlpkit.data.lines import name_first
from nlpkit.errors import FileError, UsageError
from nlpkit.json_types import JsonMapping
from nlpkit.models import families
from nlpkit.models.config import ModelConfig
from nlpkit.models.formats import hf_format, hf_reading
from nlpkit.models.formats.hf_format import vocabulary_size
from nlpkit.models.layers.head import HEAD, OF_TOKENS, TaskHead, explain_unread, find_head, kind_of
from nlpkit.models.meta import meta_model
from nlpkit.plural import number_of
from nlpkit.recipe.problems import in_words

Shapes = dict[str, tuple[int, ...]]
OWN_TYPE = "nlpkit-"  # prefix of model_type for models that transformers does not support
OBJECTIVE_HEADS = "objective_heads."  # of these parameters in a model's state dict
# Raised for settings that no model has, such as a size of 0, and for tensors of other sizes.
_UNFIT = (ValueError, TypeError, AttributeError, IndexError, RuntimeError, ArithmeticError)


@dataclass(frozen=True)
class Loaded:
    """A checkpoint's tensors, matched with the parameters of its family."""

    config: ModelConfig
    state: dict[str, Tensor]  # includes the task's output layer, if there is one
    missing: tuple[str, ...]  # transformers' names of parameters that the checkpoint does not have
    unexpected: tuple[str, ...]  # tensors that the model does not have
    head: TaskHead | None = None  # of the task's output layer
    lacks_output: bool = False  # a task's model without the layers that predict tokens

    def warnings(self, fate: str) -> list[str]:
        """Return lines about missing and unexpected tensors; `fate`: what replaces missing ones."""
        lines = [f"missing, {fate}: {name_first(self.missing)}"] if self.missing else []
        if self.unexpected:
            lines.append(f"unexpected in this model, ignored: {name_first(self.unexpected)}")
        return lines


class MissingTensors(FileError):
    """Required tensors are missing; `layers` are parts of names that all of them have."""

    def __init__(self, message: str, layers: Sequence[str]):
        super().__init__(message)
        self.layers = layers


def read_model_type(settings: JsonMapping) -> object:
    """Return transformers' name of the family, from `model_type` in `config.json`."""
    model_type = settings.get("model_type")
    return model_type.removeprefix(OWN_TYPE) if isinstance(model_type, str) else model_type


def model_types(family: str) -> tuple[str, ...]:
    """Return transformers' names of a family, first its own."""
    light = families.load(family)
    return light.MODEL_TYPE, *light.MORE_MODEL_TYPES


def find_family(settings: JsonMapping, directory: Path, family: str | None = None) -> str:
    """Return the family that reads a checkpoint.

    The family is the argument `family` if it is given, then the family in the checkpoint's notes,
    then the shipped family with the same `model_type`. A family that is not shipped is imported
    only if `outside_parts.check_named_by` allows it.

    Raises:
        FileError: the family does not exist, or cannot be imported.
    """
    if family is not None:
        return family
    file, notes = directory / "config.json", settings.get("nlpkit")
    named = notes.get("family") if isinstance(notes, dict) else None
    if isinstance(named, str) and "." in named:
        how = f"--family {named}, or the section model of a recipe"
        remedy = f"run nlpkit where it lies, or, if you trust it, name it: {how}"
        from nlpkit.outside_parts import check_named_by

        check_named_by(file, named, remedy)
        try:
            families.load_model(named)
            return named
        except UsageError as error:
            raise FileError(f"{file}: made by family {named}: {error}") from error
    types = {name: model_types(name) for name in registry.names("models")}
    model_type = read_model_type(settings)
    fitting = [name for name, known in types.items() if model_type in known]
    if not fitting:
        shipped = ", ".join(sorted(itertools.chain(*types.values())))
        raise FileError(
            f"{file}: model_type {model_type!r} is none of {shipped}; a family of your own: "
            "--family mylab.NAME, or in a recipe model: {family: mylab.NAME}"
        )
    if isinstance(named, str) and named not in fitting:
        raise FileError(
            f"{file}: made by family {named!r}, and model_type {model_type} is of {fitting[0]}"
        )
    return named if isinstance(named, str) else fitting[0]


def has_tensor(module: FamilyModel, head: TaskHead, name: str) -> bool:
    """Return whether transformers' model with this task's layer has the tensor `name`.

    It has the body and the layer, and for labels of tokens no layer on a summary of the sequence.
    """
    form = module.FORMAT
    if name in head.names.values():
        return True
    if kind_of(module, head) in OF_TOKENS and hf_format.matches(form.optional, name):
        return False
    return name.startswith((form.body, *form.bodies.values()))


def from_hf(
    family: str,
    directory: Path,
    settings: JsonMapping,
    tensors: Mapping[str, Tensor],
    *,
    allow_missing: Sequence[str] = (),
    predicts: bool | None = None,
) -> Loaded:
    """Return the family's `Config` and state dict for a checkpoint, after a check of all shapes.

    No memory is allocated for missing parameters.

    Args:
        allow_missing: parts of the names of tensors that may be missing, in addition to the
            family's optional tensors.
        predicts: whether the layers behind the body are needed, such as those that predict masked
            tokens; None: if there is no output layer of a task.

    Raises:
        FileError: a setting or tensor is missing, or has a wrong type or size.
    """
    module = families.load_model(family)
    form = module.FORMAT
    unread = explain_unread(module, settings.get("architectures") or ())
    if unread and predicts is None:
        raise FileError(f"{directory}/config.json: {unread}")
    settings = hf_reading.add_missing_folders(form, settings, allow_missing)
    try:
        config, state, unused, shapes = _match(family, settings, tensors)
    except KeyError as error:
        raise FileError(f"{directory}: {error} is missing from config.json or weights") from error
    except ValidationError as error:
        raise FileError(f"{directory}/config.json: {in_words(error)}") from error
    except _UNFIT as error:
        cause = " ".join(str(error).split("\n")[:3])
        raise FileError(f"{directory}/config.json: does not fit the weights: {cause}") from error
    head = find_head(module, settings.get("architectures") or (), tensors)
    needed = "" if predicts or (predicts is None and head is None) else form.body
    absent = [name for name in shapes if name not in state]
    missing = _find_missing(form, directory, absent, allow_missing, needed, unread)
    lacks_output = head is not None and not all(each.startswith(form.body) for each in missing)
    if predicts is None:  # what is not needed is not used
        missing = tuple(n for n in missing if head is None or has_tensor(module, head, n))
    if head is not None:
        names = head.names
        if lacking := [theirs for theirs in names.values() if theirs not in tensors]:
            raise FileError(f"{directory}: {lacking[0]} is missing, but {names[HEAD]} exists")
        unused = [name for name in unused if name not in names.values()]
        state |= {ours: tensors[theirs] for ours, theirs in names.items()}
        shapes |= head.shapes(config.state_size, len(state[HEAD]))
    _check_tensors(directory, form, state, shapes)
    return Loaded(config, state, missing, tuple(sorted(unused)), head, lacks_output)


def _match(
    family: str, settings: JsonMapping, tensors: Mapping[str, Tensor]
) -> tuple[ModelConfig, dict[str, Tensor], list[str], Shapes]:
    """Return `Config`, the state dict as far as it is there, unused tensors, and all shapes."""
    light, module = families.load(family), families.load_model(family)
    config = hf_reading.read_config(module.FORMAT, light.Config, settings)
    if kinds := settings.get("nlpkit", {}).get("attention", []):
        kinds = tuple(map(AttentionChoice.from_json, kinds))
        config = config.model_copy(update={"attention": kinds})
    hf_reading.check_depth(module.FORMAT, config, tensors)
    skeleton = meta_model(module.Model, config, 1)
    state, unused = hf_reading.read_state(module.FORMAT, config, settings, tensors, skeleton)
    model = meta_model(module.Model, config, vocabulary_size(state, light.VOCABULARY))
    shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    return config, state, unused, shapes


def _check_tensors(
    directory: Path, form: HfFormat, state: Mapping[str, Tensor], shapes: Shapes
) -> None:
    """Raise `FileError` if a tensor has another shape, or holds no floating-point numbers."""
    hf_layout.check_dtypes(directory, state)
    for name, tensor in state.items():
        if tuple(tensor.shape) != shapes[name]:
            theirs = ", ".join(dict.fromkeys(each.key for each in hf_format.names_of(form, name)))
            in_files = "" if theirs in ("", name) else f" (in files {theirs})"
            raise FileError(
                f"{directory}: {name}{in_files} has the shape {tuple(tensor.shape)}; "
                f"config.json requires {shapes[name]}"
            )


def _find_missing(
    form: HfFormat,
    directory: Path,
    names: Sequence[str],
    allowed: Sequence[str],
    needed: str,
    unread: str,
) -> tuple[str, ...]:
    """Return transformers' names of missing parameters; raise `FileError` if one is required.

    Names that do not begin with `needed` are not.
    """
    theirs = {ours: [n.key for n in hf_format.names_of(form, ours)] or [ours] for ours in names}
    patterns = (*form.optional, *allowed)
    wrong = [
        n[0]
        for ours, n in theirs.items()
        if n[0].startswith(needed) and not hf_format.matches(patterns, ours, *n)
    ]
    if unread and any(name.startswith(form.body) for name in wrong):  # by other names
        raise FileError(f"{directory}/config.json: {unread}")
    if wrong:
        number = number_of(len(wrong), "tensors are missing")
        message = f"{directory}: {number}: {name_first(wrong)}"
        layers = {name.rpartition(".")[0] or name for name in wrong}
        outer = [n for n in layers if not any(n.startswith(f"{each}.") for each in layers)]
        raise MissingTensors(message, sorted({name.rpartition(".")[2] for name in outer}))
    return tuple(keys[0] for keys in theirs.values())
