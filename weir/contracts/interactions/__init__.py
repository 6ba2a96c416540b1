"""Interactions, features and the catalogue: what the log and its users say."""
