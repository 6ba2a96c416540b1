"""Errors of an export."""

from weir.contracts import UserError

__all__ = ["AwaitedError", "ExportError"]


class ExportError(UserError):
    """A bundle could not be made; the message says why. Training continues without it."""


class AwaitedError(ExportError):
    """The bundle is being made in the background: export again later."""
