"""How a command fails: one clear line on standard error, and the exit status 1 (failed) or 2 (wrong usage)."""

# ruff: noqa: PLC0415 - imports wait until a command has failed

import errno
from typing import Final

from weir.errors import CommandError

__all__ = ["explain"]

_EXTRAS: Final = {
    "apache_beam": "pipeline",
    "confluent_kafka": "pipeline",
    "torch": "trainer",
    "onnx": "trainer",
    "onnxscript": "trainer",
    "grpc": "serving,cpu",
    "grpc_health": "serving,cpu",
    "grpc_reflection": "serving,cpu",
    "grpc_status": "serving,cpu",
    "google": "serving,cpu",
    "onnxruntime": "serving,cpu",
    "uvloop": "serving,cpu",
    "faiss": "cpu",
}
"""Module -> the extras of pip that install it."""

_PORT_IN_USE: Final = (
    "a port is in use: stop the process that holds it (`ss -ltnp` names it), or let `--set serving.port=0`, "
    "`--set SECTION.metrics_port=0` take any free one"
)


def explain(error: Exception) -> tuple[list[str], int] | None:
    """Return the lines to print and the exit status; None for an error that keeps its traceback."""
    from contracts import UserError

    if isinstance(error, UserError):
        return error.explain(), error.exit_status
    if isinstance(error, CommandError):
        return [str(error)], error.exit_status
    line = _line(error)
    return None if line is None else ([line], 1)


def _line(error: Exception) -> str | None:
    """Return the line for an error that is not ours."""
    if isinstance(error, ModuleNotFoundError):
        extras = _EXTRAS.get((error.name or "").split(".")[0])
        return extras and f"the module {error.name} is missing: install it with `pip install 'weir[{extras}]'`"
    if (isinstance(error, OSError) and error.errno == errno.EADDRINUSE) or "Failed to bind to address" in str(error):
        return _PORT_IN_USE
    # The system's errors name a file or folder: missing, not allowed, read-only, full, a file instead of a folder.
    if isinstance(error, OSError):
        return str(error) or type(error).__name__
    # fsspec names what a protocol needs, such as s3fs for s3://.
    if type(error) is ImportError and "nstall" in str(error):
        return f"{error} (with .venv/bin/pip or where weir is installed)"
    if not isinstance(error, ValueError):
        return None
    # Pydantic frames its message over several lines.
    message = "; ".join(line.strip() for line in str(error).splitlines() if line.strip())
    return f"{message or type(error).__name__} (--debug shows where)"
