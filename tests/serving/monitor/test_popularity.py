import numpy as np
import pytest

from tests.serving.support import HOUR_MS, write_window
from tests.serving.users import Event
from weir import sketches
from weir.contracts import Store, WindowLog, WindowManifest, hash_id
from weir.serving.monitor.popularity import Popularity

T = 1_700_000_000_000 // HOUR_MS * HOUR_MS


def window(store: Store, sequence: int, counts: dict[str, int], hour: int | None = None) -> WindowManifest:
    start = T + HOUR_MS * (sequence if hour is None else hour)
    events = [Event("ann", item, start) for item, count in counts.items() for _ in range(count)]
    return write_window(store, sequence, events, start)


def top(popularity: Popularity, k: int) -> list[str]:
    return [popularity.ids[key] for key in popularity.top(k)]


def test_nothing_is_popular_before_the_first_window() -> None:
    assert Popularity(3600).top(10) == []


def test_counts_of_windows_add_up(store: Store) -> None:
    popularity, log = Popularity(1e12), WindowLog(store)
    popularity.add(log, window(store, 0, {"a": 5, "b": 4}))
    popularity.add(log, window(store, 1, {"b": 4, "c": 6}))
    assert top(popularity, 10) == ["b", "c", "a"]
    assert top(popularity, 1) == ["b"]


def test_counts_halve_with_the_half_life(store: Store) -> None:
    popularity, log = Popularity(HOUR_MS / 1000), WindowLog(store)
    popularity.add(log, window(store, 0, {"a": 20}))
    popularity.add(log, window(store, 1, {"b": 11}))
    assert top(popularity, 2) == ["b", "a"]
    np.testing.assert_allclose(popularity._recent.counts(np.array([hash_id("a"), hash_id("b")])), [10, 11], rtol=1e-6)


def test_the_order_of_windows_does_not_matter(store: Store) -> None:
    log = WindowLog(store)
    early, late = window(store, 0, {"a": 20}, hour=0), window(store, 1, {"b": 11}, hour=3)
    estimates = []
    for order in ((early, late), (late, early)):
        popularity = Popularity(7200)
        for manifest in order:
            popularity.add(log, manifest)
        estimates.append(popularity._recent.counts(np.array([hash_id("a"), hash_id("b")])))
    # A merge rounds counts up to a quantum of the sketch, which is 2 ** -16 events at most.
    np.testing.assert_allclose(*estimates, rtol=0, atol=2**-16)


def test_names_alone_count_nothing(store: Store) -> None:
    popularity, log = Popularity(1e12), WindowLog(store)
    popularity.add(log, window(store, 0, {"a": 1}))
    popularity.name(log, window(store, 1, {"b": 50}))
    assert top(popularity, 1) == ["a"]


def test_a_changed_sketch_starts_from_zero(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    popularity, log = Popularity(1e12), WindowLog(store)
    popularity.add(log, window(store, 0, {"a": 9}))
    popularity._recent.memories[0].sketch = sketches.CountMinSketch(width=512)
    popularity.add(log, window(store, 1, {"b": 2}))
    assert top(popularity, 1) == ["b"]
    assert "starts from zero" in caplog.text


def test_what_is_stored_goes_on_as_if_it_had_never_stopped(store: Store) -> None:
    log, whole = WindowLog(store), Popularity(7200)
    assert Popularity.load(store, 7200) == Popularity(7200)
    windows = [window(store, sequence, {"a": 5, f"b{sequence}": 3 + sequence}) for sequence in range(4)]
    for manifest in windows[:2]:
        whole.add(log, manifest)
    whole.save(store)
    stored = Popularity.load(store, 7200)
    for manifest in windows[2:]:
        whole.add(log, manifest)
        stored.add(log, manifest)
    assert (stored.sequence, stored.ids) == (3, whole.ids)
    assert top(stored, 10) == top(whole, 10)
    keys = np.fromiter(whole.ids, np.int64)
    np.testing.assert_array_equal(stored._recent.counts(keys), whole._recent.counts(keys))
    assert Popularity.load(store, 3600).sequence == -1


@pytest.mark.parametrize("damage", [b"", b"weir", b"flipped"])
def test_damaged_counts_are_not_used(store: Store, damage: bytes, caplog: pytest.LogCaptureFixture) -> None:
    popularity, log = Popularity(7200), WindowLog(store)
    popularity.add(log, window(store, 0, {"a": 5}))
    popularity.save(store)
    data = bytearray(store.read("state/popularity"))
    data[len(data) // 2] ^= 1
    store.write("state/popularity", bytes(data) if damage == b"flipped" else damage)
    assert Popularity.load(store, 7200).sequence == -1
    assert "state/popularity is not used" in caplog.text
