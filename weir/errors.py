"""Errors that end a command without a traceback; this module loads nothing, so that help appears at once."""

from typing import ClassVar

__all__ = ["CommandError", "UsageError"]


class CommandError(Exception):
    """The command failed; the message says what to do next. The stages have `weir.contracts.base.errors.UserError`."""

    exit_status: ClassVar[int] = 1


class UsageError(CommandError):
    """The arguments of the command make no sense."""

    exit_status = 2
