"""Bundles, their lines, and checkpoints: what the trainer hands to the server."""
