"""Atomic files with checksums, on local disk or any object store that fsspec knows.

Readers see a file whole or not at all: on local disk by a temporary file in the same directory, ``fsync`` and
``os.replace``; on an object store by a single put, which is atomic. `Store.create` writes a file only if none exists:
by a hard link on local disk, by a conditional put on an object store.
"""

import contextlib
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import IO, Any, Final, NamedTuple

import fsspec
import xxhash
from fsspec.implementations.local import LocalFileSystem

from weir.contracts.base.errors import CorruptArtefactError
from weir.contracts.base.models import StoredModel
from weir.contracts.storage.local_files import Fill, UnfitStoreError, create_local, sync_folder, synced, write_local

__all__ = ["FileEntry", "FileStat", "Store", "UnfitStoreError", "checksum"]

_BLOCK: Final = 1 << 20

_TAKEN = "pre-conditions"
"""Text of the s3fs error, which has no errno, for a conditional put that the object store refused."""


class FileEntry(StoredModel):
    """A file as a manifest lists it: its name within the directory, size in bytes, checksum and rows."""

    name: str
    size: int
    checksum: str
    rows: int = 0


class FileStat(NamedTuple):
    """A file's size in bytes, and its time of change in seconds since 1970, None if unknown."""

    size: int
    written: float | None


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
        # Other processes write here: a cached listing would hide their commits.
        fs, path = fsspec.core.url_to_fs(self.url, use_listings_cache=False)
        return fs, path.rstrip("/")

    def __reduce__(self) -> tuple[type["Store"], tuple[str]]:
        return type(self), (self.url,)

    @property
    def local_path(self) -> Path | None:
        """The folder as a local path, None if it is remote."""
        fs, root = self._root
        return Path(root) if isinstance(fs, LocalFileSystem) else None

    def path(self, name: str) -> str:
        """Return the full path of `name`, as errors show it."""
        return f"{self._root[1]}/{name}" if name else self._root[1]

    def exists(self, name: str) -> bool:
        """Return whether a file or folder of this name exists."""
        return bool(self._root[0].exists(self.path(name)))

    def read(self, name: str) -> bytes:
        """Return a file's bytes; raises `FileNotFoundError`."""
        return bytes(self._root[0].cat_file(self.path(name)))

    def read_verified(self, folder: str, entry: FileEntry) -> bytes:
        """Return the bytes of a file that a manifest lists; raises `CorruptArtefactError` unless they match `entry`."""
        name = f"{folder}/{entry.name}"
        with self._listed(name):
            data = self.read(name)
        self._verify(name, entry, len(data), checksum(data))
        return data

    @contextlib.contextmanager
    def local(self, folder: str, entry: FileEntry) -> Iterator[Path]:
        """Yield the path of a verified file to map: the stored file itself on local disk, else a temporary copy.

        Mapped data stay readable afterwards. Raises as `read_verified`.
        """
        name = f"{folder}/{entry.name}"
        with contextlib.ExitStack() as stack:
            is_here = self.local_path is not None
            copy = None if is_here else stack.enter_context(tempfile.NamedTemporaryFile(prefix="weir-"))
            with self._listed(name), self.open(name) as file:
                size, digest = _measured(file, copy)
            self._verify(name, entry, size, digest)
            if copy is not None:
                copy.flush()
            yield Path(self.path(name) if copy is None else copy.name)

    @contextlib.contextmanager
    def _listed(self, name: str) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError:
            raise CorruptArtefactError(self.path(name), "the manifest lists it, but it is missing") from None

    def _verify(self, name: str, entry: FileEntry, size: int, digest: str) -> None:
        if size != entry.size:
            raise CorruptArtefactError(self.path(name), f"has {size} bytes, the manifest says {entry.size}")
        if digest != entry.checksum:
            raise CorruptArtefactError(self.path(name), f"has checksum {digest}, the manifest says {entry.checksum}")

    def open(self, name: str) -> IO[bytes]:
        """Return a seekable file open for reading, which the caller closes; raises `FileNotFoundError`."""
        file: IO[bytes] = self._root[0].open(self.path(name), "rb")
        return file

    def digest(self, name: str) -> str:
        """Return the checksum of a file, read in blocks; raises `FileNotFoundError`."""
        with self.open(name) as file:
            return _measured(file)[1]

    def copy_to(self, name: str, target: IO[bytes]) -> FileEntry:
        """Copy a file in blocks and return its entry; raises `FileNotFoundError`."""
        with self.open(name) as file:
            size, digest = _measured(file, target)
        return FileEntry(name=name.rsplit("/", 1)[-1], size=size, checksum=digest)

    def write(self, name: str, data: bytes, *, rows: int = 0) -> FileEntry:
        """Write a file atomically, replacing an older one, and return its manifest entry."""
        fs, _ = self._root
        if self.local_path is not None:
            write_local(Path(self.path(name)), data)
        else:
            fs.pipe_file(self.path(name), data)
        return FileEntry(name=name.rsplit("/", 1)[-1], size=len(data), checksum=checksum(data), rows=rows)

    def write_with(self, name: str, fill: Fill, *, rows: int = 0) -> FileEntry:
        """Write a file of any size atomically, as `write` does: `fill` writes a local draft."""
        draft = synced(self.drafted(name), fill)
        try:
            return self.take(draft, name, rows=rows)
        finally:
            draft.unlink(missing_ok=True)

    def drafted(self, name: str) -> Path:
        """Return a local path; a draft of file `name` written beside it needs no copy when `take` publishes it."""
        return Path(tempfile.gettempdir()) / "weir" if self.local_path is None else Path(self.path(name))

    def take(self, draft: Path, name: str, *, rows: int = 0) -> FileEntry:
        """Publish `draft`, a local file synced to disk, under `name` atomically; a local store moves it, uncopied."""
        fs, _ = self._root
        with draft.open("rb") as file:
            size, digest = _measured(file)
        if self.local_path is None:
            fs.put_file(str(draft), self.path(name))
        else:
            target = Path(self.path(name))
            draft.replace(target)
            sync_folder(target.parent)
        return FileEntry(name=name.rsplit("/", 1)[-1], size=size, checksum=digest, rows=rows)

    def create(self, name: str, data: bytes) -> bool:
        """Write a file atomically unless one of this name exists; return whether it was written.

        Of several writers at most one succeeds, and a killed writer leaves no partial file. A lost answer looks like a
        refusal: read the file to see whose it is. Raises `UnfitStoreError` for a local file system without hard links.
        """
        fs, _ = self._root
        if self.local_path is not None:
            return create_local(Path(self.path(name)), data)
        try:
            fs.pipe_file(self.path(name), data, mode="create")
        except FileExistsError:
            return False
        except OSError as error:
            if _TAKEN not in str(error):
                raise
            return False
        return True

    def glob(self, pattern: str) -> list[str]:
        """Return the sorted names that match `pattern` (``windows/*/*/MANIFEST.json``), relative to the store."""
        fs, root = self._root
        return sorted(found[len(root) + 1 :] for found in fs.glob(self.path(pattern)))

    def find(self, folder: str = "") -> dict[str, FileStat]:
        """Return size and time of change of every file below a folder, by name."""
        fs, root = self._root
        found = fs.find(self.path(folder), detail=True)
        return {name[len(root) + 1 :]: FileStat(int(info["size"] or 0), _written(info)) for name, info in found.items()}

    def modified(self, name: str) -> float:
        """Return a file's time of change in seconds since 1970; raises `FileNotFoundError`."""
        return float(self._root[0].modified(self.path(name)).timestamp())

    def remove(self, name: str) -> None:
        """Remove a file, or a folder with its content, if it exists."""
        fs, _ = self._root
        if self.exists(name):
            fs.rm(self.path(name), recursive=True)

    def remove_if_empty(self, folder: str) -> None:
        """Remove an empty folder of a local store and its parents that become empty, except the top-level one.

        Object stores have no folders.
        """
        if self.local_path is None:
            return
        with contextlib.suppress(OSError):
            while "/" in folder:
                (self.local_path / folder).rmdir()
                folder = folder.rpartition("/")[0]


def _written(info: dict[str, Any]) -> float | None:
    for name in ("mtime", "LastModified", "updated", "created"):
        value = info.get(name)
        if value is not None:
            return float(value.timestamp() if hasattr(value, "timestamp") else value)
    return None


def _measured(file: IO[bytes], copy: IO[bytes] | None = None) -> tuple[int, str]:
    """Read a file to its end; return the size (bytes) and checksum of the data, and write the data to `copy`."""
    size, digest = 0, xxhash.xxh3_128()
    while block := file.read(_BLOCK):
        size += len(block)
        digest.update(block)
        if copy is not None:
            copy.write(block)
    return size, digest.hexdigest()
