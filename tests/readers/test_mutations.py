"""Damaged files through the real reading and validation: rows come out right or become dead letters, nothing raises.

What is right is decided by readers of the standard library (`json`, `zlib`) on the damaged bytes themselves, and for
Parquet by the rows that were written: its checksums vouch for them.
"""

import io
import json
import os
import random
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from weir.readers import LogConfig, Reading, UnreadableError, Validator, chunks_of, discover, read_chunk

MUTATIONS = int(os.environ.get("WEIR_MUTATIONS", "150"))
CONFIG = LogConfig(item_features={"categorical": ["genre"], "dense": ["price"]})
VALIDATOR = Validator(CONFIG)
ROWS = [
    {
        "user_id": f"user-{number % 7}",
        "item_id": f"item-{number}",
        "timestamp": 1_700_000_000 + number,
        "event_id": None if number % 3 else f"e{number}",
        "weight": 1.0 + number % 4,
        "genre": [None, [], ["jazz"], ["rock", "pöp"]][number % 4],
        "price": None if number % 5 else number / 2,
    }
    for number in range(120)
]

Row = tuple[int, str, str, int]


def read(folder: Path) -> tuple[list[Row], Counter[str]]:
    """Return what came out of a folder: (position, user, item, second) of valid rows, and the dead by reason."""
    rows, dead = list[Row](), Counter[str]()
    for partition in discover(str(folder)):
        try:
            chunks, _ = chunks_of(Reading(partition, latest_ms=1_800_000_000_000), 4000)
        except UnreadableError as error:
            dead[error.fault.reason] += 1
            continue
        for chunk in chunks:
            for block in read_chunk(chunk, CONFIG, 40, 4000):
                batch, letters = VALIDATOR.validate(block)
                dead.update(letter.reason for letter in letters.letters)
                table = batch.rows.to_pydict()
                names = ("position", "user_id", "item_id", "timestamp")
                rows += zip(*(table[name] for name in names), strict=True)
    return rows, dead


def mutants(data: bytes, seed: int) -> Iterator[bytes]:
    """Yield copies with flipped bits, cuts, swapped, repeated, lost and overwritten pieces."""
    chance = random.Random(seed)

    def flip(copy: bytearray) -> None:
        for _ in range(chance.choice([1, 1, 1, 8])):
            copy[chance.randrange(len(copy))] ^= 1 << chance.randrange(8)

    def cut(copy: bytearray) -> None:
        del copy[chance.randrange(len(copy)) :]

    def swap(copy: bytearray) -> None:
        size = chance.randrange(1, 40)
        first, second = (chance.randrange(len(copy) - size) for _ in range(2))
        copy[first : first + size], copy[second : second + size] = (
            copy[second : second + size],
            copy[first : first + size],
        )

    def repeat(copy: bytearray) -> None:
        at = chance.randrange(len(copy))
        copy[at:at] = copy[at : at + chance.randrange(1, 200)]

    def lose(copy: bytearray) -> None:
        at = chance.randrange(len(copy))
        del copy[at : at + chance.randrange(1, 200)]

    def overwrite(copy: bytearray) -> None:
        at = chance.randrange(len(copy))
        copy[at : at + 16] = chance.choice([b"\0", b"\xff", b"\n", b"{", b'"', b"9"]) * 16

    kinds: list[Callable[[bytearray], None]] = [flip, flip, cut, swap, repeat, lose, overwrite]
    for number in range(MUTATIONS):
        copy = bytearray(data)
        kinds[number % len(kinds)](copy)
        yield bytes(copy)


def lines_of_rows() -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in ROWS)


def rows_in(text: bytes, number_of: Callable[[int, int], int]) -> dict[int, Row]:
    """Return the rows that Python's own reader finds in lines; `number_of` (line, offset) is their position."""
    found, at = dict[int, Row](), 0
    for number, line in enumerate(text.split(b"\n")):
        try:
            # What a line says in fields that nobody reads is not judged, be it UTF-8 or not.
            value: Any = json.loads(line.decode(errors="surrogateescape"))
        except (ValueError, RecursionError):
            value = None
        if isinstance(value, dict) and {"user_id", "item_id", "timestamp"} <= value.keys():
            position = number_of(number, at)
            found[position] = (position, value["user_id"], value["item_id"], value["timestamp"])
        at += len(line) + 1
    return found


def check(rows: list[Row], expected: dict[int, Row]) -> None:
    assert len({row[0] for row in rows}) == len(rows)
    for position, user, item, millis in rows:
        told = expected[position]
        assert (user, item) == told[1:3]
        if isinstance(told[3], int) and told[3] < 10**11:
            assert millis == 1000 * told[3]


def test_json_lines(tmp_path: Path) -> None:
    for data in mutants(lines_of_rows(), seed=1):
        (tmp_path / "a.jsonl").write_bytes(data)
        rows, dead = read(tmp_path)
        check(rows, rows_in(data, lambda _, offset: offset))
        assert len(rows) + dead.total() == sum(bool(line.strip()) for line in data.split(b"\n"))
        assert not dead["unreadable_block"]


def behind_header(data: bytes) -> int:
    """Return where the deflated bytes of a gzip member start (RFC 1952); its checks are not made."""
    flags, at = data[3], 10
    if flags & 4:
        at += 2 + int.from_bytes(data[at : at + 2], "little")
    for flag in (8, 16):
        if flags & flag:
            at = data.index(b"\0", at) + 1
    return at + (2 if flags & 2 else 0)


def inflated(data: bytes) -> bytes:
    """Return what the first intact part of a gzip file holds, checksums aside."""
    text = b""
    while data[:3] == b"\x1f\x8b\x08" and len(data) > 10:
        try:
            place = behind_header(data)
        except ValueError:
            break
        inflater = zlib.decompressobj(-15)
        try:
            while place < len(data) and not inflater.eof:
                text += inflater.decompress(data[place : place + 1])
                place += 1
        except zlib.error:
            break
        data = data[place + 8 :].lstrip(b"\0")
    return text


def test_gzip(tmp_path: Path) -> None:
    text, kept = lines_of_rows(), 0
    half = len(text) // 2
    squeeze = zlib.compressobj(wbits=31), zlib.compressobj(wbits=31)
    original = b"".join(
        one.compress(part) + one.flush() for one, part in zip(squeeze, (text[:half], text[half:]), strict=True)
    )
    for data in mutants(original, seed=2):
        (tmp_path / "a.jsonl.gz").write_bytes(data)
        rows, dead = read(tmp_path)
        check(rows, rows_in(inflated(data), lambda number, _: number))
        assert len(rows) == len(ROWS) or dead.total() > 0
        assert not dead["unreadable_block"]
        kept += len(rows)
    assert kept > 20 * MUTATIONS


@pytest.mark.parametrize("settings", [{}, {"use_dictionary": False, "data_page_version": "2.0"}], ids=["v1", "v2"])
def test_parquet(tmp_path: Path, settings: dict[str, Any]) -> None:
    file, kept, refused = io.BytesIO(), 0, Counter[str]()
    pq.write_table(pa.Table.from_pylist(ROWS), file, row_group_size=40, write_page_checksum=True, **settings)
    data = file.getvalue()
    footer = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    expected = {number: (number, row["user_id"], row["item_id"], row["timestamp"]) for number, row in enumerate(ROWS)}
    for mutant in mutants(data, seed=3):
        (tmp_path / "a.parquet").write_bytes(mutant)
        rows, dead = read(tmp_path)
        assert rows or dead or not mutant
        assert not dead["unreadable_block"]
        # Nothing vouches for the footer: what it says of names and of places is believed.
        if mutant[footer:] == data[footer:]:
            check(rows, expected)
            assert len(rows) == len(ROWS) or dead
        kept += len(rows)
        refused += dead
    assert kept > 20 * MUTATIONS
    assert refused["unreadable_file"] > MUTATIONS // 4
