"""What objectives on rows of files share."""
