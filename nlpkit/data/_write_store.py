"""The key of a store, and its files: those that `tokenize` writes, and `meta.json`."""

import dataclasses
import hashlib
import json
import math
from pathlib import Path
from typing import Any

import numpy as np

from nlpkit.contracts.reader import Counts
from nlpkit.data import cache, tokenize
from nlpkit.data import marks as marking
from nlpkit.data.corpus import Config, Part
from nlpkit.data.tokenize import BuildSpec, Callbacks
from nlpkit.errors import DataError
from nlpkit.plural import all_of, number_of

# Part of every key: change it if the same text gives another store.
VERSION = 1


def key(spec: BuildSpec, memory: Path, callbacks: Callbacks) -> str:
    """Return the hash of everything that the store's content depends on."""
    config = spec.config
    content = [cache.content_hash(file, memory, callbacks.should_stop) for file in spec.files]
    marks = {"marks": [marking.VERSION, *spec.marks]} if spec.marks else {}
    text = json.dumps(
        marks
        | {
            "version": VERSION,
            "files": [[sha, r.identity()] for sha, r in zip(content, spec.rows, strict=True)],
            "gzip": [file.gzip for file in spec.files],
            "on_error": config.on_error,
            "part": [spec.part, config.valid_fraction if spec.part != "all" else 0.0],
            "tokenizer": spec.tokenizer.fingerprint(),
            "dtype": spec.dtype.name,
            "drop_unknown": spec.drop_unknown,
        },
        sort_keys=True,
    )
    return hashlib.sha256(text.encode()).hexdigest()


def write_store(
    folder: Path, workdir: Path, spec: BuildSpec, name: str, callbacks: Callbacks
) -> None:
    """Write the files of the store whose key is `name`; raise `DataError` if it is empty."""
    built = tokenize.build(spec, folder, workdir, callbacks)
    total = Counts()
    for counts in built.file_counts:
        total.add(counts)
    # One source of several may have no document in this part; `build_corpus` checks the mixture.
    if not built.documents and not total.held_out:
        raise DataError(f"{spec.files[0].name}: {nothing_left(spec.config, spec.part, total)}")
    meta = {
        "version": VERSION,
        "key": name,
        "tokenizer": spec.tokenizer.fingerprint(),
        "drop_unknown": spec.drop_unknown,
        "part": spec.part,
        "dtype": spec.dtype.str,
        "documents": built.documents,
        "tokens": built.tokens,
        "unigram_entropy": entropy(built.histogram),
        "files": [
            [file.name, dataclasses.asdict(counts)]
            for file, counts in zip(spec.files, built.file_counts, strict=True)
        ],
        "sizes": {name: (folder / name).stat().st_size for name in built.sha256},
        "sha256": built.sha256,
    } | ({"marks": spec.marks} if spec.marks else {})
    meta["meta_sha256"] = meta_hash(meta)
    with cache.write_errors(folder):
        (folder / "meta.json").write_text(json.dumps(meta, indent=1), encoding="utf-8")


def meta_hash(meta: dict[str, Any]) -> str:
    """Return the hash of `meta.json` but for the hash itself."""
    rest = {name: value for name, value in meta.items() if name != "meta_sha256"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def nothing_left(config: Config, part: Part, counts: Counts) -> str:
    """Return why nothing that was read became a document with tokens."""
    if counts.tokenless:
        return f"no tokens: {all_of(counts.tokenless, 'documents consist')} of unknown characters"
    if counts.held_out:
        what = "holds out none" if part == "valid" else "leaves none to train on"
        return (
            f"valid_fraction {config.valid_fraction} of "
            f"{number_of(counts.held_out, 'documents')} {what}"
        )
    return f"no documents; {counts.bad} malformed: {counts.first_bad[0]}"


def entropy(histogram: np.ndarray) -> float:
    seen = histogram[histogram > 0]
    share = seen / seen.sum()
    return float(max(0.0, -math.fsum(share * np.log(share))))
