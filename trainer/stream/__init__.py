"""The training loop over windows: follow the log, test the model on each window, train on it, report."""
