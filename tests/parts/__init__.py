"""Parts of a user's own, a file or folder each, named in recipes with dots: `tests.parts.mlm`."""
