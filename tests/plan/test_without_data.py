"""`plan --no-data`: the sizes of a run that its recipe says alone, beside those of the real one."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from nlpkit import plan as planning
from nlpkit import recipe
from nlpkit.errors import UsageError
from nlpkit.models.flops import step_flops
from nlpkit.plan import without_data
from nlpkit.train.log import QUIET, Log
from tests import _dotted, _tiny

NO_TEXT = "data.train=[/nowhere/*.txt]"


def _make(name: str, *sets: str) -> without_data.Sketch:
    return without_data.make(recipe.load(name, list(sets)))


@pytest.mark.fast_cases(1)
@pytest.mark.parametrize(
    "name",
    [
        *("t5", "vit"),
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in ("bert", "cpm_ant", "transformer_two_tokenizers")
        ),
    ],
)
def test_sizes_are_those_of_the_run(name: str, tmp_path: Path) -> None:
    resolved = recipe.load(name, [f"out={tmp_path}/run"])
    plan = planning.make(resolved, tmp_path / "run", "cpu", Log(QUIET), measure=False)
    found = without_data.make(resolved)
    real, sketched = planning.describe(plan), without_data.describe(found)
    assert found.vocab_size >= plan.vocab_size  # a short text may not have as many tokens
    if found.vocab_size == plan.vocab_size and name != "vit":  # whose classes are not known
        assert sketched["model"]["parameters"] == real["model"]["parameters"]
        assert sketched["model"]["state_bytes"] == real["model"]["state_bytes"]
    # Texts that come along are short, so that less attention is computed.
    ratio = sketched["model"]["flops_per_step"] / real["model"]["flops_per_step"]
    assert 0.98 < ratio < 1.35


def test_flops_are_those_of_the_longest_sequences_that_fill_a_step() -> None:
    found = _make("gpt1", NO_TEXT, "train.tokens_per_step=4096", "train.tokens_per_batch=2048")
    assert found.vocab_size == 2000
    assert found.batch.lengths == (256,) * 8
    config = found.part.config
    assert found.flops_per_step == 2 * step_flops("gpt", config, 2000, [256] * 8, 2048)
    model = without_data.describe(found)["model"]
    assert model["flops_per_run"] == 600 * model["flops_per_step"]


def test_list_of_objectives_counts_the_tokens_that_are_predicted() -> None:
    found = _make("bert", NO_TEXT)
    masked = found.projections / found.batch.tokens
    assert masked == pytest.approx(0.15, abs=0.01)  # not the one label that `nsp` has of a sequence


def test_special_tokens_of_the_objective_count_beside_the_vocabulary() -> None:
    found = _make("t5", NO_TEXT, "tokenizer={kind: unigram, vocab_size: 32000}")
    assert found.vocab_size == 32100
    sources = found.batch.fields["source_lengths"]
    assert set(sources) == {128}


def test_pairs_of_texts_are_examples_of_the_greatest_length() -> None:
    found = _make("xlm_tlm", "data.train=[{files: [/nowhere/a, /nowhere/b]}]")
    assert set(found.batch.lengths) == {128}


def test_task_has_rows_of_the_greatest_length_and_no_head() -> None:
    found = _make("vit", "data.train=/nowhere/", "data.format=images")
    assert set(found.batch.lengths) == {13}
    assert not any(name.startswith("head") for name, _ in found.model.named_parameters())
    assert without_data.describe(found)["packing"]["share_of_tokens_with_loss"] is None
    found = _make("transformer", "data.train=[{files: [/nowhere/a, /nowhere/b]}]")
    assert (found.batch.lengths, found.projections) == ((128,) * 8, 1024)
    assert found.batch.fields["source_lengths"] == (128,) * 8


@pytest.mark.parametrize(
    ("name", "sets", "said"),
    [
        ("gpt1", ["train.epochs=3"], "--no-data: train.epochs depends on data or machine"),
        ("gpt1", ["train.budget=1h"], "--no-data: train.budget depends on data or machine"),
        ("gpt1_classify", [], "--no-data: the model is that of init_from"),
    ],
)
def test_what_only_data_tell_is_refused(name: str, sets: list[str], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        _make(name, *sets)


def test_task_without_a_greatest_length_is_refused() -> None:
    resolved = recipe.load("lstm_tag")
    (section,) = resolved.recipe.objective
    config = section.config.model_copy(update={"max_length": None})
    sections = (section.model_copy(update={"config": config}),)
    changed = resolved.recipe.model_copy(update={"objective": sections})
    with pytest.raises(UsageError, match="--no-data: objective tagging has rows of any length"):
        without_data.make(replace(resolved, recipe=changed))


def test_parts_of_ones_own_are_planned_unless_data_decide_their_size(tmp_path: Path) -> None:
    folder = _dotted.package(tmp_path)
    text = _dotted.recipe("mylab.own", "mylab.backwards").replace("[TRAIN]", "[none.txt]")
    (folder / "tiny.yaml").write_text(text.replace("[VALID]", "[none.txt]"), "utf-8")
    words = ("plan", "tiny.yaml", "--no-data", "--json", "-q")
    code, out, err = _dotted.script(folder, *words)
    assert (code, err) == (0, "")
    assert json.loads(out)["data"]["vocabulary"] == 120
    code, _, err = _dotted.script(folder, *words, "--set", "tokenizer={kind: mylab.letters}")
    said = "nlpkit: --no-data: tokenizer mylab.letters has no vocab_size\n"
    assert (code, err) == (2, said)


def test_command_reads_no_data_and_says_how_long_a_card_takes() -> None:
    words = ("plan", "papers/bert_large", "--no-data", "--card", "h100", "--json")
    result = _tiny.command(*words)
    assert (result.returncode, result.stderr) == (0, "")
    told = json.loads(result.stdout)
    assert told["data"] == {"vocabulary": 30522}
    assert told["card"]["run_seconds"] == told["model"]["flops_per_run"] / (989.4e12 * 0.4)
    assert told["origin"]["train.steps"].endswith("bert_base.yaml:29")
    shown = _tiny.command(*words[:-1]).stdout
    assert re.search(r"^model\.flops_per_run +2\.61e\+20 FLOP$", shown, re.MULTILINE)
    assert re.search(r"^card\.run_seconds +7\.6 days$", shown, re.MULTILINE)


def test_made_up_sentences_too_long_for_an_example_are_one_line() -> None:
    sets = ("objective={name: sop, segments: 4, max_length: 96}", NO_TEXT)
    with pytest.raises(UsageError, match="25 tokens, make no example of objective"):
        _make("bert", *sets)


def test_batch_of_made_up_text_is_not_shown() -> None:
    result = _tiny.command("plan", "papers/bert_base", "--no-data", "--batch")
    assert result.returncode == 2
    assert "--no-data: no text is read" in result.stderr


def test_unknown_card_is_named_before_anything_is_read() -> None:
    result = _tiny.command("plan", "papers/bert_base", "--card", "h10")
    assert result.returncode == 2
    assert "--card: no 'h10', did you mean h100?" in result.stderr


def test_plan_whose_data_are_missing_says_how_to_do_without() -> None:
    result = _tiny.command("plan", "papers/bert_base", "--no-probe")
    assert result.returncode == 4
    said = r"nlpkit: \S*papers/bert_base\.yaml:20:11: data\.train\.0: no file matches 'text/"
    assert re.match(said, result.stderr)
    assert result.stderr.endswith("; without data: --no-data\n")


def test_mistake_in_the_recipe_is_named_as_ever() -> None:
    result = _tiny.command("plan", "papers/bert_base", "--no-data", "--set", "model.hiden_size=4")
    assert result.returncode == 2
    assert "did you mean hidden_size" in result.stderr
