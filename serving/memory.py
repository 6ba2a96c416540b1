"""The process's memory limit, and rough estimates of a bundle's memory."""

import ctypes
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

from weir.contracts import BundleManifest

__all__ = ["Memory", "bundle_bytes", "give_back", "index_bytes", "reading_bytes"]

_OWN: Final = 256 << 20
"""Bytes of the process without a bundle, its queue included."""

_PER_ROW: Final = 150
"""Bytes per item for id, key, popularity and order, on top of the files' sizes."""

_PER_PLACE: Final = 46
"""Bytes of a row's id in its list and its entry in the table of places (`weir.contracts.index_delta.keep_places`)."""


@dataclass(frozen=True)
class Memory:
    """The memory limit of a process, in bytes."""

    limit: int

    @classmethod
    def found(cls, wanted: int | None = None, root: Path = Path("/")) -> Self:
        """Return the `wanted` limit, else the least of the control groups' limits and the machine's memory."""
        if wanted is not None:
            return cls(wanted)
        machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        return cls(min([machine, *_groups(root)]))

    def shared_by(self, processes: int) -> "Memory":
        """Return the memory left for shared data after the fixed memory of each process."""
        return Memory(self.limit - (processes - 1) * _OWN)

    def holds(self, *sizes: int) -> bool:
        """Return whether the process has room for data of these sizes together."""
        return _OWN + sum(sizes) <= self.limit


def bundle_bytes(manifest: BundleManifest) -> int:
    """Estimate the memory of a bundle, or the memory that a delta adds, in bytes."""
    rows = manifest.changed if manifest.parent else manifest.items
    return sum(file.size for file in manifest.files) + (_PER_ROW + _PER_PLACE) * rows


def reading_bytes(manifest: BundleManifest) -> int:
    """Return the additional bytes while a bundle is read: a file is in memory twice while it is decoded."""
    return max(file.size for file in manifest.files)


def index_bytes(index: Any) -> int:
    """Estimate the memory of a FAISS index with lists, in bytes."""
    return int(index.ntotal * (index.code_size + _PER_PLACE))


def give_back() -> None:
    """Return freed memory to the system: glibc keeps freed blocks between used ones."""
    with suppress(AttributeError, OSError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)


def _groups(root: Path) -> list[int]:
    """Return the memory limits of the process's control groups (v1 or v2), in bytes."""
    found = []
    for line in _lines(root / "proc/self/cgroup"):
        _, controllers, path = line.split(":", 2)
        if controllers not in ("", "memory"):
            continue
        top = root / "sys/fs/cgroup" / controllers
        file = "memory.limit_in_bytes" if controllers else "memory.max"
        # Inside a container its group may be mounted as the root, although its path is that of the host.
        inner = top / path.lstrip("/")
        folders = [folder for folder in (inner, *inner.parents) if folder.is_relative_to(top)]
        found += [int(text) for folder in folders for text in _lines(folder / file) if text.isdigit()]
    return found


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().split("\n")[:-1]
    except OSError:
        return []
