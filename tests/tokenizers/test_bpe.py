"""GPT-2's byte pair encoding from its own files, id for id against transformers' GPT2Tokenizer.

Its real vocabulary is not shipped. Here a smaller one of the same form is trained on the texts in
`data/`; `NLPKIT_GPT2_VOCABULARY` names a directory with the real one, for the same tests.
"""

import json
import os
import random
from pathlib import Path

import pytest
from transformers import AutoTokenizer, GPT2TokenizerFast

from nlpkit.checkpoints import tokenizer_files
from nlpkit.errors import FileError
from nlpkit.evaluate import attention_maps
from nlpkit.tokenizers import bpe, gpt1_bpe
from nlpkit.tokenizers.library.shown import show_token
from nlpkit.tokenizers.library.source_and_target import join_sides
from tests.conftest import REAL_DATA

ROOT = Path(__file__).parents[2]
END = "<|endoftext|>"
LAYOUTS = [("vocab.json", "merges.txt"), ("encoder.json", "vocab.bpe")]
# What the pattern of GPT-2 treats in its own way: contractions, numbers, spaces, other scripts.
HARD = [
    "I'll don't he'd WE'RE 'tis it's", "  two  spaces \n\n\t tab\r\n end  ", "3.14% 1,000 x2 ²½",
    "naïve café Ünïcödé e\u0301", "我爱北京天安门，2026年！", "日本語 한국어 हिन्दी עברית",
    "😀👩‍👩‍👧 \u200b\u00a0\u3000\u2028\x00",
    "", " ", "<|endoftext|>", "a<|endoftext|>b", "_under_score__ C++ #!/bin/sh",
]  # fmt: skip


def _texts(pattern: str, count: int) -> list[str]:
    rows = [
        json.loads(line)["text"]
        for path in sorted((ROOT / "data").glob(pattern))
        for line in path.read_text(encoding="utf-8").splitlines()
    ]
    assert len(rows) >= count
    return rows[:count]


def _write(folder: Path, ids: dict[str, int], merges: list[str], names=LAYOUTS[0]) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / names[0]).write_text(json.dumps(ids), encoding="utf-8")
    text = "#version: 0.2\n" + "\n".join(merges) + "\n"
    (folder / names[1]).write_text(text, encoding="utf-8")
    return folder


def _real() -> tuple[dict[str, int], list[str]]:
    folder = Path(os.environ["NLPKIT_GPT2_VOCABULARY"])
    vocab, merges = next(pair for pair in LAYOUTS if (folder / pair[0]).is_file())
    lines = (folder / merges).read_text(encoding="utf-8").split("\n")
    ids = json.loads((folder / vocab).read_text(encoding="utf-8"))
    return ids, [line for line in lines if line and not line.startswith("#version")]


@pytest.fixture(scope="module")
def files() -> tuple[dict[str, int], list[str]]:
    """Vocabulary and merges in GPT-2's order: bytes, merges, the end token last."""
    if os.environ.get("NLPKIT_GPT2_VOCABULARY"):
        return _real()
    texts = _texts("en/train/*.jsonl", 300) + _texts("zh/train/*.jsonl", 300)
    made = bpe.Tokenizer.train(texts, bpe.Config(vocab_size=1500))
    model = json.loads(made._library.to_str())["model"]
    ordered = sorted(model["vocab"], key=model["vocab"].get)[2:]  # <|endoftext|> and <pad> first
    ids = {token: number for number, token in enumerate([*ordered, END])}
    return ids, [" ".join(pair) for pair in model["merges"]]


@pytest.fixture(scope="module")
def ours(files, tmp_path_factory) -> bpe.Tokenizer:
    kind, tokenizer = tokenizer_files.load(_write(tmp_path_factory.mktemp("gpt2"), *files))
    assert kind == "bpe"
    return tokenizer


@pytest.fixture(scope="module")
def oracle(files) -> GPT2TokenizerFast:
    ids, merges = files
    return GPT2TokenizerFast(vocab=ids, merges=[tuple(line.split(" ")) for line in merges])


def _fuzz(count: int) -> list[str]:
    draw = random.Random(0)
    alphabets = ["abc XYZ'’sdt   ", "0123456789.,%$", "中文字，。かな한글",
                 "àéîõ\u0301ß\u200b\u00a0\ufeff",
                 "\n\t\r \x00\x85\u2028", "😀🏳️‍🌈", "<|endoftext|>"]  # fmt: skip
    return [
        "".join(draw.choices("".join(draw.sample(alphabets, draw.randint(1, 4))), k=40))
        for _ in range(count)
    ]


@pytest.mark.parametrize("names", LAYOUTS)
def test_ids_of_hand_written_files_are_by_the_merges(tmp_path, names) -> None:
    ids = {**bpe._BYTE_OF, "Ġt": 256, "he": 257, "Ġthe": 258, END: 259}
    _write(tmp_path, ids, ["Ġ t", "h e", "Ġt he"], names)
    kind, tokenizer = tokenizer_files.load(tmp_path)
    assert kind == "bpe"
    # he | space t, he | . | the three bytes of one character
    found = tokenizer.encode("he the.中")
    assert found == [257, 258, ord("."), *"中".encode()]
    assert tokenizer.decode(found) == "he the.中"
    assert (tokenizer.bos_id, tokenizer.eos_id, tokenizer.pad_id) == (259, 259, None)
    assert tokenizer.token_characters()[[257, 258, 259]].tolist() == [2, 4, 0]


def test_tokens_of_bytes_are_shown_as_text(tmp_path) -> None:
    symbol = {byte: text for text, byte in bpe._BYTE_OF.items()}
    # A whole character; a part of one after a whole one; a backslash, a newline, a space and é.
    raw = ["我".encode(), "我".encode() + b"\xe4\xbb", b"\\n\n", " é".encode()]
    tokens = ["".join(symbol[byte] for byte in each) for each in raw]
    ids = bpe._BYTE_OF | {token: 256 + number for number, token in enumerate(tokens)} | {END: 260}
    _write(tmp_path, ids, [], LAYOUTS[0])
    tokenizer = bpe.Tokenizer.load(tmp_path)
    expected = ["我", "我<0xE4><0xBB>", "\\n\\n", "␣é", END]
    assert [show_token(tokenizer, number) for number in range(256, 261)] == expected
    assert [tokenizer.token(number) for number in range(256, 261)] == [*tokens, END]
    assert tokens[0] == "æĪĳ"
    assert [show_token(tokenizer, byte) for byte in (0xE6, 0x41, 0x0A)] == ["<0xE6>", "A", "\\n"]
    two = join_sides(tokenizer, tokenizer)
    assert show_token(two, 256) == "我"
    # Tokens of batches and masks, and of figures of attention, may be of either side.
    assert show_token(two, 257) == expected[1]
    assert attention_maps._list_words(two, [256, 257, 260]) == ["我", expected[1], END]


def test_ids_of_hard_and_random_texts_equal_transformers(ours, oracle) -> None:
    texts = HARD + _fuzz(2000)
    assert ours.encode_batch(texts) == oracle(texts, split_special_tokens=True)["input_ids"]
    assert [ours.decode(ids) for ids in ours.encode_batch(texts)] == texts


@pytest.mark.parametrize("language", ["en", "zh"])
def test_ids_of_shipped_texts_equal_transformers(ours, oracle, language) -> None:
    texts = _texts(f"{language}/valid/*.jsonl", 50)
    ids = ours.encode_batch(texts)
    assert ids == oracle(texts)["input_ids"]
    assert [ours.decode(row) for row in ids] == texts


@pytest.mark.real_data
@pytest.mark.parametrize(
    "name",
    ["en_lm/wikitext2.valid.txt", "en_lm/c4_demo.jsonl", "zh_lm/clue_small.txt",
     "zh_lm/poetry_tang.jsonl"],
)  # fmt: skip
def test_ids_of_real_texts_equal_transformers(ours, oracle, name) -> None:
    texts = (REAL_DATA / name).read_text(encoding="utf-8").splitlines()
    assert len(texts) >= 300
    assert ours.encode_batch(texts) == oracle(texts, split_special_tokens=True)["input_ids"]


def test_saved_tokenizer_opens_in_transformers_and_comes_back(ours, oracle, tmp_path) -> None:
    ours.save(tmp_path / "ours")
    theirs = AutoTokenizer.from_pretrained(tmp_path / "ours")
    assert theirs(HARD)["input_ids"] == oracle(HARD)["input_ids"]
    assert (theirs.eos_token_id, theirs.bos_token_id) == (ours.eos_id, ours.bos_id)
    assert bpe.Tokenizer.load(tmp_path / "ours").fingerprint() == ours.fingerprint()
    oracle.save_pretrained(tmp_path / "theirs")
    kind, again = tokenizer_files.load(tmp_path / "theirs")
    assert kind == "bpe"
    assert again.encode_batch(HARD) == ours.encode_batch(HARD)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"a": None}, "no token for the byte 0x61: not byte-level"),
        ({END: None}, "no <|endoftext|>: not GPT-2's"),
        ({"b": 1}, "the ids are not 0 to"),
    ],
)
def test_vocabulary_of_another_kind_is_refused_in_one_line(
    files, change, message, tmp_path
) -> None:
    ids, merges = files
    left = [token for token in ids if change.get(token, 0) is not None]
    kept = {token: number for number, token in enumerate(left)} | {
        token: number for token, number in change.items() if number is not None
    }
    with pytest.raises(FileError) as raised:
        bpe.Tokenizer.load(_write(tmp_path, kept, merges[:1]))
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


def test_vocabularies_of_gpt1_and_gpt2_are_told_apart(files, tmp_path) -> None:
    folder = _write(tmp_path / "gpt2", *files)
    with pytest.raises(FileError, match="not GPT-1's"):
        gpt1_bpe.Tokenizer.load(folder)
    gpt1 = _write(tmp_path / "gpt1", {"<unk>": 0, "a</w>": 1, "a": 2}, [])
    assert tokenizer_files.load(gpt1)[0] == "gpt1_bpe"
    with pytest.raises(FileError, match="not byte-level"):
        bpe.Tokenizer.load(gpt1)
