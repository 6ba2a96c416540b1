"""Remote files: cached on local disk, or watched for changes."""

import contextlib
import glob
import os
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import fsspec

from weir.contracts.base.errors import CorruptArtefactError
from weir.contracts.storage.local_files import naming
from weir.contracts.storage.store import FileEntry, Store

__all__ = ["LocalCache", "WatchedFile"]


def _default_folder() -> Path:
    return Path(tempfile.gettempdir()) / f"weir-cache-{os.getuid()}"


@dataclass(frozen=True)
class LocalCache:
    """Cache of stored files in `folder`, at most `limit` bytes; the least recently used files are evicted.

    Any number of processes may share a folder. An evicted file stays readable where it is mapped.
    """

    folder: Path = field(default_factory=_default_folder)
    limit: int = 64 << 30

    def path(self, store: Store, entry: FileEntry) -> Path:
        """Return the local path of a file that a commit lists by its name relative to the store.

        In a local store it is the path of the stored file itself, which is not read. Raises `CorruptArtefactError` if
        the file is missing, or does not match its entry when it is fetched.
        """
        if store.local_path is not None:
            return Path(store.path(entry.name))
        # Named by content: another store may have another file of this name.
        kept = self.folder / f"{entry.checksum}-{entry.name.rpartition('/')[2]}"
        is_new = not (kept.exists() and kept.stat().st_size == entry.size)
        if is_new:
            self._fetch(store, entry, kept)
        with contextlib.suppress(FileNotFoundError):
            os.utime(kept, ns=(time.time_ns(), time.time_ns()))
        if is_new:
            self._trim(kept)
        return kept

    def discard(self, names: Iterable[str]) -> None:
        """Remove the copies of stored files, given their names relative to the store."""
        for name in names:
            for kept in self.folder.glob(f"*-{glob.escape(name.rpartition('/')[2])}"):
                kept.unlink(missing_ok=True)

    def _fetch(self, store: Store, entry: FileEntry, kept: Path) -> None:
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor, draft = tempfile.mkstemp(dir=self.folder, prefix=".", suffix=".tmp")
        try:
            with naming(kept), os.fdopen(descriptor, "wb") as file:
                found = store.copy_to(entry.name, file)
            if (found.size, found.checksum) != (entry.size, entry.checksum):
                came = f"has {found.size} bytes and checksum {found.checksum}"
                problem = f"{came}, its commit says {entry.size} and {entry.checksum}"
                raise CorruptArtefactError(store.path(entry.name), problem)
            Path(draft).replace(kept)
        except FileNotFoundError:
            raise CorruptArtefactError(store.path(entry.name), "a commit lists it, but it is missing") from None
        finally:
            Path(draft).unlink(missing_ok=True)

    def _trim(self, newest: Path) -> None:
        found = []
        for path in self.folder.iterdir():
            # Another process may remove it first.
            with contextlib.suppress(FileNotFoundError):
                stat = path.stat()
                found.append((stat.st_mtime_ns, stat.st_size, path))
        excess = sum(size for _, size, _ in found) - self.limit
        for _, size, path in sorted(found):
            if excess <= 0:
                break
            if path != newest and not path.name.startswith("."):
                path.unlink(missing_ok=True)
                excess -= size


@dataclass(frozen=True)
class WatchedFile:
    """A file at `url`: a path, or any URL that fsspec knows."""

    url: str

    @cached_property
    def _place(self) -> tuple[Any, str]:
        fs, path = fsspec.core.url_to_fs(self.url, use_listings_cache=False)
        return fs, path

    def stamp(self) -> str:
        """Return a text of the file's metadata, such as size and time of change, without reading the file.

        A change of content changes the stamp as far as the file system's metadata show it. Raises `FileNotFoundError`.
        """
        fs, path = self._place
        return repr(sorted((str(name), str(value)) for name, value in fs.info(path).items()))

    def read(self) -> bytes:
        """Return the file's bytes; raises `FileNotFoundError`."""
        fs, path = self._place
        return bytes(fs.cat_file(path))
