"""Bundles, variants with bundles of their own, and checkpoints: the trainer's output."""
