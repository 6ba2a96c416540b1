"""The error of a failed export."""

from contracts import UserError

__all__ = ["ExportError", "ListsAwaitedError"]


class ExportError(UserError):
    """A bundle could not be made; the message says what is wrong with it. Training continues without it."""


class ListsAwaitedError(ExportError):
    """The lists of the index are not trained yet: the export is to come again."""
