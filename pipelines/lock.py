"""One pipeline per store: two are safe, since a commit is created once, but each would discard the other's work."""

import contextlib
from collections.abc import Iterator
from typing import Final

from weir.contracts import Store, check_fitness
from weir.contracts.locks import BusyStoreError, locked

__all__ = ["BusyStoreError", "check_writable", "is_redacting", "only_driver", "only_redaction", "only_writer"]

_REDACTION: Final = "state/redaction.lock"


@contextlib.contextmanager
def only_writer(store: Store) -> Iterator[None]:
    """Lock the store for this process; the system releases it when the process ends, however it ends.

    Object stores have no such lock: there, of two pipelines the slower one finds its commit taken and reads again.
    Raises `BusyStoreError`.
    """
    with locked(store, "state/ingest.lock") as path:
        if path is not None:
            raise BusyStoreError(
                f"another pipeline writes to this store ({path} is locked): end it first, or use another store"
            )
        yield


@contextlib.contextmanager
def only_driver(store: Store) -> Iterator[None]:
    """Lock the store against other drivers, for a run or a stream; raises `BusyStoreError`.

    The workers of a stream have `only_writer` one after the other, for a commit each. Object stores have no such lock.
    """
    with locked(store, "state/driver.lock") as path:
        if path is not None:
            raise BusyStoreError(
                f"another pipeline drives this store ({path} is locked): end it first, or use another store"
            )
        yield


@contextlib.contextmanager
def only_redaction(store: Store) -> Iterator[None]:
    """Lock the store against other redactions, as `only_writer` does against pipelines; raises `BusyStoreError`."""
    with locked(store, _REDACTION) as path:
        if path is not None:
            raise BusyStoreError(f"another `weir forget` is at work on this store ({path} is locked): wait for its end")
        yield


def is_redacting(store: Store) -> bool:
    """Say whether a process on this machine forgets users now; False for object stores, where nobody knows."""
    with locked(store, _REDACTION) as path:
        return path is not None


def check_writable(store: Store) -> None:
    """Refuse an object store on which commits are not safe; raises `UnfitStoreError`.

    Local disks are not asked: a hard link either is exclusive or cannot be made.
    """
    if store.local_path is None:
        check_fitness(store)
