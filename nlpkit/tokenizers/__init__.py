"""Tokenizers, a file a kind: text to ids and back. What each offers: `contract`."""
