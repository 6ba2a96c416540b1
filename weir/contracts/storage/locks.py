"""Locks on files of a local store; the system releases them when their process ends in any way."""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Final

from weir.contracts.base.errors import UserError
from weir.contracts.storage.store import Store

__all__ = ["BusyStoreError", "locked", "only_one"]


class BusyStoreError(UserError):
    """Another process holds the lock of an operation that only one process may run on a store."""


_TRIES: Final = 100
"""Limit on retries: where a folder can never be made, as below /proc, each retry raises the same error."""


@contextlib.contextmanager
def only_one(store: Store, name: str, command: str) -> Iterator[None]:
    """Lock ``state/<name>.lock`` for a command; raises `BusyStoreError`. Object stores are not locked."""
    with locked(store, f"state/{name}.lock") as path:
        if path is not None:
            raise BusyStoreError(
                f"another `{command}` runs on this store ({path} is locked): end it first, or use another store"
            )
        yield


@contextlib.contextmanager
def locked(store: Store, name: str) -> Iterator[Path | None]:
    """Lock a file of a local store; yields its path if another process holds the lock, else None.

    If the store did not exist before and got no other files meanwhile, the lock file and its folders are removed again.
    """
    if store.local_path is None:
        yield None
        return
    path = store.local_path / name
    made = [folder for folder in path.parents if not folder.exists()]
    descriptor, is_mine = _open_locked(path)
    try:
        yield None if is_mine else path
    finally:
        if is_mine:
            _remove_from_nothing(path, made)
        os.close(descriptor)


def _open_locked(path: Path) -> tuple[int, bool]:
    """Open the lock file, creating it if needed; return its descriptor, and whether this process got the lock."""
    for tried in count(1):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        except (FileNotFoundError, FileExistsError):
            # Another process removed a folder (`_remove_from_nothing`); `mkdir` may then say that it exists.
            if tried == _TRIES or any(folder.is_file() for folder in path.parents):
                raise
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return descriptor, False
        # A lock on a file that has been removed since it was opened excludes no other process.
        if os.fstat(descriptor).st_nlink:
            return descriptor, True
        os.close(descriptor)
    raise AssertionError  # the numbers do not end


def _remove_from_nothing(path: Path, made: list[Path]) -> None:
    """Remove a held lock file and the folders `made` for it, unless its folder has files other than locks."""
    if any(other.suffix != path.suffix for other in path.parent.iterdir()):
        return
    path.unlink()
    with contextlib.suppress(OSError):  # not empty
        for folder in made:
            folder.rmdir()
