"""Byte pair encodings whose special tokens are named in tokenizer_config.json, as Llama's."""

import json
import pickle
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer as Library
from tokenizers import decoders, models, normalizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from nlpkit.checkpoints import tokenizer_files
from nlpkit.errors import FileError
from nlpkit.models.gpt2 import Config
from nlpkit.objectives import clm
from nlpkit.tokenizers import bpe, unigram

TEXT = "the cat, naïve 我 <s>"
BEGIN, END = "<|begin_of_text|>", "<|end_of_text|>"
NAMES = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "bos_token": BEGIN,
    "eos_token": {"__type": "AddedToken", "content": END, "special": True},
    "pad_token": END,
    "chat_template": "{{ messages[0]['content'] }}" + END,
}


def _llama_3(folder: Path, names: dict[str, Any] | None = None) -> Path:
    made = bpe.Tokenizer.train([TEXT] * 3, bpe.Config(vocab_size=270))
    text = made._library.to_str().replace("<|endoftext|>", END).replace("<pad>", BEGIN)
    (folder / "tokenizer.json").write_text(text, "utf-8")
    if names is not None:
        (folder / "tokenizer_config.json").write_text(json.dumps(names), "utf-8")
    return folder


def _llama_2(folder: Path) -> Path:
    """Save SentencePiece's characters, with bytes for all others, and no names."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    tokens += [*"▁thecané", "▁t", "he"]
    merges = [("▁", "t"), ("h", "e")]
    model = models.BPE({t: i for i, t in enumerate(tokens)}, merges, unk_token="<unk>")
    model.byte_fallback = True
    library = Library(model)
    library.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    joined = [decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    library.decoder = decoders.Sequence([decoders.Replace("▁", " "), *joined])
    library.add_special_tokens(tokens[:3])
    library.save(str(folder / "tokenizer.json"))
    return folder


def test_named_tokens_separate_documents_and_are_kept(tmp_path: Path) -> None:
    kind, made = tokenizer_files.load(_llama_3(tmp_path, NAMES))
    theirs = PreTrainedTokenizerFast.from_pretrained(tmp_path)
    ids = theirs.bos_token_id, theirs.eos_token_id
    assert (kind, made.bos_id, made.eos_id, made.unk_id) == ("bpe", *ids, None)
    assert None not in ids
    assert made.pad_id is None  # it would leave the end out of texts
    objective = clm.Objective(clm.Config(max_length=8), made, Config())
    assert objective.after == ids[1:]
    grown = made.extended(["[X]"])
    for each in (made, pickle.loads(pickle.dumps(made)), grown):
        assert (each.bos_id, each.eos_id) == ids
        each.save(tmp_path / "saved")
        again = AutoTokenizer.from_pretrained(tmp_path / "saved")
        assert (again.bos_token_id, again.eos_token_id) == ids
        assert again.chat_template == NAMES["chat_template"]
        assert tokenizer_files.load(tmp_path / "saved")[1].fingerprint() == each.fingerprint()
    other = {**NAMES, "bos_token": END}
    assert tokenizer_files.load(_llama_3(tmp_path, other))[1].fingerprint() != made.fingerprint()


def test_end_of_a_turn_ends_a_text_where_qwen_says_so_and_is_kept(tmp_path: Path) -> None:
    made = bpe.Tokenizer.train([TEXT] * 3, bpe.Config(vocab_size=270))
    made.extended(["<|im_start|>", "<|im_end|>"]).save(tmp_path)
    file = tmp_path / "tokenizer_config.json"
    names = {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>", "bos_token": None}
    file.write_text(json.dumps({**names, "tokenizer_class": "Qwen2Tokenizer"}))
    _, opened = tokenizer_files.load(tmp_path)
    for number in range(2):
        ids = opened.bos_id, opened.eos_id, opened.unk_id, opened.pad_id
        assert ids == (None, opened.special_id("<|im_end|>"), None, 0)
        opened.save(tmp_path / str(number))
        assert AutoTokenizer.from_pretrained(tmp_path / str(number)).eos_token == "<|im_end|>"
        _, opened = tokenizer_files.load(tmp_path / str(number))
    # In nlpkit's own files it is the end of what an objective generates.
    file.write_text(json.dumps({**names, "tokenizer_class": "PreTrainedTokenizerFast"}))
    assert tokenizer_files.load(tmp_path)[1].eos_id == 0


def _modernbert(folder: Path) -> Path:
    """Save what answerdotai/ModernBERT-base names, which is neither begin nor end of a text."""
    folder.mkdir()
    made = bpe.Tokenizer.train([TEXT] * 3, bpe.Config(vocab_size=270))
    names = {f"{n}_token": f"[{n.upper()}]" for n in ("unk", "cls", "sep", "pad", "mask")}
    text = made._library.to_str().replace('"<pad>"', '"<|padding|>"')
    (folder / "tokenizer.json").write_text(text, "utf-8")
    bpe.Tokenizer.load(folder).extended(names.values()).save(folder)
    settings = {**names, "tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 8192}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


def test_special_tokens_of_modernbert_stay_named(tmp_path: Path) -> None:
    theirs = AutoTokenizer.from_pretrained(_modernbert(tmp_path / "0"))
    expected = theirs.special_tokens_map
    assert expected["pad_token"] == "[PAD]"
    for number in range(2):
        _, opened = tokenizer_files.load(tmp_path / str(number))
        assert opened.pad_id == theirs.pad_token_id
        assert opened.eos_id == opened.special_id("<|endoftext|>")  # between documents
        pickle.loads(pickle.dumps(opened)).save(tmp_path / str(number + 1))
        again = AutoTokenizer.from_pretrained(tmp_path / str(number + 1))
        assert again.special_tokens_map == expected
        texts = again(["a", "the cat"], padding=True).input_ids
        assert texts == theirs(["a", "the cat"], padding=True).input_ids
    assert opened.extended(["[X]"]).pad_id == theirs.pad_token_id


def test_end_that_pads_stays_named_and_is_no_padding_here(tmp_path: Path) -> None:
    bpe.Tokenizer.train([TEXT] * 3, bpe.Config(vocab_size=270)).save(tmp_path)
    names = {f"{role}_token": "<|endoftext|>" for role in ("bos", "eos", "pad")}
    settings = {**names, "tokenizer_class": "GPT2Tokenizer"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    for _ in range(2):
        _, opened = tokenizer_files.load(tmp_path)
        assert opened.pad_id == opened.special_id("<pad>")
        opened.save(tmp_path)
        assert AutoTokenizer.from_pretrained(tmp_path).pad_token == "<|endoftext|>"


@pytest.mark.parametrize(
    ("kind", "config"),
    [(unigram, unigram.Config(vocab_size=320)), (bpe, bpe.Config(vocab_size=270))],
)
def test_end_of_what_is_generated_is_not_the_end_of_texts(kind, config, tmp_path: Path) -> None:
    made = kind.Tokenizer.train([TEXT] * 9, config).extended(["<end>"])
    tokenizer_files.save(made, tmp_path, tokenizer_files.Use({}, end="<end>"))
    assert json.loads((tmp_path / "tokenizer_config.json").read_text())["eos_token"] == "<end>"
    _, again = tokenizer_files.load(tmp_path)
    assert (again.eos_id, again.fingerprint()) == (made.eos_id, made.fingerprint())
    # transformers writes another name of the class.
    AutoTokenizer.from_pretrained(tmp_path).save_pretrained(tmp_path)
    assert tokenizer_files.load(tmp_path)[1].eos_id == made.eos_id


def test_pieces_of_sentencepiece_are_counted_in_characters(tmp_path: Path) -> None:
    made = tokenizer_files.load(_llama_2(tmp_path))[1]
    assert (made.unk_id, made.bos_id, made.eos_id) == (0, 1, 2)
    for text in ("the cat", "né 我 ¡!"):
        ids = made.encode(text)
        assert made.decode(ids) == text
        # By hand: a character each, and the space before the first word.
        assert made.token_characters()[ids].sum() == len(text) + 1


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (None, r"tokenizer.json: no special token <\|endoftext\|> ends a text; if it is another "),
        ({"eos_token": None}, 'say which: "eos_token" in tokenizer_config.json'),
        ({"eos_token": "</end>"}, "tokenizer.json: has no token '</end>', which is the eos_token"),
    ],
    ids=["no file", "none", "unknown"],
)
def test_file_without_a_token_that_ends_a_text_is_refused(
    tmp_path: Path, names: dict[str, Any] | None, said: str
) -> None:
    with pytest.raises(FileError, match=said):
        tokenizer_files.load(_llama_3(tmp_path, names))
