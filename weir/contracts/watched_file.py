"""A file that someone else writes, wherever it lies: what it holds, and whether that may have changed."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import fsspec

__all__ = ["WatchedFile"]


@dataclass(frozen=True)
class WatchedFile:
    """The file at `url`: a path, or any URL that fsspec knows."""

    url: str

    @cached_property
    def _place(self) -> tuple[Any, str]:
        fs, path = fsspec.core.url_to_fs(self.url, use_listings_cache=False)
        return fs, path

    def stamp(self) -> str:
        """Return what is known of the file without reading it, size and time of change among it.

        Another stamp means another content, as far as the file system says so. Raises `FileNotFoundError`.
        """
        fs, path = self._place
        return repr(sorted((str(name), str(value)) for name, value in fs.info(path).items()))

    def read(self) -> bytes:
        """Return its bytes; raises `FileNotFoundError`."""
        fs, path = self._place
        return bytes(fs.cat_file(path))
