"""Model cards: the lines in them open the model; users edit them."""

import re
from hashlib import sha256
from pathlib import Path

import pytest

from nlpkit import cli
from nlpkit.checkpoints import files
from nlpkit.recipe import yaml
from nlpkit.runs import model_card
from nlpkit.runs.convert import Options, convert
from tests import _tiny
from tests._family_runs import Runs

CLASSES = "{name: classification, max_length: 80}"
CHOICES = "{name: multiple_choice, max_length: 80}"
# The family, the task's name, files and objective; none: its first run.
USED = {
    "text-generation": ("gpt2", None),
    "text-classification": ("roberta", ("classes", "classify.{}.tsv", CLASSES)),
    "token-classification": ("gpt2", ("tags", "tag.{}.conll", "{name: tagging, max_length: 64}")),
    "fill-mask": ("albert", None),
    "generator": ("electra", None),
    "sentinels": ("t5", None),
    "seq2seq": ("t5", ("written", "copy.{}.jsonl", "{name: seq2seq, max_length: 40}")),
    "multiple-choice": ("roberta", ("choices", "choice.{}.jsonl", CHOICES)),
    "xlnet": ("xlnet", None),
}
LONG = (
    "generator",
    "fill-mask",
    "token-classification",
    "sentinels",
    "seq2seq",
    "multiple-choice",
    "xlnet",
)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return Runs(tmp_path_factory.mktemp("cards"))


def _python(card: str) -> str:
    found = re.search(r"```python\n(.*?)```", card, re.DOTALL)
    assert found is not None
    return found[1]


@pytest.mark.fast_cases(1)
@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=[pytest.mark.slow] * (kind in LONG)) for kind in USED]
)
def test_lines_of_a_card_open_the_model(
    runs: Runs, tmp_path: Path, monkeypatch, capsys, kind: str
) -> None:
    family, task = USED[kind]
    saved = runs.first(family) if task is None else runs.tuned(family, *task, steps=2)
    convert(saved, tmp_path / "out")
    monkeypatch.chdir(tmp_path / "out")
    card = Path("README.md").read_text("utf-8")
    assert ('model="generator"' in card) == (kind == "generator")
    exec(_python(card), {})
    assert capsys.readouterr().out
    if "nlpkit generate ." in card:
        Path("../text.txt").write_text("Once upon a time\n")
        assert cli.run(["generate", ".", "../text.txt", "-q", "--device", "cpu"]) == 0
        assert capsys.readouterr().out.count("\n") == 1
    assert "nlpkit eval . --data FILE" in card


def test_scores_of_a_run_that_was_killed_while_it_wrote_them(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    line = '{"step": 2, "held_out": {"loss": 3.0, "metrics": {"accuracy": 0.5}}}\n'
    file.write_text(line + '{"step": 4, "held_out": {"lo')
    assert model_card._read_scores(file, 2) == {"loss": 3.0, "accuracy": 0.5}
    assert model_card._read_scores(file, 4) == {}


def _card_of(saved: Path, out: Path) -> str:
    convert(saved, out)
    return (out / "README.md").read_text("utf-8")


def test_directory_below_the_root_is_of_no_run() -> None:
    assert model_card.read_name(Path("/model")) == ""


def test_card_tells_how_the_model_came_to_be(runs: Runs, tmp_path: Path) -> None:
    saved = runs.tuned("roberta", "classes", "classify.{}.tsv", CLASSES, steps=2)
    card = _card_of(saved, tmp_path / "out")
    head, body = card.removeprefix("---\n").split("---\n", 1)
    assert head.splitlines()[1:] == [
        "library_name: transformers", "pipeline_tag: text-classification",
        "tags: [nlpkit, roberta]",
    ]  # fmt: skip
    assert head.startswith("# license: ")
    for part in ("train", "valid"):
        file = runs.folder / f"classify.{part}.tsv"
        assert f"| {part} | {file} | `{sha256(file.read_bytes()).hexdigest()}` |" in body
    record = next(r for r in reversed(_tiny.metrics(saved.parents[1])) if "held_out" not in r)
    assert f"2 steps, {record['tokens']:,} tokens seen" in body
    assert (saved.parents[1] / "recipe.yaml").read_text("utf-8") in body


def test_name_of_a_card_has_no_quotes_of_yaml(tmp_path: Path) -> None:
    for name in ("2026-11-27", "it's", "plain"):
        checkpoint = tmp_path / name / "checkpoints" / "step-2"
        checkpoint.mkdir(parents=True)
        (checkpoint / files.MANIFEST).write_text("{}")
        (tmp_path / name / "recipe.yaml").write_text(yaml.write({"name": name}))
        assert model_card.read_name(checkpoint) == name


def test_scores_of_a_card_are_those_of_its_step(runs: Runs, tmp_path: Path) -> None:
    path = runs.folder / "judged.yaml"
    start = runs.first("roberta")
    kept = (start.parents[1].with_suffix(".yaml")).read_text("utf-8")
    path.write_text(kept.replace("eval_every: null", "eval_every: 2"), "utf-8")
    saved = _tiny.pretrain(path, path.with_suffix(""))
    record = [r for r in _tiny.metrics(path.with_suffix("")) if "held_out" in r][-1]
    card = _card_of(saved, tmp_path / "out")
    assert f"| loss | {record['held_out']['loss']:.4f} |" in card
    assert f"at step {record['step']}:" in card


def test_edited_card_is_copied(runs: Runs, tmp_path: Path) -> None:
    card = _card_of(runs.first("roberta"), tmp_path / "out")
    edited = card.replace("# license: apache-2.0", "license: mit")
    assert edited != card
    (tmp_path / "out/README.md").write_text(edited, "utf-8")
    assert _card_of(tmp_path / "out", tmp_path / "again") == edited


def test_card_of_a_mean_names_what_it_is_the_mean_of(runs: Runs, tmp_path: Path) -> None:
    first = runs.first("roberta")
    convert(first, tmp_path / "out", Options(average=[first]))
    card = (tmp_path / "out/README.md").read_text("utf-8")
    assert f"mean of several checkpoints:\n\n- {first}\n- {first}\n" in card


@pytest.mark.slow
def test_model_that_transformers_lacks_has_no_lines_for_it(runs: Runs, tmp_path: Path) -> None:
    # GPT-1 has no class for tags: its checkpoint has that of the family.
    tagging = "{name: tagging, max_length: 64}"
    saved = runs.tuned("gpt", "tags", "tag.{}.conll", tagging, steps=2)
    card = _card_of(saved, tmp_path / "out")
    assert "transformers has no model of this family for this task" in card
    assert "library_name" not in card
