"""Served lists: answers kept for attribution; `lists` collects them, `writer` writes them to the store."""
