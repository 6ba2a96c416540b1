"""The state of a run: its registration, positions and pending rows."""
