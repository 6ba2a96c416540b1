"""Why a bundle could not be made."""

from contracts import UserError

__all__ = ["ExportError"]


class ExportError(UserError):
    """A bundle could not be made; the message says what is wrong with it. Training goes on without it."""
