"""Errors, keys and arrays: what all packages share. Imports nothing of ours."""
