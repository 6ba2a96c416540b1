""""""

import gzip
import io
import random
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weir.readers import (
    LOG_SUFFIXES,
    PAIR_SUFFIXES,
    Block,
    Chunk,
    Format,
    Letters,
    Lines,
    LogConfig,
    Partition,
    Reason,
    ValidatedBlock,
    discover,
    read_log,
)
from weir.readers import lines as lines_module
from weir.readers.lines import end_of_lines, read_gzip_lines, read_lines
from weir.readers.sources import LogFile

texts = st.lists(st.binary(max_size=9).map(lambda raw: raw.replace(b"\n", b"")), max_size=12)


def partition(kind: Format, data: bytes) -> Partition:
    return Partition("p", "memory://p", kind, len(data))


def lines_of(blocks: list[Block]) -> list[tuple[int, bytes]]:
    found = []
    for block in blocks:
        assert isinstance(block.content, Lines)
        found += zip(block.content.positions.tolist(), block.content.lines, strict=True)
    return found


def opened(data: bytes) -> LogFile:
    return LogFile(io.BytesIO(data))


def json_blocks(data: bytes, step: int, begin: int = 0, rows: int = 1 << 16) -> list[Block]:
    where, blocks = partition(Format.JSON_LINES, data), list[Block]()
    for start in range(begin, len(data), step):
        chunk = Chunk(where, start, min(start + step, len(data)), len(data), begin)
        blocks += read_lines(opened(data), chunk, rows)
    return blocks


def gzip_blocks(data: bytes, rows: int, *, size: int = 1 << 20, start: int = 0) -> list[Block]:
    chunk = Chunk(partition(Format.GZIP_LINES, data), start, 0, len(data), start)
    return list(read_gzip_lines(opened(data), chunk, rows, size))


@given(texts, st.integers(1, 40), st.booleans(), st.integers(1, 3))
def test_every_line_is_read_by_the_chunk_in_which_it_starts(
    lines: list[bytes], step: int, ends: bool, rows: int
) -> None:
    data = b"\n".join(lines) + (b"\n" if ends else b"")
    expected, at = [], 0
    for line in data.split(b"\n"):
        if at < len(data):
            expected.append((at, line))
        at += len(line) + 1
    assert lines_of(json_blocks(data, step)) == expected
    for begin, _ in expected:
        blocks = json_blocks(data, step, begin, rows)
        assert lines_of(blocks) == [line for line in expected if line[0] >= begin]
        assert len({block.id for block in blocks}) == len(blocks)
        assert all(len(lines_of([block])) <= 4 * rows for block in blocks)
        for block in blocks:
            assert [block.id.start] == [at for at, _ in lines_of([block])][:1] or not lines_of([block])


def test_what_was_added_to_a_line_that_counted_as_whole_is_a_line_of_its_own() -> None:
    assert lines_of(json_blocks(b"{}{}\n{}\n", 100, 2)) == [(2, b"{}"), (5, b"{}")]
    assert lines_of(json_blocks(b"{}\n{}\n", 100, 2)) == [(2, b""), (3, b"{}")]


@given(st.binary(max_size=60).map(lambda raw: raw.replace(b"\0", b"\n")), st.integers(0, 60), st.integers(0, 60))
def test_end_of_lines(data: bytes, size: int, start: int) -> None:
    size = min(size, len(data))
    start = min(start, size)
    assert end_of_lines(opened(data), size) == data[:size].rfind(b"\n") + 1
    assert end_of_lines(opened(data), size, start) == max(start, data[:size].rfind(b"\n") + 1)


def test_end_of_lines_looks_back_past_a_long_tail() -> None:
    assert end_of_lines(opened(b"ab\n" + b"x" * 200_000), 200_003) == 3


def test_a_line_beyond_the_limit_is_not_held_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines_module, "MAX_LINE_BYTES", 100_000)
    data = b"a\n" + b"x" * 1_000_000 + b"\nb\n"
    found = lines_of(json_blocks(data, 50_000))
    assert [at for at, _ in found] == [0, 2, 1_000_003]
    assert 100_000 < len(found[1][1]) < 300_000
    squeezed = gzip.compress(data)
    inflated = lines_of(gzip_blocks(squeezed, 10))
    assert [line for _, line in inflated] == [b"a", inflated[1][1], b"b"]
    assert len(inflated[1][1]) > 100_000


@given(texts, st.integers(1, 5), st.integers(0, 12), st.integers(1, 30))
def test_gzip_is_read_from_the_line_asked_for_in_bounded_blocks(
    lines: list[bytes], rows: int, start: int, size: int
) -> None:
    data = gzip.compress(b"".join(line + b"\n" for line in lines[:5])) + gzip.compress(b"\n".join(lines[5:]))
    expected = b"".join(line + b"\n" for line in lines[:5]) + b"\n".join(lines[5:])
    whole = expected.split(b"\n")
    whole = whole if whole[-1] else whole[:-1]
    blocks = gzip_blocks(data, rows, size=size, start=start)
    assert lines_of(blocks) == list(enumerate(whole))[start:]
    for block in blocks:
        found = lines_of([block])
        assert (block.id.start, block.stop) == (found[0][0], found[-1][0] + 1)
        assert len(found) <= rows
        assert len(found) == 1 or sum(len(line) for _, line in found) <= size


def test_a_gzip_that_inflates_a_thousandfold_is_never_held_whole() -> None:
    lines = b"x" * 4000 + b"\n"
    data = gzip.compress(lines * 20_000)
    assert len(data) < 600_000
    where, peak = Chunk(partition(Format.GZIP_LINES, data), 0, 0, len(data)), 0
    tracemalloc.start()
    count = 0
    for block in read_gzip_lines(opened(data), where, 1 << 16, 1 << 20):
        assert isinstance(block.content, Lines)
        count += len(block.content.lines)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert count == 20_000
    assert peak < 12 << 20


def noise(count: int) -> list[bytes]:
    draws = random.Random(0)
    return [b"%030x" % draws.getrandbits(120) for _ in range(count)]


@pytest.mark.parametrize("damage", ["cut", "altered", "no gzip"])
@pytest.mark.parametrize("held", [1 << 30, 1 << 10], ids=["held", "inflated twice"])
def test_of_a_damaged_member_no_line_is_read(damage: str, held: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines_module, "_HELD", held)
    lines = noise(30_000)
    whole = gzip.compress(b"\n".join(lines[:10_000]) + b"\n")
    second = bytearray(gzip.compress(b"\n".join(lines[10_000:])))
    if damage == "cut":
        del second[len(second) // 2 :]
    elif damage == "altered":
        second[-6] ^= 255
    else:
        second = bytearray(b"plain text\n")
    data = whole + bytes(second)
    blocks = gzip_blocks(data, 1000)
    [(position, fault, _)] = [fault for block in blocks for fault in block.faults]
    assert (fault.reason, position) == (Reason.TRUNCATED_GZIP, 10_000)
    assert lines_of(blocks) == list(enumerate(lines[:10_000]))
    chunk = Chunk(partition(Format.GZIP_LINES, data), 0, 0, len(data))
    looked = lines_of(list(read_gzip_lines(opened(data), chunk, 1000, 1 << 20, checked=False)))
    assert looked == list(enumerate(lines))[: len(looked)]
    assert len(looked) > {"cut": 12_000, "altered": 28_000, "no gzip": 9_999}[damage]


@settings(max_examples=300)
@given(st.integers(0, 10_000), st.integers(1, 255), st.integers(0, 3), st.sampled_from([1 << 30, 100]))
def test_an_altered_byte_alters_no_line(place: int, change: int, zeros: int, held: int) -> None:
    lines = noise(60)
    members = [gzip.compress(b"".join(line + b"\n" for line in lines[start : start + 20])) for start in (0, 20, 40)]
    data = bytearray(bytes(zeros).join(members))
    data[place % len(data)] ^= change
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lines_module, "_HELD", held)
        blocks = gzip_blocks(bytes(data), 7)
    found = lines_of(blocks)
    assert found == list(enumerate(lines))[: len(found)]
    assert len(found) % 20 == 0
    assert (len(found) < 60) == any(block.faults for block in blocks)


def test_damage_is_never_told_below_the_start() -> None:
    [block] = gzip_blocks(b"no gzip", 10, start=7)
    assert (block.id.start, block.faults[0][0], block.stop) == (7, 7, 7)


class FailingFile(io.BytesIO):
    def read(self, size: int | None = -1) -> bytes:
        if self.tell() > 1000:
            raise OSError(5, "Input/output error")
        return super().read(size)


def test_what_the_file_system_raises_is_no_fault_of_the_file() -> None:
    data = gzip.compress(b"\n".join(noise(30_000)))
    file = LogFile(FailingFile(data))
    chunk = Chunk(partition(Format.GZIP_LINES, data), 0, 0, len(data))
    with pytest.raises(OSError, match="Input/output error"):
        list(read_gzip_lines(file, chunk, 1000, 1 << 20))


def read(path: Path) -> list[tuple[ValidatedBlock, Letters]]:
    return list(read_log(discover(str(path), PAIR_SUFFIXES), LogConfig()))


@pytest.mark.parametrize("name", ["order.txt", "order.txt.gz"])
def test_pairs_are_rows_without_times_and_ids_stay_as_they_are_spelt(tmp_path: Path, name: str) -> None:
    data = b"007 10\nanna 4\n7 10\n"
    (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    [(block, letters)] = read(tmp_path / name)
    assert block.rows["user_id"].to_pylist() == ["007", "anna", "7"]
    assert block.rows["item_id"].to_pylist() == ["10", "4", "10"]
    assert block.rows["timestamp"].null_count == 3
    assert block.rows["position"].to_pylist() == [0, 1, 2]
    assert not letters.letters


def test_blank_texts_have_no_pairs(tmp_path: Path) -> None:
    (tmp_path / "order.txt").write_bytes(b"\n")
    assert read(tmp_path / "order.txt") == []


@pytest.mark.parametrize(
    ("name", "data", "detail"),
    [
        ("order.txt", b"1 2 3\n", "Expected 2 columns, got 3"),
        ("order.txt.gz", gzip.compress(b"1 2\n" * 99, mtime=0)[:-12], "EOFError"),
    ],
)
def test_a_text_that_does_not_hold_pairs_is_a_dead_letter(tmp_path: Path, name: str, data: bytes, detail: str) -> None:
    (tmp_path / name).write_bytes(data)
    [(block, letters)] = read(tmp_path / name)
    assert len(block.rows) == 0
    [letter] = letters.letters
    assert letter.reason == "unreadable_block"
    assert detail in letter.detail


def test_an_empty_id_is_refused_as_in_any_log(tmp_path: Path) -> None:
    (tmp_path / "order.txt").write_bytes(b"1 2\n3 \n")
    [(block, letters)] = read(tmp_path / "order.txt")
    assert block.rows["item_id"].to_pylist() == ["2"]
    assert [(letter.position, letter.reason) for letter in letters.letters] == [(1, "empty_id")]


def test_pipelines_do_not_read_pairs(tmp_path: Path) -> None:
    (tmp_path / "order.txt").write_bytes(b"1 2\n")
    assert discover(str(tmp_path)) == []
    assert not LOG_SUFFIXES.keys() & PAIR_SUFFIXES.keys()
