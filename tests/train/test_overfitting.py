"""The warning that held-out and training loss part."""

from pathlib import Path

import pytest

from nlpkit.train.held_out import Overfitting
from tests import _tiny

# (training losses since the last evaluation, held-out loss)
PARTING = [([5.0, 4.0], 4.4), ([3.9, 3.7], 4.2), ([3.6, 3.4], 4.3), ([3.2, 3.0], 4.25)]


def _warnings(evaluations: list[tuple[list[float], float]]) -> list[str | None]:
    seen, found = Overfitting(), []
    for number, (losses, held_out) in enumerate(evaluations, 1):
        for loss in losses:
            seen.losses.append(loss)
        found.append(seen.warning(10 * number, held_out))
    return found


def test_parting_losses_are_told_once_with_both() -> None:
    *before, told, after = _warnings([*PARTING, ([2.0], 5.0)])
    assert before == [None] * 3
    assert after is None
    assert told is not None
    assert "since step 20, from 4.2000 to 4.2500" in told
    assert "fell from 3.8000 to 3.1000" in told


@pytest.mark.parametrize(
    "evaluations",
    [
        PARTING[:3],  # worse once
        [*PARTING[:3], ([3.2], 4.1)],  # and better again
        [*PARTING[:2], ([3.9], 4.3), ([4.5], 4.4)],  # the training loss rises, too
        [*PARTING[:2], ([3.9], 4.3), ([3.0], 4.4)],  # it rose for a while
        [([], 4.0), ([], 4.1), ([], 4.2)],  # no steps
    ],
)
def test_others_are_not(evaluations: list[tuple[list[float], float]]) -> None:
    assert _warnings(evaluations) == [None] * len(evaluations)


@pytest.mark.slow
def test_run_that_learns_by_heart_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = _tiny.write(tmp_path, documents=4)
    sets = ("train.steps=30", "train.lr=2.0e-2", "train.eval_every=3", "model.dropout=0.0")
    _tiny.pretrain(path, tmp_path / "run", *sets, verbosity=0)
    said = capsys.readouterr().err
    assert said.count("the model learns its training data by heart") == 1
