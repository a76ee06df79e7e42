"""CPM-Ant's tokenizer against `transformers.CpmAntTokenizer`, and by hand arithmetic."""

import json
import multiprocessing
import pickle
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nlpkit.errors import DataError, FileError
from nlpkit.tokenizers import cpm_ant
from nlpkit.tokenizers.cpm_ant import SPECIAL_TOKENS, Tokenizer

REAL = Path(__file__).parents[3] / "shared" / "data" / "zh_lm"
WORDS = ["我", "爱", "中", "国", "人", "民", "中国", "人民", "a", "b", "ab", "abc", "1", "12", ".."]
SMALL = [*SPECIAL_TOKENS, *WORDS, "<", ">", "/", "s", "_", "n", "<s0>", "\u2028", "\x00"]
TRICKY = [
    *SPECIAL_TOKENS,
    *(" ", "  ", "\n", "\t", "\r", "\r\n", "\u2028", "\x85", "\x0b", "\x00", "\ufeff", "\u3000"),
    *(
        "😀",
        "👩‍👩‍👧",
        "é",
        "e\u0301",
        "中国人民解放军",
        "一百二十三",
        "3.14%",
        "C++",
        "#",
        "##",
        "...",
        "<s0>",
    ),
    *("x" * 200, "x" * 201, "ab" * 99, "龘", "𠀀", "1234567890" * 21),
]
ANY_TEXT = st.lists(
    st.one_of(st.text(max_size=8), st.sampled_from(TRICKY), st.text("我爱中国人民abc12. <>/s_n")),
    max_size=12,
).map("".join)


def theirs(directory: Path, tokens: list[str]):
    from transformers import CpmAntTokenizer

    file = directory / "vocab.txt"
    file.write_text("\n".join(tokens), encoding="utf-8", newline="\n")
    return CpmAntTokenizer(str(file))


def bare(tokenizer, text: str) -> list[int]:
    return tokenizer.convert_tokens_to_ids(tokenizer._tokenize(text))


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    return Tokenizer(SMALL), theirs(tmp_path_factory.mktemp("small"), SMALL)


@pytest.fixture(scope="module")
def real_pair():
    from transformers import CpmAntTokenizer

    file = REAL / "vocab_ant.txt"
    return Tokenizer.load(file), CpmAntTokenizer(str(file))


@settings(max_examples=300, deadline=None)
@given(text=ANY_TEXT)
def test_encode_any_text_equals_transformers(pair, text):
    ours, hf = pair
    ids = ours.encode(text)
    assert ids == bare(hf, text)
    assert ids == hf(text, add_special_tokens=False, split_special_tokens=True)["input_ids"]


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(text=ANY_TEXT)
def test_decode_without_unknown_returns_the_text(pair, text):
    ours, hf = pair
    ids = ours.encode(text)
    assert ours.decode(ids) == hf.decode(ids)
    if ours.unk_id not in ids:
        assert ours.decode(ids) == text
        assert ours.token_characters()[ids].sum() == len(text)


@pytest.mark.parametrize("token", SPECIAL_TOKENS)
def test_encode_control_token_in_text_is_text(pair, token):
    ours, hf = pair
    special = set(range(10)) - {ours.unk_id}
    assert not special & set(ours.encode(f"我{token}爱"))
    # Not even where a segmenter made one word of it.
    assert not special & set(ours._match(token))
    # What transformers does: named tokens are obeyed, `</_>` and `</n>` become <unk>.
    named = {"<s>": 6, "</s>": 7, "<d>": 8, "</d>": 9, "<pad>": 0, "<unk>": 1, "</_>": 1, "</n>": 1}
    called = hf(f"我{token}爱")["input_ids"]
    if token in named:
        assert called == [6, 10, named[token], 11]
    else:
        assert called == [6, *ours.encode(f"我{token}爱")]


def test_encode_by_hand_is_the_greedy_longest_match(pair):
    ours, _ = pair
    ids = {token: place for place, token in enumerate(SMALL)}
    # jieba: 中国人民 / 空格 / abcab / 换行 / 我; 龘 is in no entry.
    found = ours.encode("中国人民 abcab\n我龘")
    expected = ["中国", "人民", "</_>", "abc", "ab", "</n>", "我", "<unk>"]
    assert found == [ids[token] for token in expected]
    assert ours.encode("") == []
    assert ours.encode("x" * 201) == [1]
    assert ours.encode("ab" * 100) == [ids["ab"]] * 100


def test_encode_lone_surrogate_is_named(pair):
    with pytest.raises(DataError, match=r"^character 3 is the lone surrogate U\+D800"):
        pair[0].encode("我爱\ud800")


def test_encode_small_memory_gives_the_same_ids(pair, monkeypatch):
    _, hf = pair
    monkeypatch.setattr(cpm_ant, "_CACHED_WORDS", 3)
    ours = Tokenizer(SMALL)
    text = "中国人民 abcab\n我爱中国 12.. 人民" * 5
    assert ours.encode(text) == bare(hf, text)
    assert ours._cached_match.cache_info().currsize == 3


@pytest.mark.parametrize("times", [6_250, pytest.param(62_500, marks=pytest.mark.slow)])
def test_encode_long_line_equals_transformers(pair, times):
    ours, hf = pair
    text = "我爱中国 abcab12龘..人民\n" * times
    assert len(text) == 18 * times
    assert ours.encode(text) == bare(hf, text)
    assert ours.encode("a" * 1_000_000) == [1]


def test_contract_of_the_small_vocabulary(pair):
    ours, _ = pair
    named = (ours.pad_id, ours.unk_id, ours.bos_id, ours.eos_id, ours.mask_id)
    assert named == (0, 1, 6, 7, 2)
    assert ours.vocab_size == len(SMALL)
    assert [ours.token(i) for i in range(len(SMALL))] == SMALL
    counts = ours.token_characters()
    assert counts.dtype == np.int32
    # <pad> <unk> <mask> <sep> </n> </_> <s> </s> <d> </d>, then as long as they are.
    assert counts.tolist() == [0, 1, 0, 0, 1, 1, 0, 0, 0, 0, *map(len, SMALL[10:])]
    assert ours.encode_batch(["我", "", "爱"]) == [[10], [], [11]]
    assert ours.decode([6, 8, 10, 1, 9, 7, 0]) == "<d>我<unk></d>"


@pytest.mark.parametrize("token_id", [-1, len(SMALL)])
def test_decode_foreign_id_is_named(pair, token_id):
    message = rf"^token id {token_id} is not among the {len(SMALL)} tokens$"
    with pytest.raises(DataError, match=message):
        pair[0].decode([10, token_id])
    with pytest.raises(DataError, match=message):
        pair[0].token(token_id)


@pytest.mark.parametrize("end", ["\n", "", "\r\n"])
def test_load_any_line_end_gives_the_same_tokens(tmp_path, end):
    file = tmp_path / "vocab.txt"
    file.write_bytes(((end or "\n").join(SMALL) + end).encode())
    assert Tokenizer.load(file).fingerprint() == Tokenizer(SMALL).fingerprint()
    assert Tokenizer.load(tmp_path).fingerprint() == Tokenizer(SMALL).fingerprint()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("\n".join([*SMALL, "我"]), ":35: '我' is already on line 11"),
        ("\n".join([*SMALL, "", "x"]), ":35: the line is empty; expected one token a line"),
        ("\n".join([*SMALL, " "]), ":35: a bare space, which is written </_>; expected one"),
        ("\n".join(SMALL[1:]), ": no <pad>; a CPM-Ant vocabulary has <pad> <unk> </n>"),
        (b"<pad>\n\xff", ": byte 7 is not UTF-8"),
        ("", ":1: the line is empty"),
    ],
)
def test_load_unfit_file_is_named(tmp_path, content, message):
    file = tmp_path / "vocab.txt"
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(FileError) as error:
        Tokenizer.load(file)
    assert str(error.value).startswith(f"{file}{message}")
    assert "\n" not in str(error.value)


def test_load_missing_and_save_unwritable_are_named(tmp_path, pair):
    with pytest.raises(FileError, match=r"vocab\.txt: no such file"):
        Tokenizer.load(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(FileError, match="cannot be written"):
        pair[0].save(tmp_path / "file" / "below")


@pytest.mark.parametrize("config", [None, {"model_type": "cpmant"}])
def test_save_opens_in_transformers_with_equal_ids(tmp_path, pair, config):
    from transformers import AutoTokenizer

    ours, _ = pair
    ours.save(tmp_path)
    if config:
        (tmp_path / "config.json").write_text(json.dumps(config))
    hf = AutoTokenizer.from_pretrained(tmp_path)
    assert type(hf).__name__ == "CpmAntTokenizer"
    text = "我爱 中国人民\nabc 12龘"
    assert hf(text)["input_ids"] == [ours.bos_id, *ours.encode(text)]
    assert len(hf) == ours.vocab_size
    named = (hf.pad_token_id, hf.unk_token_id, hf.bos_token_id, hf.eos_token_id)
    assert named == (ours.pad_id, ours.unk_id, ours.bos_id, ours.eos_id)
    hf.save_pretrained(tmp_path / "again")
    assert Tokenizer.load(tmp_path / "again").fingerprint() == ours.fingerprint()


@pytest.mark.fast_cases(1)
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_tokenizer_in_another_process_gives_the_same_ids(pair, method):
    ours, _ = pair
    texts = ["我爱中国", "abc ab\n12"]
    copy = pickle.loads(pickle.dumps(ours))
    assert copy.fingerprint() == ours.fingerprint()
    with multiprocessing.get_context(method).Pool(1) as pool:
        assert pool.map(ours.encode, texts) == ours.encode_batch(texts)
        assert pool.apply(ours.fingerprint) == ours.fingerprint()


def test_fingerprint_differs_with_the_vocabulary():
    swapped = [*SMALL[:-2], SMALL[-1], SMALL[-2]]
    prints = {Tokenizer(tokens).fingerprint() for tokens in (SMALL, SMALL[:-1], swapped)}
    assert len(prints) == 3
    # Written down once: a change means that stores made before are made anew.
    assert Tokenizer(SPECIAL_TOKENS).fingerprint().startswith("f5bd837dded7bf13")


@pytest.mark.real_data
class TestRealData:
    def test_encode_real_texts_equals_transformers(self, real_pair):
        ours, hf = real_pair
        texts = (REAL / "clue_small.txt").read_text(encoding="utf-8").split("\n")
        texts += (REAL / "poetry_songci.txt").read_text(encoding="utf-8").split("\n")[:400]
        for name, most in (("wiki_cmrc_contexts.jsonl", 848), ("poetry_tang.jsonl", 400)):
            lines = (REAL / name).read_text(encoding="utf-8").split("\n")[:most]
            texts += [json.loads(line)["text"] for line in lines if line]
        assert len(texts) > 4000
        for text, ids in zip(texts, ours.encode_batch(texts), strict=True):
            assert ids == bare(hf, text)

    @settings(max_examples=300, deadline=None)
    @given(text=ANY_TEXT)
    def test_encode_any_text_equals_transformers_real_vocabulary(self, real_pair, text):
        ours, hf = real_pair
        ids = ours.encode(text)
        assert ids == bare(hf, text)
        assert ours.decode(ids) == hf.decode(ids)

    def test_special_tokens_are_those_of_the_real_file(self, real_pair):
        ours, hf = real_pair
        assert ours._tokens[:10] == SPECIAL_TOKENS
        assert ours.vocab_size == hf.vocab_size == 30720
