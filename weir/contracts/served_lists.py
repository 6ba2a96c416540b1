"""Served lists (contract 5): a server's answers, which the pipeline joins with the events that they caused.

A server writes ``served/<hour>/<segment>-<rows>-<checksum>.parquet``. No commit lists these files: each has the
checksum of its bytes in its name, and is immutable. Erasing a user writes a file with fewer rows under another name,
and removes the old one.
"""

import io
import re
import secrets
import time
from collections import defaultdict
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from weir.contracts.base import columns
from weir.contracts.base.errors import CorruptArtefactError
from weir.contracts.base.keys import hash_ids
from weir.contracts.storage.store import Store, checksum

__all__ = [
    "SERVED_SCHEMA",
    "ServedFile",
    "ServedList",
    "all_served",
    "check_served",
    "hour_of",
    "joined_list",
    "lists_by_token",
    "new_segment",
    "read_segment",
    "read_served",
    "segment_of",
    "served_files",
    "served_hours",
    "served_token",
    "write_served",
]


SERVED_SCHEMA: Final = pa.schema(
    [
        pa.field(columns.ATTRIBUTION_TOKEN, pa.string(), nullable=False),
        pa.field(columns.QUERY, pa.int32(), nullable=False),
        pa.field(columns.USER_KEY, pa.int64()),
        pa.field(columns.SERVED_AT, pa.timestamp("ms", "UTC"), nullable=False),
        pa.field(columns.BUNDLE_VERSION, pa.string(), nullable=False),
        pa.field(columns.FALLBACK, pa.bool_(), nullable=False),
        pa.field(columns.ITEM_IDS, pa.list_(pa.string()), nullable=False),
    ]
)
"""A row is the answer to one query: the token of the call, the query's index in it, the user's key if the query named a
user, the wall-clock time, the bundle, whether it holds popular items only, and the items, best first."""

FOLDER: Final = "served"
_SEGMENT: Final = r"(\d{8}T\d{2})\d{4}Z-[0-9a-f]{8}"
_TOKEN: Final = re.compile(rf"({_SEGMENT})-[0-9a-f]{{16}}")
_NAME: Final = re.compile(rf"{FOLDER}/(\d{{8}}T\d{{2}})/({_SEGMENT})-(\d{{9}})-([0-9a-f]{{32}})\.parquet")
_HOUR: Final = re.compile(rf"{FOLDER}/(\d{{8}}T\d{{2}})")


class ServedFile(NamedTuple):
    """A file of served lists, with the fields of its name."""

    name: str
    segment: str
    rows: int
    checksum: str

    @classmethod
    def of(cls, name: str) -> "ServedFile | None":
        """Parse the name of a file of served lists; return None for any other name."""
        found = _NAME.fullmatch(name)
        if found is None or found[1] != found[3]:
            return None
        return cls(name, found[2], int(found[4]), found[5])


def new_segment(now: float | None = None) -> str:
    """Return the name of a new segment: its start (UTC, from `now` in seconds since 1970) and a random number."""
    started = datetime.fromtimestamp(time.time() if now is None else now, UTC)
    return f"{started:%Y%m%dT%H%M%SZ}-{secrets.token_hex(4)}"


def hour_of(now: float) -> str:
    """Return the UTC hour of a time in seconds since 1970, as segments start with it; hours sort as text."""
    return f"{datetime.fromtimestamp(now, UTC):%Y%m%dT%H}"


def served_token(bundle_version: str, segment: str, number: str) -> str:
    """Return the token of an answer; `number` is 16 random hexadecimal digits, `segment` "" if not recorded."""
    return f"{bundle_version}/{segment}-{number}" if segment else f"{bundle_version}/{number}"


def segment_of(token: str) -> str | None:
    """Return the segment of a token, None if its lists were not recorded; tokens are untrusted input."""
    found = _TOKEN.fullmatch(token.rpartition("/")[2])
    return found and found[1]


def write_served(store: Store, segment: str, table: pa.Table) -> ServedFile:
    """Write lists (`SERVED_SCHEMA`) atomically and return their file."""
    buffer = io.BytesIO()
    pq.write_table(table, buffer, compression="zstd")
    data = buffer.getvalue()
    digest = checksum(data)
    name = f"{FOLDER}/{_hour(segment)}/{segment}-{table.num_rows:09d}-{digest}.parquet"
    store.write(name, data, rows=table.num_rows)
    return ServedFile(name, segment, table.num_rows, digest)


def served_hours(store: Store) -> dict[str, str]:
    """Return the folders of served lists, by hour."""
    return {found[1]: name for name in store.glob(f"{FOLDER}/*") if (found := _HOUR.fullmatch(name.rstrip("/")))}


def all_served(store: Store, hour: str = "*") -> list[ServedFile]:
    """Return all files of served lists, of one hour or all, oldest first; within a segment, fewest rows first."""
    names = store.glob(f"{FOLDER}/{hour}/*.parquet")
    return [file for name in names if (file := ServedFile.of(name)) is not None]


def served_files(store: Store, hour: str = "*") -> list[ServedFile]:
    """Return the file with the fewest rows of each segment, of one hour or of all hours, oldest first.

    A segment has two files while erasure replaces the older one.
    """
    found: dict[str, ServedFile] = {}
    for file in all_served(store, hour):
        found.setdefault(file.segment, file)
    return list(found.values())


def read_segment(store: Store, segment: str) -> pa.Table | None:
    """Return the served lists of a segment, None without a file; raises `CorruptArtefactError`."""
    for name in store.glob(f"{FOLDER}/{_hour(segment)}/{segment}-*.parquet"):
        file = ServedFile.of(name)
        if file is not None and (table := read_served(store, file)) is not None:
            return table
    return None


def read_served(store: Store, file: ServedFile, columns: list[str] | None = None) -> pa.Table | None:
    """Return the lists of a file, or some of their columns; None if it is gone. Raises `CorruptArtefactError`."""
    try:
        data = store.read(file.name)
    except FileNotFoundError:
        return None
    check_served(store.path(file.name), data)
    try:
        table = pq.read_table(pa.BufferReader(data), columns=columns)
    except pa.ArrowException as error:
        raise CorruptArtefactError(store.path(file.name), f"cannot be read: {error}") from error
    if table.num_rows != file.rows:
        raise CorruptArtefactError(store.path(file.name), f"has {table.num_rows} rows, its name says {file.rows}")
    return table


def check_served(path: str, data: bytes) -> None:
    """Check a file against the checksum in its name; raises `CorruptArtefactError`, which names `path`."""
    expected = path.rpartition(".")[0][-32:]
    if (found := checksum(data)) != expected:
        raise CorruptArtefactError(path, f"has checksum {found}, its name says {expected}")


def _hour(segment: str) -> str:
    return segment[:11]


class ServedList(NamedTuple):
    """The answer to one `query` of a call: the key of the `user` it named, if any, and of the `items`, best first."""

    version: str
    query: int
    user: int | None
    items: list[int]


def lists_by_token(lists: pa.Table, tokens: set[str], secret: str) -> dict[str, list[ServedList]]:
    """Return token -> its lists in a table (`SERVED_SCHEMA`), for given tokens; `secret` is the store's key secret."""
    rows = lists.filter(pc.is_in(lists[columns.ATTRIBUTION_TOKEN], value_set=pa.array(sorted(tokens), pa.string())))
    by_token = defaultdict[str, list[ServedList]](list)
    for row in rows.to_pylist():
        items = hash_ids(pa.array(row[columns.ITEM_IDS], pa.string()), secret).tolist()
        served = ServedList(row[columns.BUNDLE_VERSION], row[columns.QUERY], row[columns.USER_KEY], items)
        by_token[row[columns.ATTRIBUTION_TOKEN]].append(served)
    return by_token


def joined_list(lists: Iterable[ServedList], user: int, item: int) -> ServedList | None:
    """Return the first list of a call that has the item and names no user or the event's user; None without one."""
    return next((served for served in lists if served.user in {None, user} and item in served.items), None)
