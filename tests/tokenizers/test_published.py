"""Tokenizers as families publish them: the ids are transformers', and SentencePiece's own."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import transformers

from nlpkit import registry
from nlpkit.checkpoints import tokenizer_files
from nlpkit.errors import FileError
from nlpkit.tokenizers import bpe, wordpiece
from nlpkit.tokenizers.library import sentencepiece as ours
from nlpkit.tokenizers.library.hf import LibraryTokenizer
from tests._nasty import strings

ROOT = Path(__file__).parents[2]
CONTROL = {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1}
BERTS = {"pad_piece": "[PAD]", "bos_piece": "[CLS]", "eos_piece": "[SEP]", "unk_piece": "[UNK]"}
# As each was trained: https://github.com/google/sentencepiece/blob/master/doc/options.md
TRAINED: dict[str, dict[str, Any]] = {
    "t5": CONTROL,
    "roberta": {},
    "albert": {
        **{"pad_id": 0, "unk_id": 1, "bos_id": -1, "eos_id": -1},
        "control_symbols": ["[CLS]", "[SEP]", "[MASK]"],
        "user_defined_symbols": ["(", ")", '"', "-", ".", "–", "£", "€"],
        "normalization_rule_name": "nmt_nfkc_cf",
    },
    "xlnet": {"control_symbols": ["<cls>", "<sep>", "<pad>", "<mask>", "<eod>", "<eop>"]},
    "deberta": {"pad_id": 0, "bos_id": 1, "eos_id": 2, "unk_id": 3, **BERTS},
    "llama": {
        **{"model_type": "bpe", "byte_fallback": True, "normalization_rule_name": "identity"},
        **{"remove_extra_whitespaces": False, "split_digits": True},
        "allow_whitespace_only_pieces": True,
    },
    "lines": {**CONTROL, "byte_fallback": True, "normalization_rule_name": "identity"},
    "words": {"model_type": "word"},
    "suffix": {"treat_whitespace_as_suffix": True},
    "symbols": {"model_type": "bpe", "user_defined_symbols": ["<x>"]},
}
# The model, its file's name, the class, and on how many strings transformers is SentencePiece's
# equal. Of the others most are control tokens as text, or begin with spaces (Llama).
LAYOUTS = {
    "t5": ("t5", "spiece.model", "T5Tokenizer", 170),
    "xlm_roberta": ("roberta", "sentencepiece.bpe.model", "XLMRobertaTokenizer", 160),
    "camembert": ("roberta", "sentencepiece.bpe.model", "CamembertTokenizer", 160),
    "deberta_v2": ("deberta", "spm.model", "DebertaV2Tokenizer", 140),
    "llama": ("llama", "tokenizer.model", "LlamaTokenizer", 180),
}


def _texts() -> list[str]:
    files = ("en/train/stories.jsonl", "en/train/dialogue.jsonl", "zh/train/explain.jsonl")
    lines = [line for f in files for line in (ROOT / "data" / f).read_text("utf-8").splitlines()]
    return [part for line in lines[::5][:300] for part in json.loads(line)["text"].split("\n")]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return what trains a model of SentencePiece once."""
    trainer = pytest.importorskip("sentencepiece").SentencePieceTrainer
    folder, texts = tmp_path_factory.mktemp("models"), _texts()

    def make(name: str) -> Path:
        file = folder / f"{name}.model"
        if not file.exists():
            more = {"vocab_size": 1200, "character_coverage": 0.98, "hard_vocab_limit": False}
            settings = {**more, "minloglevel": 2, **TRAINED[name]}
            trainer.train(
                sentence_iterator=iter(texts), model_prefix=str(folder / name), **settings
            )
        return file

    return make


def _directory(folder: Path, model: Path, name: str, settings: dict[str, Any]) -> Path:
    folder.mkdir(exist_ok=True)
    shutil.copy(model, folder / name)
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), "utf-8")
    return folder


@pytest.mark.fast_cases(2)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_pieces_have_the_ids_of_sentencepiece_and_of_transformers(
    layout: str, model: Callable[[str], Path], tmp_path: Path
) -> None:
    name, file, made, expected = LAYOUTS[layout]
    path = _directory(tmp_path / "x", model(name), file, {"tokenizer_class": made})
    _, tokenizer = tokenizer_files.load(path)
    theirs = getattr(transformers, made).from_pretrained(path)
    import sentencepiece

    reference = sentencepiece.SentencePieceProcessor(model_file=str(path / file))
    assert tokenizer.vocab_size == len(theirs)
    for role in ("bos_id", "eos_id", "unk_id"):
        assert getattr(tokenizer, role) == getattr(theirs, f"{role[:3]}_token_id"), role
    equal, other = 0, []
    for text in strings():
        found = tokenizer.encode(text)
        pieces = [reference.id_to_piece(i) for i in reference.encode(text)]
        other += [text] if [tokenizer.token(i) for i in found] != pieces else []
        both = theirs(text, add_special_tokens=False, split_special_tokens=True).input_ids
        equal += found == both
    # The library composes a mark with the letter before it by grapheme, SentencePiece by character.
    assert other in ([], ["cat‘xﬁ\u0301我"])
    assert equal >= expected


def test_spaces_at_the_ends_of_lines_are_kept_as_in_sentencepiece(
    model: Callable[[str], Path], tmp_path: Path
) -> None:
    # transformers 5.23 writes the line ends of such a model as spaces.
    path = _directory(tmp_path / "x", model("lines"), "spiece.model", {})
    _, tokenizer = tokenizer_files.load(path)
    import sentencepiece

    reference = sentencepiece.SentencePieceProcessor(model_file=str(path / "spiece.model"))
    for text in (" a\n  b \nc ", "  a \n\n b\n", " \n a \n ", "a \n▁\n b▁"):
        pieces = [reference.id_to_piece(i) for i in reference.encode(text)]
        assert [tokenizer.token(i) for i in tokenizer.encode(text)] == pieces, text


@pytest.mark.parametrize(
    ("name", "layout", "shown"), [("lines", "t5", "a A b"), ("llama", "llama", "a <0x41> b")]
)
def test_byte_that_is_written_in_a_text_has_the_ids_of_transformers(
    name: str, layout: str, shown: str, model: Callable[[str], Path], tmp_path: Path
) -> None:
    _, file, made, _ = LAYOUTS[layout]
    path = _directory(tmp_path / "x", model(name), file, {"tokenizer_class": made})
    _, tokenizer = tokenizer_files.load(path)
    theirs = getattr(transformers, made).from_pretrained(path)
    ids = tokenizer.encode("a <0x41> b")
    assert ids == theirs("a <0x41> b", add_special_tokens=False).input_ids
    assert tokenizer.decode(ids) == shown  # SentencePiece: characters also with unigrams


def test_what_albert_and_xlnet_do_before_is_transformers_own(
    model: Callable[[str], Path], tmp_path: Path
) -> None:
    for name, made in (("albert", "AlbertTokenizer"), ("xlnet", "XLNetTokenizer")):
        path = _directory(tmp_path / name, model(name), "spiece.model", {"tokenizer_class": made})
        _, tokenizer = tokenizer_files.load(path)
        theirs = getattr(transformers, made).from_pretrained(path)
        roles = [getattr(theirs, f"{role}_token_id") for role in ("bos", "eos", "unk", "pad")]
        assert [tokenizer.bos_id, tokenizer.eos_id, tokenizer.unk_id, tokenizer.pad_id] == roles
        symbols = {*"()\"-.–£€<[`'"} if name == "albert" else {*"<"}
        texts = [text for text in strings() if not symbols & {*text} and text != "\u0085a"]
        assert len(texts) > 120
        for text in texts:
            both = theirs(text, add_special_tokens=False).input_ids
            assert tokenizer.encode(text) == both, (name, text)
    # A symbol of the users' is one piece, and no space is added after it.
    tokens = tokenizer_files.load(tmp_path / "albert")[1]
    assert [tokens.token(i) for i in tokens.encode("a(b")] == ["▁a", "(", "b"]


def test_text_of_llama_may_begin_without_a_space_as_in_transformers(
    model: Callable[[str], Path], tmp_path: Path
) -> None:
    settings = {"tokenizer_class": "LlamaTokenizer", "add_prefix_space": False}
    path = _directory(tmp_path / "x", model("llama"), "tokenizer.model", settings)
    _, tokenizer = tokenizer_files.load(path)
    theirs = transformers.LlamaTokenizer.from_pretrained(path)
    for text in strings():
        if "<" not in text:
            assert tokenizer.encode(text) == theirs(text, add_special_tokens=False).input_ids, text


@pytest.mark.slow
def test_saved_pieces_open_again_everywhere(model: Callable[[str], Path], tmp_path: Path) -> None:
    for layout, (name, file, made, _) in LAYOUTS.items():
        path = _directory(tmp_path / layout, model(name), file, {"tokenizer_class": made})
        kind, tokenizer = tokenizer_files.load(path)
        tokenizer.save(tmp_path / f"{layout}-saved")
        again = tokenizer_files.load(tmp_path / f"{layout}-saved")
        theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / f"{layout}-saved")
        assert again[0] == kind
        assert again[1].fingerprint() == tokenizer.fingerprint()
        assert (again[1].bos_id, theirs.bos_token_id) == (tokenizer.bos_id,) * 2
        for text in strings():
            ids = tokenizer.encode(text)
            assert again[1].encode(text) == ids
            if "<" not in text and "[" not in text:
                assert theirs(text, add_special_tokens=False).input_ids == ids, (layout, text)
        text = "Mara wanted (a kite)."
        ((ids, spans),) = tokenizer.encode_with_offsets([text])
        for number, (start, stop) in zip(ids, spans, strict=True):
            piece = tokenizer.token(number).strip("▁")
            assert text[start:stop].strip() == piece or piece.startswith("<"), layout
        assert tokenizer.decode(ids) == text


@pytest.mark.parametrize("add_prefix", [False, True])
@pytest.mark.parametrize("kind", ["vocab.txt", "gpt2", "roberta", "tokenizer.json"])
def test_other_files_have_the_ids_of_transformers(
    kind: str, add_prefix: bool, tmp_path: Path
) -> None:
    made: Any
    if kind == "vocab.txt":
        made = wordpiece.Tokenizer.train(_texts(), wordpiece.Config(vocab_size=600))
        words = [made.token(number) for number in range(made.vocab_size)]
        (tmp_path / kind).write_text("".join(f"{word}\n" for word in words), "utf-8")
        theirs = transformers.BertTokenizer.from_pretrained(tmp_path)
    else:
        made = bpe.Tokenizer.train(_texts(), bpe.Config(vocab_size=600))
        made.save(tmp_path)
        theirs = transformers.PreTrainedTokenizerFast.from_pretrained(tmp_path)
    if kind in ("gpt2", "roberta"):
        content = json.loads((tmp_path / "tokenizer.json").read_text("utf-8"))["model"]
        tokens = [*content["vocab"]]
        if kind == "roberta":
            tokens = ["<s>", "<pad>", "</s>", "<unk>", *tokens[2:], "<mask>"]
        (tmp_path / "vocab.json").write_text(json.dumps({t: i for i, t in enumerate(tokens)}))
        merges = "".join(f"{left} {right}\n" for left, right in content["merges"])
        (tmp_path / "merges.txt").write_text(f"#version: 0.2\n{merges}", "utf-8")
        (tmp_path / "tokenizer.json").unlink()
        settings = {"add_prefix_space": True} if add_prefix else {}
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
        name = {"gpt2": "GPT2Tokenizer", "roberta": "RobertaTokenizer"}[kind]
        theirs = getattr(transformers, name).from_pretrained(tmp_path)
    _, tokenizer = tokenizer_files.load(tmp_path)
    for text in strings():
        both = theirs(text, add_special_tokens=False, split_special_tokens=True).input_ids
        assert tokenizer.encode(text) == both, text


def test_added_tokens_have_the_ids_of_transformers(tmp_path: Path) -> None:
    made = wordpiece.Tokenizer.train(_texts(), wordpiece.Config(vocab_size=300))
    words = [made.token(number) for number in range(made.vocab_size)]
    (tmp_path / "vocab.txt").write_text("".join(f"{word}\n" for word in words), "utf-8")
    added = {"kite-festival": len(words), "[ENT]": len(words) + 1}
    decoder = {
        str(number): {"content": token, "special": token == "[ENT]", "normalized": token != "[ENT]"}
        for token, number in {"[PAD]": 0, **added}.items()
    }
    (tmp_path / "added_tokens.json").write_text(json.dumps(added))
    for settings in ({"additional_special_tokens": ["[ENT]"]}, {"added_tokens_decoder": decoder}):
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
        _, tokenizer = tokenizer_files.load(tmp_path)
        theirs = transformers.BertTokenizer.from_pretrained(tmp_path)
        assert tokenizer.vocab_size == len(words) + 2 == len(theirs)
        assert theirs.convert_tokens_to_ids("[ENT]") == len(words) + 1
        assert tokenizer.special_id("[ENT]") == len(words) + 1  # as text it is text
        for text in ("the kite-festival and [ENT]", "Kite-Festival", "kite-festivals"):
            both = theirs(text, add_special_tokens=False, split_special_tokens=True).input_ids
            assert tokenizer.encode(text) == both
    assert len(words) in tokenizer.encode("the kite-festival")
    (tmp_path / "tokenizer_config.json").unlink()
    for number, token in ((7, "[X]"), (len(words) + 5, "[X]")):
        (tmp_path / "added_tokens.json").write_text(json.dumps({token: number}))
        with pytest.raises(FileError, match=rf"added token '\[X\]' has the id {number}; with voc"):
            tokenizer_files.load(tmp_path)
    (tmp_path / "added_tokens.json").unlink()
    damaged: list[tuple[dict, str]] = [
        ({"added_tokens_decoder": {"5": "x"}}, "'x' among the added tokens is no token"),
        ({"added_tokens_decoder": {"5": {"content": ["x"]}}}, "{'content': ['x']} among the"),
        ({"additional_special_tokens": [["x"]]}, "{'content': ['x']} among the"),
        ({"cls_token": {"content": ["x"]}}, "cls_token is ['x']; kind wordpiece has [CLS]"),
    ]
    for settings, said in damaged:
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
        with pytest.raises(FileError, match=re.escape(said)):
            tokenizer_files.load(tmp_path)


@pytest.mark.parametrize("kind", ["bpe", "wordpiece", "unigram"])
def test_added_tokens_that_tokenizer_json_lacks_have_the_ids_of_transformers(
    kind: str, tmp_path: Path
) -> None:
    module = registry.load("tokenizers", kind)
    made = module.Tokenizer.train(_texts(), module.Config(vocab_size=400))
    made.save(tmp_path)
    settings = json.loads((tmp_path / "tokenizer_config.json").read_text())
    size = made.vocab_size
    settings["added_tokens_decoder"] = {
        str(size + 1): {"content": "[ENT]", "special": True},
        str(size): {"content": "kite-festival", "normalized": False, "special": False},
    }
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    _, tokenizer = tokenizer_files.load(tmp_path)
    theirs = transformers.PreTrainedTokenizerFast.from_pretrained(tmp_path)
    assert tokenizer.vocab_size == size + 2 == len(theirs)
    assert tokenizer.special_id("[ENT]") == size + 1 == theirs.convert_tokens_to_ids("[ENT]")
    text = "the kite-festival and kite-festivals"
    both = theirs(text, add_special_tokens=False, split_special_tokens=True).input_ids
    assert tokenizer.encode(text) == both
    assert size in both
    whole = settings["added_tokens_decoder"]
    settings["added_tokens_decoder"] = {**whole, "5": {"content": ["x"]}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    with pytest.raises(FileError, match=r"\['x'\]\} among the added tokens is no token"):
        tokenizer_files.load(tmp_path)
    settings["added_tokens_decoder"] = {str(size + 7): {"content": "[ENT]", "special": True}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    with pytest.raises(
        FileError, match=rf"'\[ENT\]' has the id {size + 7}; with tokenizer.json it"
    ):
        tokenizer_files.load(tmp_path)


def test_what_is_not_read_is_said(model: Callable[[str], Path], tmp_path: Path) -> None:
    cases = {
        "words": ({}, "its pieces are words or characters; unigram and bpe are read"),
        "suffix": ({}, r"its pieces end with the space \(treat_whitespace_as_suffix\)"),
        "deberta": (
            {"tokenizer_class": "DebertaV2Tokenizer", "do_lower_case": True},
            "do_lower_case is true, which is not read; nlpkit reads a tokenizer.json",
        ),
        "symbols": ({}, "'<x>' is a symbol of its users, which only unigram may have"),
        "t5": ({"tokenizer_class": "MBartTokenizer"}, "mbart numbers pieces in a way of its own; "),
        "roberta": ({"eos_token": "</end>"}, "has no token '</end>', which is the eos_token"),
    }
    for name, (settings, said) in cases.items():
        path = _directory(tmp_path / name, model(name), "spiece.model", settings)
        with pytest.raises(FileError, match=said):
            tokenizer_files.load(path)
    many = {"tokenizer_class": "T5Tokenizer", "extra_ids": 10**9}
    with pytest.raises(FileError, match="extra_ids is 1000000000; must be from 0 to 1000"):
        tokenizer_files.load(_directory(tmp_path / "many", model("t5"), "spiece.model", many))
    (tmp_path / "vocab.txt").write_text("[UNK]\n[CLS]\n[SEP]\n")
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "BertJapaneseTokenizer"}')
    with pytest.raises(FileError, match="BertJapaneseTokenizer cuts words in another way; nlpkit"):
        tokenizer_files.load(tmp_path)


@pytest.mark.parametrize(
    "content", [{"tokenizer_class": "Qwen2Tokenizer"}, {"tokenizer_class": "GPTNeoXTokenizerFast"}]
)
def test_merges_of_a_family_that_cuts_words_otherwise_are_refused(
    content: dict, tmp_path: Path
) -> None:
    (tmp_path / "vocab.json").write_text("{}")
    (tmp_path / "merges.txt").write_text("")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(content))
    with pytest.raises(FileError, match=r"(qwen2|gptneox) cuts words in another way; nlpkit reads"):
        tokenizer_files.load(tmp_path)


def test_settings_of_bert_that_its_tokenizer_json_does_not_have_are_refused(tmp_path: Path) -> None:
    # transformers' class normalizes as the settings say; PreTrainedTokenizerFast, as the file does.
    made = wordpiece.Tokenizer.train(_texts(), wordpiece.Config(vocab_size=300))
    made.save(tmp_path)
    file = tmp_path / "tokenizer_config.json"
    said = "do_lower_case is true in tokenizer.json and false in tokenizer_config.json; make them"
    for named in ("BertTokenizer", "DistilBertTokenizerFast", "ElectraTokenizer"):
        file.write_text(json.dumps({"tokenizer_class": named, "do_lower_case": False}))
        with pytest.raises(FileError, match=said):
            tokenizer_files.load(tmp_path)
    for named, value in (("BertTokenizer", True), ("PreTrainedTokenizerFast", False)):
        file.write_text(json.dumps({"tokenizer_class": named, "do_lower_case": value}))
        theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
        _, tokenizer = tokenizer_files.load(tmp_path)
        assert tokenizer.encode("The CAT") == theirs("The CAT", add_special_tokens=False).input_ids


def test_damaged_model_is_refused(model: Callable[[str], Path], tmp_path: Path) -> None:
    whole = model("llama").read_bytes()
    file = tmp_path / "tokenizer.model"
    broken = (whole[:-3], whole[:5000], b"", b"\xff" * 30, b"IQ== 0\nIg== 1\n", b"\x0a\x80\x80")
    for content in broken:
        file.write_bytes(content)
        with pytest.raises(FileError, match="not a model of SentencePiece"):
            ours.read(file)


@pytest.mark.parametrize("adds", [True, False, None])
def test_begin_token_in_front_of_texts_is_that_of_transformers(
    adds: bool | None, model: Callable[[str], Path], tmp_path: Path
) -> None:
    settings = {"tokenizer_class": "LlamaTokenizer", "add_bos_token": adds}
    path = _directory(tmp_path / "x", model("llama"), "tokenizer.model", settings)
    _, tokenizer = tokenizer_files.load(path)
    theirs = transformers.LlamaTokenizer.from_pretrained(path)
    assert isinstance(tokenizer, LibraryTokenizer)
    assert tokenizer.begins_texts == (theirs("a").input_ids[0] == theirs.bos_token_id)
    assert tokenizer.extended(["<x>"]).begins_texts == tokenizer.begins_texts
