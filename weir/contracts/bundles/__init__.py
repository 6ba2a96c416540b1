"""Bundles, lines of bundles, and checkpoints: the trainer's output."""
