"""What a run has read: progress per partition, files of dead letters, and files of rows of open windows.

A run writes the rows of windows that stay open to files (`PendingRows`), and the run that closes a window reads these
files. The files only save work: a restarted process reads the log again from the `resume` positions of the commits, and
removes the files of earlier processes.
"""

import secrets
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from apache_beam.runners.worker.statecache import CacheAware

from weir.contracts import Keys, LetterFile, Store, UserKeys
from weir.contracts.base import columns
from weir.readers import cost_of

__all__ = [
    "WHOLE_FILE",
    "Claims",
    "LettersWritten",
    "Owners",
    "PartitionProgress",
    "PendingRows",
    "Progress",
    "claims_in_hand",
    "open_files_of",
    "read_open_rows",
    "write_open_rows",
]

WHOLE_FILE: Final = -1
"""The position of a dead letter about a whole file."""

_CLAIMS: Final = ".claims"
"""The suffix of the file of claims beside a file of pending rows."""

Claims = Keys
"""(n, 2): item keys, each with the check of a claiming id (`weir.pipelines.runs.hash_collisions`)."""

Owners = dict[int, int]
"""Item key -> check of the id that owns it."""


@dataclass(frozen=True)
class LettersWritten:
    """An uncommitted file of dead letters; `last` is the highest position in it."""

    file: LetterFile
    last: int


@dataclass
class PartitionProgress:
    """What a run has read of one partition.

    `stop` is the position after the last row read, `dead` the number of refused rows, `lowest` maps window start (ms)
    to the lowest position of a row in the window, `skipped` counts messages without a value that are not counted yet.
    """

    stop: int = 0
    dead: int = 0
    lowest: dict[int, int] = field(default_factory=dict)
    skipped: int = 0

    def add(self, other: "PartitionProgress") -> None:
        """Add what another worker has read of the same partition."""
        self.stop = max(self.stop, other.stop)
        self.dead += other.dead
        self.skipped += other.skipped
        for window, position in other.lowest.items():
            self.lowest[window] = min(position, self.lowest.get(window, position))


@dataclass
class Progress(CacheAware):
    """What a run has read of all partitions; `max_event_ms` is the newest event time, -1 without events.

    `claims` are batches of claims on item keys without an owner; `settle` turns them into `contested`, the owners of
    keys that several ids claim. `wanted` maps a partition that may be read incompletely to its planned end position.
    """

    max_event_ms: int = -1
    partitions: dict[str, PartitionProgress] = field(default_factory=dict)
    claims: list[Claims] = field(default_factory=list)
    contested: Owners = field(default_factory=dict)
    wanted: dict[str, int] = field(default_factory=dict)

    def get_referents_for_cache(self) -> list[Any]:
        """Return an empty list, so that Beam does not measure each claim for its cache."""
        return []

    @property
    def is_cut(self) -> bool:
        """Whether reading ended early in some partition, so that the input is incomplete."""
        return any(self.partitions[key].stop < stop for key, stop in self.wanted.items())

    def add(self, others: Iterable["Progress"]) -> "Progress":
        """Add the progress of other workers; return `self`."""
        for other in others:
            self.max_event_ms = max(self.max_event_ms, other.max_event_ms)
            for key, seen in other.partitions.items():
                self.partitions.setdefault(key, PartitionProgress()).add(seen)
            self.claims += other.claims
            self.wanted |= other.wanted
        return self

    def settle(self) -> "Progress":
        """Give each contested key to the id with the lowest check, and drop the claims; return `self`.

        Call only once the claims of the whole run are added.
        """
        keys, checks = np.concatenate([np.empty((0, 2), np.int64), *self.claims]).T
        order = np.lexsort((checks, keys))
        keys, checks = keys[order], checks[order]
        is_first = np.diff(keys, prepend=~keys[:1]) != 0
        lowest = checks[is_first][np.cumsum(is_first) - 1]
        lost = checks != lowest
        self.contested = dict(zip(keys[lost].tolist(), lowest[lost].tolist(), strict=True))
        self.claims = []
        return self


@dataclass(frozen=True)
class PendingRows:
    """A file `name` with the keyed rows of one partition in one open window, which starts at `start_ms`.

    `lowest` is the lowest position of the rows, `cost` their share of `pipeline.run_bytes`. With `has_claims`, a second
    file holds the rows' claims on item keys (`claims_in_hand`); the claims are not a field, because a run is copied to
    every transform.
    """

    partition: str
    start_ms: int
    name: str
    lowest: int
    has_claims: bool = False
    cost: int = 0


def write_open_rows(
    store: Store, folder: str, partition: str, start_ms: int, rows: pa.RecordBatch, *, claims: Owners
) -> PendingRows:
    """Write keyed rows of one partition and window as an Arrow file in `folder`, and their claims as a second file."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, rows.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_batch(rows)
    name = f"{folder}/{start_ms}-{secrets.token_hex(8)}.arrow"
    store.write(name, sink.getvalue().to_pybytes())
    if claims:
        store.write(f"{name}{_CLAIMS}", msgspec.json.encode(claims))
    lowest = pc.min(rows.column(columns.POSITION)).as_py()
    return PendingRows(partition, start_ms, name, lowest, bool(claims), cost_of(rows.num_rows, rows.nbytes))


def claims_in_hand(store: Store, pending: PendingRows) -> Owners:
    """Return the claims on item keys of a file of pending rows; the process caches them. Raises `FileNotFoundError`."""
    return _claims(store, pending.name) if pending.has_claims else {}


@lru_cache(maxsize=4096)
def _claims(store: Store, name: str) -> Owners:
    return msgspec.json.decode(store.read(f"{name}{_CLAIMS}"), type=Owners)


def open_files_of(store: Store, users: UserKeys) -> list[str]:
    """Return the names of the files of pending rows, of any process, that hold events of the given users (n,)."""
    names = []
    for name in store.glob("state/runs/*/*.arrow"):
        try:
            rows = pa.ipc.open_file(pa.BufferReader(store.read(name))).read_all()
        except FileNotFoundError:
            continue
        if np.isin(rows[columns.USER_KEY].to_numpy(), users).any():
            names.append(name)
    return names


def read_open_rows(store: Store, pending: PendingRows) -> pa.RecordBatch:
    """Return the rows of a file of pending rows; raises `FileNotFoundError` or, if damaged, `pa.ArrowInvalid`."""
    return pa.ipc.open_file(pa.BufferReader(store.read(pending.name))).get_batch(0)
