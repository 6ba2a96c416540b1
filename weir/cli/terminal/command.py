"""The decorator `command`: options in groups, logs, and errors as exit statuses.

A command that fails prints one clear line on standard error; its exit status is 1 (failed) or 2 (wrong usage).
"""

import errno
import functools
import inspect
import logging
import os
import select
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import fields, is_dataclass
from itertools import chain
from typing import Annotated, Any, Final

import typer
from rich.console import Console
from rich.logging import RichHandler

from weir.errors import CommandError
from weir.text import visible

__all__ = ["DEBUGGING", "command", "explain", "leave_out_noise", "set_up_logging"]


# ruff: noqa: PLC0415 - imports wait until a command has failed


DEBUGGING: Final = ContextVar("DEBUGGING", default=False)
"""Whether ``--debug`` was given."""

_DEBUG: Final = inspect.Parameter(
    "debug",
    inspect.Parameter.KEYWORD_ONLY,
    default=False,
    annotation=Annotated[bool, typer.Option("--debug", help="Show tracebacks and log at DEBUG level.")],
)

_EXTRAS: Final = {
    "apache_beam": "pipeline",
    "confluent_kafka": "pipeline",
    "torch": "trainer,cpu",
    "onnx": "trainer,cpu",
    "onnxscript": "trainer,cpu",
    "grpc": "serving,cpu",
    "grpc_health": "serving,cpu",
    "grpc_reflection": "serving,cpu",
    "grpc_status": "serving,cpu",
    "google": "serving,cpu",
    "onnxruntime": "serving,cpu",
    "uvloop": "serving,cpu",
    "faiss": "cpu",
    "redis": "redis",
    "opentelemetry": "tracing",
    "fastavro": "avro",
    "matplotlib": "bench",
    "jinja2": "bench",
}
"""Module -> the pip extras that install it."""

_ROOMS: Final = {"weir.pipelines": "pipeline", "weir.trainer": "trainer,cpu", "weir.serving": "serving,cpu"}
"""Package -> the pip extras that it needs. The trainer's gate, the server and the monitor share some modules."""

_OPTIONAL: Final = ("fastavro", "jinja2", "matplotlib", "opentelemetry", "redis")
"""Modules of optional features; their own extra is named even if a package imports them."""

_SYSTEM: Final = {
    errno.ENOSPC: "free space and run it again",
    errno.EDQUOT: "the quota is used up: free space, or have it raised, and run it again",
    errno.EFBIG: "files may not grow larger here: raise the limit (`ulimit -f`) and run it again",
    errno.EMFILE: "too many files are open: raise the limit (`ulimit -n`) and run it again",
    errno.ENFILE: "the machine has too many open files: end other processes, or raise fs.file-max, and run it again",
    errno.ENOMEM: "there is too little memory: end other processes, or take a larger machine, and run it again",
    errno.EACCES: "give the user who runs weir the permission, and run it again",
    errno.EPERM: "give the user who runs weir the permission, and run it again",
    errno.EROFS: "the file system is read-only: mount it for writing, or name another place",
    errno.EIO: "the disk or its connection fails: see the log of the system (`dmesg`), and run it again",
    errno.ESTALE: "the file system was mounted anew, or the file replaced on the server: run it again",
    errno.ETIMEDOUT: "the file system does not answer: see that it is reached, and run it again",
    errno.ENAMETOOLONG: "the name is too long for the file system: choose a shorter one",
    errno.ENOTDIR: "a file is where a folder must be: name another place",
    errno.EISDIR: "a folder is where a file must be: name a file",
    errno.ENOENT: "see that the path is right",
}
"""System error -> what to do next."""


def command(function: Callable[..., None]) -> Callable[..., None]:
    """Return a command function to register in typer, which calls `function`.

    A parameter whose type is a dataclass becomes an option for each field, and ``--debug`` is added. Errors that a user
    can act on end the command with a line and an exit status; other errors keep their traceback.
    """
    parameters = inspect.signature(function).parameters
    groups: dict[str, Any] = {
        name: each.annotation for name, each in parameters.items() if is_dataclass(each.annotation)
    }

    @functools.wraps(function)
    def run(*, debug: bool = False, **options: Any) -> None:
        for name, group in groups.items():
            options[name] = group(**{field.name: options.pop(field.name) for field in fields(group)})
        DEBUGGING.set(debug)
        with _explained(debug=debug):
            function(**options)
            sys.stdout.flush()

    # typer reads the options from here, by `inspect.signature`.
    signature = inspect.Signature([*chain.from_iterable(map(_spread, parameters.values())), _DEBUG])
    run.__signature__ = signature  # type: ignore[attr-defined]
    return run


@contextmanager
def _explained(*, debug: bool) -> Iterator[None]:
    try:
        yield
    except (typer.Exit, typer.Abort):
        raise
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    except BrokenPipeError:
        if not _is_output_closed():
            raise
        raise typer.Exit(1) from None
    except Exception as error:
        if debug or (explanation := explain(error)) is None:
            raise
        lines, status = explanation
        sys.stderr.write("weir: " + "\n".join(map(visible, lines)) + "\n")
        raise typer.Exit(status) from None


def _is_output_closed() -> bool:
    """Return whether the reader of standard output, such as `head`, has ended; if so, discard further output."""
    output = select.poll()
    output.register(sys.stdout)
    is_closed = any(event & select.POLLERR for _, event in output.poll(0))
    if is_closed:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return is_closed


def _spread(parameter: inspect.Parameter) -> Iterator[inspect.Parameter]:
    grouped = is_dataclass(parameter.annotation)
    for each in inspect.signature(parameter.annotation).parameters.values() if grouped else [parameter]:
        yield each.replace(kind=inspect.Parameter.KEYWORD_ONLY)


def explain(error: Exception) -> tuple[list[str], int] | None:
    """Return the lines to print for an error, and the exit status; None for an error that keeps its traceback."""
    from weir.contracts import UserError

    if isinstance(error, UserError):
        return error.explain(), error.exit_status
    if isinstance(error, CommandError):
        return [str(error)], error.exit_status
    line = _line(error)
    return None if line is None else ([line], 1)


def _extras_for(error: ModuleNotFoundError) -> str | None:
    """Return the pip extras that install a missing module; None if no extra does."""
    module = (error.name or "").split(".")[0]
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    rooms = [".".join(frame.f_globals.get("__name__", "").split(".")[:2]) for frame in frames]
    room = next((room for room in reversed(rooms) if room in _ROOMS), None)
    extras = _EXTRAS.get(module)
    return extras if extras is None or room is None or module in _OPTIONAL else _ROOMS[room]


def _missing(error: ModuleNotFoundError) -> str | None:
    """Return the message for a missing module; None if no extra installs it."""
    extras = _extras_for(error)
    missing = (error.name or "").split(".")[0]
    if missing == "fcntl":
        return "weir runs on Linux; on Windows use WSL or a container"
    return extras and f"the module {missing} is missing: install it with `pip install 'weir-retrieval[{extras}]'`"


def _system_line(error: OSError) -> str:
    """Return the message for a system error: the file or folder, the fault, and what to do next."""
    hint = _SYSTEM.get(error.errno or 0)
    if hint is None or error.strerror is None:
        return str(error) or type(error).__name__
    named = " -> ".join(str(name) for name in (error.filename, error.filename2) if name is not None)
    return ": ".join([*filter(None, [named]), error.strerror, hint])


def _line(error: Exception) -> str | None:
    """Return the message for an error of a library or the system; None if it keeps its traceback."""
    if isinstance(error, ModuleNotFoundError):
        return _missing(error)
    if isinstance(error, OSError):
        return _system_line(error)
    # fsspec names the package that a protocol needs, such as s3fs for s3://.
    if type(error) is ImportError and "nstall" in str(error):
        return f"{error} (with .venv/bin/pip or where weir is installed)"
    if not isinstance(error, ValueError):
        return None
    # Pydantic frames its message over several lines.
    message = "; ".join(line.strip() for line in str(error).splitlines() if line.strip())
    return f"{message or type(error).__name__} (--debug shows where)"


def leave_out_noise() -> None:
    """Drop the record that Beam logs when it is imported, about a lack of Google's clients, which weir does not use."""
    logging.getLogger().addFilter(lambda record: "bigquery client libraries" not in str(record.msg))


def set_up_logging(console: Console, level: int = logging.INFO) -> None:
    """Send log records to standard error: in colour on a terminal, as plain lines otherwise."""
    if console.is_terminal:
        handler: logging.Handler = RichHandler(console=console, show_path=False, rich_tracebacks=DEBUGGING.get())
        form = "%(name)s: %(message)s"
    else:
        handler, form = logging.StreamHandler(), "%(asctime)s %(levelname)s %(name)s: %(message)s"
    handler.setFormatter(_Visible(form, debug=DEBUGGING.get()))
    logging.basicConfig(level=logging.DEBUG if DEBUGGING.get() else level, handlers=[handler], force=True)
    # An error in a transform ends the run and is reported then; Beam's record repeats its traceback.
    logging.getLogger("apache_beam.runners").setLevel(logging.DEBUG if DEBUGGING.get() else logging.CRITICAL)
    # Beam, fsspec and others log internals at INFO.
    for name in ("apache_beam", "fsspec", "asyncio", "faiss", "torch", "onnxscript", "onnx_ir", "urllib3"):
        logging.getLogger(name).setLevel(logging.WARNING)


class _Visible(logging.Formatter):
    """Log formatter that makes control characters in messages visible; a traceback keeps its lines.

    An error that a user can act on is explained in the record's line, without a traceback.
    """

    def __init__(self, form: str, *, debug: bool) -> None:
        super().__init__(form)
        self._debug = debug

    def format(self, record: logging.LogRecord) -> str:
        from weir.contracts import UserError

        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, OSError | UserError) and not self._debug and (told := explain(error)) is not None:
            line = f"{record.getMessage()}: {' '.join(told[0])}"
            record = logging.makeLogRecord({**record.__dict__, "msg": line, "args": None, "exc_info": None})
        return super().format(record)

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        record.message = visible(record.message)
        return super().formatMessage(record)

    def formatException(self, ei: Any) -> str:  # noqa: N802 - logging's name
        return "\n".join(map(visible, super().formatException(ei).split("\n")))
