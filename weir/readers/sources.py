"""The log as partitions: its files with formats and sizes, and generations of rewritten files.

A partition is one file; its key is its path relative to the log's folder. Files are left out if their name, or a
folder's name, starts with a dot or an underscore, or if their name ends in ``.tmp``: they are unfinished or no data.

The key of a file's first generation is its name, later ones are ``name@2``, ``name@3``. A file name cannot look like
such a key, because names of partitions end in the suffix of their format. The keys in the commits decide the generation
of a file, so it is the same after a restart.
"""

import glob
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import StrEnum
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Final, Self

import fsspec
import xxhash

from weir.contracts import EventClock, UserError
from weir.readers.config import LogConfig

__all__ = [
    "FINGERPRINT_BYTES",
    "LOG_SUFFIXES",
    "PAIR_SUFFIXES",
    "Format",
    "KnownFile",
    "LogFile",
    "Partition",
    "TopicError",
    "discover",
    "generation",
    "has_ending",
    "identified",
    "is_topic",
    "latest_event_ms",
    "printable",
    "same_start",
    "topic_of",
]

logger = logging.getLogger(__name__)

FINGERPRINT_BYTES: Final = 4096
_MODIFIED = ("mtime", "LastModified", "last_modified", "updated", "created")
"""Names that file systems give to a file's time of change, or of creation if files cannot change."""
_TICK_SECONDS = 1.0
"""Resolution of times: a second on object stores and some file systems, the kernel's tick on others."""


class LogFile:
    """A file open for reading bytes; `failure` is the error that its file system raised, or None.

    Decoders raise the same types as file systems (above all `OSError`). An error of a decoder recurs with each reading
    and is the file's fault, while an error of the file system may pass.
    """

    def __init__(self, file: Any) -> None:
        self._file = file
        self.failure: Exception | None = None

    def read(self, size: int = -1) -> bytes:
        """Return up to `size` bytes, by default all."""
        try:
            data: bytes = self._file.read(size)
        except Exception as error:
            self.failure = error
            # Errors of open files do not name them.
            if isinstance(error, OSError) and error.errno is not None and error.filename is None:
                error.filename = getattr(self._file, "path", "the log")
            raise
        return data

    def seek(self, offset: int, whence: int = 0) -> int:
        """Move to a position, and return it, counted from the start."""
        try:
            return int(self._file.seek(offset, whence))
        except OSError as error:
            self.failure = error
            raise

    def tell(self) -> int:
        """Return the position, counted from the start."""
        return int(self._file.tell())

    def readable(self) -> bool:
        """Return True, for libraries that check before they read."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    @property
    def closed(self) -> bool:
        """Whether the file is closed."""
        return bool(self._file.closed)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class TopicError(UserError):
    """A Kafka topic was named where only files are read."""

    hint = "topics are read by `weir ingest`, `up`, `check`, `evaluate` and `bench losses`, and by `weir rebuild --log`"


class Format(StrEnum):
    """Storage format of a partition, which defines its positions."""

    JSON_LINES = "json_lines"
    """Positions are byte offsets of line starts; the file may grow."""
    GZIP_LINES = "gzip_lines"
    """Positions are line numbers."""
    DELIMITED = "delimited"
    """CSV or TSV with a header line; positions are byte offsets of line starts, and the file may grow."""
    GZIP_DELIMITED = "gzip_delimited"
    """Positions are line numbers; the header is line 0."""
    PARQUET = "parquet"
    """Positions are row numbers."""
    PAIRS = "pairs"
    """Ids only, so the pipeline cannot read it (`weir.readers.lines`); positions are row numbers."""


LOG_SUFFIXES: Final[Mapping[str, Format]] = {
    ".parquet": Format.PARQUET,
    ".jsonl.gz": Format.GZIP_LINES,
    ".json.gz": Format.GZIP_LINES,
    ".ndjson.gz": Format.GZIP_LINES,
    ".jsonl": Format.JSON_LINES,
    ".json": Format.JSON_LINES,
    ".ndjson": Format.JSON_LINES,
    ".csv.gz": Format.GZIP_DELIMITED,
    ".tsv.gz": Format.GZIP_DELIMITED,
    ".csv": Format.DELIMITED,
    ".tsv": Format.DELIMITED,
}
"""Ending of a name -> format of a log with event times."""

_UNREAD: Final[Mapping[str, str]] = {
    **dict.fromkeys((".bz2", ".zst", ".xz", ".lz4", ".snappy"), "decompress it, or compress it with gzip; "),
    **dict.fromkeys((".zip", ".7z", ".tar", ".tgz"), "unpack it; "),
    **dict.fromkeys((".xlsx", ".xls", ".ods"), "export it as CSV in UTF-8; "),
    **dict.fromkeys((".avro", ".orc", ".feather", ".arrow"), "write it as Parquet; "),
    ".dat": "convert it to CSV; ",
    **dict.fromkeys((".txt", ".data"), "name it by what it holds, such as .csv, .tsv or .jsonl; "),
}
"""Ending of a file that is not read -> advice."""

PAIR_SUFFIXES: Final[Mapping[str, Format]] = {".txt.gz": Format.PAIRS, ".txt": Format.PAIRS}


@dataclass(frozen=True)
class Partition:
    """One file of the log as listed: `path` on the file system `fs`, `size` in bytes.

    `arrival_ms` is its time of change (wall clock, ms since 1970; None if the file system has none), `fingerprint`
    identifies its first bytes (see `identified`; "" if they have not been read). A run that reads only a part of the
    file stops at position `until`, at which a row starts.
    """

    key: str
    path: str
    format: Format
    size: int
    fs: Any = field(default_factory=partial(fsspec.filesystem, "file"))
    arrival_ms: int | None = None
    fingerprint: str = ""
    until: int | None = None

    @property
    def recorded_size(self) -> int:
        """The size that a commit records, smaller if the file is not read to its end, so that it stays due."""
        return self.size if self.until is None else self.size - 1

    @property
    def url(self) -> str:
        """The file's URL for errors and logs, without control characters."""
        return printable(self.fs.unstrip_protocol(self.path))

    def open(self) -> LogFile:
        """Open the file for reading bytes; the handle can seek.

        The path is used as it is: within a URL, ``::`` or ``?`` in a name would have a special meaning.
        """
        return LogFile(self.fs.open(self.path, "rb"))


def is_topic(log: str) -> bool:
    """Return whether a log is a Kafka topic, which only the pipeline reads."""
    return log.startswith("kafka://")


def topic_of(path: Path) -> str | None:
    """Return the Kafka topic that was given as a path, which loses a slash; None for the path of a file."""
    return f"kafka://{'/'.join(path.parts[1:])}" if path.parts[:1] == ("kafka:",) else None


def printable(name: str) -> str:
    """Return a file's name with control characters and bytes that are not UTF-8 escaped."""
    return "".join(sign if sign.isprintable() else sign.encode("unicode_escape").decode() for sign in name)


def has_ending(name: str, endings: Iterable[str]) -> bool:
    """Return whether a name has one of these endings, ignoring case: some programs write ``EXPORT.CSV``."""
    return name.lower().endswith(tuple(endings))


def discover(log: str, suffixes: Mapping[str, Format] = LOG_SUFFIXES) -> list[Partition]:
    """Return the partitions of a log (file, folder or glob; path or fsspec URL), in order of key.

    Endings match in any case. Files with none of the `suffixes` are left out with a warning. Raises `FileNotFoundError`
    if there is no such file, folder or match, and `TopicError` for a Kafka topic.
    """
    if is_topic(log):
        raise TopicError(f"{log}: a Kafka topic cannot be read here; allowed are a file, folder or glob: path or URL")
    fs, path = _resolve(log)
    # Other processes write here: a cached listing would hide new files.
    fs.invalidate_cache()
    root, found = _list(fs, path.rstrip("/"))
    partitions = [_partition(fs, name, info, root, suffixes) for name, info in found.items()]
    return sorted((partition for partition in partitions if partition), key=lambda partition: partition.key)


def _resolve(log: str) -> tuple[Any, str]:
    if "::" in log and Path(log).exists():
        # A local name, which fsspec would take for a chain of file systems.
        local = fsspec.filesystem("file")
        return local, local._strip_protocol(log)
    fs, path = fsspec.core.url_to_fs(log)
    return fs, path


def _list(fs: Any, path: str) -> tuple[str, dict[str, Any]]:
    """Return the folder that keys are relative to, and the files."""
    if fs.isfile(path):
        return path.rpartition("/")[0], {path: fs.info(path)}
    if fs.isdir(path):
        return path, fs.find(path, detail=True)
    if glob.has_magic(path):
        fixed = path[: min(path.index(sign) for sign in "*?[" if sign in path)]
        if found := fs.glob(_in_any_case(path), detail=True):
            return fixed.rpartition("/")[0], found
    raise FileNotFoundError(f"the log {path} is neither a file nor a folder, and no file matches it as a pattern")


def _in_any_case(pattern: str) -> str:
    """Return a pattern that matches its own ending in any case, if that is the ending of a log."""
    ending = next((one for one in (*LOG_SUFFIXES, *PAIR_SUFFIXES) if has_ending(pattern, [one])), "")
    spelled = "".join(f"[{sign}{sign.upper()}]" if sign.isalpha() else sign for sign in ending)
    return pattern[: len(pattern) - len(ending)] + spelled


def _partition(fs: Any, path: str, info: dict[str, Any], root: str, suffixes: Mapping[str, Format]) -> Partition | None:
    key = path[len(root) :].lstrip("/")
    hidden = any(part.startswith((".", "_")) for part in key.split("/"))
    if hidden or has_ending(key, [".tmp"]) or info["type"] == "directory":
        return None
    kind = next((kind for suffix, kind in suffixes.items() if has_ending(key, [suffix])), None)
    if kind is None:
        advice = next((what for ending, what in _UNREAD.items() if has_ending(key, [ending])), "")
        _warn_left_out(path, f"{advice}a log has files of {', '.join(suffixes)}")
        return None
    if problem := _problem(key, info):
        _warn_left_out(path, problem)
        return None
    return Partition(key, path, kind, info["size"], fs, _arrival_ms(fs, info))


def _problem(key: str, info: dict[str, Any]) -> str | None:
    """Return the reason why a file in a readable format is left out of the log, or None."""
    if info["type"] != "file":
        return "it is no regular file; a link would be read besides what it points to: name that file as the log"
    try:
        key.encode()
    except UnicodeEncodeError:
        return "its name is not UTF-8, so no commit can name it; nothing of it is read: rename it"
    return None


@lru_cache(maxsize=1024)
def _warn_left_out(path: str, problem: str) -> None:
    """Warn once per file that it is left out."""
    logger.warning("%s is left out: %s", printable(path), problem)


def _arrival_ms(fs: Any, info: dict[str, Any]) -> int | None:
    """Return the time of change (ms since 1970) in a file's metadata, None if the file system has none."""
    found = next((info[name] for name in _MODIFIED if info.get(name) is not None), None)
    if isinstance(found, str):
        found = datetime.fromisoformat(found)
    if isinstance(found, datetime):
        found = (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()
    if found is None:
        _warn_timeless(type(fs).__name__)
        return None
    return round(1000 * found)


@lru_cache(maxsize=64)
def _warn_timeless(file_system: str) -> None:
    logger.warning(
        "%s does not say when files were modified: event times in the future are not noticed; set pipeline.max_time",
        file_system,
    )


def latest_event_ms(partition: Partition, clock: EventClock, config: LogConfig) -> int | None:
    """Return the newest event time (ms) that the rows of a partition may have; None without a modification time.

    It is the file's time of change in event time (by the store's clock), plus the tolerance for clocks that run ahead.
    A file that arrived before a replay was (re)started may have event times up to that start.
    """
    if partition.arrival_ms is None:
        return None
    arrived = max(partition.arrival_ms / 1000 + _TICK_SECONDS, clock.wall_origin)
    return clock.event_ms(arrived) + round(60_000 * config.clock_tolerance_minutes)


@dataclass(frozen=True)
class KnownFile:
    """Size, fingerprint and time of change of a file when a run read it last."""

    size: int
    fingerprint: str
    arrival_ms: int | None


def same_start(partition: Partition, fingerprint: str) -> bool:
    """Return whether the file still starts with the bytes of a fingerprint; an empty one matches every file."""
    covered = _covered(fingerprint)
    return partition.size >= covered and (not covered or _spell(_head(partition, covered)) == fingerprint)


def generation(key: str) -> int:
    """Return the generation of a file, from 1, in a partition's key."""
    _, mark, number = key.rpartition("@")
    return int(number) if mark and number.isdecimal() else 1


def identified(partition: Partition, known: Mapping[str, KnownFile]) -> Partition | None:
    """Return a listed file with the key of its generation, and its fingerprint.

    `known` has the files in the commits, by key. The first bytes of the file are read (one request) only if it is new
    or its size or time has changed. A file that has shrunk or starts with other bytes was rewritten: it is a new
    generation (which is logged). Returns None if the file system fails; the next look tries again.
    """
    key = _newest_key(partition.key, known)
    before = known.get(key)
    if before and (before.size, before.arrival_ms) == (partition.size, partition.arrival_ms):
        return replace(partition, key=key, fingerprint=before.fingerprint)
    try:
        head = _head(partition, min(partition.size, FINGERPRINT_BYTES))
    except PermissionError:
        # The reader refuses it with a dead letter.
        return replace(partition, key=key)
    except Exception as error:  # noqa: BLE001 - file systems raise what they like
        logger.error("%s cannot be read now, the next look tries again: %s", partition.url, error)
        return None
    if before is None or _continues(partition, head, before):
        return replace(partition, key=key, fingerprint=_spell(head))
    renewed = f"{partition.key}@{generation(key) + 1}"
    logger.warning(
        "%s was rewritten under its name (it %s: %d bytes, %d were read): it is read from its start as %s",
        partition.url,
        "starts with other bytes" if partition.size >= before.size else "has become smaller",
        partition.size,
        before.size,
        printable(renewed),
    )
    return replace(partition, key=renewed, fingerprint=_spell(head))


def _continues(partition: Partition, head: bytes, before: KnownFile) -> bool:
    """Return whether a file still starts with the bytes that were read, and has not become smaller."""
    covered = _covered(before.fingerprint)
    has_same_start = not covered or _spell(head[:covered]) == before.fingerprint
    return partition.size >= before.size and has_same_start


def _newest_key(name: str, known: Mapping[str, KnownFile]) -> str:
    """Return the key of the newest generation of a file."""
    key, number = name, 2
    while (later := f"{name}@{number}") in known:
        key, number = later, number + 1
    return key


def _covered(fingerprint: str) -> int:
    return int(fingerprint.partition(":")[0] or 0)


def _spell(head: bytes) -> str:
    return f"{len(head)}:{xxhash.xxh3_64_hexdigest(head)}"


def _head(partition: Partition, size: int) -> bytes:
    return bytes(partition.fs.cat_file(partition.path, start=0, end=size)) if size else b""
