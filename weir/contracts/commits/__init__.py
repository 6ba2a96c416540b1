"""The commit log and the windows that it lists: the pipeline's output."""
