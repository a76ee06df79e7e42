"""What kinds of attention share."""
