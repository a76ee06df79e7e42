"""Byte-level BPE, WordPiece and Unigram: one contract, and the same ids in transformers."""

import json
import multiprocessing
import os
import pickle
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from nlpkit.errors import DataError, FileError
from nlpkit.tokenizers import bpe, unigram, wordpiece
from tests.tokenizers.test_training import made_up_texts

PARTS = {"bpe": bpe, "wordpiece": wordpiece, "unigram": unigram}
MODEL_TYPES = {"bpe": "gpt2", "wordpiece": "bert", "unigram": "t5"}
CONTROL = "<|endoftext|> <pad> [MASK] [CLS] [UNK] </s> <unk> <0x41> <0xE4>"
TEXTS = ["kato mi 北京", "Süß, Ré!", "  a  b \n\n c\t", "", "龘 😀\u2028", "don't", "▁x"]


@pytest.fixture(scope="module", params=PARTS)
def name(request):
    return request.param


@pytest.fixture(scope="module")
def ours(name):
    part = PARTS[name]
    return part.Tokenizer.train(made_up_texts(), part.Config(vocab_size=600))


@pytest.fixture(scope="module")
def byte_pairs():
    return bpe.Tokenizer.train(made_up_texts(), bpe.Config(vocab_size=400))


@pytest.fixture(scope="module")
def pieces():
    return unigram.Tokenizer.train(
        made_up_texts(), unigram.Config(vocab_size=400, normalization="none")
    )


@pytest.mark.parametrize("configured", [False, True])
def test_save_opens_in_transformers_with_equal_ids(ours, name, tmp_path, configured):
    from transformers import AutoTokenizer

    ours.save(tmp_path)
    if configured:
        config = {"model_type": MODEL_TYPES[name]}
        (tmp_path / "config.json").write_text(json.dumps(config))
    hf = AutoTokenizer.from_pretrained(tmp_path)
    texts = [*made_up_texts(), *TEXTS]
    assert hf(texts, add_special_tokens=False)["input_ids"] == ours.encode_batch(texts)
    for ids in ours.encode_batch(texts):
        assert hf.decode(ids, skip_special_tokens=True) == ours.decode(ids)
    assert len(hf) == ours.vocab_size
    theirs = (hf.bos_token_id, hf.eos_token_id, hf.unk_token_id, hf.pad_token_id, hf.mask_token_id)
    assert theirs == (ours.bos_id, ours.eos_id, ours.unk_id, ours.pad_id, ours.mask_id)
    # As text, control tokens are equal where transformers is told so, and not where it is not.
    split = AutoTokenizer.from_pretrained(tmp_path, split_special_tokens=True)
    assert split(CONTROL, add_special_tokens=False)["input_ids"] == ours.encode(CONTROL)
    assert hf(CONTROL, add_special_tokens=False)["input_ids"] != ours.encode(CONTROL)


def test_special_tokens_are_the_familys(ours, name, tmp_path):
    from transformers import AutoTokenizer

    # bos, eos, unk, pad, mask; and what the family puts around a text.
    expected = {
        "bpe": (0, 0, None, 1, None, []),
        "wordpiece": (2, 3, 1, 0, 4, [2, 3]),
        "unigram": (None, 1, 2, 0, None, [1]),
    }
    ours.save(tmp_path)
    around = AutoTokenizer.from_pretrained(tmp_path)("")["input_ids"]
    named = (ours.bos_id, ours.eos_id, ours.unk_id, ours.pad_id, ours.mask_id)
    assert (*named, around) == expected[name]


@pytest.mark.parametrize(
    ("tokens", "expected", "types"),
    [  # as the tokenizers of XLNet, BERT, RoBERTa and T5 in transformers frame pairs
        ("<sep> <cls> <mask>", "A <sep> B <sep> <cls>", [0, 0, 1, 1, 2]),
        ("[CLS] [SEP] [MASK]", "[CLS] A [SEP] B [SEP]", [0, 0, 0, 1, 1]),
        ("<s> </s> <mask>", "<s> A </s> </s> B </s>", [0] * 6),
        ("<pad> </s>", "A </s> B </s>", [0] * 4),
    ],
)
@pytest.mark.parametrize("kind", ["bpe", "wordpiece"])
def test_transformers_frames_texts_with_the_tokens_that_were_added(
    kind, tokens, expected, types, tmp_path
):
    from transformers import AutoTokenizer

    part = PARTS[kind]
    plain = part.Tokenizer.train(["a b"] * 5, part.Config(vocab_size=260))
    lacking = [token for token in tokens.split() if plain.special_id(token) is None]
    grown = plain.extended(lacking).extended([])
    grown.save(tmp_path)
    hf = AutoTokenizer.from_pretrained(tmp_path)
    found = hf("a", "b", return_token_type_ids=True)
    special = hf.convert_tokens_to_ids([t for t in expected.split() if t not in ("A", "B")])
    assert [i for i in found["input_ids"] if i in special] == special
    assert found["token_type_ids"] == types
    assert hf.mask_token == (tokens.split()[2] if "mask" in tokens.lower() else plain.mask)


def test_encode_control_token_in_text_is_text(ours, name):
    special = {ours.bos_id, ours.eos_id, ours.pad_id, ours.mask_id} - {None}
    assert not special & set(ours.encode(CONTROL))
    if name != "wordpiece":
        assert ours.decode(ours.encode(CONTROL)) == CONTROL


@settings(max_examples=200, deadline=None)
@given(text=st.text(max_size=40))
@example(CONTROL)
@example("\r\n \u2028\x00\ufeff 👩‍👩‍👧 e\u0301  ")
def test_bpe_any_text_decodes_to_itself(byte_pairs, text):
    ids = byte_pairs.encode(text)
    assert byte_pairs.decode(ids) == text
    assert byte_pairs.token_characters()[ids].sum() == len(text)


@settings(max_examples=200, deadline=None)
@given(text=st.text(max_size=40))
@example(CONTROL)
@example("\r\n x\u2028\x00\ufeff 👩‍👩‍👧 e\u0301  ")
def test_unigram_any_text_decodes_to_itself(pieces, text):
    text = text.replace("▁", "").lstrip(" ")
    ids = pieces.encode(text)
    assert pieces.decode(ids) == text
    assert pieces.unk_id not in ids
    # One more for the space in front.
    assert pieces.token_characters()[ids].sum() == len(text) + bool(text)


def test_wordpiece_config_says_what_is_the_same():
    texts = ["Été été ETE ete 中文 É e E"] * 3
    counts = {}
    for lowercase, strip in ((True, None), (True, False), (False, False), (False, True)):
        config = wordpiece.Config(vocab_size=100, lowercase=lowercase, strip_accents=strip)
        ours = wordpiece.Tokenizer.train(texts, config)
        counts[lowercase, strip] = len({tuple(ours.encode(w)) for w in texts[0].split(" ")[:4]})
        assert [ours.token(i) for i in ours.encode("中文")] == ["中", "文"]
    # Four words: all alike; é apart; all apart; Été = Ete, été = ete, ETE.
    assert counts == {(True, None): 1, (True, False): 2, (False, False): 4, (False, True): 3}


def test_wordpiece_token_characters_by_hand():
    ours = wordpiece.Tokenizer.train(["abab abab # ## ab"] * 2, wordpiece.Config(vocab_size=100))
    counts = dict(
        zip(map(ours.token, range(ours.vocab_size)), ours.token_characters(), strict=True)
    )
    assert counts["[UNK]"] == 1
    assert counts["[CLS]"] == counts["[MASK]"] == 0
    assert (counts["#"], counts["##b"], counts["abab"]) == (1, 1, 4)


def test_contract_is_kept(ours):
    assert ours.encode_batch(TEXTS) == [ours.encode(text) for text in TEXTS]
    assert ours.encode("") == []
    assert ours.token_characters().shape == (ours.vocab_size,)
    assert ours.token_characters().dtype == np.int32
    for token_id in (-1, ours.vocab_size):
        with pytest.raises(DataError, match=f"^token id {token_id} is not among the"):
            ours.decode([token_id])
    with pytest.raises(DataError, match=r"^character 2 is the lone surrogate U\+DC00"):
        ours.encode("a\udc00")


@pytest.mark.fast_cases(1)
def test_copy_in_another_process_gives_the_same_ids(ours):
    for each in (ours, ours.extended(["[X]"])):
        copy = pickle.loads(pickle.dumps(each))
        assert copy.fingerprint() == each.fingerprint()
        assert copy.encode(CONTROL) == each.encode(CONTROL)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.map(ours.encode, TEXTS) == ours.encode_batch(TEXTS)


def test_load_saved_is_equal_and_unfit_is_named(ours, name, tmp_path):
    ours.save(tmp_path)
    kind = type(ours)
    assert kind.load(tmp_path).fingerprint() == ours.fingerprint()
    assert kind.load(tmp_path / "tokenizer.json").encode(CONTROL) == ours.encode(CONTROL)
    other = PARTS["bpe" if name != "bpe" else "unigram"].Tokenizer
    with pytest.raises(FileError, match=f"has a {kind.model} model; kind {other.kind} needs"):
        other.load(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(FileError, match=r"tokenizer\.json: not a tokenizer\.json: "):
        kind.load(tmp_path)
    with pytest.raises(FileError, match="no such file"):
        kind.load(tmp_path / "absent")


def test_ids_with_a_hole_are_named(byte_pairs, tmp_path):
    # A text need not have them: rows ended in an IndexError, or a new token got the id of another.
    byte_pairs.save(tmp_path)
    file = tmp_path / "tokenizer.json"
    content = json.loads(file.read_text())
    content["model"]["vocab"] |= {max(content["model"]["vocab"], key=len): 402}
    file.write_text(json.dumps(content))
    said = f"^{file}: its ids have a hole: 400 tokens, ids up to 402$"
    with pytest.raises(FileError, match=said):
        bpe.Tokenizer.load(tmp_path)


@pytest.mark.parametrize("encode", ["encode_batch", "encode_with_offsets"])
def test_pattern_that_runs_away_is_named(byte_pairs, tmp_path, encode):
    byte_pairs.save(tmp_path)
    file = tmp_path / "tokenizer.json"
    content = json.loads(file.read_text())
    split = {"type": "Split", "pattern": {"Regex": "(a*)*$"}}
    split |= {"behavior": "Isolated", "invert": False}
    parts = [split, content["pre_tokenizer"]]
    content["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": parts}
    file.write_text(json.dumps(content))
    patterned = pickle.loads(pickle.dumps(bpe.Tokenizer.load(tmp_path)))
    assert patterned.encode("kato b") == byte_pairs.encode("kato b")
    with pytest.raises(FileError, match=f"^{file}: its pattern fails on a text: Onig: Regex"):
        getattr(patterned, encode)(["a" * 60 + "b"])


def test_import_stays_light():
    kinds = ("cpm_ant", "bpe", "wordpiece", "unigram")
    parts = ", ".join(f"nlpkit.tokenizers.{name}" for name in kinds)
    code = f"import sys, {parts}; print({{'torch', 'transformers'}} & {{*sys.modules}})"
    command = [sys.executable, "-c", code]
    run = subprocess.run(command, capture_output=True, text=True, check=True, env=os.environ)
    assert run.stdout.strip() == "set()"
