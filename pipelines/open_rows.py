"""Rows of windows that are still open, kept beside the log so that no run reads them again.

Each run writes what it must wait with, and the run that closes a window reads its files. They only spare work: a
process that starts again reads from the `resume` positions of the commits, and removes what others have left.
"""

import secrets
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from weir.contracts import Store, UserKeys, columns
from weir.pipelines.progress import Owners
from weir.readers import cost_of

__all__ = ["OpenRows", "claims_in_hand", "open_files_of", "read_open_rows", "write_open_rows"]

_CLAIMS: Final = ".claims"


@dataclass(frozen=True)
class OpenRows:
    """A file of keyed rows of one partition and window.

    `lowest` is the lowest of their positions, `cost` what they take of `pipeline.run_bytes`. Claims on keys that nobody
    owned when the rows were kept are in a file beside theirs (`claims_in_hand`), if there are any: what a run carries
    is copied to every transform.
    """

    partition: str
    start_ms: int
    name: str
    lowest: int
    has_claims: bool = False
    cost: int = 0


def write_open_rows(
    store: Store, folder: str, partition: str, start_ms: int, rows: pa.RecordBatch, *, claims: Owners
) -> OpenRows:
    """Write keyed rows of one partition and window as an Arrow file."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, rows.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_batch(rows)
    name = f"{folder}/{start_ms}-{secrets.token_hex(8)}.arrow"
    store.write(name, sink.getvalue().to_pybytes())
    if claims:
        store.write(f"{name}{_CLAIMS}", msgspec.json.encode(claims))
    lowest = pc.min(rows.column(columns.POSITION)).as_py()
    return OpenRows(partition, start_ms, name, lowest, bool(claims), cost_of(rows.num_rows, rows.nbytes))


def claims_in_hand(store: Store, kept: OpenRows) -> Owners:
    """Return the claims of a file of rows; a process reads them once. Raises `FileNotFoundError`."""
    return _claims(store, kept.name) if kept.has_claims else {}


@lru_cache(maxsize=4096)
def _claims(store: Store, name: str) -> Owners:
    return msgspec.json.decode(store.read(f"{name}{_CLAIMS}"), type=Owners)


def open_files_of(store: Store, users: UserKeys) -> list[str]:
    """Return the files of rows, of any process, that hold events of some users; one that goes meanwhile holds none."""
    found = []
    for name in store.glob("state/runs/*/*.arrow"):
        try:
            rows = pa.ipc.open_file(pa.BufferReader(store.read(name))).read_all()
        except FileNotFoundError:
            continue
        if np.isin(rows[columns.USER_KEY].to_numpy(), users).any():
            found.append(name)
    return found


def read_open_rows(store: Store, kept: OpenRows) -> pa.RecordBatch:
    """Return the rows of a file; raises `FileNotFoundError` or `pa.ArrowInvalid`."""
    return pa.ipc.open_file(pa.BufferReader(store.read(kept.name))).get_batch(0)
