"""Processes that are restarted when they die, and stopped together."""
