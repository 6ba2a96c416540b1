""""""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.serving.support import HOUR_MS, write_window
from tests.serving.users import Event
from weir import sketches
from weir.contracts import Store, WindowLog, WindowManifest, hash_id
from weir.serving.client import Hits
from weir.serving.monitor.recall import Popularity, Tally, index_recall, sample

T = 1_700_000_000_000


def exact(scores: list[float]) -> Hits:
    return Hits([f"item-{i}" for i in range(len(scores))], np.array(scores, np.float32), [], fallback=False)


@given(st.lists(st.floats(-1, 1, width=32), min_size=1, max_size=30, unique=True), st.integers(1, 15), st.randoms())
def test_without_ties_it_is_the_overlap(scores: list[float], k: int, random: object) -> None:
    best = exact(sorted(scores, reverse=True))
    gaps = -np.diff(best.scores[: k + 1])
    found = random.sample(best.item_ids, len(best.item_ids))[:k]  # type: ignore[attr-defined]
    overlap = len(set(found) & set(best.item_ids[:k])) / min(k, len(scores))
    if not len(gaps) or gaps.min() > 1e-5:
        assert abs(index_recall(best, found, k) - overlap) < 1e-12


def test_a_tie_is_as_good_as_the_kth() -> None:
    best = exact([0.9, 0.5, 0.5, 0.5, 0.1])
    assert index_recall(best, ["item-0", "item-3"], 2) == 1
    assert index_recall(best, ["item-0", "item-4"], 2) == 0.5
    assert index_recall(best, ["item-0", "elsewhere"], 2) == 0.5
    assert index_recall(best, [], 2) == 0


def test_scores_that_differ_by_rounding_tie() -> None:
    assert index_recall(exact([0.9, 0.5, 0.5 - 1e-8]), ["item-0", "item-2"], 2) == 1


def test_nothing_to_find_is_found() -> None:
    assert index_recall(exact([]), [], 10) == 1


def test_a_sample_is_drawn_from_the_positives_by_seed_alone(store: Store) -> None:
    events = [Event("ann", f"item-{i}", T + i, ["old"] * (i % 3), label=1 if i % 4 else -1) for i in range(80)]
    manifest, log = write_window(store, 3, events), WindowLog(store)
    ids = {hash_id(item): item for item in ["old", *(event.item for event in events)]}
    everything = sample(log, manifest, ids, 1000, seed=0)
    positives = [(event.item, event.history) for event in events if event.label > 0]
    assert sorted((e.item, e.history) for e in everything) == sorted(positives)
    assert [(e.item, e.history) for e in everything] != positives
    some = sample(log, manifest, ids, 20, seed=0)
    # However many are asked about before the rest is skipped, they are a sample of their own.
    assert some == everything[:20]
    assert len({example.item for example in some}) == 20
    assert some == sample(log, manifest, ids, 20, seed=0)
    assert some != sample(log, manifest, ids, 20, seed=1)
    assert all(example.key == hash_id(example.item) for example in some)


def test_items_without_a_known_id_are_left_out_of_histories(store: Store) -> None:
    manifest = write_window(store, 0, [Event("ann", "a", T, ["forgotten", "b"])])
    [example] = sample(WindowLog(store), manifest, {hash_id("a"): "a", hash_id("b"): "b"}, 10, seed=0)
    assert example.history == ["b"]


def test_what_was_committed_ends_before_the_users_first_event(store: Store) -> None:
    events = [
        Event("ann", "b", T + 9, ["old", "a"]),
        Event("bob", "b", T + 4, []),
        Event("ann", "a", T + 5, ["old"]),
    ]
    manifest = write_window(store, 0, events)
    ids = {hash_id(item): item for item in ("old", "a", "b")}
    found = sample(WindowLog(store), manifest, ids, 10, seed=0)
    assert sorted((one.item, one.committed, one.time_ms - T) for one in found) == [
        ("a", ["old"], 5),
        ("b", [], 4),
        ("b", ["old"], 9),
    ]


def test_a_tally_is_a_mean_over_events() -> None:
    tally = Tally()
    for value in (1.0, 0.0, 0.0, 1.0):
        tally.add("model", 20, value)
        tally.add("model", 10, value / 2)
    assert tally.mean("model") == {10: 0.25, 20: 0.5}
    assert tally.count("model") == 4
    assert tally.mean("served") == {}
    assert tally.count("served") == 0


T_POPULARITY = 1_700_000_000_000 // HOUR_MS * HOUR_MS


def window(store: Store, sequence: int, counts: dict[str, int], hour: int | None = None) -> WindowManifest:
    start = T_POPULARITY + HOUR_MS * (sequence if hour is None else hour)
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
