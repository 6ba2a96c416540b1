"""One process at a time: locks on files of a local store, which the system releases however their process ends."""

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
    """Another process does on the store what only one may do at a time."""


_TRIES: Final = 100
"""Where no folder can be made, as below /proc, the error of the system is the same each time."""


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
    """Lock a file of a local store; yields its path where another process has locked it, else None.

    Where the store was not there before and nothing else has been written to it meanwhile, nothing is left of it.
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
    """Return a descriptor of the file, and whether it could be locked."""
    for tried in count(1):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        except (FileNotFoundError, FileExistsError):
            # A folder has been removed meanwhile (`_remove_from_nothing`); `mkdir` may say that it exists, then.
            if tried == _TRIES or any(folder.is_file() for folder in path.parents):
                raise
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return descriptor, False
        # A file that has been removed since it was opened keeps nobody out.
        if os.fstat(descriptor).st_nlink:
            return descriptor, True
        os.close(descriptor)
    raise AssertionError  # the numbers do not end


def _remove_from_nothing(path: Path, made: list[Path]) -> None:
    """Remove a lock that is still held where there are only locks beside it, and the folders that were made for it."""
    if any(other.suffix != path.suffix for other in path.parent.iterdir()):
        return
    path.unlink()
    with contextlib.suppress(OSError):  # not empty
        for folder in made:
            folder.rmdir()
