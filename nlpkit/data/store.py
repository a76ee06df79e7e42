"""Documents -> token ids, made once, kept on disk and memory-mapped.

A store is a directory named by a hash of everything that its content depends on: the bytes of the
files, how they are read, the tokenizer. It appears whole or not at all; a second start verifies
and opens it.
"""

import hashlib
import json
import shutil
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

from nlpkit.contracts.batch import bit
from nlpkit.contracts.reader import Counts, TextFile
from nlpkit.contracts.tokenizer import Aligned
from nlpkit.data import cache
from nlpkit.data.cache import Callbacks
from nlpkit.data.corpus import Corpus, TokenStore
from nlpkit.data.documents import check_format, describe_reading
from nlpkit.data.files import Input
from nlpkit.data.lines import name_first
from nlpkit.data.settings import Config, Part
from nlpkit.data.tokenize import Encoding, Job, tokenize
from nlpkit.disk import file_sha256
from nlpkit.errors import DataError, FileError, UsageError
from nlpkit.json_types import JsonMapping
from nlpkit.plural import number_of

WARN_SHARE = 0.01  # of unknown tokens, all of which count, also those that are left out
VERSION = 1  # part of every key: change it if the same text gives another store
# Part of the key of a store with flags: change it when the same text would get other ones.
FLAGS_VERSION = 1


def build_corpus(
    inputs: Sequence[Input],
    config: Config,
    encoding: Encoding,
    *,
    cache_dir: Path,
    part: Part = "all",
    callbacks: Callbacks = Callbacks(),
    count_words: bool = False,
) -> Corpus:
    """Return the corpus of a mixture, a store for each input; arguments and errors as for `build`.

    An input may be without documents where `part` leaves it none, but not all of them.
    """
    stores = [
        build(each.files, config, encoding, cache_dir=cache_dir, part=part, callbacks=callbacks)
        for each in inputs
    ]
    corpus = Corpus([(store, each.weight) for store, each in zip(stores, inputs, strict=True)])
    if not len(corpus):
        from nlpkit.data import remarks

        name = inputs[0].files[0].name if len(inputs) == 1 else "data.train"
        raise DataError(f"{name}: {remarks.explain_empty(config, part, corpus.counts)}")
    unknown, tokens, remark = corpus.counts.unknown, corpus.tokens, ""
    if encoding.drop_unknown:
        tokens, remark = tokens + unknown, " and left out"
    if unknown and unknown >= WARN_SHARE * tokens:
        from nlpkit.data import remarks

        callbacks.warn(remarks.warn_of_unknown(inputs, unknown, tokens, remark))
    if count_words:
        from nlpkit.data import words

        places = cache_dir, part, callbacks
        corpus.words = words.count_documents(corpus, inputs, config, encoding, *places)
    return corpus


def build(
    files: Sequence[TextFile],
    config: Config,
    encoding: Encoding,
    *,
    cache_dir: Path,
    part: Part = "all",
    callbacks: Callbacks = Callbacks(),
) -> TokenStore:
    """Return the store of these files, in order: from the cache, or tokenised now.

    Unknown tokens that are left out are counted. `part` takes the share that
    `config.valid_fraction` leaves for training or holds out. Raise `UsageError` if flags are wanted
    and the tokenizer cannot place its tokens. Raise `DataError` at the first
    malformed row in file order (`file:line: what`), or if there is no document; `FileError` when a
    file or the cache cannot be read or written. A damaged store is built again, which is noted.
    Only a store of a `part` may be empty.
    """
    for file in files:
        check_format(file, config)
    encoding = replace(encoding, token_flags=tuple(sorted({*encoding.token_flags}, key=bit)))
    if encoding.token_flags and not isinstance(encoding.tokenizer, Aligned):
        raise UsageError(
            f"objective: it needs token flags ({', '.join(encoding.token_flags)}), and this kind "
            "of tokenizer does not say which characters its tokens stand for; use another kind"
        )
    job = Job(config, part, encoding)
    before = [cache.signature(file) for file in files]
    key = _key(files, job, callbacks)
    path = cache_dir / "stores" / key[:32]
    how = "from the cache"
    if not path.exists() or not _is_sound(path, callbacks):
        how = "tokenised"
        with cache.scratch(path.parent) as workdir, cache.write_errors(path):
            built = workdir / "store"
            built.mkdir()
            counts = tokenize(files, job, built, workdir, callbacks)
            _write_meta(built, key, files, job, counts)
            for file, then in zip(files, before, strict=True):
                if cache.signature(file) != then:
                    raise FileError(f"{file.name}: changed while it was being read; start again")
            cache.publish(built, path)
    store = TokenStore(path, [file.name for file in files])
    callbacks.note(f"data: {_describe(store, files, encoding)}, {how}")
    return store


def _describe(store: TokenStore, files: Sequence[TextFile], encoding: Encoding) -> str:
    read = name_first([each.name for file in files for each in file.parts])
    what = "more left out as unknown" if encoding.drop_unknown else "of them unknown"
    unknown = f", {store.counts.unknown:,} {what}" if store.counts.unknown else ""
    documents, tokens = number_of(len(store), "documents"), number_of(store.tokens, "tokens")
    return f"{read}: {documents}, {tokens}{unknown}"


def _is_sound(path: Path, callbacks: Callbacks) -> bool:
    """Return whether a store in the cache is whole; a damaged one is removed, which is noted."""
    try:
        meta = json.loads((path / "meta.json").read_text(encoding="utf-8"))
        expected = meta["sha256"]
        if meta.get("meta_sha256") not in (None, _hash_meta(meta)):  # None: of an earlier version
            raise ValueError("meta.json has changed")
        for name in expected:
            if file_sha256(path / name, should_stop=callbacks.should_stop) != expected[name]:
                raise ValueError(f"{name} has changed")
    except (OSError, ValueError, TypeError, KeyError) as error:
        callbacks.note(f"data: {path}: damaged token store: {error}; building it again")
        shutil.rmtree(path, ignore_errors=True)
        return False
    return True


def _write_meta(
    folder: Path, key: str, files: Sequence[TextFile], job: Job, file_counts: Sequence[Counts]
) -> None:
    """Write `meta.json` of the store whose key is `key`; raise `DataError` if it is empty."""
    total = Counts()
    for counts in file_counts:
        total.add(counts)
    size = (folder / "tokens.bin").stat().st_size
    # One source of several may have no document in this part; `build_corpus` checks the mixture.
    if not size and not total.held_out:
        from nlpkit.data import remarks

        what = remarks.explain_empty(job.config, job.part, total)
        raise DataError(f"{files[0].name}: {what}")
    meta = {
        "version": VERSION,
        "key": key,
        "dtype": job.encoding.dtype.str,
        "tokens": size // job.encoding.dtype.itemsize,
        "files": [
            [file.name, asdict(counts)] for file, counts in zip(files, file_counts, strict=True)
        ],
        "sha256": {each.name: file_sha256(each) for each in sorted(folder.iterdir())},
    } | ({"marks": job.encoding.token_flags} if job.encoding.token_flags else {})
    meta["meta_sha256"] = _hash_meta(meta)
    (folder / "meta.json").write_text(json.dumps(meta, indent=1), encoding="utf-8")


def _hash_meta(meta: JsonMapping) -> str:
    rest = {name: value for name, value in meta.items() if name != "meta_sha256"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def _key(files: Sequence[TextFile], job: Job, callbacks: Callbacks) -> str:
    config, encoding = job.config, job.encoding
    flags = {"marks": [FLAGS_VERSION, *encoding.token_flags]} if encoding.token_flags else {}
    content = [
        [cache.content_hash(file, callbacks.should_stop), describe_reading(file, config)]
        for file in files
    ]
    key = flags | {
        "version": VERSION,
        "files": content,
        "gzip": [file.gzip for file in files],
        "on_error": config.on_error,
        "part": [job.part, config.valid_fraction if job.part != "all" else 0.0],
        "tokenizer": encoding.tokenizer.fingerprint(),
        "dtype": encoding.dtype.name,
        "drop_unknown": encoding.drop_unknown,
    }
    return hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()
