"""A dotted name in a recipe is any importable module with the same contents: no fork needed."""

from pathlib import Path

import pytest

from nlpkit.checkpoints import files
from tests import _tiny

_OBJECTIVE = """
from nlpkit.objectives.cpm_ant import Config, Objective as Base

class Objective(Base):
    def example(self, ids, rng):
        return super().example(ids[::-1], rng)  # right to left
"""


def test_family_and_objective_of_ones_own_train(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "ownlab"
    (package / "ant").mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "backwards.py").write_text(_OBJECTIVE, encoding="utf-8")
    (package / "ant" / "__init__.py").write_text(
        "from nlpkit.models.cpm_ant import Config, MODEL_TYPE\n", encoding="utf-8"
    )
    (package / "ant" / "model.py").write_text(
        "from nlpkit.models.cpm_ant.model import *\n", encoding="utf-8"
    )
    monkeypatch.syspath_prepend(tmp_path)
    text = _tiny.RECIPE.replace("family: cpm_ant", "family: ownlab.ant")
    path = _tiny.write(tmp_path, text=text.replace("name: cpm_ant", "name: ownlab.backwards"))
    place = _tiny.pretrain(path, tmp_path / "run", "train.steps=4")
    assert files.damage(place) is None
    assert [r["step"] for r in _tiny.metrics(tmp_path / "run") if "loss" in r] == [1, 2, 3, 4]
