"""Tokenizers, one file per kind: text to ids and back. Their interface is in `contracts`."""
