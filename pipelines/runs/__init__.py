"""The state of a run: its registration, positions, pending rows and item-key owners."""
