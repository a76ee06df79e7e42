"""What a recipe says beside the model of `init_from`, or a tokenizer: padding, what is ignored."""

import json
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file

from nlpkit import cli
from nlpkit.errors import NlpkitError, UsageError
from nlpkit.runs import checks
from tests import _tiny

RECIPE = """\
name: tiny
model: {family: roberta, hidden_size: 16, num_layers: 1, num_heads: 2, intermediate_size: 16,
  max_positions: 48}
tokenizer: {kind: wordpiece, vocab_size: 120}
data: {train: [TRAIN]}
objective: {name: mlm, max_length: 32}
train: {steps: 4, tokens_per_step: 128, schedule: constant, lr: 1.0e-2, save_every: 2, keep: 9,
  precision: fp32}
"""
LONGFORMER = RECIPE.replace("roberta", "longformer").replace("wordpiece", "unigram")
NO_PADDING = RECIPE.replace("wordpiece, vocab_size: 120", "gpt1_bpe, vocab_size: 300")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (RECIPE, "1 is the id of [UNK], and 0 is that of the padding token; set it to 0"),
        (
            LONGFORMER.replace("120", "330"),
            "1 is the id of </s>, and 0 is that of the padding token; set it to 0",
        ),
        (
            RECIPE.replace("max_positions: 48", "padding_idx: 999"),
            "999 is the id of no token, and 0 is that of the padding token; set it to 0",
        ),
        (
            NO_PADDING,
            "1 is the id of 上, and the tokenizer has no padding token; choose one that has, such "
            "as kind bpe",
        ),
    ],
    ids=["wordpiece", "unigram", "no token", "no padding token"],
)
def test_padding_of_positions_that_is_another_token_is_refused_at_its_line(
    tmp_path: Path, text: str, said: str
) -> None:
    path = _tiny.write(tmp_path, text=text)
    with pytest.raises(UsageError) as error:
        _tiny.pretrain(path, tmp_path / "run")
    place = "3:16" if "padding_idx" in text else "2:8"
    assert str(error.value) == f"{path}:{place}: model.padding_idx: {said}"


def test_padding_token_of_the_checkpoint_is_that_of_its_tokenizer(tmp_path: Path) -> None:
    path = _tiny.write(tmp_path, text=RECIPE)
    saved = _tiny.pretrain(path, tmp_path / "run", "model.padding_idx=0")
    tokenizer = transformers.AutoTokenizer.from_pretrained(saved)
    assert json.loads((saved / "config.json").read_text())["pad_token_id"] == 0
    assert tokenizer.pad_token_id == 0
    theirs = transformers.AutoModelForMaskedLM.from_pretrained(saved).roberta.embeddings
    ids = torch.tensor([[7, tokenizer.unk_token_id, 8, 9]])
    assert theirs.create_position_ids_from_input_ids(ids, 0).tolist() == [[1, 2, 3, 4]]


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of before the check, `whole`, and one that was stopped, `broken`, with its recipe."""
    folder = tmp_path_factory.mktemp("old")
    path = _tiny.write(folder, text=RECIPE)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checks, "check_padding", lambda *_: None)
        _tiny.pretrain(path, folder / "whole")
        broken = folder / "broken"
        with pytest.raises(NlpkitError):
            _tiny.pretrain(path, broken, stop=_tiny.StopAtStep(broken, 2))
    return folder


@pytest.mark.parametrize("elsewhere", [False, True], ids=["there", "in another directory"])
def test_run_of_before_goes_on_with_the_same_bits(
    old: Path, tmp_path: Path, elsewhere: bool
) -> None:
    (begun,) = (old / "broken/checkpoints").glob("step-*2")
    if elsewhere:
        last = _tiny.pretrain(old / "tiny.yaml", tmp_path / "run", resume=str(begun))
    else:
        last = _tiny.pretrain(old / "tiny.yaml", old / "broken")
    found, expected = (
        load_file(each / "model.safetensors")
        for each in (last, old / "whole/checkpoints/step-00000004")
    )
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())


def test_model_that_starts_from_a_checkpoint_keeps_its_positions(old: Path, tmp_path: Path) -> None:
    text = RECIPE[RECIPE.index("data:") :]
    text = f"name: more\ninit_from: {old}/whole/checkpoints/step-00000004\n{text}"
    saved = _tiny.pretrain(_tiny.write(tmp_path, text=text), tmp_path / "run")
    assert json.loads((saved / "config.json").read_text())["pad_token_id"] == 1


def test_settings_that_the_model_of_init_from_ignores_are_warned_of(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    start = _tiny.pretrain(
        _tiny.write(tmp_path, text=RECIPE.replace("roberta", "albert")), tmp_path / "start"
    )
    rows = "text\tlabel\n" + "天地\t0\n人山\t1\n" * 9
    (tmp_path / "rows.tsv").write_text(rows, encoding="utf-8")
    path = tmp_path / "tuned.yaml"
    path.write_text(
        f"name: tuned\ninit_from: {start}\nmodel: {{pair_dropout: 0.3}}\n"
        f"data: {{train: {tmp_path}/rows.tsv}}\n"
        "objective: {name: classification, lm_weight: 0.3, max_length: 32}\n"
        "train: {steps: 2, schedule: constant}\n"
    )
    capsys.readouterr()
    assert cli.run(["plan", str(path), "--no-probe", "--device", "cpu"]) == 0
    said = [line.partition("warning: ")[2] for line in capsys.readouterr().err.splitlines()]
    assert [line for line in said if "no effect" in line] == [
        f"{path}:5:46: objective.lm_weight: has no effect with a model that is not causal",
        f"{path}:3:23: model.pair_dropout: has no effect without an objective on the order of "
        "texts, such as sop",
    ]


@pytest.mark.parametrize(
    ("old", "new", "line", "said"),
    [
        ("text}", 'jsonl, line_break: "|"}', 6, "data.line_break: only files of text, tsv and"),
        ("name: tiny", "name: t\ninit_missing: [mlm]", 2, "init_missing: needs init_from"),
        ("batch: 256", "batch: 16", 8, "train.tokens_per_batch: a sequence of 64 tokens does not"),
    ],
    ids=["line_break", "init_missing", "tokens_per_batch"],
)
@pytest.mark.parametrize("verb", ["pretrain", "plan"])
def test_setting_that_a_run_refuses_is_named_with_its_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    verb: str,
    old: str,
    new: str,
    line: int,
    said: str,
) -> None:
    recipe = _tiny.RECIPE.replace("[VALID]}", "[VALID], format: text}")
    path = _tiny.write(tmp_path, text=recipe.replace(old, new)).rename(tmp_path / "data.yaml")
    monkeypatch.chdir(tmp_path)
    assert cli.run([verb, path.name, "--device", "cpu"]) == 2
    problem = capsys.readouterr().err.splitlines()[-1]
    assert problem.startswith(f"nlpkit: data.yaml:{line}:")
    assert f": {said}" in problem
    assert problem.count("data.yaml") == 1
