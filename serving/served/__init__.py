"""Keeps what was answered, for attribution: `lists` holds it, `writer` brings it to the store."""
