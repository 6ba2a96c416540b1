"""What a process keeps in temporary files, most of which have no name that anybody else could look for."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.harness import Watch

__all__ = ["PeakFiles", "bytes_in_files"]


def bytes_in_files(folder: str, but: str) -> int:
    """Return the bytes of a folder's files that this process has open or mapped, without those of another folder."""
    sizes = dict[int, int]()
    for inode, path, size in (*_open(), *_mapped()):
        if path.startswith(f"{folder}/") and not path.startswith(f"{but}/"):
            sizes[inode] = max(sizes.get(inode, 0), size)
    return sum(sizes.values())


def _open() -> Iterator[tuple[int, str, int]]:
    """Yield inode, path and size of what is open."""
    for link in Path("/proc/self/fd").iterdir():
        try:
            about, path = link.stat(), str(link.readlink())
        except FileNotFoundError:  # closed by now
            continue
        yield about.st_ino, path, about.st_size


def _mapped() -> Iterator[tuple[int, str, int]]:
    """Yield inode and path of what is mapped, and where each piece of it ends."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, _, offset, _, inode, *path = line.split(maxsplit=5)
        if path:
            start, stop = (int(end, 16) for end in span.split("-"))
            yield int(inode), path[0], int(offset, 16) + stop - start


class PeakFiles(Watch):
    """How many bytes the temporary files of this process have at most, `most`, without those of a store."""

    def __init__(self, store: str) -> None:
        super().__init__(0.02)
        self.most, self._store = 0, store

    def look(self) -> None:
        """Note what they have, if it is more than ever."""
        self.most = max(self.most, bytes_in_files(tempfile.gettempdir(), self._store))
