"""The setup of every command: the effective settings, the store, and the consoles."""

# ruff: noqa: PLC0415 - imports wait until a command runs

import json
import os
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, get_origin

from rich.console import Console

if TYPE_CHECKING:
    from pydantic import BaseModel, JsonValue

    from weir.config import Given, Settings
    from weir.contracts import Store

__all__ = ["REMEMBERED", "Session", "given_options", "open_session", "remembered"]

REMEMBERED: Final = "state/settings.json"
"""The settings of the last `weir up` on this store, used by later commands on it."""

_FILES: Final = ("catalogue", "takedown")
"""Settings that name files and belong to no section."""

_WIDE: Final = 160


@dataclass(frozen=True)
class Session:
    """Settings, store and consoles of a command.

    `out` is the console for results, `notes` the one for everything else. `given` are the command's options for
    settings, as (name, value).
    """

    settings: "Settings"
    store: "Store"
    out: Console
    notes: Console
    given: tuple[tuple[str, str], ...] = ()

    @property
    def target(self) -> str:
        """Address (``host:port``) of the server under these settings."""
        from weir.runtime.listening import reached

        return f"{reached(self.settings.serving.host)}:{self.settings.serving.port}"

    def print_json(self, result: "BaseModel | Any") -> None:
        """Print a result as JSON."""
        data = result.model_dump(mode="json") if hasattr(result, "model_dump") else result
        sys.stdout.write(json.dumps(data, indent=2) + "\n")


def open_session(
    config: Path | None,
    store: str | None,
    assign: list[str] | None,
    flags: Mapping[str, Any] | None = None,
    base: Mapping[str, Any] | None = None,
    *,
    recorded: "Mapping[str, JsonValue] | None" = None,
    is_binding: bool = True,
) -> Session:
    """Return the session of a command, from its common options.

    Parameters
    ----------
    config, store, assign
        Values of ``--config``, ``--store`` and ``--set``.
    flags
        Everyday options as ``section.key`` -> value; None means not given.
    base
        Values that replace the defaults; None: the settings remembered in the store.
    recorded
        The lasting settings of the store (`weir.pipelines.store_settings`), which replace values of `base`; None: read
        from the store, unless `base` is given.
    is_binding
        Whether to refuse a given setting that differs from the recorded one; else it applies to this command.

    Raises
    ------
    SettingsError
        If settings are invalid, or contradict the store's.
    """
    from weir.config import Given, SettingsError, assignments, effective, put
    from weir.contracts import Store

    overrides, malformed = assignments(assign or ())
    for path, value in {"store": store, **(flags or {})}.items():
        if value is not None:
            put(overrides, path.split("."), value)
    given = Given.of(config, overrides, malformed)
    if not isinstance(given.store, str) or not given.store or given.problems:
        effective(given, base)  # raises
    place = Store(given.store)
    if base is None:
        from weir.pipelines import store_settings

        base, recorded = remembered(place), store_settings.recorded(place) if recorded is None else recorded
        if config is not None and place.local_path is not None and _is_same(config, place.local_path / REMEMBERED):
            # The file that `weir up` remembers for its processes is weaker than the recorded settings.
            base = {**base, "store": given.store}
            given = Given(tuple(one for one in given.sources if one[0] != str(config)))
    weaker = _over(base, recorded or {}, given)
    try:
        settings = effective(given, weaker)
    except SettingsError as error:
        effective(given, {})
        # The given settings are valid alone, so the store's are not.
        where = place.path(REMEMBERED) if base else place.url
        raise SettingsError([f"{problem} (remembered in {where})" for problem in error.problems]) from None
    if recorded and is_binding:
        _check_recorded(Store(settings.store), settings, recorded, given)
    options = given_options(config, store, assign)
    return Session(settings, Store(settings.store), _console(sys.stdout), _console(sys.stderr), options)


def _is_same(one: Path, other: Path) -> bool:
    return one.exists() and other.exists() and one.samefile(other)


def _over(base: Mapping[str, Any], recorded: "Mapping[str, JsonValue]", given: "Given") -> dict[str, Any]:
    """Return the nested settings `base`, in which `recorded` settings replace settings of the same name.

    A recorded mapping is left out if a mapping for the setting is given.
    """
    from weir.config import Settings
    from weir.spelling import annotation_at

    found = {name: dict(value) if isinstance(value, dict) else value for name, value in base.items()}
    for name, value in recorded.items():
        section, _, key = name.rpartition(".")
        values = found.setdefault(section, {}) if section else found
        if get_origin(annotation_at(Settings, name.split("."))) is dict and given.source(name) is not None:
            values.pop(key, None)
        else:
            values[key] = value
    return found


def _check_recorded(store: "Store", settings: "Settings", recorded: "Mapping[str, JsonValue]", given: "Given") -> None:
    """Raise `SettingsError` if given settings differ from the settings recorded in the store."""
    from weir.config import SettingsError, located
    from weir.pipelines.store_settings import contradicting, refusal, values_of

    ours = values_of(settings.pipeline) | located(settings)
    named = {name: source for name in recorded if (source := given.source(name)) is not None}
    if wrong := contradicting(store, recorded, ours, named):
        raise SettingsError([refusal(store, name, ours[name], recorded[name], named[name]) for name in wrong])


def given_options(config: Path | None, store: str | None, assign: Iterable[str] | None) -> tuple[tuple[str, str], ...]:
    """Return a command's options for settings as (name, value), the arguments of `weir.text.option`."""
    named = (("--config", config), ("--store", store), *(("--set", one) for one in assign or ()))
    return tuple((name, str(value)) for name, value in named if value is not None)


def _console(file: IO[str]) -> Console:
    """Return a console without markup; tables are wrapped on a terminal only."""
    width = None if file.isatty() or "COLUMNS" in os.environ else _WIDE
    return Console(file=file, width=width, markup=False, emoji=False)


def remembered(store: "Store") -> dict[str, Any]:
    """Return the settings of the last `weir up` on a store, nested; empty without one."""
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
