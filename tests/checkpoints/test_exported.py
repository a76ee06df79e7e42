"""What `nlpkit convert` writes has exactly the tensors of the class that `config.json` names."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file

from nlpkit import registry
from nlpkit.checkpoints import hf_layout, hf_model, hf_writing, tokenizer_files
from nlpkit.models import families, llama
from nlpkit.models.layers.head import TaskHead, task_head
from nlpkit.runs.convert import convert
from nlpkit.runs.open_checkpoint import open_checkpoint
from nlpkit.tokenizers import wordpiece

WORDS = wordpiece.Tokenizer.train(["a red dog sees a blue bird"] * 3, wordpiece.Config())
TOKENIZER = WORDS.extended(["_start_", "_delimiter_", "_classify_"])  # GPT-1's, which tasks need
SIZES = {
    "hidden_size": 32, "num_layers": 2, "num_heads": 4, "intermediate_size": 48, "head_dim": 8,
    "max_positions": 64, "embedding_size": 16, "image_size": 8, "patch_size": 4,
}  # fmt: skip
OUTPUTS = {"question_answering": 2, "multiple_choice": 1}
WHOLE = ""  # the model without the layer of a task
# ViT is always trained with such a layer. That of its pretraining has a hidden layer, which no
# class of transformers has (`models/vit/model.py`).
NOT_THERE = {("vit", WHOLE), ("vit", "image_classification_mlp")}


def _cases() -> list[tuple[str, str]]:
    found = []
    for family in registry.names("models"):
        module = families.load_model(family)
        kinds = [WHOLE, *module.TASK_HEADS] if module.FORMAT.architecture else []
        found += [(family, kind) for kind in kinds if (family, kind) not in NOT_THERE]
    return found


def _write(directory: Path, family: str, kind: str, config: Any) -> None:
    """Write a model of random weights, as a run saves it."""
    torch.manual_seed(1)
    module = families.load_model(family)
    model: Any = module.Model(config, TOKENIZER.vocab_size)
    head: TaskHead | None = task_head(module, kind) if kind else None
    if head is not None:
        head.add(model, config.state_size, OUTPUTS.get(kind, 3), 0.0)
    ids = hf_writing.TokenIds(pad=0, target_start=1, target_end=2)
    directory.mkdir()
    folders = hf_writing.to_hf(family, config, model.state_dict(), ids, head)
    hf_writing.write_folders(directory, folders)
    if families.load(family).VOCABULARY:
        tokenizer_files.save(TOKENIZER, directory)


@pytest.mark.parametrize(("family", "kind"), _cases())
def test_exported_model_has_the_tensors_of_its_class(
    tmp_path: Path, family: str, kind: str
) -> None:
    settings = families.load(family).Config
    config = settings(**{k: size for k, size in SIZES.items() if k in settings.model_fields})
    _write(tmp_path / "run", family, kind, config)
    convert(tmp_path / "run", tmp_path / "out")
    (name,) = json.loads((tmp_path / "out/config.json").read_text())["architectures"]
    _, report = getattr(transformers, name).from_pretrained(
        tmp_path / "out", output_loading_info=True
    )
    assert {what: names for what, names in report.items() if names} == {}
    read = hf_layout.read(tmp_path / "out", families.load_model(family).FORMAT.folders)
    loaded = hf_model.from_hf(family, tmp_path / "out", *read)
    assert (loaded.missing, loaded.unexpected) == ((), ())


def test_classifier_without_its_output_table_has_no_next_token_loss(tmp_path: Path) -> None:
    """The table is learned by the auxiliary loss of GPT-1, and is not in transformers' class."""
    config = llama.Config(hidden_size=32, num_layers=1, num_heads=4, intermediate_size=48)
    _write(tmp_path / "run", "llama", "sequence_classification", config)
    said: list[str] = []
    convert(tmp_path / "run", tmp_path / "out", info=said.append)
    assert said == ["not in LlamaForSequenceClassification, not written: lm_head.weight"]
    assert "lm_head.weight" in load_file(tmp_path / "run/model.safetensors")
    assert "lm_head.weight" not in load_file(tmp_path / "out/model.safetensors")
    weights = [open_checkpoint(tmp_path / name).objective.lm_weight for name in ("run", "out")]
    assert weights == [0.5, 0.0]
