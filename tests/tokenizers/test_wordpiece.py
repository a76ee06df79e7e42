"""WordPiece against transformers' BertTokenizer: vocab.txt, settings, ids on real text."""

import json
from pathlib import Path

import pytest
from transformers import AutoTokenizer, BertTokenizer

from nlpkit.checkpoints import tokenizer_files
from nlpkit.errors import FileError
from nlpkit.tokenizers import wordpiece
from nlpkit.tokenizers.wordpiece import Config, Tokenizer

ROOT = Path(__file__).resolve().parents[2]
REAL = ROOT.parent / "shared" / "data"
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
SMALL = [
    *SPECIAL, "un", "##aff", "##able", "the", "é", "e", "##t", "##é", "T", "##h", "中", "文",
    "中文", "##文", "！", "!", "İ", "i", "##x",
]  # fmt: skip
TEXTS = [
    "The UNAFFABLE été, Eté! 中文！ the中文the", "un\u00adaffable \x00\ufffd\u200bthe\tet\r\n",
    "e\u0301t\u00e9 İx ﬁ Ⅷ", "the 𠀀中 한국어 ひらがな 。", "x" * 101, "[MASK] [UNK] ##aff", "",
]  # fmt: skip
# do_lower_case, strip_accents, tokenize_chinese_chars
SETTINGS = [
    {}, {"do_lower_case": False}, {"strip_accents": False}, {"tokenize_chinese_chars": False},
    {"do_lower_case": False, "strip_accents": True, "tokenize_chinese_chars": False},
]  # fmt: skip


def _write(directory: Path, tokens: list[str], settings: dict) -> Path:
    """Write a directory as transformers' releases of BERT have it, without a tokenizer.json."""
    (directory / "vocab.txt").write_text("\n".join(tokens) + "\n", encoding="utf-8")
    known = {"tokenizer_class": "BertTokenizer", **settings}
    (directory / "tokenizer_config.json").write_text(json.dumps(known))
    return directory


def _theirs(directory: Path) -> BertTokenizer:
    tokenizer = BertTokenizer.from_pretrained(directory)
    assert type(tokenizer) is BertTokenizer
    return tokenizer


def _ids(theirs: BertTokenizer, texts: list[str]) -> list[list[int]]:
    """Return ids without those around a text; a special token that is written is text."""
    return theirs(texts, add_special_tokens=False, split_special_tokens=True)["input_ids"]


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_vocab_txt_gives_the_ids_of_transformers(tmp_path: Path, settings: dict) -> None:
    _write(tmp_path, SMALL, settings)
    kind, ours = tokenizer_files.load(tmp_path)
    theirs = _theirs(tmp_path)
    assert kind == "wordpiece"
    assert ours.encode_batch(TEXTS) == _ids(theirs, TEXTS)
    assert ours.vocab_size == len(theirs) == len(SMALL)
    assert [ours.token(i) for i in range(len(SMALL))] == SMALL
    assert [ours.special_id(token) for token in SPECIAL] == [0, 1, 2, 3, 4]
    assert (ours.unk_id, ours.mask_id) == (1, 4)
    # The file alone, and without settings: those of transformers.
    (tmp_path / "tokenizer_config.json").unlink()
    assert Tokenizer.load(tmp_path / "vocab.txt").encode_batch(TEXTS) == _ids(
        _theirs(tmp_path), TEXTS
    )


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_vocab_txt_saved_opens_in_transformers_with_equal_ids(tmp_path: Path, settings) -> None:
    ours = Tokenizer.load(_write(tmp_path, SMALL, settings))
    (tmp_path / "saved").mkdir()
    ours.save(tmp_path / "saved")
    again = AutoTokenizer.from_pretrained(tmp_path / "saved")
    assert _ids(again, TEXTS) == ours.encode_batch(TEXTS)
    assert again("the", "中文")["input_ids"] == _theirs(tmp_path)("the", "中文")["input_ids"]
    assert Tokenizer.load(tmp_path / "saved").fingerprint() == ours.fingerprint()


def test_settings_of_training_are_those_of_transformers(tmp_path: Path) -> None:
    texts = ["The café of 中文 and 中国人", "été THE and Ünder"] * 3
    for lowercase, strip, split in ((True, None, True), (False, None, False), (False, True, True)):
        config = Config(
            vocab_size=200, lowercase=lowercase, strip_accents=strip, split_chinese=split
        )
        ours = Tokenizer.train(texts, config)
        tokens = [ours.token(i) for i in range(ours.vocab_size)]
        settings = {
            "do_lower_case": lowercase, "strip_accents": strip, "tokenize_chinese_chars": split,
        }  # fmt: skip
        theirs = _theirs(_write(tmp_path, tokens, settings))
        assert ours.encode_batch([*texts, *TEXTS]) == _ids(theirs, [*texts, *TEXTS])
        assert ("中" in tokens) or not split


@pytest.mark.parametrize(
    ("tokens", "settings", "message"),
    [
        ([*SMALL, "the"], {}, "vocab.txt:25: 'the' is already on line 9"),
        (SMALL[2:], {}, "vocab.txt: no [UNK]; a vocabulary of BERT has them"),
        (SMALL, {"unk_token": "<unk>"}, "unk_token is '<unk>'; kind wordpiece has [UNK]"),
        (SMALL, {"mask_token": {"content": "<m>"}}, "mask_token is '<m>'; kind wordpiece has"),
        (SMALL, {"do_lower_case": "no"}, "do_lower_case is 'no'; must be true or false"),
    ],
    ids=["twice", "no unknown", "another name", "another object", "no boolean"],
)
def test_unfit_file_is_named_in_one_line(tmp_path: Path, tokens, settings, message) -> None:
    with pytest.raises(FileError) as error:
        Tokenizer.load(_write(tmp_path, tokens, settings))
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def _compare(directory: Path, texts: list[str], config: Config) -> None:
    ours = Tokenizer.train(texts, config)
    tokens = [ours.token(i) for i in range(ours.vocab_size)]
    theirs = _theirs(_write(directory, tokens, {"do_lower_case": config.lowercase}))
    assert ours.encode_batch(texts) == _ids(theirs, texts)
    ours.save(directory / "saved")
    assert _ids(AutoTokenizer.from_pretrained(directory / "saved"), texts) == _ids(theirs, texts)


@pytest.mark.parametrize("language", ["en", "zh"])
def test_ids_of_shipped_text_equal_transformers(tmp_path: Path, language: str) -> None:
    texts = []
    for file in sorted((ROOT / "data" / language / "valid").glob("*.jsonl")):
        lines = file.read_text(encoding="utf-8").splitlines()
        texts += [json.loads(line)["text"] for line in lines]
    assert len(texts) > 100
    _compare(tmp_path, texts, wordpiece.Config(vocab_size=2000))


@pytest.mark.real_data
@pytest.mark.parametrize("name", ["en_lm/wikitext2.valid.txt", "zh_lm/clue_small.txt"])
@pytest.mark.parametrize("lowercase", [True, False])
def test_ids_of_real_text_equal_transformers(tmp_path: Path, name: str, lowercase: bool) -> None:
    texts = (REAL / name).read_text(encoding="utf-8").split("\n")[:400]
    _compare(tmp_path, texts, wordpiece.Config(vocab_size=8000, lowercase=lowercase))
