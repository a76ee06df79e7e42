"""What backends of attention share."""
