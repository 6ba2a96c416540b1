"""The log as partitions: which files there are, in which format, and how large.

A partition is one file; its key is its path relative to the log's folder. Files whose name, or whose folder's
name, starts with a dot or an underscore are being written or are not data, and so are those ending in ``.tmp``.
"""

import glob
import logging
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Any

import fsspec

__all__ = ["Format", "Partition", "discover"]

logger = logging.getLogger(__name__)


class Format(StrEnum):
    """How a partition is stored, and with it what a position is."""

    JSON_LINES = "json_lines"
    """Positions are byte offsets of line starts; the file may grow."""
    GZIP_LINES = "gzip_lines"
    """Positions are line numbers."""
    PARQUET = "parquet"
    """Positions are row numbers."""


_SUFFIXES = {
    ".jsonl.gz": Format.GZIP_LINES,
    ".json.gz": Format.GZIP_LINES,
    ".ndjson.gz": Format.GZIP_LINES,
    ".jsonl": Format.JSON_LINES,
    ".json": Format.JSON_LINES,
    ".ndjson": Format.JSON_LINES,
    ".parquet": Format.PARQUET,
}


@dataclass(frozen=True)
class Partition:
    """One file of the log; `size` in bytes when it was listed."""

    key: str
    url: str
    format: Format
    size: int

    def open(self) -> Any:
        """Open the file for reading bytes; the handle can seek."""
        fs, path = fsspec.core.url_to_fs(self.url)
        return fs.open(path, "rb")


def discover(log: str) -> list[Partition]:
    """Return the partitions of a log (file, folder or glob; path or fsspec URL), in order of key.

    Raises `FileNotFoundError` where there is neither a file nor a folder nor a match.
    """
    fs, path = fsspec.core.url_to_fs(log)
    # Other processes write here: a cached listing would hide new files.
    fs.invalidate_cache()
    root, found = _list(fs, path.rstrip("/"))
    partitions = [_partition(fs, name, info["size"], root) for name, info in found.items() if info["type"] == "file"]
    return sorted((partition for partition in partitions if partition), key=lambda partition: partition.key)


def _list(fs: Any, path: str) -> tuple[str, dict[str, Any]]:
    """Return the folder that keys are relative to, and what was found."""
    if fs.isfile(path):
        return path.rpartition("/")[0], {path: fs.info(path)}
    if fs.isdir(path):
        return path, fs.find(path, detail=True)
    if glob.has_magic(path):
        fixed = path[: min(path.index(sign) for sign in "*?[" if sign in path)]
        if found := fs.glob(path, detail=True):
            return fixed.rpartition("/")[0], found
    message = f"the log {path} is neither a file nor a folder nor a pattern that matches any"
    raise FileNotFoundError(message)


@lru_cache(maxsize=1024)
def _tell_unknown(path: str) -> None:
    """Say once for each file that it is left out."""
    logger.warning("%s is left out: of the log are %s", path, ", ".join(_SUFFIXES))


def _partition(fs: Any, path: str, size: int, root: str) -> Partition | None:
    key = path[len(root) :].lstrip("/")
    hidden = any(part.startswith((".", "_")) for part in key.split("/"))
    suffix = next((suffix for suffix in _SUFFIXES if key.endswith(suffix)), None)
    if hidden or key.endswith(".tmp"):
        return None
    if suffix is None:
        _tell_unknown(path)
        return None
    return Partition(key, fs.unstrip_protocol(path), _SUFFIXES[suffix], size)
