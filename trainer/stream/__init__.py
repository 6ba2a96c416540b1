"""Window by window: follow the log, test the model on each window before it is trained on, report."""
