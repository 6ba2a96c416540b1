""""""

import math
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from tests.sketches.count_part import EVENTS, WORKERS, empty, stream
from weir.sketches import (
    CountMinSketch,
    DistinctCounter,
    ExactCounter,
    FrequencyBank,
    FrequencyEstimator,
    FrequencyView,
    GapEstimator,
    load,
    merge_fading,
)
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


HOUR = 3_600_000


def exact(keys: list[int]) -> bytes:
    counter = ExactCounter()
    counter.update(np.array(keys, np.int64))
    return counter.to_bytes()


@given(
    st.lists(st.tuples(st.lists(st.integers(1, 9), max_size=30), st.integers(0, 50)), min_size=1, max_size=6),
    st.floats(0.5, 100),
)
def test_a_count_halves_with_every_half_life(stream: list[tuple[list[int], int]], half_life_hours: float) -> None:
    view = FrequencyView(half_life_hours * 3600)
    for keys, hour in stream:
        view.add(exact(keys), hour * HOUR)
    now = max(hour for _, hour in stream)
    asked = np.arange(1, 10)
    wanted = [sum(keys.count(key) * 0.5 ** ((now - hour) / half_life_hours) for keys, hour in stream) for key in asked]
    np.testing.assert_allclose(view.counts(asked), wanted, rtol=1e-9)
    assert view.time_ms == now * HOUR


def test_a_thousand_half_lives_leave_nothing_and_break_nothing() -> None:
    view = FrequencyView(1)
    view.add(exact([1, 1]), 0)
    view.add(exact([2]), 10**9)
    np.testing.assert_allclose(view.counts(np.array([1, 2])), [0, 1], atol=1e-12)


def test_sketches_of_other_parameters_are_refused() -> None:
    view = FrequencyView(1)
    view.add(CountMinSketch(1 << 10).to_bytes(), 0)
    with pytest.raises(ValueError, match="width"):
        view.add(CountMinSketch(1 << 11).to_bytes(), 0)
    with pytest.raises(ValueError, match=r"."):
        view.add(b"no sketch at all", 0)


def windows_of(rates: list[dict[int, int]]) -> list[list[int]]:
    return [[key for key, count in rate.items() for _ in range(count)] for rate in rates]


def test_steady_items_are_counted_by_a_long_memory_and_changed_ones_by_a_short() -> None:
    lives = (2 * 3600.0, 100 * 3600.0)
    # Item 1 is steady, with noise; item 2 appears, and item 3 goes, half-way; all windows have 1000 events.
    noise = np.random.default_rng(0).integers(-30, 30, 40)
    rates = [
        {1: 300 + n, 2: 0 if hour < 30 else 400, 3: 400 if hour < 30 else 0, 4: 300 - n}
        for hour, n in enumerate(noise.tolist())
    ]
    bank, short, long = FrequencyView(lives), FrequencyView(lives[0]), FrequencyView(lives[1])
    for hour, keys in enumerate(windows_of(rates)):
        for view in (bank, short, long):
            view.add(exact(keys), hour * HOUR)
    asked = np.array([1, 2, 3, 4])
    shares = [view.counts(asked) / view.total for view in (bank, short, long)]
    np.testing.assert_allclose(shares[0][[0, 3]], shares[2][[0, 3]], rtol=1e-12)
    np.testing.assert_allclose(shares[0][[1, 2]], shares[1][[1, 2]], rtol=1e-12, atol=1e-15)
    assert shares[2][1] < 0.2, "the long memory alone is late"
    np.testing.assert_allclose(shares[0], [0.3, 0.4, 0, 0.3], atol=0.03)


@given(
    st.lists(st.tuples(st.lists(st.integers(1, 9), max_size=60), st.integers(0, 50)), min_size=1, max_size=6),
    st.lists(st.floats(0.5, 100), min_size=2, max_size=3, unique=True),
)
def test_each_item_takes_the_longest_half_life_that_agrees_with_all_shorter(
    stream: list[tuple[list[int], int]], half_lives: list[float]
) -> None:
    lives = sorted(half_lives)
    view = FrequencyView(tuple(life * 3600 for life in lives))
    for keys, hour in stream:
        view.add(exact(keys), hour * HOUR)
    now = max(hour for _, hour in stream)
    weights = [[0.5 ** ((now - hour) / life) for _, hour in stream] for life in lives]
    sums = [sum(w * len(keys) for w, (keys, _) in zip(row, stream, strict=True)) for row in weights]
    if min(sums) == 0:
        return
    noises = [
        sum(w * w * len(keys) for w, (keys, _) in zip(row, stream, strict=True)) / total**2
        for row, total in zip(weights, sums, strict=True)
    ]
    for key in range(1, 10):
        rates = [
            sum(w * keys.count(key) for w, (keys, _) in zip(row, stream, strict=True)) / total
            for row, total in zip(weights, sums, strict=True)
        ]
        wanted, close_call = rates[0], False
        for longer in range(1, len(lives)):
            gaps = [abs(rates[longer] - rates[one]) for one in range(longer)]
            bounds = [
                1.5 * math.sqrt(max(rates[longer], rates[one]) * (noises[longer] + noises[one]))
                for one in range(longer)
            ]
            close_call |= any(abs(gap - bound) < 1e-9 for gap, bound in zip(gaps, bounds, strict=True) if gap)
            if all(gap <= bound for gap, bound in zip(gaps, bounds, strict=True)):
                wanted = rates[longer]
        if not close_call:
            np.testing.assert_allclose(view.counts(np.array([key]))[0], wanted * sums[-1], rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize("half_life", [3600.0, (3600.0, 7200.0, 90000.0)], ids=["one", "bank"])
def test_a_view_goes_on_from_its_state_bit_for_bit(half_life: float | tuple[float, ...]) -> None:
    view = FrequencyView(half_life)
    asked = np.arange(1, 9)
    for hour, keys in enumerate([[1, 1, 2], [2, 3, 3, 3], [1, 4]]):
        view.add(exact(keys), hour * HOUR)
    copy = FrequencyView(half_life, view.time_ms)
    copy.load_state_dict({name: one.copy() for name, one in view.state_dict().items()})
    for one in (view, copy):
        one.add(exact([5, 5, 1]), 4 * HOUR)
        one.add(exact([6]), HOUR)
    assert view.estimates(asked).tobytes() == copy.estimates(asked).tobytes()
    assert view.counts(asked).tobytes() == copy.counts(asked).tobytes()
    assert view.state_dict().keys() == copy.state_dict().keys()
    assert all(view.state_dict()[name].tobytes() == copy.state_dict()[name].tobytes() for name in view.state_dict())


def test_a_view_of_one_half_life_keeps_the_names_of_earlier_checkpoints() -> None:
    view = FrequencyView(3600)
    assert view.state_dict() == {}
    view.add(exact([1]), 0)
    assert list(view.state_dict()) == ["sketch"]


def test_before_the_first_window_nothing_has_been_counted() -> None:
    assert FrequencyView(1).counts(np.array([1, 2])).tolist() == [0, 0]
    assert FrequencyView(1).total == 0


def counted(key: int, times: int) -> ExactCounter:
    counter = ExactCounter()
    counter.update(np.full(times, key))
    return counter


@given(st.floats(-100, 100), st.floats(0.1, 100), st.integers(1, 9), st.integers(1, 9))
def test_the_older_side_has_halved_with_every_half_life(later: float, life: float, old: int, new: int) -> None:
    counts = counted(1, old)
    fading = merge_fading(counts, counted(2, new), later, life)
    assert fading == pytest.approx(2 ** (-abs(later) / life))
    expected = [old * fading, new] if later > 0 else [old, new * fading]
    np.testing.assert_allclose(counts.estimate(np.array([1, 2])), expected, atol=1e-6)


def test_ages_pass_without_a_fault() -> None:
    counts = counted(1, 5)
    merge_fading(counts, counted(2, 3), 1e9, 1.0)
    np.testing.assert_allclose(counts.estimate(np.array([1, 2])), [0, 3], atol=1e-6)


def test_what_differs_is_not_merged() -> None:
    with pytest.raises(ValueError, match="width"):
        merge_fading(CountMinSketch(16), CountMinSketch(32), 1.0, 1.0)


ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder that eight processes, all at once, have filled."""
    folder = tmp_path_factory.mktemp("parts")
    command = [sys.executable, "-m", "tests.sketches.count_part", str(folder)]
    workers = [subprocess.Popen([*command, str(worker)], cwd=ROOT) for worker in range(WORKERS)]
    assert [worker.wait() for worker in workers] == [0] * WORKERS
    return folder


def merged(parts: Path, kind: str, *, weighted: bool) -> FrequencyEstimator:
    first, *others = [load((parts / f"{kind}-{weighted}-{worker}").read_bytes()) for worker in range(WORKERS)]
    for other in others:
        first.merge(other)
    return first


@pytest.mark.parametrize("kind", ["linear", "exact"])
@pytest.mark.parametrize("weighted", [False, True], ids=["events", "weights"])
def test_merged_equals_filled_alone_bit_for_bit(parts: Path, kind: str, weighted: bool) -> None:
    alone = empty(kind)
    alone.update(*stream(weighted=weighted))
    assert merged(parts, kind, weighted=weighted).to_bytes() == alone.to_bytes()


def test_merged_conservative_sketches_keep_the_bound(parts: Path) -> None:
    keys, counts = np.unique(stream(weighted=False)[0], return_counts=True)
    conservative, linear = (merged(parts, kind, weighted=False) for kind in ("conservative", "linear"))
    assert (conservative.estimate(keys) >= counts).all()
    assert (conservative.estimate(keys) <= linear.estimate(keys)).all()
    assert conservative.total == EVENTS
