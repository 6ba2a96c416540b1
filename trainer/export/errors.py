"""The error of a failed export."""

from weir.contracts import UserError

__all__ = ["AwaitedError", "ExportError"]


class ExportError(UserError):
    """A bundle could not be made; the message says what is wrong with it. Training continues without it."""


class AwaitedError(ExportError):
    """The bundle is made beside the stream: the export is to come again."""
