"""CSV and TSV: the header line of a file, and lines to rows of text.

A row is a line: values may be quoted, but not hold line breaks, so that files can be read from any line on.
"""

import codecs
import csv
import gzip
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final

from weir.readers.blocks import Block, BlockId, Header, Lines
from weir.readers.faults import Fault, Reason
from weir.readers.lines import MAX_LINE_BYTES
from weir.readers.log_file import LogFile
from weir.readers.sources import Format, Partition

__all__ = ["header_of", "parse_header", "split_row", "split_rows", "with_header"]

_DELIMITERS: Final = ",;\t|"
"""What separates values in a file that ends in .csv; the first one wins a tie."""


def header_of(file: LogFile, partition: Partition) -> Header:
    """Return the header of a file; raises an `Exception` of any type for a first line that is none."""
    file.seek(0)
    if partition.format is Format.GZIP_DELIMITED:
        with gzip.GzipFile(fileobj=file) as stream:
            raw = stream.readline(MAX_LINE_BYTES)
        file.seek(0)
    else:
        raw = _first_line(file)
    return parse_header(raw, is_tsv=partition.key.removesuffix(".gz").endswith(".tsv"))


def parse_header(raw: bytes, *, is_tsv: bool) -> Header:
    """Return what a first line says; raises `UnicodeDecodeError` or `csv.Error`."""
    text = raw.removeprefix(codecs.BOM_UTF8).decode().rstrip("\r\n")
    unquoted = "".join(text.split('"')[::2])
    delimiter = "\t" if is_tsv else max(_DELIMITERS, key=unquoted.count)
    return Header(tuple(name.strip() for name in next(csv.reader([text], delimiter=delimiter), [])), delimiter)


def _first_line(file: LogFile) -> bytes:
    found = b""
    while b"\n" not in found and len(found) < MAX_LINE_BYTES and (more := file.read(1 << 16)):
        found += more
    return found.partition(b"\n")[0]


def with_header(blocks: Iterable[Block], header: Header) -> Iterator[Block]:
    """Yield blocks of lines with the header that explains them, without the line that is the header itself."""
    for block in blocks:
        content = block.content
        assert isinstance(content, Lines)  # noqa: S101 - what readers of lines yield
        below = replace(content, header=header)
        if len(below.positions) and below.positions[0] == 0:
            below = below.piece(1, len(below.positions))
        start = int(below.positions[0]) if len(below.positions) else block.id.start
        yield replace(block, id=BlockId(block.id.partition, start), content=below)


def split_rows(lines: Sequence[bytes], header: Header) -> list[list[str] | Fault]:
    """Return the values of each line, as many as the header has names, or what is wrong with it."""
    rows = _all_at_once(lines, header)
    return [split_row(line, header) for line in lines] if rows is None else rows


def _all_at_once(lines: Sequence[bytes], header: Header) -> list[list[str] | Fault] | None:
    try:
        rows = list(csv.reader(map(bytes.decode, lines), delimiter=header.delimiter, strict=True))
    except (csv.Error, UnicodeDecodeError):
        return None
    # A value that goes on in the next line makes one row of two.
    is_sound = len(rows) == len(lines) and all(len(row) == len(header.names) for row in rows)
    return [*rows] if is_sound and max(map(len, lines), default=0) <= MAX_LINE_BYTES else None


def split_row(line: bytes, header: Header) -> list[str] | Fault:
    """Return the values of one line, or what is wrong with it."""
    if len(line) > MAX_LINE_BYTES:
        return Fault(Reason.LINE_TOO_LONG, f"a line may have {MAX_LINE_BYTES} bytes, this one has more")
    try:
        [row] = csv.reader([line.decode()], delimiter=header.delimiter, strict=True)
    except UnicodeDecodeError as error:
        return Fault(Reason.NOT_UTF8, str(error))
    except csv.Error as error:
        return Fault(Reason.MALFORMED_ROW, f"{error}; a row is one line, its values may be quoted")
    if len(row) != len(header.names):
        sentence = f"the line has {len(row)} values, the header names {len(header.names)} columns"
        return Fault(Reason.MALFORMED_ROW, sentence)
    return row
