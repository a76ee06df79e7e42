"""Encoders of BERT's kind: pretrained, tuned, adapted, converted, and opened in transformers."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from peft import PeftModel

from nlpkit import recipe
from nlpkit.errors import RecipeError
from nlpkit.runs.convert import convert
from nlpkit.runs.open_checkpoint import Opened, open_checkpoint
from nlpkit.train.log import NORMAL
from tests import _tiny
from tests._tiny_tasks import rows_of, write_rows

SIZES = "hidden_size: 32, num_layers: 2, num_heads: 4, intermediate_size: 48, max_positions: 64"
MLM = "{name: mlm, max_length: 48}"
# model, tokenizer, objective, transformers' classes of the pretrained and of the tuned model
FAMILIES = {
    "bert": (SIZES, "wordpiece, vocab_size: 120", f"[{{name: nsp, max_length: 48}}, {MLM}]",
             "BertForPreTraining"),
    "roberta": (SIZES, "bpe, vocab_size: 400", MLM, "RobertaForMaskedLM"),
    "albert": (f"{SIZES}, embedding_size: 16", "unigram, vocab_size: 330", MLM,
               "AlbertForPreTraining"),
    "xlm": (SIZES.replace("intermediate_size: 48, ", ""), "wordpiece, vocab_size: 120", MLM,
            "XLMWithLMHeadModel"),
    "xlnet": (SIZES.partition(", max_pos")[0], "wordpiece, vocab_size: 120",
              "{name: plm, max_length: 48}", "XLNetLMHeadModel"),
}  # fmt: skip
SAME_LAYERS = ("albert", "roberta", "xlm")  # as BERT's
TRAIN = """\
train: {steps: 3, tokens_per_step: 256, tokens_per_batch: 128, lr: 1.0e-2, warmup_steps: 1,
  precision: fp32, eval_every: 3, save_every: 2}
"""
RECIPE = """\
name: tiny
model: {family: FAMILY, SIZES}
tokenizer: {kind: TOKENIZER}
data: {train: [TRAIN], valid: [VALID]}
objective: OBJECTIVE
"""
TASK = """\
name: task
init_from: START
data: {train: [FOLDER/train.jsonl], valid: [FOLDER/valid.jsonl]}
objective: {name: NAME, max_length: 40}
"""
CLOSE = {"atol": 1e-5, "rtol": 1e-5}


@pytest.fixture(scope="module", params=FAMILIES)
def family(request) -> str:
    return request.param


@pytest.fixture(scope="module")
def run(family: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory with a recipe and its run, `whole`."""
    folder = tmp_path_factory.mktemp(family)
    sizes, tokenizer, objective, _ = FAMILIES[family]
    text = RECIPE.replace("FAMILY", family).replace("SIZES", sizes)
    text = text.replace("TOKENIZER", tokenizer).replace("OBJECTIVE", objective)
    _tiny.pretrain(_tiny.write(folder, text=text + TRAIN, documents=60), folder / "whole")
    return folder


def _opened(path: Path) -> Opened:
    return open_checkpoint(path, device="cpu")


def _types(opened: Opened, ids: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return the inputs beside ids: 1 after the first end of a text, where there are types."""
    if "token_type_ids" not in opened.objective.inputs:
        return {}
    return {"token_type_ids": torch.from_numpy(opened.objective.frame.types(ids.numpy()))}


def test_checkpoint_opens_in_transformers_with_its_tokenizer(run: Path, family: str) -> None:
    saved = run / "whole/checkpoints/latest"
    architecture = getattr(transformers, FAMILIES[family][3])
    theirs, report = architecture.from_pretrained(saved, output_loading_info=True)
    assert not any(report.values()), report
    tokenizer = transformers.AutoTokenizer.from_pretrained(saved)
    opened = _opened(saved)
    config, ours = opened.part.config, opened.tokenizer
    named = (*config.task_tokens, config.summary_token)
    start, (delimiter,), end, summary = ([ours.special_id(t)] if t else [] for t in named)
    first, second = map(ours.encode, ("天地人", "山水"))
    end = [*end, *summary]
    given = tokenizer("天地人", "山水", return_tensors="pt")
    ids = given["input_ids"][0]
    middle = [delimiter] * config.delimiters
    assert ids.tolist() == [*start, *first, *middle, *second, *end]
    assert tokenizer("天地人")["input_ids"] == [*start, *first, *end]
    assert tokenizer.mask_token_id == ours.special_id(config.mask_token)
    assert (tokenizer.mask_token_id is None) == config.can("two_streams")  # XLNet masks nothing
    assert ("token_type_ids" in given) == config.can("pairs")
    types = {}
    if config.can("pairs"):
        sizes = [len(start) + len(first) + 1, len(second) + 1, len(summary)]
        types = {"token_type_ids": torch.arange(3).repeat_interleave(torch.tensor(sizes))}
        assert torch.equal(given["token_type_ids"][0], types["token_type_ids"])
    with torch.no_grad():
        found = opened.model.logits(opened.model((len(ids),), input_ids=ids, **types))
        expected = theirs.eval()(**given)
    logits = expected["prediction_logits" if "prediction_logits" in expected else "logits"]
    torch.testing.assert_close(found, logits[0], **CLOSE)


@pytest.mark.parametrize(
    "family",
    [
        *("bert", "xlnet"),
        *(pytest.param(name, marks=pytest.mark.slow) for name in SAME_LAYERS),
    ],
    indirect=True,
)
def test_run_stopped_and_resumed_is_the_whole_one(run: Path) -> None:
    last = _tiny.pretrain_with_stops(run / "tiny.yaml", run / "broken", [3])
    assert _tiny.metrics(run / "broken") == _tiny.metrics(run / "whole")
    ours, theirs = _opened(last), _opened(run / "whole/checkpoints/latest")
    for name, value in ours.model.state_dict().items():
        assert torch.equal(value, theirs.model.state_dict()[name]), name


def _tuned(run: Path, name: str, *sets: str) -> Path:
    """Tune the run for a task; return the checkpoint."""
    folder = run / f"{name}{len(sets)}"
    folder.mkdir()
    for part, seed in (("train", 1), ("valid", 2)):
        rows = rows_of("classes", 20, seed)
        if name == "entailment":
            rows = [{"premise": r["text"], "hypothesis": r["text"][::-1], "label": r["label"]}
                    for r in rows]  # fmt: skip
        write_rows(folder / f"{part}.jsonl", rows)
    text = TASK.replace("START", str(run / "whole/checkpoints/latest")).replace("NAME", name)
    path = folder / "task.yaml"
    path.write_text(text.replace("FOLDER", str(folder)) + TRAIN, encoding="utf-8")
    _tiny.pretrain(path, folder / "run", *sets)
    return folder / "run/checkpoints/latest"


def _scores(opened: Opened, ids: torch.Tensor) -> torch.Tensor:
    """Return the scores (1, O) of a sequence."""
    with torch.no_grad():
        hidden = opened.model((len(ids),), input_ids=ids, **_types(opened, ids))
        return opened.model.head(opened.model.summary(hidden, (len(ids),)))


# The heads of ALBERT and RoBERTa are compared with transformers' in the tests of these families.
@pytest.mark.parametrize(
    ("family", "name"),
    [
        ("bert", "classification"),
        *((family, "entailment") for family in ("bert", "xlm", "xlnet")),
        *(pytest.param(name, "entailment", marks=pytest.mark.slow) for name in SAME_LAYERS[:2]),
    ],
    indirect=["family"],
)
def test_tuned_model_is_transformers_classifier(run: Path, family: str, name: str) -> None:
    saved = _tuned(run, name)
    theirs, report = transformers.AutoModelForSequenceClassification.from_pretrained(
        saved, output_loading_info=True
    )
    prefix = re.split("For|WithLM|LMHead", FAMILIES[family][3])[0]
    assert type(theirs).__name__ == f"{prefix}ForSequenceClassification"
    assert not report["missing_keys"]
    assert theirs.config.id2label == {0: "bad", 1: "good", 2: "so so"}
    opened = _opened(saved)
    assert opened.model.head.bias.abs().min() > 0  # it is trained
    tokenizer = transformers.AutoTokenizer.from_pretrained(saved)
    lines = (saved.parents[2] / "valid.jsonl").read_text(encoding="utf-8").splitlines()
    for row in map(json.loads, lines[:5]):
        texts = [row["text"]] if "text" in row else [row["premise"], row["hypothesis"]]
        given = tokenizer(*texts, return_tensors="pt")
        ids = given["input_ids"][0]
        # The sequence is the one that the task makes.
        objective = opened.objective
        made = objective.frame.ids(objective._fit(objective.encode(texts), 0)[0])
        assert ids.tolist() == made.tolist()
        with torch.no_grad():
            expected = theirs.eval()(**given).logits
        torch.testing.assert_close(_scores(opened, ids), expected, **CLOSE)


# The others' layers have the names of BERT's; test_lora.py has every family.
@pytest.mark.parametrize(
    "family",
    [
        *("bert", "xlnet"),
        *(pytest.param(name, marks=pytest.mark.slow) for name in SAME_LAYERS),
    ],
    indirect=True,
)
def test_adapters_open_in_peft_and_here_and_merge(run: Path, family: str, tmp_path: Path) -> None:
    saved = _tuned(run, "classification", "lora.rank=4")
    settings = json.loads((saved / "adapter_config.json").read_text())
    targets = {"xlm": ["q_lin", "v_lin"], "xlnet": ["layer_1", "layer_2"]}
    found = {name.rpartition(".")[2] for name in settings["target_modules"]}
    assert found == {*targets.get(family, ["query", "value"])}
    base = transformers.AutoModelForSequenceClassification.from_pretrained(
        settings["base_model_name_or_path"], num_labels=3
    )
    theirs = PeftModel.from_pretrained(base, saved).eval()
    opened = _opened(saved)
    convert(saved, tmp_path / "merged")
    merged = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "merged")
    again = _opened(tmp_path / "merged")
    for text in ("天地人", "花鸟鱼虫"):
        words = opened.tokenizer.encode(text)
        objective = opened.objective
        ids = torch.from_numpy(objective.frame.ids([np.array(words)])).long()
        ours = _scores(opened, ids)
        torch.testing.assert_close(_scores(again, ids), ours, **CLOSE)
        with torch.no_grad():
            types = {name: value[None] for name, value in _types(opened, ids).items()}
            for model in (theirs, merged.eval()):
                torch.testing.assert_close(model(ids[None], **types).logits, ours, **CLOSE)


@pytest.mark.parametrize(
    "family",
    [
        *("bert", "albert"),
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("roberta", "xlm", "xlnet")),
    ],
    indirect=True,
)
def test_loss_of_several_terms_is_not_compared_with_an_entropy(
    family: str, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _tiny.pretrain(run / "tiny.yaml", run / "told", verbosity=NORMAL)
    (said,) = [line for line in capsys.readouterr().err.split("\n") if "best held-out" in line]
    several = family == "bert"  # nsp and mlm
    assert ("(weighted sum of nsp, mlm)" in said) == several
    assert ("nats/token" in said) != several


def _with_one_type(folder: Path, objective: str) -> Path:
    sizes = f"{SIZES}, type_vocab_size: 1"
    text = RECIPE.replace("FAMILY", "bert").replace("SIZES", sizes)
    text = text.replace("TOKENIZER", "wordpiece, vocab_size: 120")
    return _tiny.write(folder, text=text.replace("OBJECTIVE", objective) + TRAIN, documents=60)


def test_one_token_type_tells_no_pairs_of_texts_apart(tmp_path: Path) -> None:
    path = _with_one_type(tmp_path, "{name: nsp, max_length: 48}")
    with pytest.raises(RecipeError) as error:
        recipe.load(str(path))
    assert str(error.value) == (
        f"{path}:5:19: objective.name: nsp needs pairs (a sequence may consist of two texts, which "
        "token types distinguish), which family bert with type_vocab_size 1 does not have; with "
        "type_vocab_size 2 it does"
    )


def test_task_of_two_texts_learns_from_their_delimiter_with_one_token_type(tmp_path: Path) -> None:
    start = _tiny.pretrain(_with_one_type(tmp_path, MLM), tmp_path / "start")
    for part in ("train", "valid"):
        rows = [
            {"premise": row["text"], "hypothesis": row["text"][:2], "label": row["label"]}
            for row in rows_of("classes", 20, len(part))
        ]
        write_rows(tmp_path / f"{part}.jsonl", rows)
    text = TASK.replace("START", str(start)).replace("NAME", "entailment")
    path = tmp_path / "task.yaml"
    path.write_text(text.replace("FOLDER", str(tmp_path)) + TRAIN, encoding="utf-8")
    tuned = _tiny.pretrain(path, tmp_path / "tuned")
    assert _opened(tuned).objective.inputs == ("input_ids",)
    given = transformers.AutoTokenizer.from_pretrained(tuned)("天地", "人", return_tensors="pt")
    assert "token_type_ids" not in given
