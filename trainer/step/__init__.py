"""One training step, from the rows of a batch to gradients."""
