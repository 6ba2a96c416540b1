"""Histories of users, from the files of the store or from Redis."""
