"""The model and the tokenizer of a run with `init_from`: those of a checkpoint."""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
from pydantic import ValidationError
from torch import nn

from nlpkit import registry
from nlpkit.checkpoints import any_layout, files, hf_layout, hf_model, integrity, objective_heads
from nlpkit.checkpoints.nearest import suggest_path
from nlpkit.contracts.format import FOLDERS
from nlpkit.contracts.task import Task
from nlpkit.data.lines import name_first
from nlpkit.errors import FileError, UsageError
from nlpkit.json_types import JsonMapping, JsonObject
from nlpkit.models import adapter_config, families, lora
from nlpkit.models.config import ModelConfig
from nlpkit.models.formats import hf_format
from nlpkit.models.formats.rows import resize_embeddings
from nlpkit.models.layers.head import BIAS, HEAD, PREFIX, pop_head
from nlpkit.models.meta import meta_model
from nlpkit.plural import number_of
from nlpkit.recipe import Recipe, Resolved, fit
from nlpkit.recipe.places import dotted
from nlpkit.recipe.problems import in_words
from nlpkit.runs import init_vectors, soft_prompts
from nlpkit.runs.build import for_objective
from nlpkit.runs.run import ModelPart

_WEIGHTS = (".safetensors", ".bin", ".pt")
# Settings of tasks that decide what the rows of the output layer are.
_OF_OUTPUTS = ("name", "labels", "regression", "head")
_NO_ADAPTERS = "adapters are saved without such tensors; train the whole model first"


def model_part(
    resolved: Resolved, run_path: Path | None, resumed: Path | None, info: Callable[[str], None]
) -> ModelPart:
    """Return the family, sizes and weights of the model: see `build.model_part`."""
    recipe = resolved.recipe
    assert recipe.init_from is not None
    own = base = newest = None
    if _has_base(recipe):  # a checkpoint of adapters contains the path of its base
        saved = [c.path for c in files.list_checkpoints(run_path)] if run_path else []
        newest = resumed or (saved[0] if saved else None)
        base = any_layout.find_base(newest) if newest else None
    elif resumed is not None:
        own = resumed, hf_layout.read(resumed)
    elif run_path is not None:
        own = _own_checkpoint(run_path)
    directory = own[0] if own else base or _start(resolved.path(recipe.init_from), info)
    if not own and not _has_base(recipe) and (part := init_vectors.find_part(recipe, directory)):
        return part
    prompt = None
    if soft_prompts.is_wanted(recipe):
        directory, prompt = soft_prompts.find_start(newest or directory, bool(newest))
    named = _family_of_recipe(recipe, directory)
    content = own[1] if own else any_layout.read(directory, named)
    family = hf_model.find_family(content[0], directory, named)
    resumes = None if _has_base(recipe) else resumed
    part = ModelPart(family, None, None, directory, resumed=resumes, prompt=prompt)
    loaded = _loaded(resolved, family, directory, content)
    part.config = loaded.config
    part.warnings = loaded.warnings("set to 0" if _has_base(recipe) else "randomly initialized")
    if not own:
        part.start = {**loaded.state, **objective_heads.read(directory)}
        part.source_weights = describe_source(directory)
    part.rows = hf_format.vocabulary_size(loaded.state, part.vocabulary) or None
    _set_config(recipe, part, directory, loaded.config)
    if part.start is not None and part.config != loaded.config:
        if part.config.kinds != loaded.config.kinds:
            part.warnings = [*part.warnings, _other_kinds(part.config, loaded.config)]
        part.start = _fitting(part, part.start)
    if recipe.lora is not None:
        _set_adapters(recipe.lora, part, loaded, newest)
    if _has_base(recipe):
        part.base_hash = any_layout.hash_base(directory)
    return part


def describe_source(path: Path) -> JsonObject:
    """Return the path and the hash of the weights of a checkpoint on which a run starts."""
    sha256 = integrity.hash_weights(_list_weights(path))
    return {"path": str(path.absolute()), "sha256": sha256}


def is_source(path: Path, sha256: object) -> bool:
    """Return whether a checkpoint has the hash of the weights on which a run started."""
    return path.exists() and integrity.has_hash(_list_weights(path), sha256)


def _list_weights(path: Path) -> list[Path]:
    inside = [path] if path.is_file() else sorted(path.iterdir())
    return [each for each in inside if each.suffix in _WEIGHTS]


def _has_base(recipe: Recipe) -> bool:
    """Return whether the weights of `init_from` are not trained and not saved."""
    return recipe.lora is not None or soft_prompts.is_wanted(recipe)


def _set_config(recipe: Recipe, part: ModelPart, directory: Path, loaded: ModelConfig) -> None:
    """Set the settings of the model: those of the checkpoint, and what the recipe changes."""
    if recipe.model is not None and recipe.model.family is None:
        part.config = _with_dropout(part.config, recipe.model.config)
    elif recipe.model is not None:
        section = for_objective(recipe, recipe.model.config)
        part.config = _as_named(for_objective(recipe, part.config), section, directory)
    part.config = for_objective(recipe, part.config)
    for path, problem in fit.check_attention(recipe.attention, part.config, recipe.objective):
        raise UsageError(f"{dotted(path)}: {problem}")
    part.config = fit.with_attention(part.config, recipe.attention.choices)
    if _has_base(recipe) and part.config.kinds != loaded.kinds:
        raise UsageError(
            "attention: adapters are saved without it, so that it must be that of the checkpoint; "
            "remove the section, or train the whole model"
        )


def _set_adapters(
    settings: adapter_config.Config, part: ModelPart, loaded: hf_model.Loaded, newest: Path | None
) -> None:
    part.lora = settings
    targets = lora.find_targets(settings, part.module(), part.config)
    if settings.targets is None and newest is not None:  # a run keeps the defaults of its time
        begun = (hf_layout.read_adapters(newest) or {}).get("target_modules", ())
        form = part.module().FORMAT
        linear = lora.linear_names(form, part.module().Model, part.config)
        targets = {
            ours: theirs
            for ours, theirs in linear.items()
            if f".{lora.in_memory(form, theirs)}".endswith(tuple(f".{name}" for name in begun))
        }
    part.targets = {
        ours: theirs
        for ours, theirs in targets.items()
        if ours in loaded.state or f"{ours}.weight" in loaded.state
    }
    lacking = [theirs for ours, theirs in targets.items() if ours not in part.targets]
    if lacking and lora.ALL not in (settings.targets or ()):
        what = f"get no adapters, because the checkpoint lacks them: {name_first(lacking)}"
        if not part.targets:
            raise UsageError(f"lora.targets: all of these {what}")
        part.warnings = [*part.warnings, f"layers of lora.targets {what}"]


def _other_kinds(config: ModelConfig, loaded: ModelConfig) -> str:
    """Return the warning that a model has other kinds of attention than its checkpoint."""
    new, old = (", ".join(dict.fromkeys(c.kind for c in each.kinds)) for each in (config, loaded))
    settings = "" if new != old else " with other settings"
    return (
        f"trained with attention {old}, and the model has {new}{settings}: what a kind learns "
        "itself is randomly initialized"
    )


def _fitting(part: ModelPart, start: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the tensors that the model has; those of a kind of attention in its shapes."""
    has = meta_model(part.module().Model, part.config, 1).state_dict()

    def fits(name: str, tensor: torch.Tensor) -> bool:
        if "attention_tensors." in name:
            return name in has and has[name].shape == tensor.shape
        return name in has or name.startswith((PREFIX, hf_model.OBJECTIVE_HEADS))

    return {name: tensor for name, tensor in start.items() if fits(name, tensor)}


def _with_dropout(config: ModelConfig, rates: Mapping[str, float]) -> ModelConfig:
    """Return the config with other dropout rates; raise `UsageError` for unknown or wrong ones."""
    known = [name for name, _ in config if name.endswith("dropout")]
    for name in rates:
        if name not in known:
            near = registry.suggest(name, known) or f"; known: {', '.join(known)}"
            raise UsageError(f"model.{name}: the model of init_from has no such setting{near}")
    try:
        checked = type(config).model_validate(config.model_dump() | dict(rates))
    except ValidationError as error:
        raise UsageError(f"model.{in_words(error)}") from error
    return config.model_copy(update={name: getattr(checked, name) for name in rates})


def _as_named(config: ModelConfig, section: ModelConfig, directory: Path) -> ModelConfig:
    """Return the config of `init_from` with the dropout rates that the section `model` names."""
    named = {name: getattr(section, name) for name in section.model_fields_set}
    rates = {name: value for name, value in named.items() if name.endswith("dropout")}
    sizes = named.keys() - rates
    if differ := [name for name, value in config if name in sizes and value != named[name]]:
        raise UsageError(
            f"init_from: {directory} and the section model differ in {', '.join(differ)}; "
            f"remove {'it' if len(differ) == 1 else 'them'} there"
        )
    return _with_dropout(config, rates)


def _family_of_recipe(recipe: Recipe, directory: Path) -> str | None:
    """Return the family in the section `model`, or None if there is no such section."""
    if recipe.model is None or recipe.model.family is None:
        return None
    family = recipe.model.family
    if (directory / "config.json").is_file():
        ours = hf_model.model_types(family)
        theirs = hf_model.read_model_type(hf_layout.read_settings(directory))
        if theirs not in ours:
            raise UsageError(
                f"init_from: {directory} has model_type {theirs}, and family {family} of the "
                f"section model {', '.join(ours)}; remove the section"
            )
    return family


def _loaded(
    resolved: Resolved, family: str, directory: Path, content: hf_layout.Content
) -> hf_model.Loaded:
    """Return the weights of `init_from`; tensors in `init_missing` may be missing."""
    recipe = resolved.recipe
    made = fit.classes(recipe.objective)
    predicts = any(not issubclass(each, Task) or each.predicts_text for each in made)
    allowed = () if _has_base(recipe) else recipe.init_missing
    try:
        found = (family, directory, *content)
        loaded = hf_model.from_hf(*found, allow_missing=allowed, predicts=predicts)
    except hf_model.MissingTensors as error:
        layers = ", ".join(error.layers)
        remedy = f"to initialize such tensors, name them: init_missing: [{layers}]"
        if _has_base(recipe):
            remedy = _NO_ADAPTERS
        raise FileError(f"{error}; {remedy}") from error
    form, wanted = families.load_model(family).FORMAT, for_objective(recipe, loaded.config)
    kept = [name for name, each in form.folders.items() if each.present(wanted)]
    if content[0].get(FOLDERS, {}).keys() - {*kept}:
        # A table may be the sum of tables of both parts; read alone, it is that of the main part.
        return _loaded(resolved, family, directory, hf_layout.keep_folders(content, kept))
    if _has_base(recipe) and any(each.reads_summary for each in made):
        _check_summary(recipe, family, directory, loaded)
    return loaded


def _check_summary(recipe: Recipe, family: str, directory: Path, loaded: hf_model.Loaded) -> None:
    """Raise `FileError` if adapters would be trained behind a layer of zeros, such as a pooler.

    The summary is then the same for all texts, and no gradient reaches the adapters.
    """
    module = families.load_model(family)
    names = meta_model(module.Model, for_objective(recipe, loaded.config), 1).state_dict()
    form, absent = module.FORMAT, [name for name in names if name not in loaded.state]
    theirs = [each.key for ours in absent for each in hf_format.names_of(form, ours)]
    if zeros := [name for name in theirs if name.startswith(form.body)]:
        number = number_of(len(zeros), "tensors are missing")
        raise FileError(f"{directory}: {number}: {name_first(zeros)}; {_NO_ADAPTERS}")


def _own_checkpoint(run_path: Path) -> tuple[Path, hf_layout.Content] | None:
    """Return the run's newest readable checkpoint, or None, which `resume` reports."""
    for checkpoint in files.list_checkpoints(run_path):
        with contextlib.suppress(FileError):
            return checkpoint.path, hf_layout.read(checkpoint.path)
    return None


def _start(path: Path, info: Callable[[str], None]) -> Path:
    """Return the verified checkpoint of `init_from`.

    The path is resolved, because the link `latest` may change during reading.
    """
    path = files.find_named(path) or path
    if not any_layout.is_checkpoint(path) and (found := files.choose_checkpoint(path)):
        info(f"init_from: {path}: its {found[1]} checkpoint, {found[0].name}")
        path = found[0]
    if not path.exists():
        raise FileError(f"{path}: no such checkpoint to start from{suggest_path(path)}")
    integrity.verify(path)
    return path.resolve()


def load_weights(
    part: ModelPart, model: nn.Module, start: Mapping[str, torch.Tensor], vocab_size: int
) -> None:
    """Load the weights of `init_from`; new tokens get random embeddings (`formats/rows.py`)."""
    state = {n: each for n, each in start.items() if not n.startswith(hf_model.OBJECTIVE_HEADS)}
    pop_head(state)
    resized = resize_embeddings(state, part.vocabulary, vocab_size)
    # Missing tensors are random. Those of adapters are 0: they are not saved, and are 0 when the
    # checkpoint is opened.
    absent = {name: each for name, each in model.state_dict().items() if name not in resized}
    if part.base_hash is not None:
        absent = {name: torch.zeros_like(tensor) for name, tensor in absent.items()}
    model.load_state_dict(absent | resized)


def compare_heads(part: ModelPart, new: JsonMapping) -> None:
    """Drop the output layer of `init_from` if its outputs are not those of a task; say so.

    A checkpoint may lack settings that came later. Any setting of a task that is not shipped may
    decide its outputs. Without notes, the class in `config.json` tells the task, and `id2label` its
    labels.
    """
    if part.source is None or not part.start or HEAD not in part.start:
        return
    old = any_layout.read_notes(part.source).get("objective")
    if isinstance(old, dict):
        every = "." in new["name"]
        named = [name for name in old if every or name in _OF_OUTPUTS]
        differ = ", ".join(name for name in named if new.get(name) != old[name])
    else:
        differ = "" if old is None and _has_outputs(part, new.get("labels")) else "classes"
    if differ:
        pop_head(part.start)
        part.new_head = (
            f"init_from: {part.source}: its trained output layer is not used, a new one begins at "
            f"random: the {differ} of its task and of this one differ"
        )
    elif part.head.bias:  # LLaMA's of questions had none before 2026-11-28
        part.start.setdefault(BIAS, torch.zeros(part.outputs))


def _has_outputs(part: ModelPart, labels: Sequence[str] | None) -> bool:
    """Return whether a checkpoint without notes has the layer of the part's task and its labels."""
    assert part.source is not None
    assert part.start is not None
    settings = hf_layout.read_if_there(part.source / "config.json")
    head = part.module().TASK_HEADS.get(part.head_kind)
    if head is None or not head.is_of(settings.get("architectures") or ()):
        return False
    named = {str(number): label for number, label in enumerate(labels or ())}
    is_named = labels is None or settings.get("id2label") == named
    return is_named and len(part.start[HEAD]) == part.outputs
