"""What a process keeps in temporary files, most of which have no name that anybody else could look for."""

import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Self

__all__ = ["PeakFiles", "bytes_in_files"]

_LOOK_SECONDS: Final = 0.02


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


class PeakFiles:
    """Watches this process: how many bytes its temporary files have at most, `most`, without those of a store."""

    def __init__(self, store: str) -> None:
        self.most, self._store, self._is_over = 0, store, threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._is_over.wait(_LOOK_SECONDS):
            self.most = max(self.most, bytes_in_files(tempfile.gettempdir(), self._store))
