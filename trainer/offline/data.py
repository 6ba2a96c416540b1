"""Interactions from files: users and items as codes, rows in order of time.

Every row counts as one positive interaction: drop others (skips, impressions) before. Formats go by name: ``.parquet``;
``.jsonl``, ``.ndjson`` or ``.json`` with one object per line; ``.txt`` with a user, a space and an item per line, a
user's lines in order of time. All but Parquet may end in ``.gz``.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import fsspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.csv
import pyarrow.json
import pyarrow.parquet as pq

from contracts import columns

__all__ = ["SPLIT", "Interactions", "InteractionsError", "Ints", "read_interactions"]

Ints = npt.NDArray[np.int64]
SPLIT: Final = "split"
"""Column with the labels of a given split."""

_BLOCK: Final = 16 << 20
"""Bytes; a longer JSON line is refused."""


class InteractionsError(ValueError):
    """Interactions cannot be used as asked; the message names the source, what came and what is allowed."""


@dataclass(frozen=True, eq=False)
class Interactions:
    """N interactions of U users with I items, in stable order of time (of the source where it has no times).

    Codes number users and items by their first row.
    """

    source: str
    users: Ints
    """Codes 0 to U - 1, (N,)."""
    items: Ints
    """Codes 0 to I - 1, (N,)."""
    timestamps: Ints | None
    """(N,), ascending: numbers as in the source, rounded down; temporal types and RFC 3339 strings in microseconds."""
    user_ids: npt.NDArray[Any]
    """The users' ids in the source, (U,): int64, or objects of type str."""
    item_ids: npt.NDArray[Any]
    """(I,)."""
    split: npt.NDArray[np.object_] | None = None
    """Labels of a given split, as in the source, (N,)."""

    def __len__(self) -> int:
        return len(self.users)


@dataclass(frozen=True)
class _Columns:
    user: str
    item: str
    timestamp: str

    def among(self, present: Sequence[str]) -> list[str]:
        """Return those that are `present`; refuses a lack of ids."""
        for name in (self.user, self.item):
            if name not in present:
                message = f"has no column {name!r}, but {', '.join(map(repr, present))}; name the right one"
                raise InteractionsError(message)
        return [name for name in (self.user, self.item, self.timestamp, SPLIT) if name in present]


def read_interactions(
    path: str,
    *,
    user: str = columns.USER_ID,
    item: str = columns.ITEM_ID,
    timestamp: str = columns.TIMESTAMP,
) -> Interactions:
    """Read the interactions of a file, a folder (searched to its depths) or a glob; a local path or an fsspec URL.

    Parameters
    ----------
    path
        Several files are read in order of name; they must agree on the types of their columns.
    user, item
        Columns with ids, integers or strings.
    timestamp
        Column with times: numbers, strings or temporal types; it may be absent, for splits that need no time.

    Raises
    ------
    InteractionsError
        If there is no such file, one cannot be read, a column is missing, of a wrong type or has nulls, or no row came.
    """
    names = _Columns(user, item, timestamp)
    try:
        table = pa.concat_tables([_read(file, names) for file in _files(path)], promote_options="default")
    except pa.ArrowTypeError as error:
        message = f"{path}: its files differ in the types of their columns: {error}; write them alike"
        raise InteractionsError(message) from error
    _check_rows(path, table)
    timestamps = None
    if timestamp in table.column_names:
        times = _times(path, timestamp, table[timestamp])
        order = np.argsort(times, kind="stable")
        table, timestamps = table.take(order), np.floor(times[order]).astype(np.int64)
    users, user_ids = _encode(path, user, table[user])
    items, item_ids = _encode(path, item, table[item])
    split = table[SPLIT].to_numpy() if SPLIT in table.column_names else None
    return Interactions(path, users, items, timestamps, user_ids, item_ids, split)


def _files(path: str) -> list[str]:
    """Return the files of interactions at or below `path` as URLs, in order of name."""
    fs, root = fsspec.core.url_to_fs(path)
    if fs.isdir(root):
        found = [name for name in fs.find(root) if name.rsplit("/", 1)[-1][0] not in "._"]
    else:
        found = [root] if fs.isfile(root) else [name for name in fs.glob(root) if fs.isfile(name)]
    if readable := sorted(name for name in found if _reader(name)):
        return [str(fs.unstrip_protocol(name)) for name in readable]
    came = f"found {found[0]}" if found else "there is no such file"
    message = f"{path}: {came}; allowed are files, folders and globs of *{', *'.join(_READERS)}"
    raise InteractionsError(message)


def _read(file: str, names: _Columns) -> pa.Table:
    read = _reader(file)
    assert read is not None  # noqa: S101 - such files only
    try:
        with fsspec.open(file, "rb", compression="infer") as stream:
            return read(stream, names)
    except InteractionsError as error:
        message = f"{file}: {error}"
        raise InteractionsError(message) from error
    except (OSError, EOFError, ValueError) as error:
        message = f"{file}: cannot be read: {error}; repair it or take it away"
        raise InteractionsError(message) from error


def _read_parquet(stream: Any, names: _Columns) -> pa.Table:
    file = pq.ParquetFile(stream)
    return file.read(columns=names.among(file.schema_arrow.names))


def _read_json(stream: Any, names: _Columns) -> pa.Table:
    """Read JSON Lines; the first line says which columns there are and of which types, so that none is guessed."""
    data = stream.read()
    first = data[: data.find(b"\n") + 1 or None]
    if not first.strip():
        return pa.table({})
    record = json.loads(first)
    if not isinstance(record, dict):
        message = f"its first line is {first[:80]!r}; allowed are JSON objects, one per line"
        raise InteractionsError(message)
    schema = pa.schema([(name, pa.array([record[name]]).type) for name in names.among(list(record))])
    parse = pa.json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore")
    return pa.json.read_json(pa.BufferReader(data), pa.json.ReadOptions(block_size=_BLOCK), parse)


def _read_pairs(stream: Any, names: _Columns) -> pa.Table:
    data = stream.read()
    if not data.strip():
        return pa.table({})
    read = pa.csv.ReadOptions(column_names=[names.user, names.item])
    return pa.csv.read_csv(pa.BufferReader(data), read, pa.csv.ParseOptions(delimiter=" "))


_READERS: Final[dict[str, Callable[[Any, _Columns], pa.Table]]] = {".parquet": _read_parquet} | {
    f"{suffix}{packed}": read
    for suffix, read in {".jsonl": _read_json, ".ndjson": _read_json, ".json": _read_json, ".txt": _read_pairs}.items()
    for packed in ("", ".gz")
}


def _reader(name: str) -> Callable[[Any, _Columns], pa.Table] | None:
    return next((read for suffix, read in _READERS.items() if name.endswith(suffix)), None)


def _check_rows(path: str, table: pa.Table) -> None:
    if not table.num_rows:
        message = f"{path}: has no interaction; at least one is needed"
        raise InteractionsError(message)
    for name in table.column_names:
        if nulls := table[name].null_count:
            message = f"{path}: column {name!r} is null in {nulls} of {table.num_rows} rows; drop or repair these rows"
            raise InteractionsError(message)


def _times(path: str, name: str, column: pa.ChunkedArray) -> npt.NDArray[Any]:
    """Return times as numbers, not yet rounded: order must not be lost."""
    kind = column.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        try:
            column = column.cast(pa.timestamp("us", "UTC"))
        except pa.ArrowInvalid as error:
            message = f"{path}: column {name!r}: {error}; allowed are RFC 3339 with its zone (2026-01-31T12:00:00Z)"
            raise InteractionsError(message) from error
    elif pa.types.is_temporal(kind):
        column = column.cast(pa.timestamp("us", getattr(kind, "tz", None)), safe=False)
    elif not (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
        message = f"{path}: column {name!r} is of type {kind}; allowed are numbers, strings, dates and timestamps"
        raise InteractionsError(message)
    times = (column.cast(pa.int64()) if pa.types.is_temporal(column.type) else column).to_numpy()
    if not np.isfinite(times).all():
        message = f"{path}: column {name!r} has values that are not finite; drop or repair these rows"
        raise InteractionsError(message)
    return np.asarray(times)


def _encode(path: str, name: str, column: pa.ChunkedArray) -> tuple[Ints, npt.NDArray[Any]]:
    """Return codes by first occurrence and the ids they stand for."""
    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    if pa.types.is_integer(kind):
        column = column.cast(pa.int64())
    elif pa.types.is_string(kind) or pa.types.is_large_string(kind):
        column = column.cast(pa.large_string())
    else:
        message = f"{path}: column {name!r} is of type {kind}; allowed are integers and strings"
        raise InteractionsError(message)
    encoded = column.combine_chunks().dictionary_encode()
    return encoded.indices.to_numpy().astype(np.int64), encoded.dictionary.to_numpy(zero_copy_only=False)
