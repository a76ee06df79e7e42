"""Small families for tests of checkpoints, addressed by dotted names."""
