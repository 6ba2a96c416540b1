"""Bundles in memory, loaded, watched and changed in place, and the catalogue."""
