"""Weir, a streaming retrieval trainer: the command line and the local supervisor stand here."""
