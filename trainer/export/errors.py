"""The error of a failed export."""

from contracts import UserError

__all__ = ["ExportError"]


class ExportError(UserError):
    """A bundle could not be made; the message says what is wrong with it. Training continues without it."""
