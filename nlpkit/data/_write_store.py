"""The key of a store, and its three files: the token files of `_build`, and `meta.json`."""

import dataclasses
import hashlib
import json
import math
from pathlib import Path

import numpy as np

from nlpkit.data import cache, tokenize
from nlpkit.data import marks as marking
from nlpkit.data.corpus import Config, Part
from nlpkit.data.records import Counts
from nlpkit.data.tokenize import Watch, Work
from nlpkit.errors import DataError

# Part of every key: change it when the same text would give another store.
VERSION = 1


def key(work: Work, memory: Path, watch: Watch) -> str:
    """Return the hash of everything that the store's content depends on."""
    config = work.config
    content = [cache.content_hash(file, memory, watch.should_stop) for file in work.files]
    marks = {"marks": [marking.VERSION, *work.marks]} if work.marks else {}
    text = json.dumps(
        marks
        | {
            "version": VERSION,
            "files": [
                [sha, dataclasses.asdict(r)] for sha, r in zip(content, work.rows, strict=True)
            ],
            "gzip": [file.gzip for file in work.files],
            "on_error": config.on_error,
            "part": [work.part, config.valid_fraction if work.part != "all" else 0.0],
            "tokenizer": work.tokenizer.fingerprint(),
            "dtype": work.dtype.name,
            "drop_unknown": work.drop_unknown,
        },
        sort_keys=True,
    )
    return hashlib.sha256(text.encode()).hexdigest()


def fill(folder: Path, room: Path, work: Work, name: str, watch: Watch) -> None:
    """Write the three files of the store whose key is `name`; raise `DataError` if it is empty."""
    built = tokenize.build(work, folder, room, watch)
    total = Counts()
    for counts in built.file_counts:
        total.add(counts)
    # One source of several may hold nothing out: that is for the mixture to judge.
    if not built.documents and not total.held_out:
        raise DataError(f"{work.files[0].name}: {nothing_left(work.config, work.part, total)}")
    meta = {
        "version": VERSION,
        "key": name,
        "tokenizer": work.tokenizer.fingerprint(),
        "drop_unknown": work.drop_unknown,
        "part": work.part,
        "dtype": work.dtype.str,
        "documents": built.documents,
        "tokens": built.tokens,
        "unigram_entropy": entropy(built.histogram),
        "files": [
            [file.name, dataclasses.asdict(counts)]
            for file, counts in zip(work.files, built.file_counts, strict=True)
        ],
        "sizes": {name: (folder / name).stat().st_size for name in built.sha256},
        "sha256": built.sha256,
    } | ({"marks": work.marks} if work.marks else {})
    with cache.write_errors(folder):
        (folder / "meta.json").write_text(json.dumps(meta, indent=1), encoding="utf-8")


def nothing_left(config: Config, part: Part, counts: Counts) -> str:
    """Return why nothing that was read became a document with tokens."""
    if counts.tokenless:
        return f"no tokens: all {counts.tokenless} documents consist of unknown characters"
    if counts.held_out:
        what = "holds out none" if part == "valid" else "leaves none to train on"
        return f"valid_fraction {config.valid_fraction} of {counts.held_out} documents {what}"
    return f"no documents; {counts.bad} malformed: {counts.first_bad[0]}"


def entropy(histogram: np.ndarray) -> float:
    seen = histogram[histogram > 0]
    share = seen / seen.sum()
    return float(max(0.0, -math.fsum(share * np.log(share))))
