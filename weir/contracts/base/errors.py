"""Errors that a user can act on, including the error that names a damaged file."""

from typing import ClassVar

from pydantic import ValidationError

__all__ = ["CorruptArtefactError", "IncompatibleBundleError", "UserError", "in_one_line"]


class UserError(Exception):
    """Base of the errors that a user can act on: the command line prints the message without a traceback.

    `exit_status` is the exit status of the command; `hint` says what to do where the message does not.
    """

    exit_status: ClassVar[int] = 1
    hint: ClassVar[str] = ""

    def explain(self) -> list[str]:
        """Return the lines to print; the caller escapes control characters, which external text may hold."""
        message = str(self) or type(self).__name__
        return [f"{message}; {self.hint}" if self.hint else message]


class CorruptArtefactError(UserError):
    """A stored file does not match its manifest; the message names the file, the actual and the expected value."""

    hint = "restore it from a copy; without one, start with another --store"

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(f"{path}: {problem}")
        self.path = path
        self.problem = problem

    def __reduce__(self) -> tuple[type["CorruptArtefactError"], tuple[str, str]]:
        return type(self), (self.path, self.problem)


class IncompatibleBundleError(CorruptArtefactError):
    """A bundle's files match its manifest, but do not fit together or cannot be used by this version."""


def in_one_line(error: ValidationError) -> str:
    """Return the problems of a document, field by field, in one line without pydantic's surrounding text."""
    details = error.errors(include_url=False, include_input=False)
    return "; ".join(": ".join(filter(None, [".".join(map(str, d["loc"])), d["msg"]])) for d in details)
