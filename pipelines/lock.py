"""One pipeline per store: two are safe, since a commit is created once, but each would discard the other's work."""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from contracts import Store, UserError, check_fitness

__all__ = ["BusyStoreError", "check_writable", "is_redacting", "only_driver", "only_redaction", "only_writer"]

_REDACTION: Final = "state/redaction.lock"


class BusyStoreError(UserError):
    """Another pipeline, or another redaction, writes to the store."""


@contextlib.contextmanager
def only_writer(store: Store) -> Iterator[None]:
    """Lock the store for this process; the system releases it when the process ends, however it ends.

    Object stores have no such lock: there, of two pipelines the slower one finds its commit taken and reads again.
    Raises `BusyStoreError`.
    """
    with _locked(store, "state/ingest.lock") as path:
        if path is not None:
            raise BusyStoreError(
                f"another pipeline writes to this store ({path} is locked): end it first, or use another store"
            )
        yield


@contextlib.contextmanager
def only_driver(store: Store) -> Iterator[None]:
    """Lock the store against other drivers, be it for a run or for a stream; raises `BusyStoreError`.

    The workers of a stream have `only_writer` one after the other, for a commit each. Object stores have no such lock.
    """
    with _locked(store, "state/driver.lock") as path:
        if path is not None:
            raise BusyStoreError(
                f"another pipeline drives this store ({path} is locked): end it first, or use another store"
            )
        yield


@contextlib.contextmanager
def only_redaction(store: Store) -> Iterator[None]:
    """Lock the store against other redactions, as `only_writer` does against pipelines; raises `BusyStoreError`."""
    with _locked(store, _REDACTION) as path:
        if path is not None:
            raise BusyStoreError(f"another `weir forget` is at work on this store ({path} is locked): wait for its end")
        yield


def is_redacting(store: Store) -> bool:
    """Say whether a process on this machine forgets users now; False for object stores, where nobody knows."""
    with _locked(store, _REDACTION) as path:
        return path is not None


@contextlib.contextmanager
def _locked(store: Store, name: str) -> Iterator[Path | None]:
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


def check_writable(store: Store) -> None:
    """Refuse an object store on which commits are not safe; raises `UnfitStoreError`.

    Local disks are not asked: a hard link either is exclusive or cannot be made.
    """
    if store.local_path is None:
        check_fitness(store)
