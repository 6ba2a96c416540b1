"""Supervision of child processes: restarted when they die, stopped together."""
