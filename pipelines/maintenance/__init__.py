"""Retention of windows, erasure of users, cleanup of replaced files, changes of settings."""
