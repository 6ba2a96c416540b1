"""How a command fails: one clear line on standard error, and the exit status 1 (failed) or 2 (wrong usage)."""

import errno
import functools
import sys
from collections.abc import Callable
from typing import Any, Final, NoReturn, ParamSpec, TypeVar

import typer

from weir.text import visible

__all__ = ["CommandError", "UsageError", "debugging", "fail", "guarded", "need", "show_tracebacks"]

P = ParamSpec("P")
R = TypeVar("R")

_FAILED: Final = 1
_WRONG_USAGE: Final = 2

_EXTRAS: Final = {
    "apache_beam": "pipeline",
    "torch": "trainer",
    "onnx": "trainer",
    "onnxscript": "trainer",
    "grpc": "serving",
    "grpc_health": "serving",
    "grpc_reflection": "serving",
    "grpc_status": "serving",
    "google": "serving",
    "onnxruntime": "serving",
    "uvloop": "serving",
    "faiss": "cpu",
}
"""Module -> the extra of pip that brings it."""

_CLEAR: Final = {
    "BusyStoreError",
    "CheckpointMismatchError",
    "DamagedCheckpointError",
    "ExportError",
    "GaveUpError",
    "StoreFormatError",
    "UnfitStoreError",
}
"""Errors of the stages (named, because importing them takes seconds) whose message says it all."""

_LINES: Final = {"GaveUpError"}
"""Those of them that quote lines."""

_state = {"debug": False}


class CommandError(Exception):
    """The command failed; the message says what to do next."""


class UsageError(Exception):
    """The command was asked for something that makes no sense."""


def show_tracebacks(value: bool) -> bool:
    """Remember ``--debug``."""
    _state["debug"] = _state["debug"] or value
    return value


def debugging() -> bool:
    """Say whether ``--debug`` was given."""
    return _state["debug"]


def guarded(command: Callable[P, R]) -> Callable[P, R]:
    """Turn the errors that a user can mend into one line and an exit status; others keep their traceback."""

    @functools.wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return command(*args, **kwargs)
        except (typer.Exit, typer.Abort):
            raise
        except KeyboardInterrupt:
            raise typer.Exit(130) from None
        except Exception as error:
            if debugging() or (told := _tell(error)) is None:
                raise
            fail(*told)

    return run


def fail(message: str, status: int = _FAILED) -> NoReturn:
    """Print a message on standard error and end the command."""
    lines = [visible(line) for line in f"weir: {message}".split("\n")]
    sys.stderr.write("\n".join(lines) + "\n")
    raise typer.Exit(status)


def need(extra: str, error: ModuleNotFoundError) -> CommandError:
    """Return the error for a missing extra."""
    wanted = f"{extra},cpu" if extra == "serving" else extra
    return CommandError(f"the module {error.name} is missing: install it with `pip install 'weir[{wanted}]'`")


def _tell(error: Exception) -> tuple[str, int] | None:
    """Return the line and the status for an error that a user can mend, or None."""
    kind = type(error).__name__
    if isinstance(error, ModuleNotFoundError):
        extra = _EXTRAS.get((error.name or "").split(".")[0])
        return (str(need(extra, error)), _FAILED) if extra else None
    if kind == "SettingsError":
        problems = [f"  {visible(line)}" for line in _problems(error)]
        return "\n".join(["these settings cannot be used:", *problems]), _WRONG_USAGE
    if isinstance(error, UsageError):
        return visible(error), _WRONG_USAGE
    if kind == "RetrievalError":
        return _refusal(error), _FAILED
    return _plain(error, kind)


def _plain(error: Exception, kind: str) -> tuple[str, int] | None:
    hints = {
        "CorruptArtefactError": "restore it from a copy; without one, begin with another --store",
    }
    if kind in hints:
        return f"{visible(error)}; {hints[kind]}", _FAILED
    if (isinstance(error, OSError) and error.errno == errno.EADDRINUSE) or "Failed to bind to address" in str(error):
        hint = "stop the process that holds it (`ss -ltnp` names it), or let `--set serving.port=0`, "
        return f"a port is in use: {hint}`--set SECTION.metrics_port=0` take any free one", _FAILED
    # The system's errors tell of a file or folder: not there, not allowed, read-only, full, a file for a folder.
    if isinstance(error, CommandError | OSError) or kind in _CLEAR:
        return (str(error) if kind in _LINES else visible(error)) or kind, _FAILED
    # fsspec names what a protocol needs, such as s3fs for s3://.
    if kind == "ImportError" and "nstall" in str(error):
        return f"{error} (with .venv/bin/pip or where weir is installed)", _FAILED
    if isinstance(error, ValueError):
        return f"{_in_one_line(error)} (--debug shows where)", _FAILED
    return None


def _refusal(error: Any) -> str:
    if error.code.name == "UNAVAILABLE" and not error.reason:
        return (
            f"no server answers: start one with `weir up` or `weir serve`, or name it with --target ({visible(error)})"
        )
    problems = "".join(f"\n  {visible(field)}: {visible(problem)}" for field, problem in error.violations.items())
    return f"the server refused: {visible(error)}{problems}"


def _in_one_line(error: ValueError) -> str:
    """Return the message of an error that may frame its message over several lines, as pydantic does."""
    return "; ".join(visible(line.strip()) for line in str(error).splitlines() if line.strip()) or type(error).__name__


def _problems(error: Any) -> list[str]:
    return list(error.problems)
