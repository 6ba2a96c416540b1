"""What every command begins with: the settings that hold, the store, and where to write."""

# ruff: noqa: PLC0415 - options are parameters; imports wait until a command runs

import json
import logging
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

from rich.console import Console
from rich.logging import RichHandler

from weir.cli.errors import debugging
from weir.text import visible

if TYPE_CHECKING:
    from pydantic import BaseModel

    from contracts import Store
    from weir.config import Settings

__all__ = ["REMEMBERED", "Session", "open_session", "remembered", "set_up_logging"]

REMEMBERED: Final = "state/settings.json"
"""The settings of the last `weir up` on this store: other commands there need not be told again."""

_WIDE: Final = 160


@dataclass(frozen=True)
class Session:
    """The frame of one command."""

    settings: "Settings"
    store: "Store"
    out: Console
    notes: Console

    @property
    def target(self) -> str:
        """The server that these settings start."""
        serving = self.settings.serving
        host = "127.0.0.1" if serving.host in {"0.0.0.0", "::"} else serving.host  # noqa: S104 - where not to connect
        return f"{host}:{serving.port}"

    def print_json(self, result: "BaseModel | Any") -> None:
        """Write a result for programs."""
        data = result.model_dump(mode="json") if hasattr(result, "model_dump") else result
        sys.stdout.write(json.dumps(data, indent=2) + "\n")


def open_session(
    config: Path | None,
    store: str | None,
    assign: list[str] | None,
    flags: Mapping[str, Any] | None = None,
    base: Mapping[str, Any] | None = None,
) -> Session:
    """Return the session for a command's common options.

    Parameters
    ----------
    config, store, assign
        As given by ``--config``, ``--store`` and ``--set``.
    flags
        Everyday options as ``section.key`` -> value; None means not given.
    base
        What stands in for the defaults; without it, what the store remembers.
    """
    from contracts import Store
    from weir.config import SettingsError, assignments, load_settings

    overrides, malformed = assignments(assign or ())
    for path, value in {"store": store, **(flags or {})}.items():
        if value is not None:
            _put(overrides, path, value)
    settings = load_settings(config, overrides, base, malformed)
    if base is None and (found := remembered(Store(settings.store))):
        try:
            settings = load_settings(config, overrides, found)
        except SettingsError as error:
            # Without them all was well.
            where = Store(settings.store).path(REMEMBERED)
            raise SettingsError([f"{problem} (remembered in {where})" for problem in error.problems]) from None
    return Session(settings, Store(settings.store), _console(sys.stdout), _console(sys.stderr))


def _console(file: IO[str]) -> Console:
    """Return a console without markup; what is no terminal has no edge at which a table would have to be broken."""
    width = None if file.isatty() or "COLUMNS" in os.environ else _WIDE
    return Console(file=file, width=width, markup=False, emoji=False)


def set_up_logging(console: Console, level: int = logging.INFO) -> None:
    """Send log records to standard error: in colour on a terminal, as plain lines otherwise."""
    if console.is_terminal:
        handler: logging.Handler = RichHandler(console=console, show_path=False, rich_tracebacks=debugging())
        form = "%(name)s: %(message)s"
    else:
        handler, form = logging.StreamHandler(), "%(asctime)s %(levelname)s %(name)s: %(message)s"
    handler.setFormatter(_Spelt(form))
    logging.basicConfig(level=logging.DEBUG if debugging() else level, handlers=[handler], force=True)
    # On import Beam tells the root logger that Google's clients are missing; nobody asked for them.
    logging.getLogger().addFilter(lambda record: "bigquery client libraries" not in str(record.msg))
    # Beam, fsspec and others tell their inner life at INFO.
    for name in ("apache_beam", "fsspec", "asyncio", "faiss", "torch", "onnxscript", "onnx_ir", "urllib3"):
        logging.getLogger(name).setLevel(logging.WARNING)


class _Spelt(logging.Formatter):
    """Makes control characters in messages visible; a traceback keeps its lines."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        record.message = visible(record.message)
        return super().formatMessage(record)

    def formatException(self, ei: Any) -> str:  # noqa: N802 - logging's name
        return "\n".join(map(visible, super().formatException(ei).split("\n")))


def remembered(store: "Store") -> dict[str, Any]:
    """Return the settings of the last `weir up` on a store, nested; nothing where there was none."""
    from pydantic_core import from_json

    from contracts import CorruptArtefactError

    try:
        found = from_json(store.read(REMEMBERED))
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise CorruptArtefactError(store.path(REMEMBERED), f"is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise CorruptArtefactError(store.path(REMEMBERED), f"holds a {type(found).__name__} instead of settings")
    sections = {name: value for name, value in found.items() if name != "store"}
    for name, value in sections.items():
        if not isinstance(value, dict):
            raise CorruptArtefactError(store.path(REMEMBERED), f"{name} is a {type(value).__name__}, not a section")
    return sections


def _put(values: dict[str, Any], path: str, value: object) -> None:
    *sections, key = path.split(".")
    for section in sections:
        values = values.setdefault(section, {})
    values[key] = value
