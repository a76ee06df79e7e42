"""Token flags: where sentences and words begin, the second text of a pair; kept beside the ids."""

import json
import string
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import rjieba
from hypothesis import given, settings
from hypothesis import strategies as st

from nlpkit import disk
from nlpkit.contracts.batch import FLAG_NAMES, FlaggedIds, bit
from nlpkit.contracts.reader import Counts
from nlpkit.data import store, tokenize
from nlpkit.data.documents import read_documents
from nlpkit.data.files import find_inputs as resolve
from nlpkit.data.loader import Examples, Stream, steps
from nlpkit.data.settings import Config
from nlpkit.data.token_flags import flag_tokens, sentence_starts, word_starts
from nlpkit.errors import UsageError
from nlpkit.objectives import clm
from nlpkit.tokenizers import bpe, cpm_ant, gpt1_bpe, unigram, wordpiece
from tests._fakes import AlignedCharacters, CharacterTokenizer, fork_workers
from tests.tokenizers.test_training import made_up_texts

PARTS = {
    "bpe": bpe,
    "cpm_ant": cpm_ant,
    "gpt1_bpe": gpt1_bpe,
    "unigram": unigram,
    "wordpiece": wordpiece,
}
# Without control characters, which BERT leaves out and which are in no token.
LETTERS = string.digits + string.ascii_letters + string.punctuation + " \t\n\r"
ROOT = Path(__file__).parents[2]
PROSE = "He came. “Why?” she said!  (No.)\nA list 3.5 wide… 他来了。“好！”她说……走吧"


PLAIN = AlignedCharacters()


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))  # workers import the tests' tokenizers
    return folder


@pytest.fixture(scope="module", params=PARTS)
def tokenizer(request):
    size = 600 if request.param != "cpm_ant" else 300
    module = PARTS[request.param]
    return module.Tokenizer.train([*made_up_texts(), PROSE], module.Config(vocab_size=size))


def build(
    tmp_path, train, tokenizer=PLAIN, *, token_flags=FLAG_NAMES, drop=False, cache="cache", **rest
):
    callbacks = rest.pop("callbacks", store.Callbacks())
    part = rest.pop("part", "all")
    config = Config(train=train, **rest)
    inputs, _ = resolve(config, None, tmp_path / "spool")
    files = [file for entry in inputs for file in entry.files]
    options = {"cache_dir": tmp_path / cache, "part": part, "callbacks": callbacks}
    return store.build(files, config, store.Encoding(tokenizer, drop, token_flags), **options)


def flagged(built, name, index=0) -> str:
    """Return the document with a `|` before each character that has the flag."""
    ids, flags = built.document(index), built.document_flags(index)
    assert flags.dtype == np.uint8
    return "".join(
        f"|{PLAIN.decode([i])}" if flag & bit(name) else PLAIN.decode([i])
        for i, flag in zip(ids, flags, strict=True)
    )


# Where they begin


def _cut(text: str, starts: list[int]) -> list[str]:
    stops = [*starts[1:], len(text)]
    return [text[a:b].strip() for a, b in zip(starts, stops, strict=bool(starts))]


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("One. Two! Three?", ["One.", "Two!", "Three?"]),
        ("It is 3.5 m. e.g.this is one", ["It is 3.5 m.", "e.g.this is one"]),
        ("Mr. Smith came.", ["Mr.", "Smith came."]),  # no list of abbreviations
        ("“Go!” he said. (Really.) Yes", ["“Go!”", "he said.", "(Really.)", "Yes"]),
        ("Wait... what?! No", ["Wait...", "what?!", "No"]),
        ("one\n\n  two\nthree", ["one", "two", "three"]),
        ("他来了。她走了！好？嗯", ["他来了。", "她走了！", "好？", "嗯"]),
        ("“好。”他说……走吧。", ["“好。”", "他说……", "走吧。"]),
        ("等等…好", ["等等…好"]),  # one … needs white space behind
        ("", []),
        (" \n ", []),
        ("...", ["..."]),
    ],
)  # fmt: skip
def test_sentences_begin_after_their_ends(text: str, sentences: list[str]) -> None:
    starts = sentence_starts(text)
    assert _cut(text, starts) == sentences
    assert all(not text[start].isspace() for start in starts)


@given(st.text(alphabet=string.printable + "。！？…“”’」中文é", max_size=60))
@settings(max_examples=300, deadline=None)
def test_sentence_starts_lose_nothing_but_white_space(text: str) -> None:
    starts = sentence_starts(text)
    assert starts == sorted(set(starts))
    assert "".join("".join(_cut(text, starts)).split()) == "".join(text.split())


@given(st.text(alphabet=LETTERS + "é—“”…हिन्दी", max_size=60))
@settings(max_examples=300, deadline=None)
def test_words_of_spaced_text_are_those_of_bert(text: str) -> None:
    # transformers' own Python code of google-research/bert, `BasicTokenizer`.
    from transformers.models.bert.tokenization_bert_legacy import BasicTokenizer

    theirs = BasicTokenizer(do_lower_case=False, strip_accents=False).tokenize(text)
    assert len(word_starts(text)) == len(theirs)


def test_words_of_chinese_text_are_those_of_jieba() -> None:
    text = "我来到北京清华大学"
    assert _cut(text, word_starts(text)) == ["我", "来到", "北京", "清华大学"]
    assert _cut(text, word_starts(text)) == rjieba.cut(text, False)
    mixed = "在 GPU上训练，用了3.5小时。"
    words = ["在", "GPU", "上", "训练", "，", "用", "了", "3", ".", "5", "小时", "。"]
    assert _cut(mixed, word_starts(mixed)) == words


# Tokens


def test_offsets_come_with_the_ids_of_encode_batch(tokenizer) -> None:
    texts = [*made_up_texts()[:50], PROSE, "龘 😀", "", "  a  b ", "x" * 300]
    found = tokenizer.encode_with_offsets(texts)
    assert [ids for ids, _ in found] == tokenizer.encode_batch(texts)
    for text, (ids, offsets) in zip(texts, found, strict=True):
        assert len(ids) == len(offsets)
        assert all(0 <= start <= stop <= len(text) for start, stop in offsets)
        assert [stop for _, stop in offsets] == sorted(stop for _, stop in offsets)
        covered = {i for start, stop in offsets for i in range(start, stop)}
        assert all(i in covered or text[i].isspace() for i in range(len(text)))


def test_flags_stand_on_the_tokens_in_which_the_characters_are(tokenizer) -> None:
    ((ids, offsets),) = tokenizer.encode_with_offsets([PROSE])
    for name, starts in (
        ("sentence_start", sentence_starts(PROSE)),
        ("word_start", word_starts(PROSE)),
    ):
        flags = flag_tokens(PROSE, offsets, [name], False)
        # By hand: the first token that stands for the character.
        wanted = {next(t for t, (a, b) in enumerate(offsets) if a <= start < b) for start in starts}
        assert {*np.flatnonzero(flags)} == wanted
        assert {*flags.tolist()} == {0, bit(name)}
    assert not flag_tokens(PROSE, offsets, ["second_side"], False).any()
    assert flag_tokens(PROSE, offsets, ["second_side"], True).tolist() == [4] * len(ids)


def test_flags_of_an_unknown_name_are_refused_with_the_nearest(tmp_path, here) -> None:
    (here / "a.txt").write_text("x\n")
    with pytest.raises(UsageError, match="no token flag 'word_starts', did you mean word_start"):
        build(tmp_path, "a.txt", token_flags=["word_starts"])


def test_flags_of_a_tokenizer_without_offsets_are_refused(tmp_path, here) -> None:
    (here / "a.txt").write_text("x\n")
    with pytest.raises(UsageError) as caught:
        build(tmp_path, "a.txt", CharacterTokenizer(), token_flags=["word_start"])
    assert str(caught.value) == (
        "objective: it needs token flags (word_start), and this kind of tokenizer does not say "
        "which characters its tokens stand for; use another kind"
    )


# The store


def test_store_without_flags_keeps_the_key_it_had() -> None:
    # Computed with the code of commit 5efacf4: what is in the caches goes on being found.
    file = Path("a.txt")
    file.write_text("first\nsecond\n")
    known = {
        "all": "06efa283ec5a5c4a970d935c08cedbf21276dde8d1c9aa20f98cf5359c3acfa3",
        "train": "913578df0fefc8fda581a9a0c1b6305d99494980bc0ecb41884a4ed2b4d7a352",
    }
    for part, key in known.items():
        fraction = 0.5 if part == "train" else 0.0
        options = {"token_flags": (), "part": part, "valid_fraction": fraction}
        built = build(Path(), "a.txt", CharacterTokenizer(), **options)
        assert built.fingerprint == key
        assert sorted(path.name for path in built.path.iterdir() if path.name != "lock") == [
            "meta.json",
            "offsets.npy",
            "tokens.bin",
        ]
        assert "marks" not in json.loads((built.path / "meta.json").read_text())


def test_store_keeps_flags_beside_the_tokens(tmp_path, here) -> None:
    (here / "a.txt").write_text("one two. three\n床前明月光\n")
    built = build(tmp_path, "a.txt")
    assert flagged(built, "sentence_start") == "|one two. |three"
    assert flagged(built, "word_start") == "|one |two|. |three"
    assert flagged(built, "sentence_start", 1) == "|床前明月光"
    assert flagged(built, "second_side") == "one two. three"
    meta = json.loads((built.path / "meta.json").read_text())
    assert meta["marks"] == [*FLAG_NAMES]
    assert built.tokens == (built.path / "marks.bin").stat().st_size
    assert meta["sha256"]["marks.bin"] == disk.file_sha256(built.path / "marks.bin")
    with pytest.raises(ValueError, match="read-only"):
        built.document_flags(0)[0] = 1


def test_store_keys_differ_by_flags_and_not_by_their_order(tmp_path, here) -> None:
    (here / "a.txt").write_text("one two\n")
    wanted = [(), FLAG_NAMES[:1], FLAG_NAMES[1:2], FLAG_NAMES[:2]]
    keys = [build(tmp_path, "a.txt", token_flags=names).fingerprint for names in wanted]
    assert len({*keys}) == 4
    assert build(tmp_path, "a.txt", token_flags=FLAG_NAMES[1::-1]).fingerprint == keys[3]


def test_store_holds_only_the_flags_that_were_asked_for(tmp_path, here) -> None:
    (here / "a.txt").write_text("one two\n")
    built = build(tmp_path, "a.txt", token_flags=["word_start"])
    assert {*built.document_flags(0).tolist()} == {0, bit("word_start")}


def test_store_drops_the_flags_of_unknown_tokens(tmp_path, here) -> None:
    (here / "a.txt").write_text("ßa bß ßc. ßd\nßß\ne\n")
    built = build(tmp_path, "a.txt", drop=True)
    assert flagged(built, "word_start") == "a |b c|. d"
    assert flagged(built, "sentence_start", 1) == "|e"
    assert built.counts.unknown == 6


@pytest.mark.slow
def test_store_flags_are_the_same_for_any_number_of_workers(
    tmp_path, here, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokenize, "RANGE_BYTES", 1 << 12)
    fork_workers(monkeypatch)
    rows = [{"text": f"{i}. " + "ab cd. ef床" * (i % 37)} for i in range(2000)]
    (here / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (here / "b.txt").write_text("one two.\nthree\n" * 700)
    one, two = (
        build(tmp_path, ["a.jsonl", "b.txt"], workers=n, cache=f"cache{n}", drop=True)
        for n in (1, 2)
    )
    for name in ("tokens.bin", "offsets.npy", "marks.bin"):
        assert (one.path / name).read_bytes() == (two.path / name).read_bytes()
    assert flagged(two, "word_start", 2000) == "|one |two|."
    assert flagged(two, "sentence_start", 3399) == "|three"


def test_store_with_damaged_flags_is_noticed_and_built_again(tmp_path, here) -> None:
    (here / "a.txt").write_text("one two\n")
    built = build(tmp_path, "a.txt")
    file = built.path / "marks.bin"
    content = file.read_bytes()
    file.write_bytes(content[::-1])
    notes: list[str] = []
    again = build(tmp_path, "a.txt", callbacks=store.Callbacks(note=notes.append))
    assert "marks.bin has changed; building it again" in notes[0]
    assert (again.path / "marks.bin").read_bytes() == content


def test_store_of_parallel_files_flags_the_second_side(tmp_path, here) -> None:
    (here / "a.en").write_text("one two. three\nx\n\nlast\n")
    (here / "a.zh").write_text("床前明月光。疑\ny\nz\n地\n")
    source = [{"files": ["a.en", "a.zh"], "format": "parallel"}]
    built = build(tmp_path, source)
    assert flagged(built, "second_side") == "one two. three|床|前|明|月|光|?|疑"  # no 。 in PLAIN
    assert flagged(built, "sentence_start") == "|one two. |three|床前明月光?|疑"
    assert flagged(built, "second_side", 2) == "last|地"
    assert (len(built), built.counts.empty, built.counts.lines) == (3, 1, 4)
    assert built.counts.characters == len("one two. three床前明月光。疑xylast地")
    without = build(tmp_path, source, CharacterTokenizer(), token_flags=())
    assert without.document(2).tolist() == built.document(2).tolist()


def test_store_of_parallel_files_holds_pairs_out_together(tmp_path, here) -> None:
    (here / "a.en").write_text("".join(f"text {i}\n" for i in range(60)))
    (here / "a.de").write_text("".join(f"same {i}\n" for i in range(60)))
    source = [{"files": ["a.en", "a.de"], "format": "parallel"}]
    parts = [build(tmp_path, source, part=p, valid_fraction=0.3) for p in ("train", "valid")]
    texts = [PLAIN.decode(built.document(i)) for built in parts for i in range(len(built))]
    assert sorted(texts) == sorted(f"text {i}same {i}" for i in range(60))
    assert 5 < len(parts[1]) < 35


def test_tokenizer_is_trained_on_both_sides_of_parallel_files(here) -> None:
    (here / "a.en").write_text("one\n")
    (here / "a.de").write_text("eins\n")
    config = Config(train=[{"files": ["a.en", "a.de"], "format": "parallel"}])
    inputs, _ = resolve(config, None, here)
    counts = Counts()
    (document,) = read_documents(inputs, config, counts)
    assert document.texts == ("one", "eins")
    assert counts.bytes == 7


# Examples


class Sentences(clm.Objective):
    """Next-token prediction that also says where words begin."""

    token_flags = ("sentence_start", "word_start")

    def example(self, ids, rng):
        assert isinstance(ids, FlaggedIds)
        return super().example(ids.ids, rng) | {"starts": ids.has("sentence_start")[:-1]}


def _stream(tmp_path, here, begin: int | None = 70) -> Stream:
    (here / "a.txt").write_text("one two. three\nfour. five six seven. eight\nnine\n" * 20)
    config = Config(train="a.txt")
    inputs, _ = resolve(config, None, tmp_path)
    made = store.build_corpus(
        inputs, config, store.Encoding(PLAIN, token_flags=Sentences.token_flags), cache_dir=tmp_path
    )
    names = SimpleNamespace(vocab_size=500, bos_id=begin, eos_id=71, pad_id=None, unk_id=None)
    settings_ = clm.Config(max_length=16, contiguous=begin is None)
    examples = Examples(made, Sentences(settings_, names, SimpleNamespace()), 1)
    return Stream(examples, budget=64, batches_per_step=2)


@pytest.mark.parametrize("begin", [70, None], ids=["framed", "stream"])
def test_examples_get_flags_beside_their_ids(tmp_path, here, begin) -> None:
    examples = _stream(tmp_path, here, begin).examples
    pieces = examples.spans
    for piece in range(len(examples)):
        found = examples.source(piece)
        assert found.token_flags.shape == found.ids.shape
        assert found.token_flags.dtype == np.uint8
        frame = np.isin(found.ids, (*pieces.before, *pieces.after))
        assert frame.any() or piece
        assert not found.token_flags[frame].any()
    # The first document by hand: "one two. three", cut after 17 tokens with its frame.
    first = examples.source(0)
    at = 0 if begin is None else 1
    assert np.flatnonzero(first.has("sentence_start"))[:2].tolist() == [at, at + 9]
    assert np.flatnonzero(first.has("word_start"))[:4].tolist() == [at, at + 4, at + 7, at + 9]


def test_stream_with_flags_does_not_depend_on_workers(tmp_path, here) -> None:
    alone, two = (list(steps(_stream(tmp_path, here), 6, workers)) for workers in (0, 2))
    for one, other in zip(alone, two, strict=True):
        for a, b in zip(one.batches, other.batches, strict=True):
            assert {n: v.tobytes() for n, v in a.fields.items()} == {
                n: v.tobytes() for n, v in b.fields.items()
            }
            assert a.fields["starts"].any()


def test_format_sentences_has_a_sentence_a_line_and_documents_between_blank_lines(
    tmp_path, here
) -> None:
    text = "Mr. Smith came. He left!\nthe end\n\n\none two. three\n"
    (here / "a.txt").write_text(text)
    built = build(tmp_path, "a.txt", token_flags=["sentence_start"], format="sentences")
    assert [flagged(built, "sentence_start", n) for n in range(len(built))] == [
        "|Mr. Smith came. He left!\n|the end",
        "|one two. three",
    ]
    # Of paragraphs, punctuation ends sentences, too; the stores differ.
    other = build(tmp_path, "a.txt", token_flags=["sentence_start"], format="paragraphs")
    assert flagged(other, "sentence_start") == "|Mr. |Smith came. |He left!\n|the end"
    assert built.fingerprint != other.fingerprint
