"""The page docs/python.md: its examples run, and the names that it promises stay as they are."""

import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

from nlpkit import api, errors
from nlpkit.generate.settings import Settings
from tests import _tiny

PAGE = (Path(__file__).parents[2] / "docs/python.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
EXAMPLES = [block for block in BLOCKS if block.count("\n") > 1]  # the first block is an import
RECIPE = """\
name: small
model: {family: gpt2, hidden_size: 32, num_layers: 1, num_heads: 4, max_positions: 64}
tokenizer: {kind: bpe, vocab_size: 300}
data: {train: [TRAIN]}
objective: {name: clm, max_length: 48}
train: {steps: 2, tokens_per_step: 512, tokens_per_batch: 256, lr: 1.0e-2, warmup_steps: 1,
  precision: fp32, save_every: 2}
"""
# A program that was written for an earlier version calls these. Change nothing here but to add an
# argument with a default, and say it in docs/python.md.
SURFACE = {
    "open_checkpoint": "(path, *, device='auto', precision='auto')",
    "generate": "(opened, texts, settings=None, *, batch=32)",
    "score": "(name, answers, references)",
    "write_store": "(files, tokenizer, cache)",
}
SETTINGS = {
    "max_new_tokens", "min_new_tokens", "beam", "nbest", "length_penalty", "length_penalty_form",
    "temperature", "top_k", "top_p", "repetition_penalty", "repetition_window", "seed", "stop",
    "blank",
}  # fmt: skip


def _signature(function: object) -> str:
    assert inspect.isfunction(function)
    found = inspect.signature(function)
    plain = [each.replace(annotation=each.empty) for each in found.parameters.values()]
    return str(found.replace(parameters=plain, return_annotation=found.empty))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with a text and a run, as the page has them."""
    text = "\n".join(f"Mara took {n} apples, and the bridge is closed." for n in range(40))
    (tmp_path / "text.txt").write_text(text + "\n", encoding="utf-8")
    recipe = tmp_path / "small.yaml"
    recipe.write_text(RECIPE.replace("TRAIN", str(tmp_path / "text.txt")), encoding="utf-8")
    _tiny.pretrain(recipe, tmp_path / "runs/small")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_surface_names_and_arguments_are_those_of_the_page() -> None:
    public = {
        name: _signature(value)
        for name, value in vars(api).items()
        if inspect.isfunction(value)
        and not name.startswith("_")
        and value.__module__ == "nlpkit.api"
    }
    assert public == SURFACE
    assert set(Settings.model_fields) == SETTINGS
    for name, signature in SURFACE.items():
        assert f"`api.{name}{signature.replace(chr(39), chr(34))}`" in PAGE


def test_examples_run_and_print(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert len(EXAMPLES) == 3
    printed = []
    for example in EXAMPLES:
        exec(compile(example, "docs/python.md", "exec"), {})
        printed.append(capsys.readouterr().out.splitlines())
    generated, scored, stored = printed
    assert re.fullmatch(r"\d+ parameters", generated[0])
    # A generated text may have more than one line.
    assert generated[1].startswith("The bridge")
    assert any(line.startswith("Mara took") for line in generated)
    assert scored[0].startswith("BLEU ")
    # Of the 6 words of each line 5 are in its reference, which has 6, too: F1 is 5/6.
    assert scored[1] == "0.83"
    assert re.fullmatch(r"40 documents, \d+ tokens", stored[0])


def test_store_second_call_finds_the_first(folder: Path) -> None:
    arguments = (["text.txt"], "runs/small/tokenizer", "cache")
    first, second = api.write_store(*arguments), api.write_store(*arguments)
    assert first.path == second.path
    assert [path.name for path in (folder / "cache/stores").iterdir()] == [first.path.name]
    opened = api.open_checkpoint("runs/small", device="cpu")
    assert opened.tokenizer.decode(first.document(3)).startswith("Mara took 3 apples")


def test_generate_warns_of_what_is_cut(folder: Path) -> None:
    settings = Settings(max_new_tokens=2)
    written = api.generate(api.open_checkpoint("runs/small", device="cpu"), ["a " * 99], settings)
    with pytest.warns(UserWarning, match="1 input was too long and cut by .* tokens; the model"):
        list(written)
    with pytest.raises(errors.UsageError, match="batch: needs 1 or more, got 0"):
        api.generate(api.open_checkpoint("runs/small", device="cpu"), ["a"], batch=0)


def test_generate_refuses_what_is_no_text(folder: Path) -> None:
    opened = api.open_checkpoint(folder / "runs/small", device="cpu")
    with pytest.raises(errors.UsageError, match="None is no text"):
        list(api.generate(opened, ["The bridge", None]))  # type: ignore[list-item]


def test_score_equals_hand_arithmetic_and_reads_several_references() -> None:
    # Right in one of two rows, the second by its second reference.
    assert api.score("exact_match", ["a", "b"], [["x"], ["y", "b"]]).score == 0.5


def test_warning_names_the_line_of_the_caller() -> None:
    with pytest.warns(UserWarning, match="mostly Chinese") as caught:
        api.score("bleu", ["今天天气很好。"], ["今天天气不好。"])
    assert [each.filename for each in caught] == [__file__]


def test_mistakes_are_errors_of_nlpkit(tmp_path: Path) -> None:
    with pytest.raises(errors.UsageError, match=r"^2 answers and 1 references"):
        api.score("bleu", ["a", "b"], ["a"])
    with pytest.raises(errors.UsageError, match=r"^references: those of answer 2 are an empty"):
        api.score("bleu", ["a", "b"], ["a", []])
    with pytest.raises(errors.UsageError, match=r"^blue: "):
        api.score("blue", ["a"], ["a"])
    with pytest.raises(errors.UsageError, match="each is a list"):
        api.score("bleu", "a", "a")
    for answers, references in (([1], ["1"]), (["1"], [1]), (["1"], [["1", 1]])):
        with pytest.raises(errors.UsageError, match="1 is no text; give a str, such as '1'"):
            api.score("f1", answers, references)  # type: ignore[arg-type]
    with pytest.raises(errors.FileError, match="no such directory"):
        api.open_checkpoint(tmp_path / "nothing")
    with pytest.raises(errors.UsageError, match="needs auto, bf16 or fp32, got fp8"):
        api.open_checkpoint(tmp_path / "nothing", precision="fp8")  # type: ignore[arg-type]
    with pytest.raises(errors.FileError):
        api.write_store([tmp_path / "nothing.txt"], tmp_path, tmp_path)
    with pytest.raises(errors.UsageError, match="needs a list of paths"):
        api.write_store("text.txt", tmp_path, tmp_path)


def test_import_needs_no_torch() -> None:
    code = "import sys\nfrom nlpkit import api\napi.score('bleu', ['a'], ['a'])\n"
    code += "print([name for name in ('torch', 'transformers') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
