"""Atomic files on local disk: a draft beside the target is synced to disk before it takes the target's name."""

import contextlib
import errno
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Final

from weir.contracts.base.errors import UserError

__all__ = [
    "Fill",
    "UnfitStoreError",
    "create_local",
    "is_draft",
    "naming",
    "new_draft",
    "sync_folder",
    "synced",
    "write_local",
]

Fill = Callable[[IO[bytes]], object]
"""Writes the content of a file that is open for reading and writing at any position."""

_HIDDEN: Final = "."
_DRAFT: Final = ".tmp"


class UnfitStoreError(UserError):
    """The file system lacks what commits need; the message names it and an alternative."""


@contextlib.contextmanager
def naming(path: Path | str) -> Iterator[None]:
    """Add the file's name to an `OSError` without one: errors of open files do not name them."""
    try:
        yield
    except OSError as error:
        if error.errno is not None and error.filename is None:
            error.filename = str(path)
        raise


def write_local(target: Path, data: bytes) -> None:
    """Write a file atomically, replacing an older one."""
    temporary = synced(target, lambda file: file.write(data))
    try:
        temporary.replace(target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(target.parent)


def create_local(target: Path, data: bytes) -> bool:
    """Write a file unless one of this name exists; return whether it was written.

    A synced draft is linked to the name: an exclusive open would leave a torn file after a kill.
    """
    temporary = synced(target, lambda file: file.write(data))
    try:
        os.link(temporary, target)
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno not in {errno.EPERM, errno.ENOTSUP, errno.EMLINK, errno.ENOSYS, errno.EXDEV}:
            raise
        problem = f"{target.parent}: this file system makes no hard links ({error.strerror}), which commits need"
        raise UnfitStoreError(f"{problem}: put the store on another disk, or on an object store") from error
    finally:
        temporary.unlink(missing_ok=True)
    sync_folder(target.parent)
    return True


def new_draft(target: Path) -> Path:
    """Return a new, empty, hidden file beside the target; its name starts with the target's."""
    target.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=target.parent, prefix=f"{_HIDDEN}{target.name}.", suffix=_DRAFT)
    with naming(target), os.fdopen(descriptor):
        os.fchmod(descriptor, 0o644)
    return Path(name)


def is_draft(name: str) -> bool:
    """Return whether a name is that of a draft, the hidden file of an atomic write; a killed process may leave it."""
    last = name.rpartition("/")[2]
    return last.startswith(_HIDDEN) and last.endswith(_DRAFT)


def synced(target: Path, fill: Fill) -> Path:
    """Return a hidden file beside the target, filled and synced to disk."""
    temporary = new_draft(target)
    try:
        with naming(target), temporary.open("r+b") as file:
            fill(file)
            file.flush()
            os.fsync(file.fileno())
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return temporary


def sync_folder(folder: Path) -> None:
    """Sync a folder's entries to disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with naming(folder):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
