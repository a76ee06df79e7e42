"""Tokenizers, one file per name: text ↔ ids, learned from text, kept in `transformers`' layout.

A file has `Config` and `Tokenizer`, free of torch and transformers at import, with
`train(texts, config)`, `load(path)`, `save(directory)`, `encode(text)`, `encode_batch(texts)`,
`decode(ids)`, `token(id)`, `token_characters()`, `fingerprint()`, `vocab_size`, `files` (any one of
which tells a directory to be a tokenizer's), and `bos_id`,
`eos_id`, `unk_id`, `pad_id`, `mask_id`, each None where the family has none. Text is text:
`encode` adds no control token and obeys none that a document spells out. CPM-Ant's can `grow`.
`encode_with_offsets(texts)`, which a kind may lack, gives ids and the characters of each token.
"""
