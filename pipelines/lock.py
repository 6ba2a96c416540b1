"""One pipeline per store: two would give one sequence to two commits."""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from contracts import Store

__all__ = ["BusyStoreError", "only_writer"]


class BusyStoreError(RuntimeError):
    """Another pipeline writes to the store."""


@contextlib.contextmanager
def only_writer(store: Store) -> Iterator[None]:
    """Hold the store for this process; the system lets go of it when the process dies, however it dies.

    Object stores have no such lock: there, whoever deploys sees to it that one pipeline runs. Raises
    `BusyStoreError`.
    """
    folder = store.local_path
    if folder is None:
        yield
        return
    path = folder / "state" / "ingest.lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        _lock(descriptor, path)
        yield
    finally:
        os.close(descriptor)


def _lock(descriptor: int, path: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        message = f"another pipeline writes to this store ({path} is locked): end it first, or use another store"
        raise BusyStoreError(message) from error
