"""What every command starts with: the effective settings, the store, and where to print."""

# ruff: noqa: PLC0415 - imports wait until a command runs

import json
import os
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

from rich.console import Console

if TYPE_CHECKING:
    from pydantic import BaseModel

    from weir.config import Settings
    from weir.contracts import Store

__all__ = ["REMEMBERED", "Session", "given_options", "open_session", "remembered"]

REMEMBERED: Final = "state/settings.json"
"""The settings of the last `weir up` on this store, which other commands on it use, too."""

_FILES: Final = ("catalogue", "takedown")
"""Settings that are in no section."""

_WIDE: Final = 160


@dataclass(frozen=True)
class Session:
    """Settings, store and consoles of one command; `given` are the options that they come from, with their values."""

    settings: "Settings"
    store: "Store"
    out: Console
    notes: Console
    given: tuple[tuple[str, str], ...] = ()

    @property
    def target(self) -> str:
        """Address of the server that these settings start."""
        from weir.contracts.listening import reached

        return f"{reached(self.settings.serving.host)}:{self.settings.serving.port}"

    def print_json(self, result: "BaseModel | Any") -> None:
        """Write a result as JSON."""
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
        What replaces the defaults; None: the settings remembered in the store.
    """
    from weir.config import SettingsError, assignments, load_settings, put
    from weir.contracts import Store

    overrides, malformed = assignments(assign or ())
    for path, value in {"store": store, **(flags or {})}.items():
        if value is not None:
            put(overrides, path.split("."), value)
    settings = load_settings(config, overrides, base, malformed)
    if base is None and (found := remembered(Store(settings.store))):
        try:
            settings = load_settings(config, overrides, found)
        except SettingsError as error:
            # The settings are valid without the remembered ones.
            where = Store(settings.store).path(REMEMBERED)
            raise SettingsError([f"{problem} (remembered in {where})" for problem in error.problems]) from None
    given = given_options(config, store, assign)
    return Session(settings, Store(settings.store), _console(sys.stdout), _console(sys.stderr), given)


def given_options(config: Path | None, store: str | None, assign: Iterable[str] | None) -> tuple[tuple[str, str], ...]:
    """Return the options of a command from which its settings come, as `weir.text.option` takes them."""
    named = (("--config", config), ("--store", store), *(("--set", one) for one in assign or ()))
    return tuple((name, str(value)) for name, value in named if value is not None)


def _console(file: IO[str]) -> Console:
    """Return a console without markup; a table is broken into lines for a terminal only."""
    width = None if file.isatty() or "COLUMNS" in os.environ else _WIDE
    return Console(file=file, width=width, markup=False, emoji=False)


def remembered(store: "Store") -> dict[str, Any]:
    """Return the settings of the last `weir up` on a store, nested; nothing where there was none."""
    from pydantic_core import from_json

    from weir.contracts import CorruptArtefactError

    try:
        found = from_json(store.read(REMEMBERED))
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise CorruptArtefactError(store.path(REMEMBERED), f"is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise CorruptArtefactError(store.path(REMEMBERED), f"holds a {type(found).__name__} instead of settings")
    kept = {name: value for name, value in found.items() if name != "store"}
    for name, value in kept.items():
        if name not in _FILES and not isinstance(value, dict):
            raise CorruptArtefactError(store.path(REMEMBERED), f"{name} is a {type(value).__name__}, not a section")
    return kept
