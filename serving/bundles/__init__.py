"""Bundles in memory: loaded, watched, changed in place; and the catalogue."""
