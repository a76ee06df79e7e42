"""What kinds of tokenizers share: the classes of the `tokenizers` library, files, two sides."""
