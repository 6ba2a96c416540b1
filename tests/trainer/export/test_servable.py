""""""

import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.trainer.step.test_model import configured
from tests.trainer.support import absorbed, batches_of, collapse, drawn
from tests.trainer.windows import WindowWriter, synthetic
from weir.contracts import BundleFile, BundleLog, CorruptArtefactError, IndexRows, ItemKeys, Store, WindowLog
from weir.contracts.base.arrays import Layers
from weir.contracts.bundles.faiss_index import apply_delta, with_row_ids
from weir.contracts.bundles.rows import BundleDelta
from weir.serving.bundles.loading import load_bundle
from weir.serving.index.index import on_device
from weir.trainer.export import export_bundle, servable
from weir.trainer.export.index import empty_index
from weir.trainer.export.servable import Cases, ListSearch, RecentCases, Searched, Servable, searched, searched_in
from weir.trainer.ranks.workers import Workers
from weir.trainer.settings.trainer import TrainerConfig
from weir.trainer.state.trainer_state import TrainerState
from weir.trainer.step.positives import read_positives
from weir.trainer.step.step import train_step
from weir.trainer.towers.user_features import UserLines


@pytest.fixture
def state(store: Store, writer: WindowWriter, config: TrainerConfig) -> TrainerState:
    synthetic(writer, windows=2)
    state = absorbed(store, config)
    for batch in batches_of(store, state):
        train_step(state, batch, Workers())
    return state


def cases_of(store: Store, sequence: int, length: int) -> Cases:
    log = WindowLog(store)
    found = read_positives(log, log.committed()[sequence], length)
    return Cases(found.items.copy(), found.histories.copy(), UserLines.nothing(len(found.items)))


@pytest.mark.parametrize(
    ("index", "length", "normalised"),
    [("auto", 6, True), ("auto", 6, False), ("IVF8,SQfp16", 6, True), ("auto", 3, True), ("auto", 9, True)],
)
def test_it_finds_what_the_server_finds(
    store: Store, state: TrainerState, index: str, length: int, normalised: bool
) -> None:
    """The server's own loader and search, on histories as long as the tower reads, shorter and longer ones."""
    changed = {**state.config.model_dump(), "index": index, "nprobe": 2}
    changed["tower"]["normalised"] = normalised
    state.config = TrainerConfig.model_validate(changed)
    # An item that the bundle does not know.
    manifest, cases = export_bundle(store, state), cases_of(store, 1, length)
    cases.items[0], cases.histories[1, -1] = 12345, 54321
    served = load_bundle(BundleLog(store), manifest.version)
    found = served.index.search(served.users(cases.histories), 5)
    wanted = served.rows_of(cases.items)
    hits = (found.rows == wanted[:, None]).any(1) & (wanted >= 0)
    mine = Servable.open(BundleLog(store), manifest).hits(cases, 5)
    assert not mine[0]
    assert mine.any()
    assert mine.tolist() == hits.tolist()


@pytest.mark.parametrize(("k", "candidates"), [(5, 12), (5, 3), (5, 1000)])
def test_with_a_second_phase_it_finds_the_best_of_the_candidates(
    store: Store, state: TrainerState, k: int, candidates: int
) -> None:
    on = {"rescoring": {"kind": "mixture_of_logits", "candidates": candidates, "learning_rate": 0.02}}
    state = absorbed(store, configured(state.config, on))
    for batch in batches_of(store, state):
        train_step(state, batch, Workers())
    assert state.second is not None
    with torch.no_grad():
        state.second.scorer.share.fill_(9.0)  # so that the orders differ
    manifest, cases = export_bundle(store, state), cases_of(store, 1, 6)
    served = load_bundle(BundleLog(store), manifest.version)
    users, vectors, hits = served.users(cases.histories), served.exact.vectors[np.arange(served.items)], []
    with torch.no_grad():
        second = state.second.scorer.every_pair(torch.from_numpy(users), torch.from_numpy(vectors)).numpy()
    assert served.scorer is not None
    every = IndexRows(np.broadcast_to(np.arange(served.items), second.shape))
    np.testing.assert_allclose(served.scorer(users, served.exact, every), second, rtol=1e-4, atol=1e-4)
    for user, scores, item in zip(users, second, served.rows_of(cases.items), strict=True):
        best = np.argsort(-(vectors @ user), kind="stable")[: max(k, candidates)]
        hits.append(item in best[np.argsort(-scores[best], kind="stable")[:k]])
    mine = Servable.open(BundleLog(store), manifest)
    assert mine.hits(cases, k).tolist() == hits
    # What is measured of the index is about the index.
    assert mine.index_recall(cases) == 1


def test_more_is_asked_for_than_there_is_and_nothing_at_all(store: Store, state: TrainerState) -> None:
    servable = Servable.open(BundleLog(store), export_bundle(store, state))
    assert servable.hits(cases_of(store, 0, 6), 1000).all()
    nobody = Cases(np.empty(0, np.int64), np.empty((0, 6), np.int64), UserLines.nothing(0))
    assert servable.hits(nobody, 5).shape == (0,)


@pytest.mark.parametrize("name", [BundleFile.INDEX, BundleFile.ITEMS, BundleFile.EMBEDDINGS, BundleFile.TOWER])
def test_a_file_that_is_damaged_or_of_another_kind_is_named(store: Store, state: TrainerState, name: str) -> None:
    manifest, log = export_bundle(store, state), BundleLog(store)
    entry = store.write(f"{manifest.folder}/{name}", b"something else")
    with pytest.raises(CorruptArtefactError, match=name):
        Servable.open(log, manifest)
    listed = tuple(entry if file.name == name else file for file in manifest.files)
    with pytest.raises(CorruptArtefactError, match=f"{name}: cannot be used"):
        Servable.open(log, manifest.model_copy(update={"files": listed}))


def test_a_collapsed_model_hits_less(store: Store, state: TrainerState) -> None:
    for _ in range(20):
        for batch in batches_of(store, state):
            train_step(state, batch, Workers())
    good = Servable.open(BundleLog(store), export_bundle(store, state))
    collapse(state)
    state.position.step += 1
    bad = Servable.open(BundleLog(store), export_bundle(store, state))
    cases = cases_of(store, 0, 6)
    assert bad.hits(cases, 5).mean() < 0.5 * good.hits(cases, 5).mean()


@pytest.mark.parametrize("scanned", [7, 1 << 14])
def test_the_recall_of_the_index_is_against_all_items(
    store: Store, state: TrainerState, monkeypatch: pytest.MonkeyPatch, scanned: int
) -> None:
    """Of an index that always answers with the same rows, compared piece by piece or at once."""
    monkeypatch.setattr(servable, "_SCANNED", scanned)
    monkeypatch.setattr(servable, "_DEPTH", 5)
    found, cases = Servable.open(BundleLog(store), export_bundle(store, state)), cases_of(store, 1, 6)
    asked: list[np.ndarray] = []

    class Same:
        def search(self, queries: np.ndarray, k: int) -> tuple[np.ndarray, IndexRows]:
            asked.append(queries)
            return np.zeros((len(queries), k), np.float32), IndexRows(np.tile(np.arange(k), (len(queries), 1)))

    measured = replace(found, index=Same()).index_recall(cases)
    vectors = found.rows.vectors[np.arange(len(found.rows))]
    best = np.argsort(-(asked[0] @ vectors.T), axis=1)[:, :5]
    assert measured == pytest.approx(np.isin(best, np.arange(5)).mean())
    assert 0 < measured < 1


def test_the_same_cases_are_answered_once(store: Store, state: TrainerState) -> None:
    bundle, cases = Servable.open(BundleLog(store), export_bundle(store, state)), cases_of(store, 1, 6)
    first = bundle.hits(cases, 5)
    assert bundle.hits(cases, 5) is first
    assert bundle.hits(cases, 20).sum() > first.sum()
    assert bundle.hits(cases.take(slice(0, 3)), 5).tolist() == first[:3].tolist()
    assert bundle.hits(cases, 5).tolist() == first.tolist()


def noted(store: Store, config: TrainerConfig, last: int) -> RecentCases:
    """What a run has that was trained on all windows up to `last` itself."""
    recent, log = RecentCases(store, config), WindowLog(store)
    for manifest in log.committed()[: last + 1]:
        recent.note(manifest, drawn(store, manifest, config))
    return recent


def same(one: Cases, other: Cases) -> bool:
    is_same = one.features.layout == other.features.layout
    pairs = zip((*one[:2], one.features.lines), (*other[:2], other.features.lines), strict=True)
    return is_same and all(np.array_equal(left, right) for left, right in pairs)


@pytest.mark.parametrize(("events", "taken"), [(5, 200), (30, 210), (150, 300), (400, 400), (1500, 1000)])
def test_the_newest_window_counts_and_small_ones_are_pooled(
    store: Store, writer: WindowWriter, config: TrainerConfig, events: int, taken: int
) -> None:
    windows = -(-200 // events) + 2
    synthetic(writer, windows=windows, events=events)
    cases = noted(store, config, windows - 1).up_to(windows - 1)
    assert (len(cases), cases.histories.shape) == (taken, (taken, 6))
    newest = read_positives(WindowLog(store), WindowLog(store).committed()[-1], 6)
    assert np.isin(cases.items[: min(events, 1000)], newest.items).all()


def test_a_restart_chooses_the_same(store: Store, writer: WindowWriter, config: TrainerConfig) -> None:
    synthetic(writer, windows=8, events=30)
    synthetic(writer, first=8, windows=4, events=30, said=True)
    assert noted(store, config, 9).up_to(9).features.lines.any()
    assert same(noted(store, config, 9).up_to(9), RecentCases(store, config).up_to(9))
    # Half of it known, half of it read.
    resumed, log = RecentCases(store, config), WindowLog(store)
    for manifest in log.committed()[8:10]:
        resumed.note(manifest, drawn(store, manifest, config))
    assert same(resumed.up_to(9), noted(store, config, 9).up_to(9))


def test_no_more_is_kept_than_may_be_asked_for(store: Store, writer: WindowWriter, config: TrainerConfig) -> None:
    synthetic(writer, windows=12, events=60)
    recent = noted(store, config, 11)
    for window in WindowLog(store).committed():
        store.remove(window.folder)
    assert len(recent.up_to(11)) == 240
    assert len(recent.up_to(7)) == 0


def test_before_the_first_window_and_without_it_there_is_nothing(store: Store, config: TrainerConfig) -> None:
    for sequence in (-1, 0, 7):
        cases = RecentCases(store, config).up_to(sequence)
        assert (len(cases), cases.histories.shape) == (0, (0, 6))


def test_a_damaged_window_ends_the_pool(
    store: Store, writer: WindowWriter, config: TrainerConfig, caplog: pytest.LogCaptureFixture
) -> None:
    synthetic(writer, windows=3, events=50)
    damaged = WindowLog(store).committed()[1]
    store.write(f"{damaged.folder}/{damaged.name.examples(0)}", b"nothing")
    assert len(RecentCases(store, config).up_to(2)) == 50
    assert "without the cases of window 1 and before" in caplog.text


WIDTH = 6


def trained(kind: str, draw: np.random.Generator, count: int) -> tuple[Any, np.ndarray]:
    vectors = draw.normal(size=(count, WIDTH)).astype(np.float32)
    index = empty_index(WIDTH, kind)
    index.train(vectors)
    index.add(vectors)
    return index, vectors


def stored(index: Any) -> Searched:
    """Return an index as it is searched in its file, which is gone by then."""
    with tempfile.NamedTemporaryFile() as file:
        faiss.write_index(index, file.name)
        return searched_in(Path(file.name))


def delta_of(draw: np.random.Generator, live: set[int], size: int, lists: int, *, repair: bool) -> BundleDelta:
    """Return a delta that moves, adds and removes some rows, and appends lists, which get some of them."""
    known = draw.permutation(sorted(live))
    gone, moved = np.split(known[: len(known) // 3], [len(known) // 9])
    rows = np.concatenate([moved, size + np.arange(draw.integers(0, 4))]).astype(np.int64)
    centroids = draw.normal(size=(2, WIDTH)).astype(np.float32) if repair else None
    return BundleDelta(
        rows=rows,
        ids=np.array([], object),
        keys=ItemKeys(rows),
        popularity=np.zeros(len(rows)),
        vectors=draw.normal(size=(len(rows), WIDTH)).astype(np.float32),
        embeddings=np.zeros((0, WIDTH), np.float32),
        removed=gone.astype(np.int64),
        lists=draw.integers(0, lists + 2 * repair, len(rows)) if lists else None,
        centroids=centroids,
    )


@pytest.mark.parametrize("kind", ["Flat", "IVF5,Flat", "IVF5,SQfp16"])
@pytest.mark.parametrize("opened", [searched, stored])
@given(seed=st.integers(0, 2**32 - 1), repairs=st.lists(st.booleans(), max_size=4), nprobe=st.integers(1, 5))
def test_a_chain_finds_what_one_index_finds_and_no_version_changes(
    kind: str, opened: Callable[[Any], Searched], seed: int, repairs: list[bool], nprobe: int
) -> None:
    """The oracle is one index, to which FAISS adds and from which it removes rows."""
    draw, count = np.random.default_rng(seed), 40
    index, vectors = trained(kind, draw, count)
    lists = getattr(index, "nlist", 0)
    if lists:
        index.nprobe = nprobe
    whole, mine, live = with_row_ids(faiss.clone_index(index)), opened(index), set(range(count))
    queries = draw.normal(size=(7, WIDTH)).astype(np.float32)
    versions = [(mine, mine.search(queries, 9))]
    for repair in repairs:
        delta = delta_of(draw, live, max(live) + 1, lists, repair=repair and lists > 0)
        lists += 0 if delta.centroids is None else len(delta.centroids)
        live = (live - set(delta.removed.tolist())) | set(delta.rows.tolist())
        apply_delta(whole, delta)
        mine = mine.changed(delta)
        versions.append((mine, mine.search(queries, 9)))
        for found, wanted in zip(mine.search(queries, 9), whole.search(queries, 9), strict=True):
            np.testing.assert_allclose(found, wanted, rtol=1e-6)
        vectors = np.concatenate([vectors, np.zeros((max(max(live) + 1 - len(vectors), 0), WIDTH), np.float32)])
        vectors[delta.rows] = delta.vectors
        one = mine.merged(Layers.of(vectors), np.array(sorted(live)))
        for found, wanted in zip(one.search(queries, 9), whole.search(queries, 9), strict=True):
            np.testing.assert_allclose(found, wanted, rtol=1e-6)
        if isinstance(mine, ListSearch):
            assert lists_in(one, 2 * count) == lists_in(whole, 2 * count)
            assert mine.lists_of(2 * count).tolist() == lists_in(whole, 2 * count)
            assert (mine.empty().ntotal, mine.empty().nlist) == (0, lists)
    for version, found in versions:
        np.testing.assert_array_equal(version.search(queries, 9)[1], found[1])


def lists_in(index: Any, rows: int) -> list[int]:
    """Return the list of each row, -1 without, from what FAISS says of each list."""
    found = [-1] * rows
    for number in range(index.nlist):
        size = index.invlists.list_size(number)
        ids = faiss.rev_swig_ptr(index.invlists.get_ids(number), size) if size else []
        for row in ids:
            found[row] = number
    return found


@pytest.mark.parametrize("opened", [searched, stored])
def test_a_graph_is_walked_as_widely_as_a_server_does(opened: Callable[[Any], Searched]) -> None:
    draw = np.random.default_rng(0)
    index, _ = trained("HNSW8", draw, 2000)
    queries = draw.normal(size=(20, WIDTH)).astype(np.float32)
    plain = index.search(queries, 500)[1]
    found = opened(index).search(queries, 500)[1]
    served = on_device(index, {}, "cpu").search(queries, 500).rows
    np.testing.assert_array_equal(found, served)
    assert (found >= 0).all()
    assert (plain < 0).any()
