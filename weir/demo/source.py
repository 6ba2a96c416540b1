"""A finished log for a replay: when each row arrived, and any range of rows as the bytes of a file.

JSON Lines (also gzipped) keep their bytes; Parquet stays Parquet. The whole log is held in memory.
"""

import gzip
import io
import re
import zlib
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Literal, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from contracts import columns
from pipelines.timestamps import arrow_millis

__all__ = ["LogProfile", "LogSource", "TimeUnit", "nice_window", "open_log"]

Int = npt.NDArray[np.int64]
TimeUnit = Literal["s", "ms", "us", "ns"]

_MS_PER: Final[dict[TimeUnit, float]] = {"s": 1e3, "ms": 1.0, "us": 1e-3, "ns": 1e-6}
_HOUR: Final = 3600
_NICE_SECONDS: Final = (
    *(60, 120, 300, 600, 1200, 1800, _HOUR, 2 * _HOUR, 3 * _HOUR, 6 * _HOUR, 12 * _HOUR),
    *(days * 24 * _HOUR for days in (1, 2, 4, 7, 14, 21, 28, 56, 91, 182, 364)),
)
_MOST_WINDOWS: Final = 60


@dataclass(frozen=True)
class LogProfile:
    """What a log is: rows, its format, the unit of its timestamps, and the span of event time (ms)."""

    rows: int
    format: Literal["jsonl", "parquet"]
    unit: TimeUnit
    start_ms: int
    end_ms: int

    @property
    def window_seconds(self) -> int:
        """The window that suits the span; see `nice_window`."""
        return nice_window((self.end_ms - self.start_ms) / 1000)

    def __str__(self) -> str:
        first, last = (
            datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d") for ms in (self.start_ms, self.end_ms)
        )
        return f"{self.rows:,} rows from {first} to {last}, timestamps in {self.unit}"


def nice_window(span_seconds: float) -> int:
    """Return the shortest usual length (1, 2, 5 minutes ... 1, 2, 4, 7 days ...) that makes at most 60 windows.

    Neighbouring lengths differ by at most 2.5, so a log has 24 to 60 windows unless it is shorter than that
    many minutes.
    """
    return next((length for length in _NICE_SECONDS if span_seconds <= length * _MOST_WINDOWS), _NICE_SECONDS[-1])


class LogSource(Protocol):
    """A log in memory."""

    @property
    def suffix(self) -> str:
        """The suffix of a segment's file name."""

    @property
    def profile(self) -> LogProfile:
        """What the log is."""

    @property
    def arrival(self) -> Int:
        """When each row arrived, event time in milliseconds, shape (rows,), never decreasing."""

    def segment(self, start: int, stop: int) -> bytes:
        """Return rows start to stop (exclusive) as a file."""


def open_log(path: Path, column: str = columns.TIMESTAMP) -> LogSource:
    """Read a log by its suffix: ``.parquet``, ``.jsonl``, ``.json``, ``.ndjson``, each of the latter also ``.gz``.

    `column` is what the log calls the timestamp: a number, whose unit follows from its magnitude, or RFC 3339 text.
    Raises `FileNotFoundError`, and `ValueError` where the suffix is another or no row has a timestamp.
    """
    name = path.name.removesuffix(".gz")
    if not path.is_file():
        raise FileNotFoundError(f"{path}: there is no such log file")
    if path.suffix == ".parquet":
        return _ParquetLog.read(path, column)
    if name.endswith((".jsonl", ".json", ".ndjson")):
        return _LinesLog.read(path, column)
    raise ValueError(f"{path}: unknown format; allowed are .jsonl, .json, .ndjson (also with .gz) and .parquet")


@dataclass(frozen=True)
class _LinesLog:
    data: memoryview
    bounds: Int
    profile: LogProfile
    arrival: Int
    suffix: str = ".jsonl"

    @classmethod
    def read(cls, path: Path, column: str) -> "_LinesLog":
        data = path.read_bytes()
        if path.suffix == ".gz":
            try:
                data = gzip.decompress(data)
            except (EOFError, gzip.BadGzipFile, zlib.error) as error:
                raise ValueError(f"{path}: cannot be read to its end as gzip: {error}") from error
        ends = np.flatnonzero(np.frombuffer(data, np.uint8) == ord("\n")) + 1
        bounds = np.unique(np.concatenate([[0], ends, [len(data)]])).astype(np.int64)
        lines = pa.LargeBinaryArray.from_buffers(
            pa.large_binary(), len(bounds) - 1, [None, pa.py_buffer(bounds), pa.py_buffer(data)]
        )
        stamps = _stamps(lines, column)
        arrival, profile = _profile(path, stamps, "jsonl")
        return cls(memoryview(data), bounds, profile, arrival)

    def segment(self, start: int, stop: int) -> bytes:
        return bytes(self.data[self.bounds[start] : self.bounds[stop]])


@dataclass(frozen=True)
class _ParquetLog:
    table: pa.Table
    profile: LogProfile
    arrival: Int
    suffix: str = ".parquet"

    @classmethod
    def read(cls, path: Path, column: str) -> "_ParquetLog":
        try:
            table = pq.read_table(path)
        except pa.ArrowInvalid as error:
            raise ValueError(f"{path}: is no Parquet file: {error}") from error
        if column not in table.column_names:
            raise ValueError(f"{path}: has no column {column}, only {', '.join(table.column_names)}")
        stamps = table[column].combine_chunks()
        if pa.types.is_timestamp(stamps.type):
            stamps = stamps.cast(pa.timestamp("ms"), safe=False)
        if pa.types.is_string(stamps.type) or pa.types.is_large_string(stamps.type):
            stamps = _rfc3339(stamps)
        arrival, profile = _profile(path, stamps.cast(pa.int64()), "parquet")
        return cls(table, profile, arrival)

    def segment(self, start: int, stop: int) -> bytes:
        buffer = io.BytesIO()
        pq.write_table(self.table.slice(start, stop - start), buffer, compression="zstd")
        return buffer.getvalue()


def _stamps(lines: pa.Array, column: str) -> pa.Array:
    """Return the timestamps of JSON lines, as they stand; null where there is none, as in a broken line."""
    pattern = rf'"{re.escape(column)}"\s*:\s*(?:(?P<digits>\d{{1,18}})|"(?P<text>[^"]*)")'
    found = pc.extract_regex(lines, pattern)
    integers = _filled(pc.struct_field(found, "digits")).cast(pa.int64())
    return integers if integers.null_count < len(integers) else _rfc3339(_filled(pc.struct_field(found, "text")))


def _filled(texts: pa.Array) -> pa.Array:
    return pc.if_else(pc.equal(pc.binary_length(texts), 0), None, texts).cast(pa.large_string())


def _rfc3339(texts: pa.Array) -> pa.Array:
    """Return times in milliseconds; null for a text that is none."""
    millis, readable = arrow_millis(texts, "rfc3339")
    return pa.array(millis, mask=~readable)


def _profile(path: Path, stamps: pa.Array, form: Literal["jsonl", "parquet"]) -> tuple[Int, LogProfile]:
    """Return when each row arrived: at the newest event time so far, whatever stray timestamps lie between."""
    known = stamps.drop_null().to_numpy(zero_copy_only=False).astype(np.int64)
    if not len(known):
        raise ValueError(f"{path}: no row has a timestamp that is a whole number or RFC 3339 text")
    unit = _unit(float(np.median(known)))
    low, high = np.quantile(known, [0.001, 0.999])
    reach = max(high - low, 1)
    plausible = known[(known >= low - reach) & (known <= high + reach)]
    filled = stamps.fill_null(int(plausible.min())).to_numpy(zero_copy_only=False).astype(np.int64)
    # One row dated a century ahead must not delay all later rows to the end.
    steady = np.where((filled >= plausible.min()) & (filled <= plausible.max()), filled, plausible.min())
    arrival = np.floor(np.maximum.accumulate(steady) * _MS_PER[unit]).astype(np.int64)
    start, end = (int(value * _MS_PER[unit]) for value in (plausible.min(), plausible.max()))
    return arrival, LogProfile(len(stamps), form, unit, start, end)


def _unit(typical: float) -> TimeUnit:
    """Tell the unit by size: read as milliseconds, a time in seconds would lie in January 1970."""
    bounds: tuple[tuple[float, TimeUnit], ...] = ((1e11, "s"), (1e14, "ms"), (1e17, "us"))
    return next((unit for bound, unit in bounds if typical < bound), "ns")
