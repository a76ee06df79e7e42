"""Checkpoints that others published: made here by transformers, of each kind that nlpkit reads."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from nlpkit import cli, recipe
from nlpkit.checkpoints import tokenizer_files
from nlpkit.errors import FileError, UsageError
from nlpkit.runs.build import model_part
from nlpkit.runs.open_checkpoint import open_checkpoint
from nlpkit.runs.run import ModelPart
from nlpkit.tokenizers import bpe, wordpiece

WORDS = "the cat sat on a mat and dog ran to big red house with no name".split()  # noqa: SIM905
TEXTS = [" ".join(WORDS[i * k % 16] for k in range(1, 9)) for i in range(24)]
SIZES = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 48,
    "max_position_embeddings": 66,
}  # fmt: skip
LABELS = {"id2label": {0: "neg", 1: "pos"}, "label2id": {"neg": 0, "pos": 1}}


def _wordpiece(folder: Path) -> int:
    made = wordpiece.Tokenizer.train(TEXTS, wordpiece.Config(vocab_size=80, min_frequency=1))
    lines = "".join(f"{made.token(number)}\n" for number in range(made.vocab_size))
    (folder / "vocab.txt").write_text(lines, "utf-8")
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "BertTokenizer"}')
    return made.vocab_size


def _roberta(folder: Path) -> int:
    """Write the two files that roberta-base has, with GPT-2's end token among the words."""
    made = bpe.Tokenizer.train(TEXTS, bpe.Config(vocab_size=300, min_frequency=1))
    content = json.loads(made._library.to_str())["model"]
    words = [word for word in content["vocab"] if word != "<pad>"]
    tokens = ["<s>", "<pad>", "</s>", "<unk>", *words, "<mask>"]
    (folder / "vocab.json").write_text(json.dumps({t: i for i, t in enumerate(tokens)}))
    merges = "".join(f"{left} {right}\n" for left, right in content["merges"])
    (folder / "merges.txt").write_text(f"#version: 0.2\n{merges}")
    return len(tokens)


def _save(
    folder: Path, name: str, tokens: Callable[[Path], int] = _wordpiece, **settings: Any
) -> Path:
    """Save a model of transformers' class `name` with random weights, and its tokenizer."""
    folder.mkdir(exist_ok=True)
    made = getattr(transformers, name)
    torch.manual_seed(1)
    sizes = {**SIZES, **settings}
    if name.startswith("XLNet"):
        del sizes["max_position_embeddings"]
    config = made.config_class(vocab_size=tokens(folder), **sizes)
    made(config).save_pretrained(folder)
    return folder


def _part(folder: Path, objective: str, *sets: str) -> ModelPart:
    return model_part(_resolved(folder, objective, *sets))


def _resolved(folder: Path, objective: str, *sets: str) -> recipe.Resolved:
    text = f"""name: x
init_from: {folder}
data: {{train: [x.txt]}}
objective: {{name: {objective}, max_length: 30}}
train: {{steps: 1, tokens_per_step: 99, lr: 1.0e-3, schedule: constant}}
"""
    return recipe.parse(text.encode(), "x.yaml", folder, sets)


XLM_SIZES = {"emb_dim": 32, "n_layers": 2, "n_heads": 2, "n_langs": 1}
XLNET_SIZES = {"d_head": 16, "d_inner": 48, "ff_activation": "gelu"}
BODIES = {
    "bert": ("BertModel", "mlm", {}),
    "roberta": ("RobertaModel", "mlm", {"type_vocab_size": 1}),
    "albert": ("AlbertModel", "mlm", {"embedding_size": 16}),
    "xlm": ("XLMModel", "mlm", XLM_SIZES),
    "xlnet": ("XLNetModel", "plm", XLNET_SIZES),
}


@pytest.mark.fast_cases(2)
@pytest.mark.parametrize("family", BODIES)
def test_body_alone_starts_a_task_and_for_more_the_hint_works(family: str, tmp_path: Path) -> None:
    name, objective, settings = BODIES[family]
    base = _save(tmp_path / "base", name, **settings)
    for sets in ([], ["lora.rank=2"]):
        assert _part(base, "classification", *sets).family == family
        assert _part(base, "tagging", *sets).family == family
    with pytest.raises(FileError, match="adapters are saved without such tensors"):
        _part(base, objective, "lora.rank=2")
    with pytest.raises(FileError, match=r"to initialize such tensors, name them: ") as caught:
        _part(base, objective)
    hint = str(caught.value).rpartition("init_missing: ")[2]
    part = _part(base, objective, f"init_missing={hint}")
    assert "missing, randomly initialized: " in part.warnings[0]


@pytest.mark.parametrize("name", ["BertForMaskedLM", "AlbertForMaskedLM"])
def test_adapters_behind_a_pooler_of_zeros_are_refused(name: str, tmp_path: Path) -> None:
    base = _save(tmp_path / "base", name)
    assert _part(base, "classification").warnings
    assert _part(base, "tagging", "lora.rank=2").lora is not None  # reads no summary
    with pytest.raises(FileError, match=r"pooler\S+ [^;]*; adapters are saved without such"):
        _part(base, "classification", "lora.rank=2")


def _rows(folder: Path, rows: list[dict[str, Any]]) -> Path:
    (folder / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows), "utf-8")
    return folder / "rows.jsonl"


def _evaluated(path: Path, data: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    assert cli.run(["eval", str(path), "--data", str(data), "--json", "--device", "cpu"]) == 0
    printed = capsys.readouterr()
    assert not re.search(r"missing.*(predictions|lm_head)", printed.err)  # a task has no use for it
    figures: dict[str, Any] = json.loads(printed.out)
    return figures


CLASSIFIERS = {
    "BertForSequenceClassification": (_wordpiece, {}),
    "RobertaForSequenceClassification": (_roberta, {"type_vocab_size": 1}),
    "AlbertForSequenceClassification": (_wordpiece, {"embedding_size": 16}),
    "ElectraForSequenceClassification": (_wordpiece, {"embedding_size": 16}),
}


@pytest.mark.fast_cases(2)
@pytest.mark.parametrize("name", CLASSIFIERS)
def test_published_classifier_is_evaluated_as_transformers_does(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tokens, settings = CLASSIFIERS[name]
    path = _save(tmp_path / "model", name, tokens, initializer_range=0.5, **LABELS, **settings)
    # A row has the name of its class, or the number.
    rows = [{"text": text, "label": ["neg", 1][i % 2]} for i, text in enumerate(TEXTS)]
    figures = _evaluated(path, _rows(tmp_path, rows), capsys)
    model = getattr(transformers, name).from_pretrained(path).eval()
    kind = "RobertaTokenizer" if tokens is _roberta else "BertTokenizer"
    tokenizer = getattr(transformers, kind).from_pretrained(path)
    with torch.no_grad():
        outputs = torch.cat([model(**tokenizer(t, return_tensors="pt")).logits for t in TEXTS])
    right = torch.arange(len(TEXTS)) % 2
    expected = torch.nn.functional.cross_entropy(outputs, right).item()
    assert figures["loss"] == pytest.approx(expected, rel=1e-4)
    assert figures["metrics"]["accuracy"] == pytest.approx(
        (outputs.argmax(1) == right).float().mean().item()
    )


def test_classifier_without_names_of_its_two_classes_is_evaluated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """transformers writes no `id2label` then: the classes are its LABEL_0 and LABEL_1."""
    path = _save(tmp_path / "model", "BertForSequenceClassification")
    assert "id2label" not in json.loads((path / "config.json").read_text())
    rows = [{"text": text, "label": ["LABEL_0", 1][i % 2]} for i, text in enumerate(TEXTS)]
    assert _evaluated(path, _rows(tmp_path, rows), capsys)["targets"] == len(TEXTS)


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("regression", {"num_labels": 1}),
        ("multi_label_classification", {"problem_type": "multi_label_classification", **LABELS}),
    ],
)
def test_classifier_of_another_kind_is_refused(
    kind: str, settings: dict[str, Any], tmp_path: Path
) -> None:
    """It was evaluated by the cross entropy of classes that exclude each other."""
    path = _save(tmp_path / "model", "BertForSequenceClassification", **settings)
    with pytest.raises(FileError, match=f"problem_type {kind}: read are only outputs for one"):
        open_checkpoint(path, device="cpu")


@pytest.mark.parametrize("names", [{"0": "a", "1": "b", "2": "c"}, {"0": "a", "1": "b"}])
def test_classifier_with_other_names_than_outputs_is_refused(
    names: dict[str, str], tmp_path: Path
) -> None:
    """transformers refuses the size of its output layer."""
    path = _save(tmp_path / "model", "BertForSequenceClassification", num_labels=5 - len(names))
    settings = json.loads((path / "config.json").read_text()) | {"id2label": names}
    (path / "config.json").write_text(json.dumps(settings))
    said = f"id2label names {len(names)} classes; the output layer has {5 - len(names)}"
    with pytest.raises(FileError, match=said):
        open_checkpoint(path, device="cpu")


def test_published_tagger_and_reader_are_evaluated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tags = {"id2label": {0: "O", 1: "B-X"}, "label2id": {"O": 0, "B-X": 1}}
    path = _save(tmp_path / "tags", "BertForTokenClassification", **tags)
    rows = [{"words": text.split(), "tags": ["B-X", *["O"] * 7]} for text in TEXTS]
    assert "tag_accuracy" in _evaluated(path, _rows(tmp_path, rows), capsys)["metrics"]
    sizes = {**SIZES, "max_position_embeddings": 512}
    path = _save(tmp_path / "answers", "BertForQuestionAnswering", **sizes)
    opened = open_checkpoint(path, device="cpu")
    assert type(opened.objective).__module__.endswith("question_answering")


def test_masked_model_with_the_files_of_roberta_is_evaluated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = _save(tmp_path / "model", "RobertaForMaskedLM", _roberta, type_vocab_size=1)
    (tmp_path / "t.txt").write_text("\n".join(TEXTS), "utf-8")
    assert _evaluated(path, tmp_path / "t.txt", capsys)["targets"] > 10
    ours, theirs = (
        open_checkpoint(path).tokenizer,
        transformers.RobertaTokenizer.from_pretrained(path),
    )
    for text in (*TEXTS, "naïve café 我", "two  spaces"):
        assert ours.encode(text) == theirs(text, add_special_tokens=False).input_ids
    assert (ours.bos_id, ours.pad_id, ours.eos_id, ours.unk_id) == (0, 1, 2, 3)


def test_weights_of_torch_open_with_shards_and_without(tmp_path: Path) -> None:
    path = _save(tmp_path / "model", "BertForMaskedLM")
    expected = open_checkpoint(path).model.state_dict()
    tensors = load_file(path / "model.safetensors")
    tensors["bert.embeddings.position_ids"] = torch.arange(8)[None]  # as old versions saved it
    (path / "model.safetensors").unlink()
    torch.save(tensors, path / "pytorch_model.bin")
    opened = open_checkpoint(path).model.state_dict()
    assert all(torch.equal(opened[name], tensor) for name, tensor in expected.items())
    (path / "pytorch_model.bin").unlink()
    items = [*tensors.items()]
    halves = [dict(items[:9]), dict(items[9:])]
    files = [f"pytorch_model-{n}.bin" for n in (1, 2)]
    for file, half in zip(files, halves, strict=True):
        torch.save(half, path / file)
    index = {name: file for file, half in zip(files, halves, strict=True) for name in half}
    (path / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": index}))
    opened = open_checkpoint(path).model.state_dict()
    assert all(torch.equal(opened[name], tensor) for name, tensor in expected.items())


def test_masks_that_earlier_versions_saved_are_no_warning(tmp_path: Path) -> None:
    sizes = {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 64}
    for name in ("OpenAIGPTLMHeadModel", "GPT2LMHeadModel"):
        path = _save(tmp_path / name, name, **sizes)
        tensors = load_file(path / "model.safetensors")
        for layer in range(2):
            tensors[f"transformer.h.{layer}.attn.bias"] = torch.ones(1, 1, 64, 64)
        save_file(tensors, path / "model.safetensors", {"format": "pt"})
        assert not _part(path, "clm").warnings


def test_tokenizers_that_no_kind_reads_are_named(tmp_path: Path) -> None:
    for family, said in (("marian", "source.spm and target.spm"), ("xlm", "Moses")):
        folder = tmp_path / family
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps({"model_type": family}))
        (folder / "vocab.json").write_text(json.dumps({"<unk>": 0, "a</w>": 1}))
        (folder / "merges.txt").write_text("a b</w> 1234\n")
        with pytest.raises(FileError, match=rf"{said}.* which nlpkit does not read; it reads a"):
            tokenizer_files.load(folder)


def test_refused_tokenizer_is_refused_by_the_kinds_of_its_files_alone(tmp_path: Path) -> None:
    (tmp_path / "vocab.json").write_text("{}")
    with pytest.raises(FileError) as caught:
        tokenizer_files.load(tmp_path)
    assert re.findall(r"(\w+): /", str(caught.value)) == ["bpe", "gpt1_bpe"]


FAMILY = '"""BERT again, as a family of our own."""\nfrom nlpkit.models.bert import *\n'


@pytest.mark.parametrize("family", ["bert", "mylab.bert"])
def test_section_model_need_not_repeat_what_the_checkpoint_says(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = _save(tmp_path / "base", "BertForMaskedLM", hidden_dropout_prob=0.2)
    if family != "bert":
        (tmp_path / "mylab" / "bert").mkdir(parents=True)
        (tmp_path / "mylab" / "bert" / "__init__.py").write_text(FAMILY)
        (tmp_path / "mylab" / "bert" / "model.py").write_text(
            "from nlpkit.models.bert.model import *"
        )
        monkeypatch.chdir(tmp_path)
        monkeypatch.syspath_prepend(tmp_path)
        settings = json.loads((base / "config.json").read_text())
        (base / "config.json").write_text(json.dumps(settings | {"model_type": "mine"}))
        with pytest.raises(FileError, match=r"model_type 'mine' is none of .*--family mylab.NAME"):
            _part(base, "mlm")
        (tmp_path / "mylab" / "bert" / "__init__.py").write_text(f"{FAMILY}MODEL_TYPE = 'mine'\n")
    part = _part(base, "mlm", f"model.family={family}")
    assert (part.family, part.config.hidden_size, part.config.dropout) == (family, 32, 0.2)
    named = [f"model.family={family}", "model.num_layers=2", "model.dropout=0.3"]
    assert _part(base, "mlm", *named).config.dropout == 0.3
    said = r"the section model differ in num_layers; remove it there"
    with pytest.raises(UsageError, match=said):
        _part(base, "mlm", f"model.family={family}", "model.num_layers=3")


def test_recipe_of_a_run_names_no_sizes_that_its_start_does_not_have(tmp_path: Path) -> None:
    base = _save(tmp_path / "base", "BertForMaskedLM")
    resolved = _resolved(base, "mlm", "model.family=bert", "model.num_layers=2")
    again = recipe.parse(resolved.to_yaml().encode(), "again", tmp_path)
    assert again.dump() == resolved.dump()
    assert model_part(again).config.hidden_size == 32
