"""Decayed frequencies of items and users in the stream, and log Q."""
