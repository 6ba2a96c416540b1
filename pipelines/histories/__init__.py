"""User histories: rebuilt from windows, and compacted beside the runs."""
