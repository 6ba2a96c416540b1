import io
import random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir.readers import Block, Chunk, Format, Lines, Partition, Reason, TableRows, parquet
from weir.readers.parquet import read_parquet, row_group_starts
from weir.readers.sources import LogFile


def written(table: pa.Table, **settings: Any) -> bytes:
    file = io.BytesIO()
    pq.write_table(table, file, **settings)
    return file.getvalue()


def blocks_of(
    data: bytes, columns: list[str], *, rows: int = 1 << 16, size: int = 1 << 20, start: int = 0
) -> list[Block]:
    where, found = Partition("p", "p", Format.PARQUET, len(data)), list[Block]()
    edges = row_group_starts(LogFile(io.BytesIO(data)))
    for group in range(len(edges) - 1):
        chunk = Chunk(where, edges[group], edges[group + 1], len(data), start, group)
        if edges[group + 1] > start:
            found += read_parquet(LogFile(io.BytesIO(data)), chunk, rows, size, dict.fromkeys(columns, True))
    return found


def rows_of(blocks: list[Block], name: str) -> list[tuple[int, Any]]:
    found = []
    for block in blocks:
        assert block.content is not None
        assert not isinstance(block.content, Lines)
        positions = block.content.positions.tolist()
        assert (block.id.start, block.stop) == (positions[0], positions[-1] + 1)
        found += zip(positions, block.content.table[name].to_pylist(), strict=True)
    return found


@given(st.integers(0, 20), st.integers(1, 7), st.integers(1, 5), st.integers(0, 20), st.integers(1, 100))
def test_no_row_below_the_start_is_read_and_blocks_are_bounded(
    count: int, group: int, rows: int, start: int, size: int
) -> None:
    table = pa.table({"n": pa.array(range(count), pa.int64()), "other": ["x"] * count})
    blocks = blocks_of(written(table, row_group_size=group), ["n", "absent"], rows=rows, size=size, start=start)
    assert rows_of(blocks, "n") == [(row, row) for row in range(start, count)]
    for block in blocks:
        assert block.content is not None
        assert not isinstance(block.content, Lines)
        assert block.content.table.column_names == ["n"]
        assert len(block.content.positions) <= max(1, min(rows, size // 8))


texts = st.one_of(st.none(), st.text(max_size=8))


@given(st.lists(st.tuples(texts, st.none() | st.lists(texts, max_size=3)), max_size=30), st.integers(1, 60))
def test_texts_and_lists_of_texts_come_out_as_they_are(said: list[Any], size: int) -> None:
    schema = pa.schema([("u", pa.string()), ("g", pa.list_(pa.string()))])
    table = pa.Table.from_arrays(
        [pa.array([row[number] for row in said], schema.types[number]) for number in (0, 1)], schema=schema
    )
    blocks = blocks_of(written(table), ["u", "g"], size=size)
    assert [value for _, value in rows_of(blocks, "u")] == [row[0] for row in said]
    assert [value for _, value in rows_of(blocks, "g")] == [row[1] for row in said]


def test_values_that_repeat_do_not_fill_the_memory() -> None:
    texts = pa.DictionaryArray.from_arrays(pa.array([0] * 20_000, pa.int32()), ["x" * 100_000])
    data = written(pa.table({"u": texts}), store_schema=False)
    assert len(data) < 100_000
    before, blocks = pa.total_allocated_bytes(), 0
    for block in blocks_of(data, ["u"], size=1 << 20):
        assert isinstance(block.content, TableRows)
        assert len(block.content.positions) <= 10
        blocks += 1
    assert blocks == 2000
    assert pa.total_allocated_bytes() - before < 8 << 20


def test_a_row_that_is_too_large_is_a_fault_and_spares_its_neighbours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet, "MAX_LINE_BYTES", 1000)
    blocks = blocks_of(written(pa.table({"u": ["a", "x" * 1001, "b"]})), ["u"])
    [(position, fault, _)] = [fault for block in blocks for fault in block.faults]
    assert (position, fault.reason) == (1, Reason.LINE_TOO_LONG)
    assert fault.detail == "a row may have 1000 bytes, this one has 1001"
    assert rows_of([block for block in blocks if block.content], "u") == [(0, "a"), (2, "b")]


def test_a_damaged_row_group_is_a_fault_and_spares_the_others() -> None:
    noise = random.Random(0)
    table = pa.table({"n": [noise.random() for _ in range(2000)]})
    data = bytearray(written(table, row_group_size=1000, use_dictionary=False, compression="zstd"))
    data[4:200] = b"\xff" * 196  # the page header
    first, *others = blocks_of(bytes(data), ["n"])
    [(position, fault, _)] = first.faults
    assert (position, fault.reason, first.stop) == (0, Reason.UNREADABLE_FILE, 1000)
    assert "row group 0 is damaged, rows 0 to 1000 are refused" in fault.detail
    assert [position for position, _ in rows_of(others, "n")] == list(range(1000, 2000))


def test_damage_to_stored_values_shows_in_files_with_checksums() -> None:
    table = pa.table({"n": list(range(1000))})
    data = bytearray(written(table, use_dictionary=False, compression="none", write_page_checksum=True))
    data[data.index((500).to_bytes(8, "little"))] ^= 1
    [block] = blocks_of(bytes(data), ["n"])
    assert block.faults[0][1].reason == Reason.UNREADABLE_FILE
    assert "CRC" in block.faults[0][1].detail


class FailingFile(io.BytesIO):
    def read(self, size: int | None = -1) -> bytes:
        raise TimeoutError("the store does not answer")


def test_what_the_file_system_raises_is_no_fault_of_the_file() -> None:
    chunk = Chunk(Partition("p", "p", Format.PARQUET, 100), 0, 10, 100)
    with pytest.raises(TimeoutError, match="does not answer"):
        list(read_parquet(LogFile(FailingFile(b"x" * 100)), chunk, 10, 10, {"n": False}))


def test_a_footer_that_would_fill_the_memory_is_not_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    data = written(pa.table({f"c{number}": [1] for number in range(100)}))
    assert row_group_starts(LogFile(io.BytesIO(data))) == [0, 1]
    monkeypatch.setattr(parquet, "_MAX_FOOTER", 1000)
    with pytest.raises(Exception, match="at most 1000 are allowed"):
        row_group_starts(LogFile(io.BytesIO(data)))


def test_lists_in_place_of_ids_are_not_decoded() -> None:
    table = pa.table({"u": [[1, 2], None], "s": [{"a": 1}, {"a": 2}], "g": [["x"], ["y"]]})
    chunk = Chunk(Partition("p", "p", Format.PARQUET, 0), 0, 2, 0)
    [block] = read_parquet(LogFile(io.BytesIO(written(table))), chunk, 10, 1 << 20, {"u": False, "s": False, "g": True})
    assert isinstance(block.content, TableRows)
    assert block.content.table.to_pydict() == {"u": [None] * 2, "s": [None] * 2, "g": [["x"], ["y"]]}
    assert pa.types.is_list(block.content.table.schema.field("u").type)


def test_damage_is_never_told_below_the_start() -> None:
    data = bytearray(written(pa.table({"n": [0.5] * 10}), use_dictionary=False))
    data[4:40] = b"\xff" * 36
    [block] = blocks_of(bytes(data), ["n"], start=7)
    assert (block.id.start, block.faults[0][0], block.stop) == (7, 7, 10)


def test_a_file_without_any_column_of_the_log_keeps_its_rows() -> None:
    [block] = blocks_of(written(pa.table({"other": [1, 2, 3]})), ["n"], start=1)
    assert isinstance(block.content, TableRows)
    assert (block.content.table.num_rows, block.content.positions.tolist()) == (2, [1, 2])
