"""Documents -> stored ids: content, order, errors, the cache, damage, kills, full disks."""

import errno
import gzip
import json
import math
import os
import pickle
import resource
import signal
import subprocess
import sys
import textwrap
import time
import tracemalloc
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from nlpkit.contracts.reader import TextFile
from nlpkit.data import cache, lines, store, tokenize
from nlpkit.data.cache import cache_directory
from nlpkit.data.corpus import Corpus, TokenStore
from nlpkit.data.files import find_inputs as resolve
from nlpkit.data.settings import Config
from nlpkit.data.store import Callbacks, build_corpus
from nlpkit.errors import DataError, FileError, OutOfMemory
from tests._fakes import BrokenTokenizer, CharacterTokenizer, DyingTokenizer, fork_workers

ROOT = Path(__file__).parents[2]
PLAIN = CharacterTokenizer()


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    # Workers import the tests' tokenizers.
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    return folder


@pytest.fixture
def small_ranges(monkeypatch):
    """Cut files so small that a test's file is many pieces of work."""
    monkeypatch.setattr(tokenize, "RANGE_BYTES", 1 << 12)


@pytest.fixture
def forked_workers(monkeypatch):
    """With spawned workers it is proven that their number changes nothing, and what is said of a
    bug, a kill, a signal and a full disk."""
    fork_workers(monkeypatch)


def build(tmp_path, names, tokenizer=PLAIN, *, cache="cache", drop=False, **rest):
    callbacks = rest.pop("callbacks", Callbacks())
    part = rest.pop("part", "all")
    config = Config(train=names, **rest)
    train, _ = resolve(config, None, tmp_path / "spool")
    files = [file for entry in train for file in entry.files]
    return store.build(
        files,
        config,
        store.Encoding(tokenizer, drop),
        cache_dir=tmp_path / cache,
        part=part,
        callbacks=callbacks,
    )


def texts(built, tokenizer=PLAIN):
    return [tokenizer.decode(built.document(i)) for i in range(len(built))]


def leftovers(tmp_path, cache="cache"):
    return [path.name for path in (tmp_path / cache / "stores").glob(".*")]


def bytes_of(built):
    return [(built.path / name).read_bytes() for name in ("tokens.bin", "offsets.npy")]


# Content


def test_store_holds_every_document_in_file_order(tmp_path, here):
    (here / "b.txt").write_text("third\n")
    (here / "a.txt").write_text("first\n\n床前明月光\n")
    built = build(tmp_path, ["a.txt", "b.txt"])
    assert texts(built) == ["first", "床前明月光", "third"]
    assert built.lengths.tolist() == [5, 5, 5]
    assert (len(built), built.tokens, built.counts.characters) == (3, 15, 15)
    assert built.counts.bytes == 5 + 15 + 5
    assert (built.counts.documents, built.counts.blank) == (3, 1)


def test_store_ids_are_read_only_views_of_the_smallest_type(tmp_path, here):
    (here / "a.txt").write_text("ab\n")
    for size, dtype in ((1 << 16, np.uint16), ((1 << 16) + 1, np.uint32)):
        built = build(tmp_path, "a.txt", CharacterTokenizer(vocab_size=size))
        document = built.document(0)
        assert type(document) is np.ndarray
        assert document.dtype == dtype
        assert document.tolist() == [11, 12]
        assert not document.flags.owndata
        with pytest.raises(ValueError, match="read-only"):
            document[0] = 1


def test_store_largest_id_survives(tmp_path, here):
    # The last place of the alphabet has the id 65535, the largest that uint16 holds.
    (here / "a.txt").write_text("z")
    alphabet = "?" * 65534 + "z"
    built = build(tmp_path, "a.txt", CharacterTokenizer(alphabet))
    assert built.document(0).tolist() == [65535]


def test_store_id_outside_the_vocabulary_is_an_error_that_is_named(tmp_path, here):
    (here / "a.txt").write_text("ab\n")
    said = "gave ids 11 to 12, outside its vocabulary of 12: its ids may have a hole"
    with pytest.raises(DataError, match=said):
        build(tmp_path, "a.txt", CharacterTokenizer(vocab_size=12))


def test_store_unknown_tokens_are_counted_and_dropped_if_asked(tmp_path, here):
    (here / "a.txt").write_text("aßb\nßßß\nc\n")
    kept = build(tmp_path, "a.txt")
    assert kept.lengths.tolist() == [3, 3, 1]
    assert (kept.counts.unknown, kept.counts.tokenless) == (4, 0)
    dropped = build(tmp_path, "a.txt", drop=True)
    assert texts(dropped) == ["ab", "c"]
    assert (dropped.counts.unknown, dropped.counts.tokenless) == (4, 1)
    assert (dropped.counts.documents, len(dropped)) == (3, 2)
    (here / "b.txt").write_text("ß\n")
    with pytest.raises(
        DataError, match=r"^b.txt: no tokens: the only document consists of unknown"
    ):
        build(tmp_path, "b.txt", drop=True)


@pytest.mark.parametrize(("drop", "tokens"), [(False, 100), (True, 99)])
def test_corpus_warns_of_unknown_tokens_from_one_in_a_hundred_on(tmp_path, here, drop, tokens):
    (here / "a.txt").write_text("a" * 99 + "\u00e9\n")
    (here / "b.txt").write_text("a" * 100 + "\u00e9\n")
    notes, warnings = [], []
    for name in ("a.txt", "b.txt"):
        config = Config(train=[name])
        train, _ = resolve(config, None, tmp_path / "spool")
        build_corpus(
            train,
            config,
            store.Encoding(PLAIN, drop),
            cache_dir=tmp_path / "cache",
            callbacks=Callbacks(note=notes.append, warn=warnings.append),
        )
    left_out = " and left out" if drop else ""
    of_them = "1 more left out as unknown" if drop else "1 of them unknown"
    assert notes[0].startswith(f"data: a.txt: 1 document, {tokens} tokens, {of_them}, tokenised")
    assert warnings == [
        f"a.txt: 1 of 100 tokens (1.0 %) is unknown{left_out}; a larger vocabulary knows their "
        "characters: set tokenizer.kind and tokenizer.vocab_size (with init_from, kind cpm_ant "
        "grows that of the checkpoint)"
    ]


def test_corpus_unigram_entropy_is_that_of_the_frequencies_of_all_stores(tmp_path, here):
    # p(a) = 1/2, p(b) = p(c) = 1/4: 1/2 ln 2 + 2 * 1/4 ln 4 = 3/2 ln 2.
    (here / "a.txt").write_text("aab\nabc\nac\n")
    (here / "b.txt").write_text("bc\nabca\n")
    assert math.isclose(corpus_of(tmp_path, ["a.txt"]).unigram_entropy(), 1.5 * math.log(2))
    # a, b, c are 6, 4 and 4 of 14.
    expected = -6 / 14 * math.log(6 / 14) - 8 / 14 * math.log(4 / 14)
    assert math.isclose(corpus_of(tmp_path, ["a.txt", "b.txt"]).unigram_entropy(), expected)


def test_store_is_pickled_by_its_path(tmp_path, here):
    (here / "a.txt").write_text("ab\ncd\n")
    built = build(tmp_path, "a.txt")
    packed = pickle.dumps(built)
    assert len(packed) < 1000
    copy = pickle.loads(packed)
    assert texts(copy) == ["ab", "cd"]
    assert copy.fingerprint == built.fingerprint


# Parallel work


def rows(count, bad=()):
    """Return jsonl rows of varied length; those in `bad` (from 1) are malformed."""
    return [
        '{"text": 3}' if i in bad else json.dumps({"text": f"{i} " + "ab床" * (i % 37)})
        for i in range(1, count + 1)
    ]


@pytest.mark.slow
def test_store_is_the_same_for_any_number_of_workers(tmp_path, here, small_ranges):
    (here / "a.jsonl").write_text("\n".join(rows(2000)))
    (here / "b.txt").write_bytes(b"\xef\xbb\xbf" + b"one\r\n\r\ntwo\r\n" * 1500)
    (here / "c.txt.gz").write_bytes(gzip.compress(b"zip\n" * 3000))
    (here / "d.tsv").write_text("id\ttext\n" + "".join(f"{i}\trow {i}\n" for i in range(900)))
    names = ["a.jsonl", "b.txt", "c.txt.gz", "d.tsv"]
    one, two, three = (
        build(tmp_path, names, workers=n, cache=f"cache{n}", drop=True) for n in (1, 2, 3)
    )
    assert len(one) == 2000 + 3000 + 3000 + 900
    assert bytes_of(one) == bytes_of(two) == bytes_of(three)
    assert one.counts == two.counts == three.counts
    assert texts(one)[2000] == "one"
    assert texts(one)[-1] == "row 899"


def test_store_paragraphs_are_not_cut_by_ranges(tmp_path, here, small_ranges, forked_workers):
    document = "\n".join(f"line {i}" for i in range(40))
    (here / "a.txt").write_text("\n\n".join([document] * 200))
    (here / "crlf.txt").write_bytes("\r\n\r\n".join([document] * 200).encode())
    (here / "whole.txt").write_text("\n".join(["line"] * 5000))
    for name, expected in (("a.txt", 200), ("crlf.txt", 200), ("whole.txt", 1)):
        built = build(tmp_path, name, format="paragraphs", workers=2)
        assert len(built) == expected, name
    # Blank lines that are not empty: "a", then "b\na" 2999 times, then "b".
    (here / "b.txt").write_text("a\n \n \nb\n" * 3000)
    assert len(build(tmp_path, "b.txt", format="paragraphs", workers=1)) == 3001


def test_store_of_the_first_rows_is_another_one(tmp_path, here, small_ranges):
    (here / "a.txt").write_text("".join(f"line {n}\n" for n in range(100)), "utf-8")
    whole, few = build(tmp_path, ["a.txt"]), build(tmp_path, [{"files": "a.txt", "max_rows": 30}])
    assert (len(whole), len(few)) == (100, 30)
    assert texts(few) == texts(whole)[:30]


def test_store_line_longer_than_a_range_is_one_document(
    tmp_path, here, small_ranges, forked_workers
):
    (here / "a.txt").write_text("a\n" + "b" * 30_000 + "\nc\n")
    built = build(tmp_path, "a.txt", workers=2)
    assert built.lengths.tolist() == [1, 30_000, 1]


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_store_first_bad_row_in_file_order_is_named(
    tmp_path, here, small_ranges, forked_workers, workers
):
    (here / "a.jsonl").write_text("\n".join(rows(3000, bad={1777, 1778, 2990})))
    with pytest.raises(DataError) as caught:
        build(tmp_path, "a.jsonl", workers=workers)
    assert str(caught.value) == 'a.jsonl:1777: "text" is a number (3), not a string'
    assert leftovers(tmp_path) == []
    assert list((tmp_path / "cache/stores").iterdir()) == []


@pytest.mark.parametrize("workers", [1, 2])
def test_store_first_problem_may_be_an_earlier_file_without_rows(
    tmp_path, here, small_ranges, forked_workers, workers
):
    (here / "a.jsonl").write_text("\n".join(rows(1000)))
    (here / "b.jsonl").write_text("")
    (here / "c.jsonl").write_text("{\n")
    with pytest.raises(DataError, match=r"^b.jsonl: empty file$"):
        build(tmp_path, ["a.jsonl", "b.jsonl", "c.jsonl"], workers=workers)
    with pytest.raises(DataError, match=r"^b.jsonl: empty file$"):
        build(tmp_path, ["a.jsonl", "b.jsonl"], workers=workers)


def test_store_skipped_rows_have_absolute_lines(tmp_path, here, small_ranges, forked_workers):
    (here / "a.jsonl").write_text("\n".join(rows(3000, bad=range(100, 3000, 100))))
    expected = [("a.jsonl", line) for line in range(100, 2001, 100)]
    for workers in (1, 3):
        built = build(
            tmp_path, "a.jsonl", workers=workers, on_error="skip", cache=f"cache{workers}"
        )
        assert (built.counts.bad, built.counts.documents) == (29, 2971)
        assert [(bad.file, bad.line) for bad in built.counts.first_bad] == expected


def test_store_bad_line_15000_of_30000_is_named(tmp_path, here, monkeypatch, forked_workers):
    monkeypatch.setattr(tokenize, "RANGE_BYTES", tokenize.RANGE_BYTES // 10)
    lines = ['{"text": "a"}          '] * 30_000  # two ranges
    lines[14_999] = '{"text": "a few words}'
    (here / "a.jsonl").write_text("\n".join(lines))
    with pytest.raises(DataError, match=r"^a.jsonl:15000: broken JSON at column 10: Unterminated"):
        build(tmp_path, "a.jsonl", workers=2)


def test_store_truncated_gzip_in_a_worker_is_a_data_error(
    tmp_path, here, small_ranges, forked_workers
):
    (here / "a.txt").write_text("one\n" * 3000)
    whole = gzip.compress(b"".join(b"%d\n" % i for i in range(10_000)))
    (here / "b.txt.gz").write_bytes(whole[:-1000])
    with pytest.raises(DataError, match=r"^b.txt.gz: the gzip file is damaged: Compressed"):
        build(tmp_path, ["a.txt", "b.txt.gz"], workers=2)


def test_store_bug_of_the_tokenizer_keeps_its_traceback(tmp_path, here, small_ranges):
    (here / "a.txt").write_text("one\n" * 3000)
    with pytest.raises(ZeroDivisionError):
        build(tmp_path, "a.txt", BrokenTokenizer(), workers=1)
    with pytest.raises(RuntimeError, match=r"(?s)in encode_batch.*ZeroDivisionError: a bug"):
        build(tmp_path, "a.txt", BrokenTokenizer(), workers=2)
    assert leftovers(tmp_path) == []


def test_store_killed_worker_is_noticed(tmp_path, here, small_ranges):
    (here / "a.txt").write_text("one\n" * 3000)
    with pytest.raises(OutOfMemory, match=r"ended by itself \(killed.*data.workers: 1"):
        build(tmp_path, "a.txt", DyingTokenizer(), workers=2)
    assert leftovers(tmp_path) == []


# The cache


def test_store_second_start_uses_the_cache_and_says_so(tmp_path, here):
    (here / "a.txt").write_text("ab\ncd\n")
    notes = []
    build(tmp_path, "a.txt", callbacks=Callbacks(note=notes.append))
    again = build(tmp_path, "a.txt", BrokenTokenizer(), callbacks=Callbacks(note=notes.append))
    assert texts(again) == ["ab", "cd"]
    assert notes == [
        "data: a.txt: 2 documents, 4 tokens, tokenised",
        "data: a.txt: 2 documents, 4 tokens, from the cache",
    ]


def test_store_key_depends_on_what_the_content_depends_on(tmp_path, here):
    (here / "a.txt").write_text("one<n>two\nthree\n" + "".join(f"{i}\n" for i in range(50)))
    (here / "b.txt").write_text("one<n>two\nfour\n")
    base = build(tmp_path, "a.txt")
    others = [
        build(tmp_path, "b.txt"),
        build(tmp_path, ["a.txt", "b.txt"]),
        build(tmp_path, ["b.txt", "a.txt"]),
        build(tmp_path, "a.txt", line_break="<n>"),
        build(tmp_path, "a.txt", format="paragraphs"),
        build(tmp_path, "a.txt", on_error="skip"),
        build(tmp_path, "a.txt", drop=True),
        build(tmp_path, "a.txt", CharacterTokenizer("abc")),
        build(tmp_path, "a.txt", valid_fraction=0.5, part="train"),
        build(tmp_path, "a.txt", valid_fraction=0.4, part="train"),
        build(tmp_path, "a.txt", valid_fraction=0.5, part="valid"),
    ]
    prints = {s.fingerprint for s in others} | {base.fingerprint}
    assert len(prints) == len(others) + 1
    same = [
        build(tmp_path, "a.txt", workers=3),
        build(tmp_path, "a.txt", text_key="other"),
        build(tmp_path, "a.txt", valid_fraction=0.5),
        build(tmp_path, [{"files": "a.txt", "weight": 3.0}]),
    ]
    assert {s.fingerprint for s in same} == {base.fingerprint}


def test_store_of_a_gzip_file_is_not_that_of_its_bytes_as_text(tmp_path, here):
    (here / "a.txt.gz").write_bytes(gzip.compress(b"ab\n", mtime=0))
    (here / "b.txt").write_bytes((here / "a.txt.gz").read_bytes())
    assert texts(build(tmp_path, "a.txt.gz", on_error="skip")) == ["ab"]
    with pytest.raises(DataError, match=r"^b\.txt: "):
        build(tmp_path, "b.txt", on_error="skip")


def test_store_moved_file_is_known_by_its_content_and_named_anew(tmp_path, here):
    (here / "a.jsonl").write_text('{"text": "ab"}\n{}\n')
    first = build(tmp_path, "a.jsonl", on_error="skip")
    (here / "a.jsonl").rename(here / "b.jsonl")
    second = build(tmp_path, "b.jsonl", BrokenTokenizer(), on_error="skip")
    assert second.path == first.path
    assert str(second.counts.first_bad[0]).startswith("b.jsonl:2: ")


def test_store_file_written_in_place_is_seen(tmp_path, here):
    # Same size and same inode.
    (here / "a.txt").write_text("ab\n")
    build(tmp_path, "a.txt")
    (here / "a.txt").write_text("cd\n")
    later = time.time_ns() + 10**9  # a clock may stand still between the two
    os.utime(here / "a.txt", ns=(later, later))
    assert texts(build(tmp_path, "a.txt")) == ["cd"]


def test_content_is_read_once_in_a_run(tmp_path, here):
    (here / "a.txt").write_text("ab\n")
    (file,) = resolve(Config(train="a.txt"), None, tmp_path)[0][0].files
    asked = []  # for each block that is read

    def stop():
        asked.append(1)

    assert cache.content_hash(file, stop) == cache.content_hash(file, stop)
    assert asked == [1]


def cut_tokens(place):
    with open(place / "tokens.bin", "r+b") as file:
        file.truncate(2)


def swap_offsets(place):
    np.save(place / "offsets.npy", np.array([0, 1, 3], np.int64))


def put(name, where, value):
    """Return what overwrites a byte of one of a store's files, its size unchanged."""

    def damage(place):
        content = bytearray((place / name).read_bytes())
        content[where] = value
        (place / name).write_bytes(content)

    return damage


def count_more(place):
    meta = (place / "meta.json").read_text()
    (place / "meta.json").write_text(meta.replace('"characters": 4', '"characters": 9'))


@pytest.mark.parametrize(
    ("damage", "what"),
    [
        (cut_tokens, "tokens.bin has changed"),
        (lambda place: (place / "tokens.bin").unlink(), "No such file or directory"),
        (lambda place: (place / "meta.json").unlink(), "No such file or directory"),
        (lambda place: (place / "meta.json").write_text("{"), "Expecting property name"),
        (lambda place: (place / "meta.json").write_text("[]"), "list indices"),
        (lambda place: (place / "meta.json").write_text("{}"), "'sha256'"),
        (swap_offsets, "offsets.npy has changed"),
        (put("tokens.bin", 2, 3), "tokens.bin has changed"),  # another id of the vocabulary
        (put("offsets.npy", 8, 54), "offsets.npy has changed"),  # a shorter header
        (count_more, "meta.json has changed"),
    ],
)
def test_store_damaged_is_built_again_with_a_note(tmp_path, here, damage, what):
    (here / "a.txt").write_text("ab\ncd\n")
    first = build(tmp_path, "a.txt")
    damage(first.path)
    notes = []
    again = build(tmp_path, "a.txt", callbacks=Callbacks(note=notes.append))
    assert texts(again) == ["ab", "cd"]
    assert again.counts.characters == 4
    assert "damaged token store" in notes[0]
    assert what in notes[0]
    assert "building it again" in notes[0]
    assert leftovers(tmp_path) == []


@pytest.mark.parametrize(("name", "step"), [("offsets.npy", 8), ("meta.json", 101)])
def test_store_with_any_bit_changed_is_damaged_or_means_the_same(tmp_path, here, name, step):
    (here / "a.txt").write_text("ab\ncd\n")
    path = build(tmp_path, "a.txt").path / name
    content = path.read_bytes()
    for bit in range(0, 8 * len(content), step):
        changed = bytearray(content)
        changed[bit // 8] ^= 1 << bit % 8
        path.write_bytes(changed)
        assert texts(build(tmp_path, "a.txt")) == ["ab", "cd"]


def test_store_verification_can_be_stopped(tmp_path, here):
    (here / "a.txt").write_text("ab\ncd\n")
    build(tmp_path, "a.txt")

    def stop():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build(tmp_path, "a.txt", callbacks=Callbacks(should_stop=stop))


def test_store_file_changed_while_read_is_an_error(tmp_path, here):
    def change(done, total):
        with open(here / "a.txt", "a") as file:
            file.write("more\n")

    (here / "a.txt").write_text("ab\n")
    with pytest.raises(FileError, match=r"^a.txt: changed while it was being read"):
        build(tmp_path, "a.txt", callbacks=Callbacks(progress=change))
    assert list((tmp_path / "cache/stores").iterdir()) == []


def test_store_progress_ends_at_the_total(tmp_path, here, small_ranges, forked_workers):
    (here / "a.txt").write_text("one\n" * 5000)
    (here / "b.txt.gz").write_bytes(gzip.compress(b"two\n" * 5000))
    size = sum(os.path.getsize(here / name) for name in ("a.txt", "b.txt.gz"))
    for workers in (1, 2):
        steps = []
        callbacks = Callbacks(progress=lambda done, total, steps=steps: steps.append((done, total)))
        build(
            tmp_path,
            ["a.txt", "b.txt.gz"],
            workers=workers,
            cache=f"c{workers}",
            callbacks=callbacks,
        )
        assert steps[-1] == (size, size)
        assert len(steps) >= 5
        assert steps == sorted(steps)


# The cache directory


def test_cache_directory_goes_by_argument_then_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.setenv("NLPKIT_CACHE", str(tmp_path / "own"))
    assert cache_directory(str(tmp_path / "named"), None, print) == tmp_path / "named"
    assert cache_directory(None, None, print) == tmp_path / "own"
    monkeypatch.delenv("NLPKIT_CACHE")
    assert cache_directory(None, None, print) == tmp_path / "xdg/nlpkit"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_directory(None, None, print) == tmp_path / "home/.cache/nlpkit"
    assert (tmp_path / "home/.cache/nlpkit").is_dir()


def test_cache_directory_unwritable_falls_back_and_says_so(tmp_path, monkeypatch):
    # Below a regular file nobody can make a directory, not even root.
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("NLPKIT_CACHE", str(tmp_path / "file/cache"))
    notes = []
    run = tmp_path / "run"
    assert cache_directory(None, run, notes.append) == run
    assert notes == [f"data: no cache in {tmp_path}/file/cache: not a directory; using {run}"]
    with pytest.raises(FileError, match=r"not a directory; set data.cache or \$NLPKIT_CACHE"):
        cache_directory(None, None, print)
    with pytest.raises(FileError, match=r"file/cache: not a directory; .*file/run: not a dir"):
        cache_directory(None, tmp_path / "file/run", print)


def limited(limit):
    """Return what makes a process fail to write files beyond `limit` bytes."""
    return lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))


SCRIPT = textwrap.dedent("""
    import sys
    from pathlib import Path
    from nlpkit.data import store, tokenize
    from nlpkit.data.files import find_inputs as resolve
    from nlpkit.data.settings import Config
    from nlpkit.errors import NlpkitError
    from tests._fakes import CharacterTokenizer

    if __name__ == "__main__":
        cache, name, workers, delay = sys.argv[1:]
        tokenize.RANGE_BYTES = 1 << 18
        config = Config(train=name, workers=int(workers))
        files = resolve(config, None, Path(cache))[0][0].files
        tokenizer = CharacterTokenizer(delay=float(delay))
        callbacks = store.Callbacks(progress=lambda done, total: print(done, total, flush=True))
        try:
            built = store.build(
                files,
                config,
                store.Encoding(tokenizer),
                cache_dir=Path(cache),
                callbacks=callbacks,
            )
        except NlpkitError as error:
            sys.exit(f"{type(error).__name__}: {error}")
        print(len(built), built.fingerprint)
""")


def start(tmp_path, here, name, *, workers, delay=0.0, **rest):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    return subprocess.Popen(
        [sys.executable, script, tmp_path / "cache", name, str(workers), str(delay)],
        cwd=here,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **rest,
    )


@pytest.mark.parametrize("workers", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_store_failed_write_names_the_path_and_leaves_nothing(tmp_path, here, workers):
    (here / "a.txt").write_text("one two three\n" * 40_000)
    process = start(tmp_path, here, "a.txt", workers=workers, preexec_fn=limited(1 << 16))
    _, message = process.communicate(timeout=300)
    assert process.returncode == 1
    assert message.startswith(f"FileError: {tmp_path}/cache/stores/.building-")
    assert "cannot write tokenised data: file too large; data.cache or" in message
    assert message.count("\n") == 1
    assert list((tmp_path / "cache/stores").iterdir()) == []


def test_store_full_disk_says_no_space_left(tmp_path, here, monkeypatch):
    def full(source, out, size):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(tokenize.shutil, "copyfileobj", full)
    (here / "a.txt").write_text("ab\n")
    with pytest.raises(FileError, match=r"cache/stores/.*: no space left on device; data.cache"):
        build(tmp_path, "a.txt")
    assert list((tmp_path / "cache/stores").iterdir()) == []


# Stops and kills


@pytest.mark.parametrize("workers", [1, 2])
def test_store_stopped_leaves_nothing(tmp_path, here, small_ranges, forked_workers, workers):
    calls = []

    def stop():
        calls.append(1)
        if len(calls) == 10:
            raise KeyboardInterrupt

    (here / "a.txt").write_text("one\n" * 20_000)
    with pytest.raises(KeyboardInterrupt):
        build(tmp_path, "a.txt", workers=workers, callbacks=Callbacks(should_stop=stop))
    assert list((tmp_path / "cache/stores").iterdir()) == []
    assert len(build(tmp_path, "a.txt", workers=workers)) == 20_000


def children(pid):
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        return [int(child) for child in file.read().split()]


def wait_until(condition, seconds=300):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.05)


@pytest.mark.skipif(not os.path.isdir("/proc/self/task"), reason="needs /proc")
def test_store_killed_build_leaves_no_store_and_its_rest_is_swept(tmp_path, here):
    (here / "a.txt").write_text("one two three\n" * 100_000)
    process = start(tmp_path, here, "a.txt", workers=2, delay=0.05)
    assert process.stdout.readline()
    workers = children(process.pid)
    assert len(workers) >= 2
    process.kill()
    process.communicate(timeout=300)
    assert process.returncode == -signal.SIGKILL
    assert [name[:10] for name in leftovers(tmp_path)] == [".building-"]
    # Workers whose parent is gone end by themselves.
    wait_until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in workers))
    (rest,) = (tmp_path / "cache/stores").glob(".*")
    os.utime(rest, (0, 0))
    assert len(build(tmp_path, "a.txt", workers=1)) == 100_000
    assert leftovers(tmp_path) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_store_signal_to_the_group_is_the_parents_to_handle(tmp_path, here, name):
    """Control-C reaches the workers too: they must neither print nor end by themselves."""
    (here / "a.txt").write_text("one two three\n" * 100_000)
    process = start(tmp_path, here, "a.txt", workers=2, delay=0.05, start_new_session=True)
    assert process.stdout.readline()
    os.killpg(process.pid, getattr(signal, name))
    _, message = process.communicate(timeout=300)
    assert process.returncode == -getattr(signal, name)
    if name == "SIGINT":
        # One traceback, the parent's own KeyboardInterrupt; nothing is left.
        assert message.count("Traceback") == 1
        assert leftovers(tmp_path) == []
    else:
        assert "Traceback" not in message


@pytest.mark.slow
def test_store_two_builds_at_once_both_succeed(tmp_path, here):
    (here / "a.txt").write_text("one two three\n" * 40_000)
    both = [start(tmp_path, here, "a.txt", workers=1, delay=0.05) for _ in range(2)]
    answers = [process.communicate(timeout=300) for process in both]
    assert [process.returncode for process in both] == [0, 0], answers
    assert answers[0][0].splitlines()[-1] == answers[1][0].splitlines()[-1]
    assert len(list((tmp_path / "cache/stores").iterdir())) == 1


def test_store_winner_that_came_first_is_used(tmp_path, here):
    (here / "a.txt").write_text("ab\n")
    inner = []

    def other_process_finishes(done, total):
        inner.append(build(tmp_path, "a.txt"))

    mine = build(tmp_path, "a.txt", callbacks=Callbacks(progress=other_process_finishes))
    assert (mine.path, texts(mine)) == (inner[0].path, ["ab"])
    assert leftovers(tmp_path) == []


def test_scratch_of_a_living_process_is_not_swept(tmp_path):
    with cache.scratch(tmp_path / "stores") as mine:
        with cache.scratch(tmp_path / "stores") as other:
            assert mine != other
            assert mine.is_dir()
        assert not other.exists()
        assert mine.is_dir()
    assert list((tmp_path / "stores").iterdir()) == []


# Held-out share and mixtures


def test_store_parts_share_the_documents(tmp_path, here):
    (here / "a.txt").write_text("".join(f"text {i}\n" for i in range(500)))
    train, valid = (
        build(tmp_path, "a.txt", valid_fraction=0.2, part=part) for part in ("train", "valid")
    )
    assert sorted(texts(train) + texts(valid)) == sorted(f"text {i}" for i in range(500))
    assert train.counts.held_out == len(valid) > 0
    assert valid.counts.held_out == len(train) > 0


def corpus_of(tmp_path, entries, part="all", **settings):
    config = Config(train=entries, **settings)
    train, _ = resolve(config, None, tmp_path)
    return build_corpus(
        train, config, store.Encoding(PLAIN), cache_dir=tmp_path / "cache", part=part
    )


def test_corpus_part_without_documents_is_an_error(tmp_path, here):
    (here / "a.txt").write_text("only\n")
    (here / "b.txt").write_text("other\n")
    with pytest.raises(DataError, match=r"^a.txt: valid_fraction 0.001 of 1 document holds out n"):
        corpus_of(tmp_path, "a.txt", "valid", valid_fraction=0.001)
    with pytest.raises(
        DataError, match=r"^data.train: valid_fraction 0.999 of 2 docu.*to train on"
    ):
        corpus_of(tmp_path, ["a.txt", "b.txt"], "train", valid_fraction=0.999)


def test_corpus_source_with_nothing_held_out_is_an_empty_store(tmp_path, here):
    (here / "a.txt").write_text("only\n")
    (here / "b.txt").write_text("".join(f"text {i}\n" for i in range(500)))
    held = corpus_of(tmp_path, ["a.txt", "b.txt"], "valid", valid_fraction=0.05)
    assert [len(s) for s in held.stores] == [0, len(held)]
    assert held.stores[0].lengths.tolist() == []
    assert PLAIN.decode(held.document(0)).startswith("text ")


def test_corpus_numbers_documents_through(tmp_path, here):
    (here / "a.txt").write_text("a\nbb\n")
    (here / "b.txt").write_text("ccc\n")
    (here / "c.txt").write_text("dddd\neeeee\n\n")
    mixed = corpus_of(tmp_path, ["a.txt", {"files": "b.txt", "weight": 0.5}, "c.txt"])
    assert isinstance(mixed, Corpus)
    assert (len(mixed), mixed.tokens, mixed.counts.blank) == (5, 15, 1)
    assert mixed.lengths.tolist() == [1, 2, 3, 4, 5]
    assert mixed.weights.tolist() == [1.0, 0.5, 1.0]
    assert mixed.starts.tolist() == [0, 2, 3, 5]
    assert [PLAIN.decode(mixed.document(i)) for i in range(5)] == [
        "a",
        "bb",
        "ccc",
        "dddd",
        "eeeee",
    ]


def test_corpus_fingerprint_depends_on_order_and_weights(tmp_path, here):
    (here / "a.txt").write_text("a\n")
    (here / "b.txt").write_text("b\n")
    prints = [
        corpus_of(tmp_path, ["a.txt", "b.txt"]).fingerprint,
        corpus_of(tmp_path, ["b.txt", "a.txt"]).fingerprint,
        corpus_of(tmp_path, ["a.txt", {"files": "b.txt", "weight": 2}]).fingerprint,
    ]
    assert len(set(prints)) == 3
    assert prints[0] == corpus_of(tmp_path, ["a.txt", "b.txt"]).fingerprint


def test_corpus_can_be_pickled(tmp_path, here):
    (here / "a.txt").write_text("a\nbb\n")
    mixed = pickle.loads(pickle.dumps(corpus_of(tmp_path, ["a.txt"])))
    assert PLAIN.decode(mixed.document(1)) == "bb"


def test_counts_of_a_store_survive_on_disk(tmp_path, here):
    (here / "a.jsonl").write_text('{"text": "ab"}\n\n{}\n{"text": ""}\n')
    built = build(tmp_path, "a.jsonl", on_error="skip")
    expected = replace(
        built.counts, lines=4, documents=1, blank=1, empty=1, bad=1, characters=2, bytes=2
    )
    assert TokenStore(built.path, ["a.jsonl"]).counts == built.counts == expected


def test_a_line_that_is_too_long_is_not_read_whole_to_divide_the_file(here, tmp_path, monkeypatch):
    for module in (tokenize, lines):
        monkeypatch.setattr(module, "LONGEST_LINE", 1 << 10)
    monkeypatch.setattr(tokenize, "RANGE_BYTES", 1 << 12)
    (here / "a.txt").write_text("word\n" * 700 + "x" * 10**5)
    whole = TextFile("a.txt", "a.txt", "text")
    assert max(part.stop - part.start for part in tokenize.split(whole)) <= (1 << 12) + (1 << 10)
    with pytest.raises(DataError, match=r"a.txt:701: a line of more than "):
        build(tmp_path, "a.txt", workers=1)


def test_tokens_of_a_large_corpus_are_counted_a_part_at_a_time(tmp_path):
    numbers = np.arange(10**7, dtype=np.uint16) % 1000
    for name, ids in (("a", numbers), ("b", numbers[:7])):
        (tmp_path / name).mkdir()
        ids.tofile(tmp_path / name / "tokens.bin")
        np.save(tmp_path / name / "offsets.npy", [0, len(ids)])
        meta = {"key": name, "tokens": len(ids), "dtype": "<u2", "files": []}
        (tmp_path / name / "meta.json").write_text(json.dumps(meta))
    corpus = Corpus([(TokenStore(tmp_path / name, []), 1.0) for name in "ab"])
    tracemalloc.start()
    found = corpus.histogram()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert np.array_equal(found, np.bincount(numbers) + np.bincount(numbers[:7], minlength=1000))
    assert peak < 4 * len(numbers)  # 8 bytes for each token of a part
