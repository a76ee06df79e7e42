"""A backend that cannot do the job is a mistake of the recipe, found before data are read."""

from pathlib import Path

import pytest

from nlpkit import plan, recipe
from nlpkit.errors import RecipeError
from nlpkit.train.log import QUIET, Log
from tests import _tiny

_LINEAR = "tests.parts.linear_attention"
_RECIPE = """\
name: tiny
attention:
  backend: BACKEND
  kind: KIND
model: {family: gpt, hidden_size: 32, num_layers: 1, num_heads: 2, attention_dropout: DROPOUT}
tokenizer: {kind: gpt1_bpe, vocab_size: 300}
data: {train: [TRAIN]}
objective: {name: clm}
train: {steps: 2, schedule: constant}
"""


def _plan(path: Path, out: Path) -> None:
    plan.make(recipe.load(str(path)), out, "cpu", Log(QUIET))


@pytest.mark.parametrize("start", [_tiny.pretrain, _plan])
@pytest.mark.parametrize(
    ("backend", "kind", "dropout", "why"),
    [
        ("flash", "causal", "0.0", "made for CUDA, not for cpu"),
        ("varlen", "causal", "0.0", "made for CUDA, not for cpu"),
        ("flex", "causal", "0.0", "no backward pass on CPU"),
        ("flex", "causal", "0.1", "dropout on the probabilities"),
        ("sdpa", _LINEAR, "0.0", "has its own computation and takes no backend"),
    ],
)
def test_backend_that_cannot_do_the_job_is_refused_before_data_are_read(
    tmp_path: Path, backend: str, kind: str, dropout: str, why: str, start
) -> None:
    (tmp_path / "train.txt").write_bytes(b"\xff")  # reading it would be another error
    text = _RECIPE.replace("BACKEND", backend).replace("KIND", kind).replace("DROPOUT", dropout)
    path = tmp_path / "gpt.yaml"
    path.write_text(text.replace("TRAIN", str(tmp_path / "train.txt")), encoding="utf-8")
    with pytest.raises(RecipeError) as error:
        start(path, tmp_path / "run")
    (problem,) = error.value.problems
    assert problem.startswith(f"{path}:3:")
    assert "attention.backend: " in problem
    assert f"kind {kind}" in problem
    assert why in problem


@pytest.mark.parametrize("start", [_tiny.pretrain, _plan])
def test_backend_without_cross_attention_is_refused_before_data_are_read(
    tmp_path: Path, start
) -> None:
    (tmp_path / "train.txt").write_bytes(b"\xff")
    text = _RECIPE.replace("BACKEND", "cpu_flash").replace("  kind: KIND\n", "")
    text = text.replace("gpt,", "t5,").replace("DROPOUT", "0.0").replace("clm", "span_corruption")
    path = tmp_path / "t5.yaml"
    path.write_text(text.replace("TRAIN", str(tmp_path / "train.txt")), encoding="utf-8")
    with pytest.raises(RecipeError) as error:
        start(path, tmp_path / "run")
    assert "attention.backend: attention backend cpu_flash cannot do kind full: keys of" in str(
        error.value
    )


def test_backend_of_the_command_line_is_refused_by_its_option(tmp_path: Path) -> None:
    path = _tiny.write(tmp_path)
    with pytest.raises(RecipeError) as error:
        _tiny.pretrain(path, tmp_path / "run", "attention.backend=flex")  # dropout is 0.1
    assert str(error.value) == (
        "--set attention.backend: attention backend flex cannot do kind cpm_ant: "
        "dropout on the probabilities; auto chooses one that can"
    )


@pytest.mark.parametrize(
    ("name", "sizes", "kind", "layers"),
    [
        ("albert", ("num_layers=2", "inner_layers=2"), "full", 4),
        ("electra", ("num_layers=2", "generator_layers=0.5"), "full", 2),
        ("transformer", ("num_layers=2", "encoder_layers=3"), "causal", 2),
    ],
)
def test_kind_of_a_layer_that_is_not_there_has_no_effect(
    name: str, sizes: tuple[str, ...], kind: str, layers: int
) -> None:
    sets = [f"model.{size}" for size in sizes]
    kinds = [f"{{kind: {kind}}}"] * layers
    warnings = [
        recipe.load(name, [*sets, f"attention={{layers: [{', '.join(each)}]}}"]).warnings
        for each in (kinds, [*kinds, *kinds])
    ]
    assert not any("attention" in each for each in warnings[0])
    assert (
        f"--set attention: attention.layers: has no effect after layer {layers}, the last of the "
        "model"
    ) in warnings[1]


@pytest.mark.parametrize("family", ["bert", "roberta", "albert", "electra", "xlm", "modernbert"])
def test_class_of_a_first_token_that_sees_nothing_else_is_refused(
    tmp_path: Path, family: str
) -> None:
    path = tmp_path / "recipe.yaml"
    text = f"""\
name: tiny
model: {{family: {family}, hidden_size: 32, num_layers: 2, num_heads: 2}}
tokenizer: {{kind: wordpiece, vocab_size: 300}}
data: {{train: [train.tsv]}}
objective: {{name: classification}}
train: {{steps: 2, schedule: constant}}
attention: """
    path.write_text(text + "{kind: causal}\n", encoding="utf-8")
    with pytest.raises(RecipeError) as error:
        recipe.load(str(path))
    assert error.value.problems == [
        f"{path}:5:19: objective.name: classification reads the state of the first token, which "
        "sees no other token with attention causal; set attention: {kind: full}"
    ]
    # One layer in which it sees all tokens is enough; a tag is read from the state of its word.
    path.write_text(text + "{layers: [{kind: causal}, {kind: full}]}\n", encoding="utf-8")
    recipe.load(str(path))
    path.write_text(text.replace("classification", "tagging") + "{kind: causal}\n")
    recipe.load(str(path))
