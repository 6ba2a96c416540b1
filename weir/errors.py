"""Errors that end a command without a traceback. Imports nothing of weir, so that help appears at once."""

from typing import ClassVar

__all__ = ["CommandError", "UsageError"]


class CommandError(Exception):
    """The command failed; the message says what to do next. Stages raise `weir.contracts.base.errors.UserError`."""

    exit_status: ClassVar[int] = 1


class UsageError(CommandError):
    """The arguments of the command are invalid."""

    exit_status = 2
