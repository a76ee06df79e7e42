"""Readers of rows, one file per format; `data.format` or a file's ending selects the format.

The interface of a reader is in `contracts/reader.py`. The readers are fast to import.
"""
