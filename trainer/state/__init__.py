"""The trainer state: model, item table, frequencies and position, and its checkpoints."""
