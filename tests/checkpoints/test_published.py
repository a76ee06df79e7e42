"""Models that people fetch, in the layouts in which they lie on the hub, with random weights.

Each is made by transformers, opened, compared with transformers' logits, evaluated, converted, and
opened there again under the name that it was published by.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file

from nlpkit import cli
from nlpkit.runs.open_checkpoint import open_checkpoint
from nlpkit.tokenizers import bpe, wordpiece

TEXTS = ["the cat sat on a mat", "a dog ran to the big red house", "no name on the house"] * 4
LENGTHS = (7, 4, 9)
BERTS = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
BERTS |= {"intermediate_size": 48, "max_position_embeddings": 66}
ROBERTAS = {**BERTS, "type_vocab_size": 1, "pad_token_id": 1, "layer_norm_eps": 1e-5}
T5S = {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4}
T5S |= {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}


def _wordpiece(folder: Path) -> int:
    made = wordpiece.Tokenizer.train(TEXTS, wordpiece.Config(vocab_size=80, min_frequency=1))
    lines = "".join(f"{made.token(number)}\n" for number in range(made.vocab_size))
    (folder / "vocab.txt").write_text(lines, "utf-8")
    # As those of hfl/chinese-roberta-wwm-ext and hfl/chinese-macbert-base.
    (folder / "added_tokens.json").write_text("{}")
    names = {f"{n}_token": f"[{n.upper()}]" for n in ("unk", "sep", "pad", "cls", "mask")}
    (folder / "special_tokens_map.json").write_text(json.dumps(names))
    (folder / "tokenizer_config.json").write_text('{"init_inputs": []}')
    return made.vocab_size


def _byte_pairs(folder: Path) -> int:
    """Write GPT-2's own two files, as of distilgpt2."""
    made = bpe.Tokenizer.train(TEXTS, bpe.Config(vocab_size=290, min_frequency=1))
    content = json.loads(made._library.to_str())["model"]
    tokens = [token for token in content["vocab"] if token not in (made.token(0), "<pad>")]
    ids = {token: number for number, token in enumerate([*tokens, "<|endoftext|>"])}
    (folder / "vocab.json").write_text(json.dumps(ids), "utf-8")
    merges = "".join(f"{left} {right}\n" for left, right in content["merges"])
    (folder / "merges.txt").write_text(f"#version: 0.2\n{merges}", "utf-8")
    return len(ids)


def _one_file(folder: Path) -> int:
    """Write a `tokenizer.json`, which Qwen and Pythia have, as they cut words in their own ways."""
    rows = _byte_pairs(folder)
    text = bpe.Tokenizer.load(folder)._library.to_str()
    for name in ("vocab.json", "merges.txt"):
        (folder / name).unlink()
    (folder / "tokenizer.json").write_text(text, "utf-8")
    return rows


def _pieces(name: str, more: int = 0, **settings: Any) -> Callable[[Path], int]:
    """Return what writes a model of SentencePiece; `more` tokens are added by the family."""

    def write(folder: Path) -> int:
        trainer = pytest.importorskip("sentencepiece").SentencePieceTrainer
        target = folder / name
        number = 60 + len(settings.get("user_defined_symbols", ()))
        sizes = {"vocab_size": number, "hard_vocab_limit": False, "minloglevel": 2}
        trainer.train(
            sentence_iterator=iter(TEXTS),
            model_prefix=str(target.with_suffix("")),
            **{**sizes, **settings},
        )
        target.with_suffix(".vocab").unlink()
        import sentencepiece

        return sentencepiece.SentencePieceProcessor(model_file=str(target)).vocab_size() + more

    return write


DECODERS = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 48,
}  # fmt: skip


def _with_mask(folder: Path) -> int:
    """Write the pieces and the added token of DeBERTa v3."""
    ids = {"pad_id": 0, "bos_id": 1, "eos_id": 2, "unk_id": 3}
    names = {"bos_piece": "[CLS]", "eos_piece": "[SEP]", "pad_piece": "[PAD]"}
    mask = _pieces("spm.model", **ids, **names, unk_piece="[UNK]")(folder)
    (folder / "added_tokens.json").write_text(json.dumps({"[MASK]": mask}))
    return mask + 1


T5_IDS = {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1}
SENTINELS = [f"▁<extra_id_{i}>" for i in reversed(range(100))]
# The class, its settings, its tokenizer, and what its tokenizer_config.json says.
LAYOUTS: dict[str, tuple[str, dict[str, Any], Callable[[Path], int], dict[str, Any]]] = {
    "xlm-roberta-base": (
        "XLMRobertaForMaskedLM", ROBERTAS, _pieces("sentencepiece.bpe.model", 2), {},
    ),
    "camembert-base": (
        "CamembertForMaskedLM", ROBERTAS, _pieces("sentencepiece.bpe.model", 5), {},
    ),
    "chinese-roberta-wwm-ext": ("BertForPreTraining", BERTS, _wordpiece, {}),
    "chinese-macbert-base": ("BertForPreTraining", BERTS, _wordpiece, {}),
    "distilbert-base-uncased": (
        "DistilBertForMaskedLM",
        {"dim": 32, "n_layers": 2, "n_heads": 2, "hidden_dim": 48, "max_position_embeddings": 66},
        _wordpiece, {},
    ),
    "distilgpt2": (
        "GPT2LMHeadModel", {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 64},
        _byte_pairs, {},
    ),
    "qwen2-0.5b": (
        "Qwen2ForCausalLM",
        {**DECODERS, "num_key_value_heads": 1, "tie_word_embeddings": True},
        _one_file, {},
    ),
    "deberta-v3-small": (
        "DebertaV2ForMaskedLM",
        {
            **DECODERS, "max_position_embeddings": 66, "relative_attention": True,
            "pos_att_type": ["p2c", "c2p"], "position_buckets": 8, "share_att_key": True,
            "norm_rel_ebd": "layer_norm", "position_biased_input": False, "type_vocab_size": 0,
        },
        _with_mask, {"mask_token": "[MASK]"},
    ),
    "pythia-14m": ("GPTNeoXForCausalLM", DECODERS, _one_file, {}),
    "mt5-small": (
        "MT5ForConditionalGeneration", T5S,
        _pieces("spiece.model", 0, user_defined_symbols=SENTINELS, **T5_IDS),
        {"extra_ids": 0},
    ),
    "flan-t5-small": (
        "T5ForConditionalGeneration", T5S, _pieces("spiece.model", 100, **T5_IDS),
        {"tokenizer_class": "T5Tokenizer", "extra_ids": 100},
    ),
}  # fmt: skip
OLD = (
    "distilbert-base-uncased",
    "chinese-roberta-wwm-ext",
    "camembert-base",
    "xlm-roberta-base",
    "mt5-small",
)

# More rows than tokens.
PADDED = ("mt5-small", "flan-t5-small", "qwen2-0.5b", "pythia-14m", "deberta-v3-small")


def _publish(folder: Path, layout: str) -> Path:
    name, settings, tokens, tokenizer = LAYOUTS[layout]
    folder.mkdir()
    made, rows = getattr(transformers, name), tokens(folder)
    if layout in PADDED:
        rows += 28
    torch.manual_seed(1)
    model = made(made.config_class(vocab_size=rows, **settings))
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    model.save_pretrained(folder)
    if tokenizer:
        (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer))
    if layout in OLD:  # nothing but what torch saves
        state = load_file(folder / "model.safetensors")
        if layout.startswith("chinese"):
            ends = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
            for new, old in ends.items():
                state = {key.replace(new, old): tensor for key, tensor in state.items()}
        if layout == "mt5-small":  # with an output table of its own, as google/mt5-small
            state["lm_head.weight"] = torch.randn(rows, 32) / 4
            file = folder / "config.json"
            untied = {"tie_word_embeddings": False}
            file.write_text(json.dumps(json.loads(file.read_text()) | untied))
        torch.save(state, folder / "pytorch_model.bin")
        (folder / "model.safetensors").unlink()
    return folder


def _logits(model: Any, rows: int, is_ours: bool) -> torch.Tensor:
    """Return (N, V) of three sequences, packed or padded."""
    ids = torch.randint(6, rows, (sum(LENGTHS),), generator=torch.Generator().manual_seed(1))
    if is_ours:
        inputs: dict[str, Any] = {"input_ids": ids}
        if "token_type_ids" in model.config.inputs:
            inputs["token_type_ids"] = torch.zeros_like(ids)
        if "source_ids" in model.config.inputs:
            inputs |= {"source_ids": ids, "source_lengths": LENGTHS}
        logits: torch.Tensor = model.logits(model(LENGTHS, **inputs))
        return logits[:, :rows]
    padded = torch.nn.utils.rnn.pad_sequence(ids.split(LENGTHS), True, padding_value=1)
    seen = torch.nn.utils.rnn.pad_sequence([torch.ones(n).long() for n in LENGTHS], True)
    more = {"decoder_input_ids": padded} if model.config.is_encoder_decoder else {}
    found = model(input_ids=padded, attention_mask=seen, **more)
    scores = found.prediction_logits if hasattr(found, "prediction_logits") else found.logits
    return torch.cat([row[:n] for row, n in zip(scores, LENGTHS, strict=True)])[:, :rows]


# Slow are the twins: the same family with a tokenizer of the same kind.
TWINS = ("xlm-roberta-base", "chinese-macbert-base", "flan-t5-small")


@pytest.mark.fast_cases(3)
@pytest.mark.parametrize(
    "layout",
    [pytest.param(name, marks=[pytest.mark.slow] * (name in TWINS)) for name in LAYOUTS],
)
@torch.no_grad()
def test_layout_opens_is_evaluated_and_is_written_back(
    layout: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, made = _publish(tmp_path / layout, layout), getattr(transformers, LAYOUTS[layout][0])
    theirs = made.from_pretrained(path).eval()
    opened = open_checkpoint(path, device="cpu", warn=pytest.fail)
    rows = opened.tokenizer.vocab_size
    expected = _logits(theirs, rows, is_ours=False)
    close = {"atol": 1e-5, "rtol": 1e-4}
    torch.testing.assert_close(_logits(opened.model, rows, is_ours=True), expected, **close)
    (tmp_path / "t.txt").write_text("\n".join(TEXTS), "utf-8")
    words = ["eval", str(path), "--data", str(tmp_path / "t.txt"), "--device", "cpu", "--json"]
    assert cli.run(words) == 0, capsys.readouterr().err
    assert cli.run(["convert", str(path), str(tmp_path / "out")]) == 0
    settings = json.loads((tmp_path / "out/config.json").read_text())
    assert settings["model_type"] == theirs.config.model_type
    assert settings["architectures"] == [LAYOUTS[layout][0]]
    again = getattr(transformers, settings["architectures"][0]).from_pretrained(tmp_path / "out")
    torch.testing.assert_close(_logits(again.eval(), rows, is_ours=False), expected, **close)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    for text in TEXTS[:3]:
        ids = tokenizer(text, add_special_tokens=False).input_ids
        assert ids == opened.tokenizer.encode(text)


@pytest.mark.parametrize(
    "name",
    [
        "XLMRobertaForSequenceClassification",
        "XLMRobertaForTokenClassification",
        "CamembertForQuestionAnswering",
    ],
)
def test_published_task_keeps_its_layer_and_its_name(name: str, tmp_path: Path) -> None:
    made = getattr(transformers, name)
    (tmp_path / "in").mkdir()
    rows = _pieces("sentencepiece.bpe.model", 5 if "Camem" in name else 2)(tmp_path / "in")
    torch.manual_seed(1)
    sizes = {**ROBERTAS, "max_position_embeddings": 514}
    made(made.config_class(vocab_size=rows, **sizes)).save_pretrained(tmp_path / "in")
    opened = open_checkpoint(tmp_path / "in", device="cpu", warn=pytest.fail)
    tasks = {"Sequence": "classification", "Token": "tagging", "Question": "question_answering"}
    task = next(task for word, task in tasks.items() if word in name)
    assert type(opened.objective).__module__.endswith(task)
    assert cli.run(["convert", str(tmp_path / "in"), str(tmp_path / "out")]) == 0
    again, before = made.from_pretrained(tmp_path / "out"), made.from_pretrained(tmp_path / "in")
    assert again.config.architectures == [name]
    for key, tensor in before.state_dict().items():
        assert torch.equal(again.state_dict()[key], tensor), key


@pytest.mark.parametrize(
    ("layout", "family"),
    [
        ("camembert-base", "roberta"), ("distilgpt2", "gpt2"),
        pytest.param("xlm-roberta-base", "roberta", marks=pytest.mark.slow),
        pytest.param("chinese-macbert-base", "bert", marks=pytest.mark.slow),
    ],
)  # fmt: skip
def test_run_from_an_alias_says_the_familys_own_name_and_opens(
    layout: str, family: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "t.txt").write_text("\n".join(TEXTS), "utf-8")
    objective, auto = "mlm", transformers.AutoModelForMaskedLM
    if family == "gpt2":
        objective, auto = "clm", transformers.AutoModelForCausalLM
    (tmp_path / "tuned.yaml").write_text(
        f"name: tuned\nout: {tmp_path}/run\ninit_from: {_publish(tmp_path / layout, layout)}\n"
        f"data: {{train: [{tmp_path}/t.txt], valid: [{tmp_path}/t.txt]}}\n"
        f"objective: {{name: {objective}, max_length: 24}}\n"
        "train: {steps: 2, tokens_per_step: 128, lr: 1.0e-3, warmup_steps: 1, precision: fp32}\n"
    )
    assert cli.run(["pretrain", str(tmp_path / "tuned.yaml"), "--device", "cpu"]) == 0
    made = capsys.readouterr().out.splitlines()[-1]
    opened = open_checkpoint(made, device="cpu", warn=pytest.fail)
    theirs = auto.from_pretrained(made).eval()
    assert theirs.config.model_type == family
    rows, close = opened.tokenizer.vocab_size, {"atol": 1e-5, "rtol": 1e-4}
    with torch.no_grad():
        expected = _logits(theirs, rows, is_ours=False)
        torch.testing.assert_close(_logits(opened.model, rows, is_ours=True), expected, **close)
    ours, released = map(transformers.AutoTokenizer.from_pretrained, (made, tmp_path / layout))
    assert ours(TEXTS[:3]).input_ids == released(TEXTS[:3]).input_ids
    named = dict(released.special_tokens_map)
    if family == "gpt2":
        del named["unk_token"]  # which bytes never need
    assert {role: ours.special_tokens_map.get(role) for role in named} == named
