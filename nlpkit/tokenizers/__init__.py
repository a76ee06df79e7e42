"""Tokenizers, one file per kind: text ↔ ids, trained on text, saved in `transformers`' layout.

A file has `Config` and `Tokenizer`, free of torch and transformers at import, with
`train(texts, config)`, `load(path)`, `save(directory)`, `encode(text)`, `encode_batch(texts)`,
`decode(ids)`, `token(id)`, `token_characters()`, `fingerprint()`, `vocab_size`, `files` (a
directory with one of them has a tokenizer), and `bos_id`, `eos_id`, `unk_id`, `pad_id`, `mask_id`,
which may be None. `encode` adds no special tokens, and special tokens written in a text are encoded
as ordinary characters. CPM-Ant's tokenizer can `grow`. `encode_with_offsets(texts)`, which is
optional, returns ids and the characters of each token.
"""
