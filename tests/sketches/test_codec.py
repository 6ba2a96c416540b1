import struct

import numpy as np
import pytest
import xxhash

from weir.sketches import CountMinSketch, DistinctCounter, ExactCounter, FrequencyBank, GapEstimator, load
from weir.sketches.codec import Frame, Kind, decode, encode

KEYS = np.array([3, -1, 3, 2**40, 3], dtype=np.int64)
GOLDEN = {
    "conservative": (
        "57454952534b434801000100300000001000000000000000666d697836342d6d756c7368696674000200000000000000"
        "02000000010000000100000000000000000000000000f03e000000000000140000000000000000000000010000000300"
        "0000030000000100c9ea4626a5086fa5"
    ),
    "linear": (
        "57454952534b434801000100300000000800000000000000666d697836342d6d756c7368696674000200000000000000"
        "01000000000000000000000000000000000000000000203f0000000000000b0000000000000000000008000000500000"
        "8d575dedefe7d588"
    ),
    "exact": (
        "57454952534b4348010002001800000030000000000000006e6f6e650000000000000000000000000300000000000000"
        "00000000000014000000000000000000ffffffffffffffff03000000000000000000000000010000000000000000f03f"
        "0000000000000840000000000000f03fe9380491ecddb0c2"
    ),
    "gap": (
        "57454952534b434801000300340000002000000000000000666d697836342d6d756c7368696674000200000000000000"
        "01000000000000000000d03f000000000000000005000000000000000000000000001400000000000000000000000000"
        "0000000005000000000000000000000000000000000000000000f03fec93e9bb8329ec34"
    ),
    "bank": (
        "57454952534b43480100040018000000f800000000000000666d697836342d6d756c7368696674000400000000000000"
        "010000000200000000000000000000000000000000000040000000000000204068000000000000007000000000000000"
        "57454952534b434801000100300000000800000000000000666d697836342d6d756c7368696674000200000000000000"
        "01000000010000000000000000000000cd3b7f669ea0c63e37db37b31d3e0b0000000000000000000000000046e60900"
        "1b4a69bd7cd2775157454952534b434801000100300000001000000000000000666d697836342d6d756c736869667400"
        "040000000000000001000000010000000000000000000000272a36d5dabfe43e9c0ae083c7f110000000000000000000"
        "0000000000000000f8ed03000a6a01008a4f5081ec2b64cde16d3622e698afff"
    ),
    "distinct": (
        "57454952534b434801000500080000001000000000000000666d69783634000000000000000000000400000000000000"
        "00020000000001000000000000000500ffa5b5e9e4b99f9d"
    ),
}


def resealed(data: bytes, offset: int, replacement: bytes) -> bytes:
    """Change bytes and put the right checksum below, as another version of the code would."""
    body = data[:offset] + replacement + data[offset + len(replacement) : -8]
    return body + struct.pack("<Q", xxhash.xxh3_64_intdigest(body))


def stored() -> dict[str, bytes]:
    conservative, linear = CountMinSketch(2, 2, seed=1), CountMinSketch(2, 1, conservative=False)
    exact, gap = ExactCounter(), GapEstimator(2, 1, 0.25)
    bank = FrequencyBank([2.0, 8.0], 4, 1)
    for estimator in (conservative, linear, exact, gap, bank):
        estimator.update(KEYS)
    linear.update(np.array([9]), np.array([0.5]))
    linear.decay(0.5)
    distinct = DistinctCounter(p=4)
    distinct.update(KEYS)
    every = {"conservative": conservative, "linear": linear, "exact": exact, "gap": gap, "bank": bank}
    return {name: estimator.to_bytes() for name, estimator in every.items()} | {"distinct": distinct.to_bytes()}


@pytest.mark.parametrize("name", GOLDEN)
def test_bytes_are_the_committed_ones(name: str) -> None:
    assert stored()[name].hex() == GOLDEN[name]


def test_every_kind_has_golden_bytes() -> None:
    assert GOLDEN.keys() == stored().keys()


def test_golden_bytes_can_be_read() -> None:
    np.testing.assert_array_equal(load(bytes.fromhex(GOLDEN["exact"])).estimate([3, -1, 2**40, 7]), [3, 1, 1, 0])
    assert load(bytes.fromhex(GOLDEN["linear"])).total == 2.75
    assert DistinctCounter.from_bytes(bytes.fromhex(GOLDEN["distinct"])).count() == pytest.approx(3, abs=0.5)


def test_foreign_bytes_are_named() -> None:
    with pytest.raises(ValueError, match=r"not a stored sketch.*PAR1"):
        load(b"PAR1" + bytes(100))
    with pytest.raises(ValueError, match="not a stored sketch"):
        load(b"")


def test_other_versions_kinds_and_hashes_are_named() -> None:
    data = CountMinSketch(64).to_bytes()
    with pytest.raises(ValueError, match="version 9"):
        load(resealed(data, 8, struct.pack("<H", 9)))
    with pytest.raises(ValueError, match="unknown sketch kind 99"):
        load(resealed(data, 10, struct.pack("<H", 99)))
    with pytest.raises(ValueError, match="'md5'"):
        load(resealed(data, 24, b"md5".ljust(16, b"\0")))
    with pytest.raises(ValueError, match="COUNT_MIN came where EXACT"):
        ExactCounter.from_bytes(data)
    with pytest.raises(ValueError, match="DISTINCT sketch does not estimate frequencies"):
        load(DistinctCounter().to_bytes())


def test_a_sketch_in_little_use_takes_few_bytes_and_one_stored_whole_is_read_too() -> None:
    sketch = CountMinSketch(1 << 16)
    sketch.update(KEYS)
    data = sketch.to_bytes()
    assert len(data) < 300
    frame = decode(data)
    cells = np.zeros(4 << 16, dtype="<u4")
    used, values = np.frombuffer(frame.payload, dtype="<u4").reshape(2, -1)
    cells[used] = values
    whole = encode(Frame(frame.kind, frame.hash_name, frame.params, cells.tobytes()))
    for stored_as in (data, whole):
        read = CountMinSketch.from_bytes(stored_as)
        np.testing.assert_array_equal(read.cell_counts(), sketch.cell_counts())
        assert read.to_bytes() == data


@pytest.mark.parametrize("used", [[3, 3], [5, 4], [7, 256]])
def test_cells_that_cannot_be_are_refused(used: list[int]) -> None:
    frame = decode(CountMinSketch(64).to_bytes())
    payload = np.array([*used, 1, 1], dtype="<u4").tobytes()
    with pytest.raises(ValueError, match="out of order or not below 256"):
        load(encode(Frame(frame.kind, frame.hash_name, frame.params, payload)))


def test_sizes_that_contradict_each_other_are_named() -> None:
    header_and_checksum = decode(CountMinSketch(64).to_bytes())
    wrong = Frame(Kind.COUNT_MIN, header_and_checksum.hash_name, header_and_checksum.params, b"1234")
    with pytest.raises(ValueError, match="payload must take 1024 bytes, got 4"):
        load(encode(wrong))
    with pytest.raises(ValueError, match="parameters take"):
        load(encode(Frame(Kind.COUNT_MIN, header_and_checksum.hash_name, b"12", b"")))
