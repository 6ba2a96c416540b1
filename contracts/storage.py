"""Atomic files with checksums, on local disk or any object store that fsspec knows.

A reader sees a file whole or not at all. On local disk that takes a temporary file in the same directory,
``fsync`` and ``os.replace``; an object store's single put is atomic by itself.
"""

import os
import tempfile
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import fsspec
import xxhash
from fsspec.implementations.local import LocalFileSystem
from pydantic import BaseModel, ConfigDict

from contracts.errors import CorruptArtefactError

__all__ = ["FileEntry", "Store", "checksum"]


class FileEntry(BaseModel):
    """What a manifest says of one file: its name within the directory, size in bytes, rows and checksum."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    size: int
    checksum: str
    rows: int = 0


def checksum(data: bytes) -> str:
    """Return the ``xxh3_128`` of `data` as 32 hexadecimal digits."""
    return str(xxhash.xxh3_128_hexdigest(data))


@dataclass(frozen=True)
class Store:
    """A folder at `url` (a local path, ``s3://...``, ``gs://...``); names are relative, with forward slashes.

    Picklable, so that it travels to workers.
    """

    url: str

    @cached_property
    def _root(self) -> tuple[Any, str]:
        fs, path = fsspec.core.url_to_fs(self.url)
        # Other processes write here: a cached listing would hide what they have committed.
        fs.use_listings_cache = False
        return fs, path.rstrip("/")

    def __reduce__(self) -> tuple[type["Store"], tuple[str]]:
        return type(self), (self.url,)

    @property
    def local_path(self) -> Path | None:
        """The folder as a local path, or None where it is remote."""
        fs, root = self._root
        return Path(root) if isinstance(fs, LocalFileSystem) else None

    def path(self, name: str) -> str:
        """Return the full path of `name`, as errors show it."""
        return f"{self._root[1]}/{name}" if name else self._root[1]

    def exists(self, name: str) -> bool:
        """Say whether a file or folder of this name is there."""
        return bool(self._root[0].exists(self.path(name)))

    def read(self, name: str) -> bytes:
        """Return a file's bytes; raises `FileNotFoundError`."""
        return bytes(self._root[0].cat_file(self.path(name)))

    def read_verified(self, folder: str, entry: FileEntry) -> bytes:
        """Return the bytes of a manifest's file; raises `CorruptArtefactError` unless they are what it says."""
        name = f"{folder}/{entry.name}"
        try:
            data = self.read(name)
        except FileNotFoundError:
            raise CorruptArtefactError(self.path(name), "the manifest lists it, but it is missing") from None
        if len(data) != entry.size:
            raise CorruptArtefactError(self.path(name), f"has {len(data)} bytes, the manifest says {entry.size}")
        if (found := checksum(data)) != entry.checksum:
            raise CorruptArtefactError(self.path(name), f"has checksum {found}, the manifest says {entry.checksum}")
        return data

    def write(self, name: str, data: bytes, *, rows: int = 0) -> FileEntry:
        """Write a file atomically, over an older one if there is one, and return its manifest entry."""
        fs, _ = self._root
        if self.local_path is not None:
            _write_local(Path(self.path(name)), data)
        else:
            fs.pipe_file(self.path(name), data)
        return FileEntry(name=name.rsplit("/", 1)[-1], size=len(data), checksum=checksum(data), rows=rows)

    def glob(self, pattern: str) -> list[str]:
        """Return the sorted names that match `pattern` (``windows/*/*/MANIFEST.json``), relative to the store."""
        fs, root = self._root
        return sorted(found[len(root) + 1 :] for found in fs.glob(self.path(pattern)))

    def remove(self, name: str) -> None:
        """Remove a file or a folder with all it holds; nothing happens if it is not there."""
        fs, _ = self._root
        if self.exists(name):
            fs.rm(self.path(name), recursive=True)


def _write_local(target: Path, data: bytes) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=target.parent, prefix=".", suffix=".tmp")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).chmod(0o644)
        Path(temporary).replace(target)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    directory = os.open(target.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
