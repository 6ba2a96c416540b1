"""The trainer: towers, negatives, losses, the training loop, checkpoints, evaluation and export."""
