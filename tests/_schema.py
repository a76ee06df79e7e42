"""The schema of recipes, made once for all tests of a process."""

from functools import cache

import jsonschema

from nlpkit.recipe.schema import build_schema


@cache
def validator() -> jsonschema.Draft202012Validator:
    """Return the validator of all recipes; `test_recipe.py` checks that its schema is one."""
    return jsonschema.Draft202012Validator(build_schema())
