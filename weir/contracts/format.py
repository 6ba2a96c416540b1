"""The format of a store: which versions of weir can read it, and the choices that all of its data share.

``STORE.json`` is written once, before the first commit. A reader takes every minor version of its own major one:
documents may carry fields that it does not know. Another major version is refused, with the way out.
"""

import time
from importlib.metadata import version
from shlex import quote
from typing import Final

from pydantic import Field

from weir.contracts.documents import Document, decode_document, encode_document
from weir.contracts.errors import UserError
from weir.contracts.storage import Store

__all__ = ["FORMAT", "Layout", "StoreFormat", "StoreFormatError", "ensure_format", "read_format"]

FORMAT: Final = (2, 0)
"""Major and minor version of what this software writes."""

_NAME: Final = "STORE.json"

SketchParameters = dict[str, str | int | float | bool]


class StoreFormatError(UserError):
    """The store has a format that this version cannot read; the message says which and what to do."""


class Layout(Document):
    """What the first pipeline chose and later ones must keep: other values would make counts or merges wrong."""

    window_ms: int
    user_shards: int
    sketch: SketchParameters


class StoreFormat(Document):
    """``STORE.json``; `layout` is None in a store whose windows were not written by a pipeline."""

    format: tuple[int, int] = FORMAT
    software_version: str = Field(default_factory=lambda: version("weir"))
    created_at: float = Field(default_factory=time.time, description="wall clock, seconds since 1970")
    layout: Layout | None = None
    key_secret: str = Field(
        default="",
        pattern="^([0-9a-f]{32})?$",
        description="secret of all keys (`weir.contracts.keys`); empty: plain xxh3_64",
    )


def read_format(store: Store) -> StoreFormat | None:
    """Return the format of a store, None for one that holds nothing yet.

    Raises
    ------
    StoreFormatError
        If the format is of another major version.
    CorruptArtefactError
        If ``STORE.json`` is damaged.
    """
    try:
        data = store.read(_NAME)
    except FileNotFoundError:
        _refuse_format_1(store)
        return None
    found = decode_document(store.path(_NAME), data, StoreFormat)
    if found.format[0] != FORMAT[0]:
        migrate = f"convert it with `weir migrate --store {quote(store.url)}`"
        remedy = "upgrade weir" if found.format[0] > FORMAT[0] else migrate
        raise StoreFormatError(f"{store.url}: has format {_spell(found.format)}, this version reads 2.x: {remedy}")
    return found


def _refuse_format_1(store: Store) -> None:
    if store.exists("commits/HEAD"):
        raise StoreFormatError(f"{store.path(_NAME)}: is missing, but the store holds commits: restore it from a copy")
    if store.glob("windows/*/*/MANIFEST.json"):
        remedy = f"convert it with `weir migrate --store {quote(store.url)}`"
        raise StoreFormatError(f"{store.url}: has format 1, this version reads 2.x: {remedy}")


def ensure_format(store: Store, wanted: StoreFormat | None = None) -> StoreFormat:
    """Return the format of a store, after giving it `wanted` (or the defaults) if it had none.

    Raises what `read_format` raises.
    """
    found = read_format(store)
    if found is not None:
        return found
    wanted = wanted or StoreFormat()
    if store.create(_NAME, encode_document(wanted, _NAME)):
        return wanted
    # Another writer came first.
    return ensure_format(store, wanted)


def _spell(format_: tuple[int, int]) -> str:
    return ".".join(map(str, format_))
