"""The queue between callers and the thread that searches."""
