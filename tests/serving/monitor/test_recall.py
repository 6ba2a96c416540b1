""""""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from tests.serving.support import HOUR_MS, write_window
from tests.serving.users import Event
from tests.weir.up.damage import recall
from weir import sketches
from weir.contracts import CorruptArtefactError, Store, WindowLog, WindowManifest, hash_id
from weir.contracts.base.statistics import Running
from weir.contracts.bundles.variants import Comparison
from weir.serving.client import Hits
from weir.serving.monitor.metrics import VariantMetrics
from weir.serving.monitor.recall import Popularity, Tally, index_recall, sample
from weir.serving.monitor.results import (
    UP_TO,
    AgeHits,
    Examples,
    NewestRecalls,
    WindowRecall,
    ages_of,
    by_age,
    first_rows,
    load,
    mean_recall,
    recorded,
    save,
)

DIFFERENT = Comparison(
    champion="main",
    challenger="new",
    hits={"main": Running().add(np.zeros(500)), "new": Running().add(np.ones(500))},
    differences=Running().add(np.ones(500)),
    skipped={"trained": 3},
)


def test_the_comparison_is_shown_and_taken_away() -> None:
    registry = CollectorRegistry()
    metrics = VariantMetrics(registry)

    def sample(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(f"weir_variant_{name}", {"challenger": "new", **labels})

    metrics.show(DIFFERENT)
    assert sample("mean", measure="recall", variant="main") == 0
    assert sample("mean", measure="recall", variant="new") == 1
    assert sample("difference", measure="recall") == 1
    low, high = DIFFERENT.measured("recall").interval
    assert (sample("difference_low", measure="recall"), sample("difference_high", measure="recall")) == (low, high)
    assert (sample("verdict", measure="recall"), sample("verdict", measure="clicks")) == (1, 0)
    assert (sample("units", measure="recall"), sample("units", measure="clicks")) == (500, 0)
    assert sample("skipped_events", reason="trained") == 3
    assert sample("mean", measure="clicks", variant="main") is None
    metrics.clear()
    assert sample("verdict", measure="recall") is None


def result(sequence: int, window: str) -> WindowRecall:
    return WindowRecall(
        sequence=sequence,
        window=window,
        measured_at=1.5,
        bundle_versions=("v1",),
        examples=Examples(sampled=3, model=2, served=3, popularity=3, skipped={"swapped": 1}),
        index={10: 1.0},
        model={10: 0.5},
        served={10: 0.25},
        popularity={},
    )


def test_results_come_back_in_commit_order(store: Store) -> None:
    manifests = [write_window(store, sequence, [], start_ms=start) for sequence, start in ((0, 9 * 10**9), (1, 10**9))]
    results = [result(m.sequence, str(m.name)) for m in manifests]
    assert recorded(store) == []
    assert load(store, manifests[0]) is None
    for one in results:
        save(store, one)
    assert recorded(store) == results
    assert load(store, manifests[1]) == results[1]
    assert store.glob("monitor/*/*.json") == sorted(f"monitor/{m.name}.json" for m in manifests)


def test_a_damaged_result_is_left_out_and_named(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    manifests = [write_window(store, sequence, []) for sequence in range(2)]
    for manifest in manifests:
        save(store, result(manifest.sequence, str(manifest.name)))
    name = f"monitor/{manifests[0].name}.json"
    for data in (b"", b"\xff", b"[]", store.read(name)[:-9]):
        caplog.clear()
        store.write(name, data)
        assert [one.sequence for one in recorded(store)] == [1]
        assert name in caplog.text
        with pytest.raises(CorruptArtefactError, match=name):
            load(store, manifests[0])


T = 1_700_000_000_000

ages = st.floats(-1e6, 1e7)


@given(st.lists(st.tuples(ages, st.booleans())))
def test_every_answer_of_an_age_is_in_one_range(answers: list[tuple[float, bool]]) -> None:
    found = by_age("bundle", np.array([age for age, _ in answers]), {20: [float(hit) for _, hit in answers]})
    low = -1.0
    for up_to in (*UP_TO, None):
        high = np.inf if up_to is None else up_to
        inside = [hit for age, hit in answers if age >= 0 and low < age <= high]
        one = next((one for one in found if one.up_to == up_to), None)
        assert (one is None) == (not inside)
        if one is not None:
            assert (one.cases, one.hits) == (len(inside), {20: sum(inside)})
        low = high


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5)), max_size=20))
def test_the_first_event_of_a_user_is_the_earliest(events: list[tuple[int, int]]) -> None:
    users, times = (np.array([event[place] for event in events], np.int64) for place in (0, 1))
    found = first_rows(users, times).tolist()
    for user, row in zip(users.tolist(), found, strict=True):
        assert row == min((i for i in range(len(events)) if users[i] == user), key=lambda i: (times[i], i))


def test_bundles_are_as_old_as_their_newest_event_and_histories_as_the_window(store: Store) -> None:
    window = write_window(store, 0, [Event("ann", "a", T)], start_ms=T)
    hits = {"served": {20: [1.0, 0.0]}, "committed": {20: [0.0, 0.0]}}
    assert ages_of(window, [T + 61_000, T + 3_000], [T - 1_000, T - 57_000], hits) == (
        AgeHits(of="bundle", up_to=60, cases=1, hits={20: 0}),
        AgeHits(of="bundle", up_to=300, cases=1, hits={20: 1}),
        AgeHits(of="history", up_to=60, cases=1, hits={20: 0}),
        AgeHits(of="history", up_to=300, cases=1, hits={20: 0}),
    )


@pytest.mark.parametrize(("pane", "times"), [(1, [T]), (0, [])], ids=["late events", "no answer"])
def test_there_is_nothing_to_count(store: Store, pane: int, times: list[int]) -> None:
    window = write_window(store, 0, []).model_copy(update={"pane": pane})
    hits: dict[str, dict[int, list[float]]] = {"served": {20: [1.0] * len(times)}, "committed": {}}
    assert ages_of(window, times, times, hits) == ()


def test_recalls_are_means_over_events_of_the_newest_windows() -> None:
    recalls = [recall(0, "a", 0.9, 1000), recall(1, "b", 0.5, 100), recall(2, "c", None, 0), recall(3, "d", 0.2, 300)]
    assert mean_recall(recalls, "model", 20, last=2) == pytest.approx((0.5 * 100 + 0.2 * 300) / 400)
    assert mean_recall(recalls, "index", 20, last=1) == pytest.approx(0.2)
    assert mean_recall(recalls, "model", 10) is None
    assert mean_recall([], "model", 20) is None


def windows(store: Store, count: int) -> list[WindowManifest]:
    return [write_window(store, sequence, []) for sequence in range(count)]


def measure(store: Store, *manifests: WindowManifest) -> None:
    for manifest in manifests:
        save(store, recall(manifest.sequence, str(manifest.name)))


def sequences(measured: NewestRecalls) -> list[int]:
    return [result.sequence for result in measured.recalls]


def test_results_come_in_commit_order_as_they_are_written(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    made, measured = windows(store, 4), NewestRecalls(store)
    measured.expect(made)
    measured.catch_up()
    assert sequences(measured) == []
    measure(store, *made[:2])
    measured.catch_up()
    assert sequences(measured) == [0, 1]
    measure(store, *made[2:])
    measured.catch_up()
    assert sequences(measured) == [0, 1, 2, 3]


def test_windows_that_the_monitor_left_behind_are_passed_over(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    made, measured = windows(store, 5), NewestRecalls(store)
    measured.expect(made)
    measure(store, made[1], made[2], made[4])
    measured.catch_up()
    assert sequences(measured) == [1, 2, 4]


def test_a_damaged_result_is_named_once_and_the_next_one_is_read(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    made, measured = windows(store, 3), NewestRecalls(store)
    measured.expect(made)
    measure(store, *made)
    name = f"monitor/{made[1].name}.json"
    store.write(name, b"\xff{")
    with pytest.raises(CorruptArtefactError, match=name):
        measured.catch_up()
    measured.catch_up()
    assert sequences(measured) == [0, 2]


def test_of_an_old_store_only_the_newest_are_read(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    made, measured = windows(store, 30), NewestRecalls(store, kept=20)
    measure(store, *made)
    measured.expect(made)
    measured.catch_up()
    assert sequences(measured) == list(range(10, 30))


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


FULL_HOUR = 1_700_000_000_000 // HOUR_MS * HOUR_MS


def window(store: Store, sequence: int, counts: dict[str, int], hour: int | None = None) -> WindowManifest:
    start = FULL_HOUR + HOUR_MS * (sequence if hour is None else hour)
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
