"""What bm25 and tfidf share: options, documents and queries from files, words, the index."""

import gzip
import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nlpkit.errors import DataError, NlpkitError, UsageError
from nlpkit.score.metrics import bm25
from nlpkit.score.search import inverted_index
from nlpkit.score.search.documents import Records, guess_format
from nlpkit.score.search.words import TOKENIZERS, get_tokenizer
from tests._search_files import call, write_jsonl, write_tsv

SMALL = ["cat dog cat", "dog", "bird cat", ""]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--k1", "-1"], "--k1 is -1, must be a number of 0 or more"),
        (["--k1", "nan"], "--k1 is nan, must be a number"),
        (["--k3", "inf"], "--k3 is inf, must be a number"),
        (["--b", "1.5"], "--b is 1.5, must be between 0 and 1"),
        (["--delta", "1"], "--delta: only bm25l and bm25+ have one, not lucene"),
        (["--variant", "bm25l", "--k1", "0"], "--k1 is 0; bm25l needs a value above 0"),
        (["--top", "0"], "--top: 0 is below 1"),
    ],
)
def test_search_wrong_option_is_told_before_any_file_is_read(
    arguments: list[str], message: str
) -> None:
    with pytest.raises(UsageError) as caught:
        call(bm25, "missing.jsonl", "missing.tsv", *arguments)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("docs", "code", "message"),
    [
        (b"", 3, "docs.txt: holds no document"),
        (b"one\ntwo\xff\n", 3, "docs.txt:2: not utf-8 text"),
        (None, 4, "docs.txt: no such file"),
    ],
)
def test_search_file_that_cannot_be_read_is_one_line_and_its_exit_code(
    tmp_path: Path, docs: bytes | None, code: int, message: str
) -> None:
    path = tmp_path / "docs.txt"
    if docs is not None:
        path.write_bytes(docs)
    with pytest.raises(NlpkitError) as caught:
        call(bm25, path, write_tsv(tmp_path / "q.tsv", ["one"]))
    assert caught.value.exit_code == code
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    if docs == b"":
        with pytest.raises(DataError, match=r"docs\.txt: holds no query"):
            call(bm25, write_jsonl(tmp_path / "d.jsonl", SMALL), path)


def test_search_identifier_with_white_space_is_refused_in_a_trec_run_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    docs, queries = tmp_path / "d.tsv", write_tsv(tmp_path / "q.tsv", ["cat"])
    docs.write_text("a b\tcat\n")
    with pytest.raises(DataError, match=r"d\.tsv: identifier 'a b' has white space in it"):
        call(bm25, docs, queries)
    call(bm25, docs, queries, "--format", "tsv")
    assert capsys.readouterr().out.split("\t")[1] == "a b"


@pytest.mark.parametrize(
    ("name", "form"),
    [
        ("a.jsonl", "jsonl"),
        ("a.JSONL.gz", "jsonl"),
        ("a.ndjson", "jsonl"),
        ("a.tsv.gz", "tsv"),
        ("a.txt", "text"),
        ("a", "text"),
        ("-", "text"),
        ("a.gz", "text"),
    ],
)
def test_search_format_is_by_the_ending_before_gz(name: str, form: str) -> None:
    assert guess_format(name) == form


def test_search_records_of_each_format_are_identifier_and_text(tmp_path: Path) -> None:
    rows = [
        {"_id": "a", "title": "The title", "text": "the text"},
        {"id": 7, "text": "", "title": ""},
        {"docid": "c", "contents": "all of it", "title": "not again"},
        {"id": "d", "title": None, "text": "x"},
        {"id": "e", "_id": "not this", "title": "t", "text": ""},
    ]
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)) + "\n\n", encoding="utf-8-sig")
    records = Records(str(path))
    texts = [("a", "The title the text"), ("7", ""), ("c", "all of it"), ("d", "x"), ("e", "t ")]
    assert list(records) == texts
    assert records.blank == 1
    (tmp_path / "a.tsv.gz").write_bytes(gzip.compress("1\tone\ttwo\r\n \n二\t字\n".encode()))
    tabs = Records(str(tmp_path / "a.tsv.gz"))
    assert list(tabs) == [("1", "one\ttwo"), ("二", "字")]
    assert tabs.blank == 1
    (tmp_path / "a.txt").write_text("one\n\nthree\u2028still")
    # A blank line is an empty text here, since the numbers are those of the lines.
    assert list(Records(str(tmp_path / "a.txt"))) == [
        ("1", "one"),
        ("2", ""),
        ("3", "three\u2028still"),
    ]
    assert next(iter(Records(str(tmp_path / "a.tsv.gz"), "text"))) == ("1", "1\tone\ttwo")


@pytest.mark.parametrize(
    ("name", "line", "message"),
    [
        ("a.jsonl", "{", "not JSON: Expecting property name"),
        ("a.jsonl", "[" * 100_000, "not JSON: maximum recursion"),
        ("a.jsonl", "[1]", "not a JSON object"),
        (
            "a.jsonl",
            '{"text": "x", "key": 1}',
            "no identifier: expected a string or whole number as one of id, _id, docid; found",
        ),
        ("a.jsonl", '{"id": 1.5, "text": "x"}', "no identifier: expected a string"),
        ("a.jsonl", '{"id": true, "text": "x"}', "no identifier: expected a string"),
        ("a.jsonl", '{"id": "", "text": "x"}', "no identifier: expected a string"),
        ("a.jsonl", '{"id": "x"}', "no text: expected strings as text or contents, and title"),
        ("a.jsonl", '{"id": "x", "text": 3}', "no text: expected strings"),
        ("a.jsonl", '{"id": "x", "contents": []}', "no text: expected strings"),
        ("a.jsonl", '{"id": "x", "text": "y", "title": 1}', "no text: expected strings"),
        ("a.jsonl", '{"id": "x", "text": "\\ud800"}', "\\ud800 is a lone surrogate"),
        ("a.jsonl", '{"id": "first", "text": ""}', "identifier 'first' is already used in line 1"),
        ("a.tsv", "no tab", "needs identifier, tab, text"),
        ("a.tsv", "\ttext", "needs identifier, tab, text"),
        ("a.tsv", "first\ttext", "identifier 'first' is already used in line 1"),
    ],
)
def test_search_malformed_line_is_named_with_file_and_line(
    tmp_path: Path, name: str, line: str, message: str
) -> None:
    path = tmp_path / name
    first = '{"id": "first", "text": "x"}' if name == "a.jsonl" else "first\tx"
    path.write_text(f"{first}\n\n{line}\n")
    with pytest.raises(DataError) as caught:
        list(Records(str(path)))
    assert str(caught.value).startswith(f"{path}:3: {message}")


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("word", "A cat's 3 Ärzte_x, naïve!", ["a", "cat", "s", "3", "ärzte_x", "naïve"]),
        ("whitespace", "A cat's\u30003 ", ["a", "cat's", "3"]),
        ("char", "A b 字", ["a", "b", "字"]),
        ("bigram", "GPT模型很大 ok 字", ["gpt", "模型", "型很", "很大", "ok", "字"]),
        ("bigram", "カタカナ, 한국 x1", ["カタ", "タカ", "カナ", "한국", "x1"]),
        ("zh", "我爱北京天安门, OK?", ["我", "爱", "北京", "天安门", "ok"]),
    ],
)
def test_search_words_of_each_tokenizer(name: str, text: str, words: list[str]) -> None:
    assert get_tokenizer(name, True)(text) == words
    assert [word.lower() for word in get_tokenizer(name, False)(text)] == words


@settings(max_examples=300, deadline=None)
@given(st.one_of(st.text(), st.text(st.characters(max_codepoint=127))))
@pytest.mark.slow
def test_search_words_are_runs_of_word_characters(text: str) -> None:
    # The quick way for ASCII gives what the pattern gives.
    assert get_tokenizer("word", True)(text) == re.findall(r"\w+", text.lower())
    assert get_tokenizer("word", False)(text) == re.findall(r"\w+", text)
    for name in TOKENIZERS:
        assert not any(word == "" for word in get_tokenizer(name, True)(text))


def test_search_index_holds_each_word_of_each_document() -> None:
    rng = np.random.default_rng(3)
    # More words than are numbered at a time.
    texts = [
        " ".join(f"w{n}" for n in rng.zipf(1.5, rng.integers(0, 60)) % 500) for _ in range(900)
    ]
    index = inverted_index.build(((str(i), text) for i, text in enumerate(texts)), str.split)
    assert sum(map(len, map(str.split, texts))) > 2 * 8192
    assert index.lengths.tolist() == [len(text.split()) for text in texts]
    for word, term in index.terms.items():
        place = index.postings(term)
        held = {d: text.split().count(word) for d, text in enumerate(texts) if word in text.split()}
        assert dict(zip(index.documents[place].tolist(), index.counts[place], strict=True)) == held
        assert index.documents[place].tolist() == sorted(held)


@pytest.mark.parametrize(
    ("text", "tokenize", "is_told"),
    [
        ("中国历史上的著名诗人，很多都在长安住过", "word", True),
        ("中国历史上的著名诗人，很多都在长安住过", "bigram", False),
        ("나는 오늘 학교에 가서 친구를 만났다", "word", False),
        ("the cat on 桌子", "whitespace", False),
    ],
)
def test_search_text_without_spaces_left_uncut_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, tokenize: str, is_told: bool
) -> None:
    files = write_jsonl(tmp_path / "d.jsonl", [text]), write_tsv(tmp_path / "q.tsv", ["x"])
    call(bm25, *files, "--tokenize", tokenize)
    assert ("does not split clauses" in capsys.readouterr().err) == is_told


@pytest.mark.slow
def test_search_pipeline_of_the_real_command_line(tmp_path: Path) -> None:
    def nlpkit(*arguments: str, given: str = "") -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "nlpkit", "score", *arguments]
        return subprocess.run(command, input=given, capture_output=True, text=True, cwd=tmp_path)

    write_jsonl(tmp_path / "d.jsonl", SMALL)
    (tmp_path / "qrels").write_text("1 0 d2 1\n2 0 d1 1\n")
    ranked = nlpkit("bm25", "d.jsonl", "-", given="cat\ndog\n")
    assert [line.split()[2] for line in ranked.stdout.splitlines()] == ["d0", "d2", "d1", "d0"]
    (tmp_path / "run").write_text(ranked.stdout)
    # d2 is the second of two, d1 the first.
    scored = nlpkit("ir", "qrels", "run", "-m", "RR", "P@1", "--score-only")
    assert (scored.returncode, scored.stdout) == (0, "0.7500\t0.5000\n")
    low = nlpkit("ir", "qrels", "run", "-m", "RR", "-q", "--fail-under", "0.8")
    assert (low.returncode, low.stderr.count("\n")) == (6, 1)
    # Any measure of any run may be too low.
    assert nlpkit("ir", "qrels", "run", "-m", "RR", "P@1", "--fail-under", "0.6").returncode == 6
    for arguments, code in (
        (("bm25", "missing", "-"), 4),
        (("bm25", "qrels", "-"), 3),
        (("bm25", "d.jsonl", "-", "--k1", "x"), 2),
        (("bm25", "d.jsonl", "-", "--fail-under", "3"), 2),  # a ranking is no score
        (("ir", "qrels", "run", "-m", "nGDC"), 2),
    ):
        failed = nlpkit(*arguments, "-q")
        assert (failed.returncode, failed.stdout, failed.stderr.count("\n")) == (code, "", 1)
