"""The error of a failed export."""

__all__ = ["ExportError"]


class ExportError(Exception):
    """A bundle could not be made; the message says why. Training continues without it."""
