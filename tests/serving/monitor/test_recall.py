import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.serving.support import write_window
from tests.serving.users import Event
from weir.contracts import Store, WindowLog, hash_id
from weir.serving.client import Hits
from weir.serving.monitor.recall import Tally, index_recall, sample

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
