"""CSV and TSV: the header of a file, and columns from rows of text.

`split_row` applies the rules (`weir.contracts.interactions.csv_rows`) exactly and to all columns; the other functions
are faster ways to the same result.
"""

import codecs
import csv
import gzip
import io
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from weir.contracts.interactions.csv_rows import DELIMITERS, blanks_beside, delimiter_of, row_of
from weir.readers.blocks import Block, BlockId, Fault, Header, Int64, Lines, Reason
from weir.readers.lines import MAX_LINE_BYTES, RowCutter
from weir.readers.row_ends import QuoteTracker
from weir.readers.sources import Format, LogFile, Partition, has_ending

__all__ = ["first_row", "header_of", "parse_header", "read_columns", "rows_of", "split_row", "with_header"]

_MAX_COLUMNS: Final = 1 << 16
_PIECE: Final = 1 << 16

# A limit of the whole process, by default far below the longest allowed row.
csv.field_size_limit(max(csv.field_size_limit(), MAX_LINE_BYTES))


def header_of(file: LogFile, partition: Partition, *, only_whole: bool = False) -> Header | None:
    """Return the header of a CSV or TSV file; raises an `Exception` of any type for an invalid first row.

    With `only_whole`, returns None while the first row has no line break.
    """
    is_tsv = has_ending(partition.key, (".tsv", ".tsv.gz"))
    file.seek(0)
    if partition.format is not Format.GZIP_DELIMITED:
        raw, is_whole = first_row(file.read, is_tsv=is_tsv)
    else:
        with gzip.GzipFile(fileobj=file) as stream:
            raw, is_whole = first_row(stream.read1, is_tsv=is_tsv)
    return None if only_whole and not is_whole else parse_header(raw, is_tsv=is_tsv)


def first_row(read: Callable[[int], bytes], *, is_tsv: bool) -> tuple[bytes, bool]:
    """Return the first row of a text, without its line break, and whether the row has a line break.

    `read` returns the next bytes of the text, up to a number.
    """
    cutter = RowCutter(QuoteTracker("\t" if is_tsv else DELIMITERS))
    while cutter.held <= MAX_LINE_BYTES and (piece := read(_PIECE)):
        rows, _ = cutter.cut(piece)
        if rows:
            return rows[0], True
    return b"".join(cutter.end()[0]), False


def parse_header(raw: bytes, *, is_tsv: bool) -> Header:
    """Parse the first row of a file; raises `ValueError` if it is no valid row."""
    text = raw.decode("utf-8-sig")
    delimiter = "\t" if is_tsv else delimiter_of(text)
    if (count := "".join(text.split('"')[::2]).count(delimiter) + 1) > _MAX_COLUMNS:
        raise ValueError(f"the header names {count} columns, at most {_MAX_COLUMNS} are allowed")
    names = _split(text, delimiter) if text.strip() else []
    if isinstance(names, Fault):
        raise ValueError(f"the header is no row: {names.detail}")
    return Header(tuple(names), delimiter)


def rows_of(data: bytes, *, is_tsv: bool) -> Lines:
    """Return the rows of a whole file; raises an `Exception` of any type for an invalid first row."""
    header = parse_header(first_row(io.BytesIO(data).read, is_tsv=is_tsv)[0], is_tsv=is_tsv)
    cutter, rows, positions = RowCutter(QuoteTracker(header.delimiter)), list[bytes](), list[Int64]()
    for start in range(0, len(data), _PIECE):
        found, places = cutter.cut(data[start : start + _PIECE])
        rows += found
        positions.append(places)
    last, places, _ = cutter.end()
    starts = np.concatenate([*positions, places]).astype(np.int64)
    return Lines(rows + last, starts, header=header).piece(1, len(starts))


def with_header(blocks: Iterable[Block], header: Header) -> Iterator[Block]:
    """Yield blocks of rows with their header, without the row that is the header itself."""
    for block in blocks:
        content = block.content
        assert isinstance(content, Lines)  # noqa: S101 - what readers of lines yield
        below = replace(content, header=header)
        if len(below.positions) and below.positions[0] == 0:
            below = below.piece(1, len(below.positions))
        start = int(below.positions[0]) if len(below.positions) else block.id.start
        yield replace(block, id=BlockId(block.id.partition, start), content=below)


def read_columns(lines: Sequence[bytes], header: Header, wanted: Collection[str]) -> tuple[pa.Table, dict[int, Fault]]:
    """Return the wanted columns of rows as strings, null if empty, and the faults of rows by row number.

    A faulty row is null in each column.
    """
    places = {name: place for place, name in enumerate(header.names) if name in wanted}
    faults: dict[int, Fault] = {}
    if (found := _all_at_once(lines, header, places)) is not None:
        found = _trimmed(found, lines, header)
    else:
        rows, nothing = [], [""] * len(header.names)
        for number, line in enumerate(lines):
            row = split_row(line, header, wanted)
            if isinstance(row, Fault):
                faults[number] = row
            rows.append(nothing if isinstance(row, Fault) else row)
        found = {name: pa.array([row[place] for row in rows], pa.string()) for name, place in places.items()}
    return pa.table({name: pc.if_else(pc.not_equal(cells, ""), cells, None) for name, cells in found.items()}), faults


def _all_at_once(lines: Sequence[bytes], header: Header, places: Mapping[str, int]) -> dict[str, pa.Array] | None:
    """Return name -> column of all rows parsed at once, with blanks around values, or None if a row may be faulty."""
    text = b"\n".join(lines)
    if max(map(len, lines), default=0) > MAX_LINE_BYTES:
        return None
    if b'"' not in text:
        return _without_quotes(text, len(lines), header, places)
    # The csv module skips spaces only.
    if header.delimiter != "\t" and b"\t" in text and b'\t"' in text:
        return None
    try:
        rows = list(
            csv.reader(map(bytes.decode, lines), delimiter=header.delimiter, skipinitialspace=True, strict=True)
        )
    except (csv.Error, UnicodeDecodeError):
        return None
    if len(rows) != len(lines) or not all(len(row) == len(header.names) for row in rows):
        return None
    cells = list(zip(*rows, strict=True))
    return {name: pa.array(cells[place], pa.string()) for name, place in places.items()}


def _without_quotes(text: bytes, rows: int, header: Header, places: Mapping[str, int]) -> dict[str, pa.Array] | None:
    """Return columns of rows without quotes as Arrow reads them, or None if it would read them differently."""
    returns = text.count(b"\r")
    if returns and returns != text.count(b"\r\n") + text.endswith(b"\r"):
        return None
    names = [str(place) for place in range(len(header.names))]
    try:
        table = pyarrow.csv.read_csv(
            pa.BufferReader(text),
            pyarrow.csv.ReadOptions(column_names=names, use_threads=False, block_size=len(text) + 1),
            pyarrow.csv.ParseOptions(delimiter=header.delimiter, quote_char=False),
            pyarrow.csv.ConvertOptions(
                include_columns=[str(place) for place in places.values()],
                column_types=dict.fromkeys(names, pa.string()),
                null_values=[],
            ),
        )
    except pa.ArrowInvalid:
        return None
    # Arrow drops empty lines, and a byte order mark.
    if table.num_rows != rows or text.startswith(codecs.BOM_UTF8):
        return None
    return {name: table.column(str(place)).combine_chunks() for name, place in places.items()}


def _trimmed(found: dict[str, pa.Array], lines: Sequence[bytes], header: Header) -> dict[str, pa.Array]:
    """Strip the blanks around values; rows with quotes are split again, since blanks within quotes count."""
    trimmed = {name: pc.ascii_trim(values, blanks_beside(header.delimiter)) for name, values in found.items()}
    for name, values in found.items():
        changed = pc.not_equal(values, trimmed[name]).to_numpy(zero_copy_only=False)
        doubtful = [row for row in np.flatnonzero(changed).tolist() if b'"' in lines[row]]
        if doubtful:
            exact, place = (split_row(lines[row], header) for row in doubtful), header.names.index(name)
            spelled = pa.array([row[place] for row in exact if not isinstance(row, Fault)], pa.string())
            mask = np.zeros(len(lines), np.bool_)
            mask[doubtful] = True
            trimmed[name] = pc.replace_with_mask(trimmed[name], mask, spelled)
    return trimmed


def split_row(line: bytes, header: Header, wanted: Collection[str] = ()) -> list[str] | Fault:
    """Return the values of a row, one for each name of the header, or the fault of the row.

    Invalid UTF-8 is a fault in a wanted column; in other columns it is escaped with backslashes.
    """
    if len(line) > MAX_LINE_BYTES:
        return Fault(Reason.LINE_TOO_LONG, f"a row may have {MAX_LINE_BYTES} bytes, this one has more")
    row = _split(line.decode(errors="surrogateescape"), header.delimiter)
    if isinstance(row, Fault):
        return row
    if len(row) != len(header.names):
        sentence = f"the row has {len(row)} values, the header names {len(header.names)} columns"
        return Fault(Reason.MALFORMED_ROW, sentence)
    for place, value in enumerate(row):
        try:
            value.encode()
        except UnicodeEncodeError:
            if header.names[place] in wanted:
                return Fault(Reason.NOT_UTF8, f"{header.names[place]} is not UTF-8")
            row[place] = value.encode(errors="surrogateescape").decode(errors="backslashreplace")
    return row


def _split(text: str, delimiter: str) -> list[str] | Fault:
    values, problem = row_of(text, delimiter)
    if not problem:
        return values
    lines = text.count("\n")
    return Fault(Reason.MALFORMED_ROW, f"{problem}; {lines + 1} lines are refused as one row" if lines else problem)
