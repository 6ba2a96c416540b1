"""History files: the last positives and the seen items of each user."""
