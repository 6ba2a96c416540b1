"""Errors, keys and arrays that all packages share. Imports nothing of ours."""
