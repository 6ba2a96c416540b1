"""Advice about refused rows, from the content of their file or else from the reason."""

import codecs
import re
import zlib
from collections.abc import Mapping
from shlex import quote
from typing import Final

import msgspec

from weir.readers.blocks import HINTS, Reason
from weir.readers.sources import Format, Partition

__all__ = ["OF_READING", "OUTSIDE", "next_step", "then_retry"]

OF_READING: Final = frozenset(
    {
        *(Reason.MALFORMED_JSON, Reason.MALFORMED_ROW, Reason.MALFORMED_PROTOBUF, Reason.MALFORMED_AVRO),
        *(Reason.NOT_UTF8, Reason.NOT_AN_OBJECT, Reason.LINE_TOO_LONG),
        *(Reason.UNREADABLE_FILE, Reason.TRUNCATED_GZIP, Reason.REWRITTEN_FILE, Reason.UNREADABLE_BLOCK),
    }
)
"""Reasons for which a row was not even decoded, so that its columns do not matter."""

OUTSIDE: Final = frozenset({Reason.AHEAD_OF_ARRIVAL, Reason.TIMESTAMP_OUT_OF_RANGE, Reason.BEFORE_RETENTION})
"""Reasons whose cause lies in the time of a file or in a setting, not in the row."""

_FINAL: Final = OF_READING | {Reason.REPEATED_FIELD, Reason.KEY_COLLISION, Reason.BEFORE_RETENTION}
"""Reasons that no setting lifts, or whose letters hold no row."""

_HEAD: Final = 1 << 16
_GZIP: Final = (Format.GZIP_LINES, Format.GZIP_DELIMITED)
_LINES: Final = (Format.JSON_LINES, Format.DELIMITED)
_DELIMITED: Final = (Format.DELIMITED, Format.GZIP_DELIMITED)
_MARKS: Final = (
    *((mark, "UTF-32") for mark in (codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE)),
    *((mark, "UTF-16") for mark in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)),
)
_OTHERS: Final[Mapping[bytes, str]] = {
    b"PK\x03\x04": "the file is a zip archive or a spreadsheet: write it as CSV in UTF-8, or unpack it",
    b"\xd0\xcf\x11\xe0": "the file is a spreadsheet: write it as CSV in UTF-8",
    b"BZh": "the file is compressed by bzip2: gzip it instead, and let its name end in .gz",
    b"\xfd7zXZ": "the file is compressed by xz: gzip it instead, and let its name end in .gz",
    b"\x28\xb5\x2f\xfd": "the file is compressed by zstd: gzip it instead, and let its name end in .gz",
    b"Obj\x01": "the file is Avro, which is read from topics only: write it as Parquet or JSON Lines",
    b"ORC": "the file is ORC: write it as Parquet",
    b"ARROW1": "the file is Arrow (Feather): write it as Parquet",
    b"%PDF": "the file is a PDF: export the rows as CSV in UTF-8",
    b"<": "the file is XML or HTML: write one JSON object per line, or CSV",
}
"""First bytes of files that are no logs -> advice."""


_SEPARATOR_ROW: Final = re.compile(rb'"?sep=."?', re.IGNORECASE)
"""The first line of a CSV that tells spreadsheets its separator."""

_NUMBER: Final = re.compile(rb'(?:^|[,;\t|])[\s"]*\d{9,}(?:\.\d*)?[\s"]*(?:$|[,;\t|])')
"""A value that is a time in seconds or finer, so not the name of a column."""


def then_retry(reason: str) -> str:
    """Return the advice to retry committed dead letters of a reason; "" for a reason that a retry cannot lift."""
    return "" if reason in _FINAL else f"; then `weir retry {reason}` reads these rows again"


def next_step(reason: str, partition: Partition | None = None) -> str:
    """Return the advice about rows refused for a reason; looks at the file if `partition` is given."""
    shown = ""
    if partition is not None and partition.format is not Format.PAIRS:
        try:
            with partition.open() as file:
                shown = _of_content(partition, file.read(_HEAD), reason)
        except PermissionError:
            shown = f"give the user who runs weir the permission to read it: chmod a+r {quote(partition.path)}"
        except OSError:
            # The file system may answer at the next attempt; give the advice for the reason.
            shown = ""
    return shown or HINTS[Reason(reason)]


def _of_content(partition: Partition, head: bytes, reason: str) -> str:
    """Return the advice about a file whose content does not match its name, "" if it seems to match."""
    name, form = partition.key.rpartition("/")[2], partition.format
    if head.startswith(b"\x1f\x8b"):
        if form not in _GZIP:
            return f"the file is gzipped: name it {quote(_stem(name) + _ending(form, '.gz'))}"
        return _of_text(partition, _inflated(head), reason)
    if form in _GZIP:
        return f"the file is not gzipped: name it {quote(name.removesuffix('.gz'))}" if head else ""
    if head.startswith(b"PAR1"):
        return "" if form is Format.PARQUET else f"the file is Parquet: name it {quote(f'{_stem(name)}.parquet')}"
    if form not in _LINES:
        return ""
    other = next((what for start, what in _OTHERS.items() if head.startswith(start)), "")
    return other or _of_text(partition, head, reason)


def _of_text(partition: Partition, head: bytes, reason: str) -> str:
    """Return the advice about a file whose text starts with `head`, "" if the text seems to match its name."""
    form = partition.format
    if encoding := _wide(head):
        return f"the text is {encoding}, not UTF-8: convert it: {_converted(partition, encoding)}"
    odd = _odd(head)
    if reason == Reason.NOT_UTF8 or (odd and reason in {Reason.UNREADABLE_BLOCK, Reason.UNREADABLE_FILE}):
        legacy = "WINDOWS-1252" if any(0x80 <= byte < 0xA0 for byte in odd) else "LATIN1"
        named = "Windows-1252" if legacy != "LATIN1" else "Latin-1"
        return f"the text is not UTF-8: convert it from its encoding, such as {named}: {_converted(partition, legacy)}"
    text = head.removeprefix(codecs.BOM_UTF8).lstrip()
    if form in _DELIMITED:
        return _of_first_row(partition, text.partition(b"\n")[0].strip(), reason)
    if text.startswith(b"[") and _is_array(text):
        return f"a JSON array: write one object per line: {_by_line(partition, '.[]')}"
    if text.startswith(b"{") and _value_of(text.partition(b"\n")[0]) is None and reason == Reason.MALFORMED_JSON:
        return f"an object is spread over several lines: write each on one line: {_by_line(partition, '.')}"
    return ""


def _of_first_row(partition: Partition, row: bytes, reason: str) -> str:
    """Return the advice about a CSV or TSV whose first row does not name columns, "" if it seems to."""
    if row[:1] in (b"{", b"[") and _value_of(row) is not None:
        return f"the file holds JSON: name it {quote(_stem(partition.key.rpartition('/')[2]) + '.jsonl')}"
    if _SEPARATOR_ROW.fullmatch(row):
        return f"the first line names the separator: leave it out: {_piped(partition, 'tail -n +2', '.rows.csv')}"
    if b"::" in row and not any(sign in row for sign in (b",", b";", b"\t", b"|")):
        with_commas = _piped(partition, "sed 's/::/,/g'", ".commas.csv")
        return f"values are separated by ::, write commas: {with_commas}"
    if reason == Reason.MISSING_FIELD and _NUMBER.search(row):
        named = _piped(partition, "sed '1i user_id,item_id,timestamp'", ".named.csv")
        return f"the first line seems to be a row: put the names of the columns before it, in their order: {named}"
    return ""


def _wide(head: bytes) -> str:
    """Return the encoding of a text with two or four bytes per letter, "" for any other text."""
    if (marked := next((name for mark, name in _MARKS if head.startswith(mark)), "")) or len(head) < 4:
        return marked
    zeros = [head[first::2].count(0) / len(head[first::2]) for first in (0, 1)]
    # In mostly ASCII text, one byte of two is zero.
    return "UTF-16BE" if zeros[0] > 0.4 > zeros[1] else "UTF-16LE" if zeros[1] > 0.4 > zeros[0] else ""


def _odd(head: bytes) -> bytes:
    """Return the bytes that are not valid UTF-8."""
    signs = head.decode(errors="surrogateescape")
    return bytes(ord(sign) - 0xDC00 for sign in signs if "\udc80" <= sign <= "\udcff")


def _is_array(text: bytes) -> bool:
    """Return whether a text is one array of objects, not an array on each line."""
    first = _value_of(text.partition(b"\n")[0])
    return first is None or (isinstance(first, list) and any(isinstance(item, dict) for item in first))


def _value_of(line: bytes) -> object:
    """Return the JSON value of a line, None if it is not JSON."""
    try:
        found: object = msgspec.json.decode(line)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
    return found


def _converted(partition: Partition, encoding: str) -> str:
    """Return the command line that converts a file from an encoding to UTF-8."""
    ending = _ending(Format.DELIMITED if partition.format in _DELIMITED else Format.JSON_LINES, "")
    return _piped(partition, f"iconv -f {encoding} -t UTF-8", f".utf8{ending}")


def _by_line(partition: Partition, query: str) -> str:
    """Return the command line that writes the results of a jq query one per line."""
    return _piped(partition, f"jq -c {quote(query)}", ".lines.jsonl")


def _piped(partition: Partition, command: str, ending: str) -> str:
    """Return the command line that converts a file to another file."""
    name, target = quote(partition.path), quote(f"{_stem(partition.path)}{ending}")
    return f"gunzip -c {name} | {command} > {target}" if partition.format in _GZIP else f"{command} {name} > {target}"


def _inflated(head: bytes) -> bytes:
    """Return the first bytes of gzipped content, b"" if it is damaged."""
    try:
        return zlib.decompressobj(31).decompress(head, _HEAD)
    except zlib.error:
        return b""


def _stem(name: str) -> str:
    """Return a name without its ending, and without ".gz"."""
    folder, slash, last = name.rpartition("/")
    last = last.removesuffix(".gz")
    return f"{folder}{slash}{last.rpartition('.')[0] or last}"


def _ending(form: Format, more: str) -> str:
    """Return the ending of a format, followed by `more`."""
    plain = {Format.DELIMITED: ".csv", Format.PARQUET: ".parquet"}.get(form, ".jsonl")
    return f"{plain}{more}"
