"""Readers of rows, a file a format: what `data.format` or a file's ending names.

What a reader offers is in `contract.py`. None imports anything heavy.
"""
