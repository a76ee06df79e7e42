"""One file for each schedule of the learning rate."""
