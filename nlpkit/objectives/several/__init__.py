"""Several objectives in a run: a list, a mixture."""
