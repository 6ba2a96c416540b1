"""One pipeline per store: two are safe, since a commit is created once, but each would discard the other's work."""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from contracts import Store, UserError, check_fitness

__all__ = ["BusyStoreError", "check_writable", "only_writer"]


class BusyStoreError(UserError):
    """Another pipeline writes to the store."""


@contextlib.contextmanager
def only_writer(store: Store) -> Iterator[None]:
    """Lock the store for this process; the system releases it when the process ends, however it ends.

    Object stores have no such lock: there, of two pipelines the slower one finds its commit taken and reads again.
    Raises `BusyStoreError`.
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
        raise BusyStoreError(
            f"another pipeline writes to this store ({path} is locked): end it first, or use another store"
        ) from error


def check_writable(store: Store) -> None:
    """Refuse an object store on which commits are not safe; raises `UnfitStoreError`.

    Local disks are not asked: a hard link either is exclusive or cannot be made.
    """
    if store.local_path is None:
        check_fitness(store)
