"""BERT's vocabulary elsewhere: fnlp/bart-base-chinese, uer/t5-base-chinese, klue/roberta-base."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from torch import nn

from nlpkit.errors import FileError
from nlpkit.generate.settings import Settings
from nlpkit.generate.texts import Writer
from nlpkit.runs.open_checkpoint import open_checkpoint
from nlpkit.train.log import NORMAL
from tests import _tiny

CHARACTERS = sorted({*"我们今天去公园玩天气很好下雨了你他她的是在有不人大中国，。"})
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
SIZES = {
    "bart": {"d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
             "decoder_attention_heads": 4, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48,
             "max_position_embeddings": 64, "forced_eos_token_id": None, "init_std": 0.3},
    "t5": {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4,
           "initializer_factor": 5.0},
    "roberta": {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
                "intermediate_size": 48, "max_position_embeddings": 66, "type_vocab_size": 1},
}  # fmt: skip
CLASSES = {"bart": ("BartConfig", "BartForConditionalGeneration"),
           "t5": ("T5Config", "T5ForConditionalGeneration"),
           "roberta": ("RobertaConfig", "RobertaForMaskedLM")}  # fmt: skip


def _publish(folder: Path, family: str, start: int) -> nn.Module:
    words = [*SPECIAL, *[f"extra{n}" for n in range(100 * (family == "t5"))], *CHARACTERS]
    ids = {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3, "vocab_size": len(words)}
    config, model = (getattr(transformers, name) for name in CLASSES[family])
    torch.manual_seed(5)
    theirs = model(config(**SIZES[family], **ids, decoder_start_token_id=start)).eval()
    theirs.save_pretrained(folder)
    (folder / "vocab.txt").write_text("\n".join(words) + "\n", "utf-8")
    settings = {"tokenizer_class": "BertTokenizer", "do_lower_case": False}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return theirs


def _write(folder: Path, text: str) -> str:
    opened = open_checkpoint(folder, device="cpu")
    settings = Settings(max_new_tokens=12)
    (found,) = Writer(opened.model, opened.tokenizer, opened.objective, settings).write([text])
    return found.outputs[0].text


@pytest.mark.parametrize(
    ("family", "start", "front"), [("bart", 3, (2,)), ("t5", 2, ())], ids=["bart", "t5"]
)
def test_texts_are_those_of_transformers(tmp_path, family, start, front) -> None:
    theirs = _publish(tmp_path, family, start)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    objective = open_checkpoint(tmp_path, device="cpu").objective
    assert (objective.begin, objective.end, objective.front) == (start, 3, front)
    for text in (
        "今天天气很好",
        "我们去[MASK]园。" if family == "bart" else "我们去<extra_id_0>园。",
    ):
        given = tokenizer(text.replace("<extra_id_0>", " extra0 "), return_tensors="pt")
        prompt = objective.continue_text(objective.encode_input(text), 4)
        assert prompt.source["source_ids"].tolist() == given["input_ids"][0].tolist()
        written = theirs.generate(
            input_ids=given["input_ids"], attention_mask=given["attention_mask"],
            max_new_tokens=12 + len(front), do_sample=False,
            forced_bos_token_id=front[0] if front else None,
            suppress_tokens=list(objective.suppress_tokens),
        )[0].tolist()  # fmt: skip
        ids = [i for i in written[1 + len(front) :] if i != 3]
        decode = getattr(objective, "decode_output", objective.tokenizer.decode)
        assert _write(tmp_path, text) == decode(ids) != ""


@pytest.mark.parametrize(("family", "start"), [("bart", 3), ("t5", 2)])
def test_tuned_checkpoint_keeps_vocabulary_and_opens_as_it_was_trained(
    tmp_path, family, start
) -> None:
    theirs = _publish(tmp_path / "base", family, start)
    rows = [{"source": "今天天气很好。", "target": "我们去公园。"} for _ in range(4)]
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), "utf-8")
    recipe = tmp_path / "tune.yaml"
    recipe.write_text(
        f"name: tune\ninit_from: {tmp_path}/base\nobjective: {{name: seq2seq, max_length: 32}}\n"
        f"data: {{train: {file}, valid: {file}}}\nmodel: {{dropout: 0.0, attention_dropout: 0.0}}\n"
        "train: {steps: 1, lr: 1e-12, schedule: constant, tokens_per_step: 4096, precision: fp32}\n"
    )
    saved = _tiny.pretrain(recipe, tmp_path / "run")
    before = transformers.AutoTokenizer.from_pretrained(tmp_path / "base")
    after = transformers.AutoTokenizer.from_pretrained(saved)
    assert len(after) == len(before)
    assert after("今天")["input_ids"] == before("今天")["input_ids"]
    # Labels as transformers' users make them, but where a target begins with [CLS] anyway.
    given = before([row["source"] for row in rows], return_tensors="pt")
    labels = before([row["target"] for row in rows], return_tensors="pt")["input_ids"]
    labels = labels[:, int(start == 2) :].contiguous()
    with torch.no_grad():
        theirs_loss = theirs(
            input_ids=given["input_ids"], attention_mask=given["attention_mask"], labels=labels
        ).loss
    first = json.loads((tmp_path / "run/metrics.jsonl").read_text().splitlines()[0])
    assert first["loss"] == pytest.approx(float(theirs_loss), abs=3e-5)
    again = open_checkpoint(saved, device="cpu").objective
    assert (again.begin, again.end, again.source_front) == (start, 3, (2,))
    config = json.loads((saved / "config.json").read_text())
    assert (config["decoder_start_token_id"], config["eos_token_id"]) == (start, 3)
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(saved).eval()
    text = after("今天天气很好。", return_tensors="pt")
    written = model.generate(
        input_ids=text["input_ids"], attention_mask=text["attention_mask"],
        max_new_tokens=12 + len(again.front),
    )  # fmt: skip
    expected = after.decode(written[0], skip_special_tokens=True).replace(" ", "")
    assert _write(saved, "今天天气很好。").replace(" ", "") == expected


def test_new_tokens_of_a_run_are_told(tmp_path, capsys) -> None:
    """One name, two tokens: BART's target begins with its end, this one with [CLS]."""
    _publish(tmp_path / "base", "bart", 2)
    file = tmp_path / "rows.jsonl"
    file.write_text(json.dumps({"source": "今天", "target": "公园"}) + "\n", "utf-8")
    recipe = tmp_path / "tune.yaml"
    recipe.write_text(
        f"name: tune\ninit_from: {tmp_path}/base\nobjective: {{name: seq2seq, max_length: 32}}\n"
        f"data: {{train: {file}, valid: {file}}}\n"
        "train: {steps: 1, lr: 1e-3, schedule: constant, tokens_per_step: 4096}\n"
    )
    _tiny.pretrain(recipe, tmp_path / "run", verbosity=NORMAL)
    more = "tokenizer: 1 special token more than the checkpoint has, with new embeddings: </s>"
    assert more in capsys.readouterr().err


def test_encoder_has_the_frame_of_its_tokenizer(tmp_path) -> None:
    theirs = _publish(tmp_path / "base", "roberta", 2)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "base")
    opened = open_checkpoint(tmp_path / "base", device="cpu")
    texts = [np.array(opened.tokenizer.encode(each)) for each in ("今天天气很好。", "我们去公园")]
    one = opened.objective.frame.ids(texts[:1])
    two = opened.objective.frame.ids(texts)
    assert one.tolist() == tokenizer("今天天气很好。")["input_ids"]
    assert two.tolist() == tokenizer("今天天气很好。", "我们去公园")["input_ids"]
    assert opened.objective.mask == tokenizer.mask_token_id
    with torch.no_grad():
        expected = theirs(input_ids=torch.tensor([one.tolist()])).logits[0]
        ours = opened.model.logits(opened.model((len(one),), torch.from_numpy(one).long()))
    torch.testing.assert_close(ours, expected, atol=1e-5, rtol=1e-4)
    rows = [{"text_a": "今天天气", "text_b": "很好", "label": i % 2} for i in range(4)]
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), "utf-8")
    recipe = tmp_path / "tune.yaml"
    recipe.write_text(
        f"name: tune\ninit_from: {tmp_path}/base\nobjective: {{name: entailment, max_length: 32,\n"
        "  premise: text_a, hypothesis: text_b}\n"
        f"data: {{train: {file}, valid: {file}}}\n"
        "train: {steps: 1, lr: 1e-3, schedule: constant, tokens_per_step: 4096}\n"
    )
    saved = _tiny.pretrain(recipe, tmp_path / "run")
    after = transformers.AutoTokenizer.from_pretrained(saved)
    assert len(after) == len(tokenizer)
    assert after("今天", "很好")["input_ids"] == tokenizer("今天", "很好")["input_ids"]
    model = transformers.AutoModelForSequenceClassification.from_pretrained(saved).eval()
    again = open_checkpoint(saved, device="cpu")
    ids = after("今天天气", "很好")["input_ids"]
    with torch.no_grad():
        expected = model(input_ids=torch.tensor([ids])).logits[0]
        states = again.model((len(ids),), torch.tensor(ids))
        ours = again.model.head(states[:1])[0]
    torch.testing.assert_close(ours, expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("wrong", ["[SEP]", {"</s>": 3}])
def test_damaged_names_are_refused(tmp_path, wrong) -> None:
    _publish(tmp_path, "bart", 3)
    open_checkpoint(tmp_path, device="cpu").tokenizer.save(tmp_path)
    file = tmp_path / "tokenizer_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"nlpkit_aliases": wrong}))
    with pytest.raises(FileError, match=r"config\.json: nlpkit_aliases: must be names of tokens"):
        open_checkpoint(tmp_path, device="cpu")


@pytest.mark.parametrize("name", ["bart", "roberta"])
def test_new_model_takes_the_special_tokens_of_berts_vocabulary(tmp_path: Path, name: str) -> None:
    (tmp_path / "train.txt").write_text("the dog sees a cat. a cat sees it.\n" * 9)
    path = tmp_path / "new.yaml"
    path.write_text(
        f"extends: {name}\ntokenizer: {{kind: wordpiece, vocab_size: 60}}\n"
        f"data: {{train: {tmp_path}/train.txt, valid: []}}\n"
    )
    sets = ["num_layers=1", "num_heads=2", "hidden_size=16", "intermediate_size=16"]
    sets += ["padding_idx=0"] if name == "roberta" else []
    few = ["train.steps=1", "train.warmup_ratio=null", "train.warmup_steps=0"]
    saved = _tiny.pretrain(path, tmp_path / "run", *few, *(f"model.{each}" for each in sets))
    config = json.loads((saved / "config.json").read_text())
    found = transformers.AutoTokenizer.from_pretrained(saved)
    # As fnlp/bart-base-chinese has them: no second <mask> and </s> beside them.
    assert config["vocab_size"] == len(found) <= 60
    assert found.get_added_vocab().keys() == {*SPECIAL}
    ids = {"bos_token_id": 2, "eos_token_id": 3, "pad_token_id": 0}
    ids |= {"decoder_start_token_id": 3} if name == "bart" else {}
    assert {key: config[key] for key in ids} == ids
    objective = open_checkpoint(saved, device="cpu").objective
    assert objective.tokenizer.special_id("<mask>") == found.mask_token_id == 4
