"""The same list for each of the younger families: directories as they are published, and mistakes.

Each is made by transformers with random weights. Losses and gradients are compared in the tests of
the family, adapters in `test_lora`.
"""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from nlpkit import cli
from nlpkit.runs.open_checkpoint import open_checkpoint
from nlpkit.tokenizers import bpe, unigram, wordpiece

TEXTS = ["the cat sat on a mat", "a dog ran to the big red house", "no name on the house"] * 8
LENGTHS = (7, 4, 9)
FIRST = 8  # id of the first token that is certainly no padding
CLOSE = {"atol": 1e-5, "rtol": 1e-5}
USUAL = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48,
    "max_position_embeddings": 64,
}  # fmt: skip
KEYS = {**USUAL, "num_key_value_heads": 2}
ROLES = {f"{name}_token": f"[{name.upper()}]" for name in ("unk", "cls", "sep", "pad", "mask")}


def _byte_pairs(folder: Path) -> int:
    made = bpe.Tokenizer.train(TEXTS, bpe.Config(vocab_size=290, min_frequency=1))
    made.save(folder)
    return made.vocab_size


def _modernbert(folder: Path) -> int:
    _byte_pairs(folder)
    made = bpe.Tokenizer.load(folder).extended(ROLES.values())
    made.save(folder)
    settings = {**ROLES, "tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 64}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return made.vocab_size


def _wordpiece(folder: Path) -> int:
    made = wordpiece.Tokenizer.train(TEXTS, wordpiece.Config(vocab_size=80, min_frequency=1))
    lines = "".join(f"{made.token(number)}\n" for number in range(made.vocab_size))
    (folder / "vocab.txt").write_text(lines, "utf-8")
    return made.vocab_size


def _unigram(folder: Path) -> int:
    made = unigram.Tokenizer.train(TEXTS, unigram.Config(vocab_size=320))
    made = made.extended(["[CLS]", "[SEP]", "[MASK]"])
    made.save(folder)
    return made.vocab_size


class Layout(NamedTuple):
    """A family, transformers' class and its settings, the tokenizer, and whether it is tied."""

    family: str
    architecture: str
    settings: dict[str, Any]
    tokens: Callable[[Path], int] = _byte_pairs
    ties: tuple[bool, ...] = (True, False)
    # Settings with which a head has an odd number of channels that turn, and what is said then.
    odd: tuple[dict[str, Any], str] | None = None


ODD = ({"num_attention_heads": 32}, "rotary positions need pairs")
LAYOUTS = {
    "distilbert": Layout(
        "distilbert", "DistilBertForMaskedLM",
        {"dim": 32, "n_layers": 2, "n_heads": 2, "hidden_dim": 48, "max_position_embeddings": 66},
        _wordpiece,
    ),
    "gpt_neo": Layout(
        "gpt_neo", "GPTNeoForCausalLM",
        {"hidden_size": 32, "num_layers": 2, "num_heads": 4, "max_position_embeddings": 64,
         "window_size": 5, "attention_types": [[["global", "local"], 1]]}, ties=(True,),
    ),
    "llama": Layout(
        "llama", "LlamaForCausalLM", KEYS,
        odd=({"head_dim": 7}, "heads are 7 wide; rotary positions need pairs"),
    ),
    "mistral": Layout("llama", "MistralForCausalLM", {**KEYS, "sliding_window": 5}),
    "qwen2": Layout("llama", "Qwen2ForCausalLM", KEYS),
    "qwen3": Layout("llama", "Qwen3ForCausalLM", {**KEYS, "head_dim": 16}),
    "gpt_neox": Layout(
        "gpt_neox", "GPTNeoXForCausalLM", {**USUAL, "rotary_pct": 0.25},
        odd=({"rotary_pct": 0.4}, "of 8 channels are 3; rotary positions need pairs"),
    ),
    "deberta-v2": Layout(
        "deberta_v2", "DebertaV2ForMaskedLM",
        {**USUAL, "relative_attention": True, "position_buckets": 8, "norm_rel_ebd": "layer_norm",
         "share_att_key": True, "pos_att_type": "p2c|c2p", "position_biased_input": False,
         "type_vocab_size": 0}, _unigram,
    ),
    "modernbert": Layout(
        "modernbert", "ModernBertForMaskedLM", {**USUAL, "local_attention": 6}, _modernbert, odd=ODD
    ),
    "modernbert-decoder": Layout(
        "modernbert_decoder", "ModernBertDecoderForCausalLM", {**USUAL, "local_attention": 6},
        _modernbert, odd=ODD,
    ),
}  # fmt: skip
DECODERS = [name for name, each in LAYOUTS.items() if each.architecture.endswith("CausalLM")]


def _publish(folder: Path, name: str, tie: bool = True) -> Path:
    """Save a model whose weights are so large that every part matters, and its tokenizer."""
    layout = LAYOUTS[name]
    folder.mkdir()
    made = getattr(transformers, layout.architecture)
    ids = {f"{role}_token_id": 0 for role in ("pad", "bos", "eos", "cls", "sep")}
    settings = {**layout.settings, **ids, "tie_word_embeddings": tie}
    torch.manual_seed(0)
    config = made.config_class(vocab_size=layout.tokens(folder), **settings)
    model = made(config)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return what publishes a layout once; its files are not to be changed."""
    folder = tmp_path_factory.mktemp("published")

    def once(name: str) -> Path:
        path = folder / name
        return path if path.exists() else _publish(path, name)

    return once


def _theirs(path: Path, name: str) -> Any:
    auto = transformers.AutoModelForCausalLM if name in DECODERS else None
    model = (auto or transformers.AutoModelForMaskedLM).from_pretrained(path)
    assert type(model).__name__ == LAYOUTS[name].architecture
    model.set_attn_implementation("eager")
    return model.eval()


def _assert_same_logits(model: Any, theirs: Any) -> None:
    """Assert that a pack of ours has the logits of a padded batch of transformers."""
    rows = theirs.config.vocab_size
    draw = torch.Generator().manual_seed(1)
    ids = torch.randint(FIRST, rows, (sum(LENGTHS),), generator=draw)
    padded, seen = (
        torch.nn.utils.rnn.pad_sequence(each.split(LENGTHS), True)
        for each in (ids, torch.ones_like(ids))
    )
    with torch.no_grad():
        expected = theirs(input_ids=padded, attention_mask=seen).logits[seen.bool()]
        torch.testing.assert_close(model.logits(model(LENGTHS, ids)), expected, **CLOSE)


@pytest.mark.parametrize(
    ("name", "tie"), [(name, tie) for name, each in LAYOUTS.items() for tie in each.ties]
)
def test_logits_of_a_pack_are_those_of_a_padded_batch(name: str, tie: bool, tmp_path: Path) -> None:
    path = _publish(tmp_path / name, name, tie)
    opened = open_checkpoint(path, device="cpu", warn=pytest.fail)
    _assert_same_logits(opened.model, _theirs(path, name))


Change = Callable[[dict[str, torch.Tensor], dict[str, Any], str], object]
# What is done to tensors and settings, the last line's part, or that it is a warning.
FAULTS: dict[str, tuple[Change, str]] = {
    "shape": (
        lambda tensors, settings, name: tensors.update({name: torch.zeros(3, 5)}),
        "NAME) has the shape (3, 5); config.json requires (",
    ),
    "missing": (lambda tensors, settings, name: tensors.pop(name), "1 tensor is missing: NAME"),
    "extra": (
        lambda tensors, settings, name: tensors.update({f"{name}_too": torch.zeros(2)}),
        "unexpected in this model, ignored: NAME_too",
    ),
    "model_type": (
        lambda tensors, settings, name: settings.update(model_type="llama9"),
        "model_type 'llama9' is none of albert, ",
    ),
}


def _changed(path: Path, source: Path, change: Change) -> str:
    """Copy a directory with a change; return the name of the changed tensor."""
    shutil.copytree(source, path)
    tensors, file = load_file(path / "model.safetensors"), path / "config.json"
    settings = json.loads(file.read_text("utf-8"))
    of_layers = [name for name, each in tensors.items() if each.ndim == 2 and ".1." in name]
    change(tensors, settings, of_layers[-1])
    save_file(tensors, path / "model.safetensors", {"format": "pt"})
    file.write_text(json.dumps(settings), "utf-8")
    return of_layers[-1]


def _assert_said(path: Path, said: str, code: int, capsys: pytest.CaptureFixture[str]) -> None:
    """Assert that what opens a directory says it in a line, which is the only one if it fails."""
    capsys.readouterr()
    assert cli.run(["convert", str(path), str(path.parent / "out")]) == code
    lines = capsys.readouterr().err.splitlines()
    assert [line for line in lines if said in line]
    assert code == 0 or (len(lines) == 1 and str(path) in lines[0])


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("name", LAYOUTS)
def test_fault_of_a_directory_has_a_line_that_names_it(
    name: str, fault: str, published, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    change, said = FAULTS[fault]
    key = _changed(tmp_path / "in", published(name), change)
    _assert_said(tmp_path / "in", said.replace("NAME", key), 0 if fault == "extra" else 4, capsys)


SPIRAL = {"rope_type": "spiral", "rope_theta": 1e4}
QUARTER = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.25}
ROTARY = [
    *[(name, {"rope_parameters": SPIRAL}, "rope_type is 'spiral'") for name in DECODERS[1:6]],
    ("modernbert", {"rope_parameters": {"full_attention": SPIRAL}}, "'spiral'"),
    ("modernbert-decoder", {"rope_parameters": {"full_attention": SPIRAL}}, "'spiral'"),
    ("llama", {"head_dim": 7}, "heads are 7 wide; rotary positions need pairs"),
    (
        "gpt_neox", {"rope_parameters": QUARTER, "num_attention_heads": 2, "hidden_size": 24},
        "rotary_share: 0.25 of 12 channels are 3; rotary positions need pairs",
    ),
    ("modernbert", {"num_attention_heads": 32}, "are 1 wide, and rotary positions turn pairs"),
    ("modernbert-decoder", {"num_attention_heads": 32}, "are 1 wide, and rotary positions turn"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "settings", "said"), ROTARY)
def test_rotary_positions_that_do_not_fit_have_a_line(
    name: str, settings: dict, said: str, published, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    _changed(tmp_path / "in", published(name), lambda tensors, content, _: content.update(settings))
    _assert_said(tmp_path / "in", said, 4, capsys)


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ("family: llama, num_heads: 4, hidden_size: 60", "heads are 15 wide; rotary positions"),
        ("family: llama, num_heads: 4, hidden_size: 32, head_dim: 7", "heads are 7 wide; rotary"),
        ("family: gpt_neox, num_heads: 4, hidden_size: 48", "0.25 of 12 channels are 3; rotary"),
        ("family: modernbert, num_heads: 4, hidden_size: 60", "are 15 wide, and rotary positions"),
        ("family: modernbert_decoder, num_heads: 4, hidden_size: 60", "are 15 wide, and rotary"),
    ],
)
def test_odd_heads_are_a_mistake_of_a_line_of_the_recipe(
    settings: str, line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "odd.yaml"
    path.write_text(
        f"name: odd\nmodel: {{{settings}}}\ntokenizer: {{kind: bpe}}\ndata: {{train: [x.txt]}}\n"
        "train: {steps: 1, tokens_per_step: 99, lr: 1.0e-3}\n"
    )
    assert cli.run(["pretrain", str(path)]) == 2
    assert [each for each in capsys.readouterr().err.splitlines() if line in each]
