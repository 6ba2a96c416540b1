"""One training step, from window to batches to gradients and updates."""
