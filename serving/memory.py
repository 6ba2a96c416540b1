"""How much memory the process may use, and what a bundle takes of it, roughly."""

import ctypes
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

from weir.contracts import BundleManifest

__all__ = ["Memory", "bundle_bytes", "give_back", "index_bytes", "reading_bytes"]

_OWN: Final = 256 << 20
"""The process without a bundle, and what its queue holds."""

_PER_ROW: Final = 150
"""Id, key, popularity and order of an item, beside what its files hold."""

_PER_PLACE: Final = 46
"""A row's number in its list, and its entry in the table of places (`weir.contracts.index_delta.keep_places`)."""


@dataclass(frozen=True)
class Memory:
    """A limit, in bytes."""

    limit: int

    @classmethod
    def found(cls, wanted: int | None = None, root: Path = Path("/")) -> Self:
        """Return the `wanted` limit, or that of the process's control groups, or the machine's memory."""
        if wanted is not None:
            return cls(wanted)
        machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        return cls(min([machine, *_groups(root)]))

    def shared_by(self, processes: int) -> "Memory":
        """Return what is left for what processes share, where each takes some memory of its own."""
        return Memory(self.limit - (processes - 1) * _OWN)

    def holds(self, *sizes: int) -> bool:
        """Say whether the process has room for things of these sizes together."""
        return _OWN + sum(sizes) <= self.limit


def bundle_bytes(manifest: BundleManifest) -> int:
    """Estimate what a bundle takes in memory, of a delta what it adds."""
    rows = manifest.changed if manifest.parent else manifest.items
    return sum(file.size for file in manifest.files) + (_PER_ROW + _PER_PLACE) * rows


def reading_bytes(manifest: BundleManifest) -> int:
    """Return what reading a bundle takes on top: a file is in memory twice while it is decoded."""
    return max(file.size for file in manifest.files)


def index_bytes(index: Any) -> int:
    """Estimate what a FAISS index with lists takes in memory."""
    return int(index.ntotal * (index.code_size + _PER_PLACE))


def give_back() -> None:
    """Return freed memory to the system: glibc keeps what lies between things that are still in use."""
    with suppress(AttributeError, OSError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)


def _groups(root: Path) -> list[int]:
    """Return the limits of the control groups that the process is in, of either version."""
    found = []
    for line in _lines(root / "proc/self/cgroup"):
        _, controllers, path = line.split(":", 2)
        if controllers not in ("", "memory"):
            continue
        top = root / "sys/fs/cgroup" / controllers
        file = "memory.limit_in_bytes" if controllers else "memory.max"
        # In a container its own group looks like the root, under whatever path the host gave it.
        inner = top / path.lstrip("/")
        folders = [folder for folder in (inner, *inner.parents) if folder.is_relative_to(top)]
        found += [int(text) for folder in folders for text in _lines(folder / file) if text.isdigit()]
    return found


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().split("\n")[:-1]
    except OSError:
        return []
