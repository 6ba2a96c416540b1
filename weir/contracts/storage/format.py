"""The format of a store: versions of weir that can read it, the layout of its data, and a test of its storage.

``STORE.json`` is written once, before the first commit. Readers accept every minor version of their own major version,
ignoring unknown fields, and refuse another major version. ``SETTINGS.json`` beside it holds the settings that all
stages share and that one command may change; versions that do not know it ignore it.
"""

import secrets
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib.metadata import version
from threading import Barrier
from typing import Final

from pydantic import Field, JsonValue

from weir.contracts.base.errors import CorruptArtefactError, UserError
from weir.contracts.storage.documents import Document, decode_document, encode_document, read_document, write_document
from weir.contracts.storage.store import Store, UnfitStoreError

__all__ = [
    "FORMAT",
    "Layout",
    "SettingsChange",
    "StoreFormat",
    "StoreFormatError",
    "StoreSettings",
    "check_fitness",
    "ensure_format",
    "read_format",
    "read_settings",
    "software_version",
    "write_settings",
]

FORMAT: Final = (2, 0)
"""Major and minor version of the format that this software writes."""
_NAME: Final = "STORE.json"
_SETTINGS: Final = "SETTINGS.json"
SketchParameters = dict[str, str | int | float | bool]


def check_fitness(store: Store, races: int = 8) -> None:
    """Refuse a file system on which two writers can both create a file.

    Raises `UnfitStoreError` unless in each of `races` races exactly one of two simultaneous writers succeeds.
    """
    with ThreadPoolExecutor(2) as pool:
        for _ in range(races):
            name, start = f"commits/.race-{secrets.token_hex(8)}", Barrier(2)
            try:
                won = list(pool.map(partial(_race, store, name, start), (b"one", b"two")))
                kept = store.read(name)
            finally:
                store.remove(name)
            if won not in ([True, False], [False, True]) or kept != (b"one" if won[0] else b"two"):
                protocol = store.url.partition("://")[0]
                problem = f"of two writers that created one file at once, {sum(won)} got the answer that they had"
                raise UnfitStoreError(
                    f"{store.url}: {protocol}:// has no conditional create ({problem}), which commits need: "
                    "use local disk, or an object store that puts only if absent, such as s3://"
                )


def _race(store: Store, name: str, start: Barrier, who: bytes) -> bool:
    """Wait for the other writer, then try to create a file; return whether it was created."""
    start.wait(30)
    return store.create(name, who)


def software_version() -> str:
    """Return the installed version of weir."""
    return version("weir-retrieval")


class StoreFormatError(UserError):
    """The store has a format that this version cannot read; the message says which, and what to do."""


class Layout(Document):
    """Layout that the first pipeline chose and later ones must keep; other values would break counts or merges."""

    window_ms: int
    user_shards: int
    sketch: SketchParameters


class StoreFormat(Document):
    """``STORE.json``; `layout` is None in a store whose windows were not written by a pipeline."""

    format: tuple[int, int] = FORMAT
    software_version: str = Field(default_factory=software_version)
    created_at: float = Field(default_factory=time.time, description="wall clock, seconds since 1970")
    layout: Layout | None = None
    has_settings: bool = Field(default=False, description="``SETTINGS.json`` is written before the first commit")
    key_secret: str = Field(
        default="",
        pattern="^([0-9a-f]{32})?$",
        description="secret of all keys (`weir.contracts.base.keys`); empty: plain xxh3_64",
    )


class SettingsChange(Document):
    """A change of settings, with the commit and the window from which on the new values hold."""

    changed_at: float = Field(description="wall clock, seconds since 1970")
    commit: int = Field(description="the first commit under the new values")
    from_ms: int | None = Field(
        description="start of the first window that is whole under the new values, in ms; None: no window was committed"
    )
    before: dict[str, JsonValue]
    after: dict[str, JsonValue]


class StoreSettings(Document):
    """``SETTINGS.json``: values by name of setting, such as ``pipeline.event_types``."""

    values: dict[str, JsonValue] = Field(default_factory=dict)
    changes: tuple[SettingsChange, ...] = Field(default=(), description="oldest first")


def read_format(store: Store) -> StoreFormat | None:
    """Return the format of a store, or None if it is empty.

    Raises `StoreFormatError` if the format has another major version, or ``STORE.json`` is missing although the store
    has commits, and `CorruptArtefactError` if ``STORE.json`` is damaged.
    """
    try:
        data = store.read(_NAME)
    except FileNotFoundError:
        if store.exists("commits/HEAD"):
            problem = "is missing, but the store holds commits: restore it from a copy"
            raise StoreFormatError(f"{store.path(_NAME)}: {problem}") from None
        return None
    found = decode_document(store.path(_NAME), data, StoreFormat)
    if found.format[0] != FORMAT[0]:
        remedy = "upgrade weir" if found.format[0] > FORMAT[0] else "write a new store from the log"
        known = f"this version reads {FORMAT[0]}.x"
        raise StoreFormatError(f"{store.url}: has format {'.'.join(map(str, found.format))}, {known}: {remedy}")
    return found


def ensure_format(store: Store, wanted: StoreFormat | None = None) -> StoreFormat:
    """Return the format of a store; a store without one gets `wanted` (or the defaults) first.

    Raises as `read_format`.
    """
    found = read_format(store)
    if found is not None:
        return found
    wanted = wanted or StoreFormat()
    if store.create(_NAME, encode_document(wanted, _NAME)):
        return wanted
    # Another writer was faster.
    return ensure_format(store, wanted)


def read_settings(store: Store, *, may_be_lost: bool = False) -> StoreSettings | None:
    """Return the recorded settings of a store, None if there are none.

    Raises `CorruptArtefactError` if they are damaged, or missing although the format says otherwise; with `may_be_lost`
    the second case returns None.
    """
    try:
        return read_document(store, _SETTINGS, StoreSettings)
    except FileNotFoundError:
        form = None if may_be_lost else read_format(store)
        if form is not None and form.has_settings and store.exists("commits/HEAD"):
            raise CorruptArtefactError(store.path(_SETTINGS), "is missing, but the store holds commits") from None
        return None


def write_settings(store: Store, settings: StoreSettings, before: StoreSettings | None) -> bool:
    """Replace the recorded settings `before` (None if there are none) by `settings`.

    Returns False if there were none, and another process has recorded settings first.
    """
    if before is None:
        return store.create(_SETTINGS, encode_document(settings, _SETTINGS))
    write_document(store, _SETTINGS, settings)
    return True
