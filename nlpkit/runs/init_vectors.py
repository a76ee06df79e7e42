"""The beginning of a model from vectors of tokens alone, such as word2vec's: `init_from`.

V tokens, C width of the vectors.
"""

from pathlib import Path

from nlpkit.checkpoints import any_layout, hf_layout, hf_model
from nlpkit.errors import FileError, UsageError
from nlpkit.models import families
from nlpkit.models.formats.hf_format import vocabulary_size
from nlpkit.models.meta import meta_model
from nlpkit.recipe import Recipe, fit
from nlpkit.runs.build import for_objective
from nlpkit.runs.run import ModelPart

TABLE = "token_embedding"  # in every family with a vocabulary, (V, C)


def find_part(recipe: Recipe, directory: Path) -> ModelPart | None:
    """Return the model of the recipe with the vectors in `directory` as its token embeddings.

    None if the recipe names no other family than the checkpoint's, or that has more than vectors.

    Raises:
        UsageError: the vectors have another width than the embeddings.
        FileError: a file is missing or damaged.
    """
    model = recipe.model
    if model is None or model.family is None or not (directory / "config.json").is_file():
        return None
    settings = hf_layout.read_settings(directory)
    if hf_model.read_model_type(settings) in hf_model.model_types(model.family):
        return None
    try:
        source = hf_model.find_family(settings, directory)
    except FileError:  # of another program, which the caller says
        return None
    if "context_free" not in families.load(source).Config.CAN:
        return None
    loaded = hf_model.from_hf(source, directory, *any_layout.read(directory, source))
    vectors = loaded.state[TABLE]
    config = for_objective(recipe, model.config)
    config = fit.with_attention(config, recipe.attention.choices)
    part = ModelPart(model.family, config, {TABLE: vectors}, directory)
    part.rows = vocabulary_size({TABLE: vectors}, (TABLE,))
    shapes = meta_model(part.module().Model, config, part.rows).state_dict()
    if TABLE not in shapes:
        raise UsageError(f"init_from: {directory} has vectors of tokens, and {model.family} none")
    width = shapes[TABLE].shape[1]
    if vectors.shape[1] != width:
        raise UsageError(
            f"init_from: the vectors in {directory} are {vectors.shape[1]} wide, and the token "
            f"embeddings of the section model {width}; make both alike"
        )
    part.warnings = [
        f"{source}: its vectors are the token embeddings, all else is randomly initialized"
    ]
    return part
