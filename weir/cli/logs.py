"""Where the log records of a command go."""

import logging
from typing import Any

from rich.console import Console
from rich.logging import RichHandler

from weir.cli.command import DEBUGGING, explain
from weir.text import visible

__all__ = ["leave_out_noise", "set_up_logging"]


def leave_out_noise() -> None:
    """Drop the one record that Beam logs as it is imported, before a command has set up anything.

    It says, through the root logger, that Google's clients are missing: an extra of Beam that nothing here uses.
    """
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
    # What a transform raises ends the run, and is told then: Beam's record is a traceback of it.
    logging.getLogger("apache_beam.runners").setLevel(logging.DEBUG if DEBUGGING.get() else logging.CRITICAL)
    # Beam, fsspec and others log internals at INFO.
    for name in ("apache_beam", "fsspec", "asyncio", "faiss", "torch", "onnxscript", "onnx_ir", "urllib3"):
        logging.getLogger(name).setLevel(logging.WARNING)


class _Visible(logging.Formatter):
    """Makes control characters in messages visible; a traceback keeps its lines.

    An error that a user can act on is told in the line itself, without its traceback.
    """

    def __init__(self, form: str, *, debug: bool) -> None:
        super().__init__(form)
        self._debug = debug

    def format(self, record: logging.LogRecord) -> str:
        from weir.contracts import UserError  # noqa: PLC0415 - imports wait until a command runs

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
