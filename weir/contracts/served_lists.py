"""Contract 5, served lists: what a server has answered, so that events can be joined with what led to them.

A server writes ``served/<hour>/<segment>-<rows>-<checksum>.parquet``. No commit names these files: each carries the
checksum of its bytes in its name, and is never written again. One that has lost rows, since a user is forgotten, gets
another name, and the one that it replaces is removed.
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
"""A row is the answer to one query: the token of its call, the query's place in it, the user where the query named one,
when it was answered by the wall clock, by which bundle, whether with popular items only, and the items, best first."""

FOLDER: Final = "served"
_SEGMENT: Final = r"(\d{8}T\d{2})\d{4}Z-[0-9a-f]{8}"
_TOKEN: Final = re.compile(rf"({_SEGMENT})-[0-9a-f]{{16}}")
_NAME: Final = re.compile(rf"{FOLDER}/(\d{{8}}T\d{{2}})/({_SEGMENT})-(\d{{9}})-([0-9a-f]{{32}})\.parquet")
_HOUR: Final = re.compile(rf"{FOLDER}/(\d{{8}}T\d{{2}})")


class ServedFile(NamedTuple):
    """A file of served lists, by what its `name` says."""

    name: str
    segment: str
    rows: int
    checksum: str

    @classmethod
    def of(cls, name: str) -> "ServedFile | None":
        """Return what a name says, None for that of another file."""
        found = _NAME.fullmatch(name)
        if found is None or found[1] != found[3]:
            return None
        return cls(name, found[2], int(found[4]), found[5])


def new_segment(now: float | None = None) -> str:
    """Return the name of a file's content before there is any: when it was started, and a random number."""
    started = datetime.fromtimestamp(time.time() if now is None else now, UTC)
    return f"{started:%Y%m%dT%H%M%SZ}-{secrets.token_hex(4)}"


def hour_of(now: float) -> str:
    """Return the hour of a moment as segments begin with it, in UTC; hours compare as texts."""
    return f"{datetime.fromtimestamp(now, UTC):%Y%m%dT%H}"


def served_token(bundle_version: str, segment: str, number: str) -> str:
    """Return the token of an answer; `number` is random, 16 hexadecimal digits, `segment` "" where none is kept."""
    return f"{bundle_version}/{segment}-{number}" if segment else f"{bundle_version}/{number}"


def segment_of(token: str) -> str | None:
    """Return where the lists of a token are kept, None where they are not; tokens come from outside."""
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
    """Return the folders that hold served lists, by hour."""
    return {found[1]: name for name in store.glob(f"{FOLDER}/*") if (found := _HOUR.fullmatch(name.rstrip("/")))}


def all_served(store: Store, hour: str = "*") -> list[ServedFile]:
    """Return every file of served lists, oldest first and, of one segment, the one with the fewest rows first."""
    names = store.glob(f"{FOLDER}/{hour}/*.parquet")
    return [file for name in names if (file := ServedFile.of(name)) is not None]


def served_files(store: Store, hour: str = "*") -> list[ServedFile]:
    """Return the files of served lists, oldest first: of one hour, or of all.

    Of a file that is about to be replaced by one with fewer rows, only the latter is returned.
    """
    found: dict[str, ServedFile] = {}
    for file in all_served(store, hour):
        found.setdefault(file.segment, file)
    return list(found.values())


def read_segment(store: Store, segment: str) -> pa.Table | None:
    """Return the lists of a segment, None where there are none (any more); raises `CorruptArtefactError`."""
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
    """Compare a file with the checksum in its name; raises `CorruptArtefactError`, which names `path`."""
    expected = path.rpartition(".")[0][-32:]
    if (found := checksum(data)) != expected:
        raise CorruptArtefactError(path, f"has checksum {found}, its name says {expected}")


def _hour(segment: str) -> str:
    return segment[:11]


class ServedList(NamedTuple):
    """The answer to one `query` of a call: the `user` it named, if any, and the keys of the `items`, best first."""

    version: str
    query: int
    user: int | None
    items: list[int]


def lists_by_token(lists: pa.Table, tokens: set[str], secret: str) -> dict[str, list[ServedList]]:
    """Return the lists of some tokens, given those of a file (`SERVED_SCHEMA`) and the secret of the store's keys."""
    wanted = lists.filter(pc.is_in(lists[columns.ATTRIBUTION_TOKEN], value_set=pa.array(sorted(tokens), pa.string())))
    found = defaultdict[str, list[ServedList]](list)
    for row in wanted.to_pylist():
        items = hash_ids(pa.array(row[columns.ITEM_IDS], pa.string()), secret).tolist()
        one = ServedList(row[columns.BUNDLE_VERSION], row[columns.QUERY], row[columns.USER_KEY], items)
        found[row[columns.ATTRIBUTION_TOKEN]].append(one)
    return found


def joined_list(lists: Iterable[ServedList], user: int, item: int) -> ServedList | None:
    """Return the list of a call that an event joins: it holds the item and, where the query named a user, is theirs."""
    return next((one for one in lists if one.user in {None, user} and item in one.items), None)
