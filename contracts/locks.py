"""One process at a time: locks on files of a local store, which the system releases however their process ends."""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from contracts.errors import UserError
from contracts.storage import Store

__all__ = ["BusyStoreError", "locked", "only_one"]


class BusyStoreError(UserError):
    """Another process does on the store what only one may do at a time."""


@contextlib.contextmanager
def only_one(store: Store, name: str, command: str) -> Iterator[None]:
    """Lock ``state/<name>.lock`` for a command; raises `BusyStoreError`. Object stores have no such lock."""
    with locked(store, f"state/{name}.lock") as path:
        if path is not None:
            raise BusyStoreError(
                f"another `{command}` runs on this store ({path} is locked): end it first, or use another store"
            )
        yield


@contextlib.contextmanager
def locked(store: Store, name: str) -> Iterator[Path | None]:
    """Lock a file of a local store; yields its path where another process has locked it, else None."""
    if store.local_path is None:
        yield None
        return
    path = store.local_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            taken = None
        except BlockingIOError:
            taken = path
        yield taken
    finally:
        os.close(descriptor)
