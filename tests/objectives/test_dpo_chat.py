"""Preferences of conversations: ids are those of transformers, sequences those of `chat`."""

import json
from pathlib import Path

import numpy as np
import pytest
from transformers import AutoTokenizer

from nlpkit import cli
from nlpkit.contracts.batch import IGNORE, LENGTHS
from nlpkit.contracts.reader import LeftOut, RowError
from nlpkit.data.items import Row
from nlpkit.models.gpt2 import Config as ModelSettings
from nlpkit.objectives.dpo_chat import Config, Objective
from nlpkit.tokenizers import bpe
from tests import _tiny
from tests.objectives.test_chat import MARKED, RECIPE, TEXTS, UNMARKED

ASKED = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": TEXTS[0]}]
GOOD, BAD = ([{"role": "assistant", "content": TEXTS[n]}] for n in (7, 1))
MORE = [{"role": "assistant", "content": TEXTS[3]}, {"role": "user", "content": TEXTS[2]}]
TUNED = """\
name: tiny
init_from: START
model: {embedding_dropout: 0, attention_dropout: 0, residual_dropout: 0}
data: {train: [ROWS], valid: [ROWS]}
objective: {name: dpo_chat, max_length: 96}
train: {steps: 6, tokens_per_step: 512, tokens_per_batch: 256, lr: 2.0e-3, warmup_steps: 2,
  eval_every: 3, save_every: 3, precision: fp32, best_by: reward_accuracy}
"""


@pytest.fixture(scope="module")
def tokenizer() -> bpe.Tokenizer:
    made = bpe.Tokenizer.train(TEXTS * 3, bpe.Config(vocab_size=300))
    return made.extended(["<|im_start|>", "<|im_end|>"])


def _bound(tokenizer: bpe.Tokenizer, template: str | None, **settings: object) -> Objective:
    tokenizer.chat_template = template
    return Objective(Config(**{"max_length": 400, **settings}), tokenizer, ModelSettings())


def _row(**values: object) -> Row:
    return Row(values, "rows.jsonl", 1)


@pytest.mark.parametrize("template", [MARKED, UNMARKED], ids=["marked", "unmarked"])
@pytest.mark.parametrize("before", [ASKED, ASKED + MORE], ids=["one turn", "two turns"])
def test_ids_are_those_of_transformers_and_targets_the_answers(
    template, before, tokenizer, tmp_path: Path
) -> None:
    objective = _bound(tokenizer, template)
    tokenizer.save(tmp_path)
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    row = _row(chosen=before + GOOD, rejected=before + BAD)
    item = objective.item(row, objective.encode([*objective.texts(row)]))
    example = objective.example(item, np.random.default_rng(0))
    start = 0
    for answer, length in zip((GOOD, BAD), example[LENGTHS], strict=True):
        ids = theirs.apply_chat_template(before + answer, return_dict=True)["input_ids"]
        prompt = theirs.apply_chat_template(before, return_dict=True, add_generation_prompt=True)
        assert example["input_ids"][start : start + length].tolist() == ids[:-1]
        targets = example["labels"][start : start + length]
        kept = targets[targets != IGNORE].tolist()
        shown = tokenizer.decode(kept).strip()
        assert shown.startswith(answer[0]["content"].strip())
        behind = ids[len(prompt["input_ids"]) :]  # trl's completion; white space may stand behind
        assert kept == behind[: len(kept)]
        assert tokenizer.decode(behind[len(kept) :]).strip() == ""
        start += length
    assert objective.num_targets(example) == {"dpo": 1}
    named = _bound(tokenizer, template, prompt="prompt")
    apart = _row(prompt=before, chosen=GOOD, rejected=BAD)
    same = named.item(apart, named.encode([*named.texts(apart)]))
    assert [each.tolist() for each in same.parts] == [each.tolist() for each in item.parts]
    assert [each.tolist() for each in same.label] == [each.tolist() for each in item.label]


def test_start_of_a_long_conversation_is_cut_alike_and_counted(tokenizer) -> None:
    whole, short = _bound(tokenizer, MARKED), _bound(tokenizer, MARKED, max_length=40)
    row = _row(chosen=ASKED + GOOD, rejected=ASKED + BAD)
    texts = [*whole.texts(row)]
    long, cut = (each.item(row, each.encode(texts)) for each in (whole, short))
    lost = len(long.parts[0]) - len(cut.parts[0])
    assert max(map(len, cut.parts)) == 41
    assert cut.cut == {"prompts cut": 1, "tokens cut from prompts": lost}
    for before, after in zip(long.parts, cut.parts, strict=True):
        assert before[lost:].tolist() == after.tolist()
    assert [each.sum() for each in cut.label] == [each.sum() for each in long.label]


def test_conversations_that_are_the_same_once_cut_are_left_out(tokenizer) -> None:
    objective = _bound(tokenizer, MARKED, max_length=20)
    answers = [[{"role": "assistant", "content": "x " * 40 + each}] for each in ("good", "bad")]
    row = _row(chosen=ASKED + answers[0], rejected=ASKED + answers[1])
    with pytest.raises(LeftOut, match="pairs left out, whose answers are the same"):
        objective.item(row, objective.encode([*objective.texts(row)]))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"chosen": ASKED + GOOD, "rejected": ASKED + GOOD}, "both conversations are the same"),
        ({"chosen": GOOD, "rejected": BAD}, "no message stands before the answers: name the col"),
        ({"chosen": ASKED + GOOD, "rejected": ASKED}, '"rejected" has no turn of the assistant'),
        ({"chosen": ASKED + GOOD, "rejected": "no"}, '"rejected" is a string, not a list of mess'),
        ({"chosen": MORE[1:] + GOOD, "rejected": ASKED + BAD}, '"chosen" has no turn of the assis'),
    ],
)
def test_rows_that_are_no_pair_are_wrong(tokenizer, values, message: str) -> None:
    with pytest.raises(RowError, match=message):
        _bound(tokenizer, MARKED).texts(_row(**values))


def test_model_without_the_template_or_its_tokens_has_to_be_tuned_first(tokenizer) -> None:
    first = "begin with a model that objective chat has tuned"
    with pytest.raises(ValueError, match=f"the tokenizer has no chat_template .*; {first}"):
        _bound(tokenizer, None)
    plain = bpe.Tokenizer.train(TEXTS, bpe.Config(vocab_size=300))
    with pytest.raises(ValueError, match=rf"the tokenizer has no <\|im_start\|>; {first}"):
        Objective(Config(template="chatml"), plain, ModelSettings())


@pytest.mark.slow
def test_run_from_a_chat_model_learns_the_preference_and_answers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rng, rows, talks = np.random.default_rng(0), [], []
    for number in range(60):
        thing = f"{rng.choice(['bread', 'salt', 'tea', 'wood'])} {number}"
        asked = [{"role": "user", "content": f"More {thing}?"}]
        yes, no = (
            [{"role": "assistant", "content": text}] for text in (f"Yes, {thing}.", f"No {thing}!")
        )
        rows.append({"chosen": asked + yes, "rejected": asked + no})
        talks.append({"messages": asked + [yes, no][number % 2]})
    for name, each in (("rows", rows), ("talks", talks)):
        text = "".join(json.dumps(row) + "\n" for row in each)
        (tmp_path / f"{name}.jsonl").write_text(text, "utf-8")
    start, tuned = tmp_path / "start.yaml", tmp_path / "tuned.yaml"
    start.write_text(RECIPE.replace("ROWS", str(tmp_path / "talks.jsonl")), "utf-8")
    _tiny.pretrain(start, tmp_path / "start")
    text = TUNED.replace("ROWS", str(tmp_path / "rows.jsonl"))
    tuned.write_text(text.replace("START", str(tmp_path / "start")), "utf-8")
    _tiny.pretrain_with_stops(tuned, tmp_path / "run", [5])
    held_out = [each["held_out"] for each in _tiny.metrics(tmp_path / "run") if "held_out" in each]
    assert held_out[-1]["metrics"]["reward_accuracy"] > 0.9
    assert held_out[-1]["losses"]["reward_margin"] > 0
    capsys.readouterr()
    (tmp_path / "in.jsonl").write_text(json.dumps(rows[0]["chosen"][:1]) + "\n", "utf-8")
    words = ["generate", str(tmp_path / "run"), str(tmp_path / "in.jsonl"), "--chat"]
    assert cli.run([*words, "--device", "cpu", "--max-new-tokens", "8"]) == 0
    assert capsys.readouterr().out.strip()
    plain = text.replace("dpo_chat", "dpo").replace("START", str(tmp_path / "start"))
    tuned.write_text(plain, "utf-8")
    assert cli.run(["finetune", str(tuned), "--out", str(tmp_path / "two"), "-q"]) != 0
    assert "dpo_chat" in capsys.readouterr().err
