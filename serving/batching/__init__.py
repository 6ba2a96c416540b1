"""The queue between callers and the search thread."""
