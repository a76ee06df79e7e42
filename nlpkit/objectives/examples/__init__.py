"""How examples are made of text, and what a loss reads of a model: shared by objectives."""
