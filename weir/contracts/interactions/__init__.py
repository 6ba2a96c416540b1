"""Interactions, features and the catalogue: the input of the pipeline."""
