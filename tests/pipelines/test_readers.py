import gzip
import io
import random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines import readers
from pipelines.blocks import Block, Lines
from pipelines.faults import Reason
from pipelines.readers import Chunk, end_of_lines, read_gzip_lines, read_json_lines, read_parquet
from pipelines.sources import Format, Partition

texts = st.lists(st.binary(max_size=9).map(lambda raw: raw.replace(b"\n", b"")), max_size=12)


def partition(kind: Format, data: bytes) -> Partition:
    return Partition("p", "memory://p", kind, len(data))


def lines_of(blocks: list[Block]) -> list[tuple[int, bytes]]:
    found = []
    for block in blocks:
        assert isinstance(block.content, Lines)
        found += zip(block.content.positions.tolist(), block.content.lines, strict=True)
    return found


def json_blocks(data: bytes, step: int) -> list[Block]:
    where, blocks = partition(Format.JSON_LINES, data), list[Block]()
    for start in range(0, len(data), step):
        chunk = Chunk(where, start, min(start + step, len(data)), len(data))
        blocks += read_json_lines(io.BytesIO(data), chunk)
    return blocks


@given(texts, st.integers(1, 40), st.booleans())
def test_every_line_is_read_by_the_chunk_in_which_it_starts(lines: list[bytes], step: int, ends: bool) -> None:
    data = b"\n".join(lines) + (b"\n" if ends else b"")
    expected, at = [], 0
    for line in data.split(b"\n"):
        if at < len(data):
            expected.append((at, line))
        at += len(line) + 1
    assert lines_of(json_blocks(data, step)) == expected
    assert all(
        start // step * step == block.id.start for block in json_blocks(data, step) for start, _ in lines_of([block])
    )


@given(st.binary(max_size=60).map(lambda raw: raw.replace(b"\0", b"\n")), st.integers(0, 60))
def test_end_of_lines(data: bytes, size: int) -> None:
    assert end_of_lines(io.BytesIO(data), min(size, len(data))) == data[:size].rfind(b"\n") + 1


def test_end_of_lines_looks_back_past_a_long_tail() -> None:
    assert end_of_lines(io.BytesIO(b"ab\n" + b"x" * 200_000), 200_003) == 3


def test_a_line_beyond_the_limit_is_not_held_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readers, "MAX_LINE_BYTES", 100_000)
    data = b"a\n" + b"x" * 1_000_000 + b"\nb\n"
    found = lines_of(json_blocks(data, 50_000))
    assert [at for at, _ in found] == [0, 2, 1_000_003]
    assert 100_000 < len(found[1][1]) < 300_000
    squeezed = gzip.compress(data)
    chunk = Chunk(partition(Format.GZIP_LINES, squeezed), 0, 0, len(squeezed))
    inflated = lines_of(list(read_gzip_lines(io.BytesIO(squeezed), chunk, 10)))
    assert [line for _, line in inflated] == [b"a", inflated[1][1], b"b"]
    assert len(inflated[1][1]) > 100_000


@given(texts, st.integers(1, 5), st.integers(0, 12))
def test_gzip_is_cut_every_so_many_lines(lines: list[bytes], rows: int, skip: int) -> None:
    data = gzip.compress(b"".join(line + b"\n" for line in lines[:5])) + gzip.compress(b"\n".join(lines[5:]))
    expected = b"".join(line + b"\n" for line in lines[:5]) + b"\n".join(lines[5:])
    whole = expected.split(b"\n")
    whole = whole if whole[-1] else whole[:-1]
    skip = skip // rows * rows
    blocks = list(read_gzip_lines(io.BytesIO(data), Chunk(partition(Format.GZIP_LINES, data), 0, 0, 0, skip), rows))
    assert lines_of(blocks) == list(enumerate(whole))[skip:]
    assert [block.id.start for block in blocks] == list(range(skip, len(whole), rows))
    assert [block.stop for block in blocks] == [min(block.id.start + rows, len(whole)) for block in blocks]


@pytest.mark.parametrize("damage", ["cut", "altered", "no gzip"])
def test_damaged_gzip_yields_the_lines_before_and_says_so(damage: str) -> None:
    noise = random.Random(0)
    lines = [b"%030x" % noise.getrandbits(120) for _ in range(30_000)]
    data = bytearray(gzip.compress(b"\n".join(lines)))
    if damage == "cut":
        data = data[: len(data) // 2]
    elif damage == "altered":
        data[-6] ^= 255
    else:
        data = bytearray(b"plain text\n")
    blocks = list(read_gzip_lines(io.BytesIO(data), Chunk(partition(Format.GZIP_LINES, data), 0, 0, 0), 1000))
    found = lines_of(blocks)
    [(position, fault, _)] = [fault for block in blocks for fault in block.faults]
    assert (fault.reason, position) == (Reason.TRUNCATED_GZIP, len(found))
    assert found == list(enumerate(lines))[: len(found)]
    assert len(found) > {"cut": 10_000, "altered": 29_000, "no gzip": -1}[damage]


@given(st.integers(0, 20), st.integers(1, 7), st.integers(1, 5), st.integers(0, 20))
def test_parquet_is_cut_within_row_groups(count: int, group: int, rows: int, skip: int) -> None:
    file = io.BytesIO()
    pq.write_table(
        pa.table({"n": pa.array(range(count), pa.int64()), "other": ["x"] * count}), file, row_group_size=group
    )
    where, found = partition(Format.PARQUET, file.getvalue()), list[int]()
    for number, start in enumerate(range(0, count, group)):
        chunk = Chunk(where, start, min(start + group, count), 0, skip, number)
        for block in read_parquet(file, chunk, rows, ["n", "absent"]):
            assert block.content is not None
            assert not isinstance(block.content, Lines)
            assert block.content.table.column_names == ["n"]
            assert block.content.positions.tolist() == block.content.table["n"].to_pylist()
            assert block.id.start == block.content.positions[0]
            found += block.content.positions.tolist()
    assert found[-(count - skip) :] == list(range(skip, count)) if skip < count else not found


def test_damaged_row_group_is_a_fault_and_spares_the_others() -> None:
    file = io.BytesIO()
    noise = random.Random(0)
    table = pa.table({"n": [noise.random() for _ in range(2000)]})
    pq.write_table(table, file, row_group_size=1000, use_dictionary=False, compression="zstd")
    data = bytearray(file.getvalue())
    data[4:200] = b"\xff" * 196  # the page header; damage to stored values shows only in files with checksums
    where = partition(Format.PARQUET, bytes(data))
    blocks = [
        list(read_parquet(io.BytesIO(data), Chunk(where, 1000 * number, 0, 0, 0, number), 5000, ["n"]))
        for number in (0, 1)
    ]
    assert blocks[0][-1].faults[0][1].reason == Reason.UNREADABLE_FILE
    assert "row group 0" in blocks[0][-1].faults[0][1].detail
    assert blocks[1][0].content is not None
