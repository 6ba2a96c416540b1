"""The commit log and the windows that it lists: what the pipeline hands to all others."""
