"""Items that no bundle has: how they come, go, and are marked. What they do to filters is in test_retriever_filters."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from prometheus_client import CollectorRegistry

from tests.serving import deltas
from tests.serving.colds import COLD, cold_of, described, identity, names, rows_of, warm, with_cold, write_warm
from tests.serving.support import Catalogue, histories_of, write_bundle
from weir.contracts import BundleLog, FeatureNames, ItemKeys, Store, hash_id
from weir.contracts.interactions.catalogue import Catalogue as Described
from weir.serving.bundles.bundle import LoadedBundle
from weir.serving.bundles.catalogue import CatalogueFiles, CatalogueFollower
from weir.serving.bundles.loading import Route, load_bundle
from weir.serving.bundles.watcher import Change, Start
from weir.serving.index.cold import absent_entries, still_absent
from weir.serving.index.eligibility import CatalogueView
from weir.serving.metrics import CatalogueMetrics
from weir.serving.search.queries import ByHistory, ByItem, Hits, Query, Task
from weir.serving.search.retriever import Retriever


@pytest.fixture
def catalogue() -> Catalogue:
    return with_cold(Catalogue.random())


def asked(bundle: LoadedBundle, store: Store, source: ByHistory | ByItem, k: int = 20, **wishes: object) -> Hits:
    task = replace(Task(bundle, (Query(source, k),)), **wishes)  # type: ignore[arg-type]
    [answer] = Retriever(histories_of(store))([task])
    return answer.hits[0]


def history(*ids: str) -> ByHistory:
    return ByHistory(ids, ItemKeys(np.array([hash_id(item) for item in ids], np.int64)))


def with_catalogue(bundle: LoadedBundle, about: Described, limit: int = 1000) -> LoadedBundle:
    cold = cold_of(bundle, about, limit)
    bundle.state.view = replace(CatalogueView.of(about, cold.rows, ""), cold=cold)
    return bundle


@pytest.mark.parametrize("kind", ["Flat", "IVF4,Flat", "HNSW16"])
def test_cold_items_rank_among_all_and_are_marked(store: Store, catalogue: Catalogue, kind: str) -> None:
    every = {"IVF4,Flat": {"nprobe": 4}, "HNSW16": {"efSearch": 400}}.get(kind, {})
    write_warm(store, "v1", catalogue, kind, **every)
    bundle = with_catalogue(load_bundle(BundleLog(store), "v1"), described(catalogue))
    for start in range(0, 160, 10):
        ids = [f"item-{start}", f"item-{start + 3}"]
        hits = asked(bundle, store, history(*ids))
        assert hits.ids == catalogue.top(catalogue.user(ids), 20)
        marks = [int(item.partition("-")[2]) >= 160 for item in hits.ids]
        assert hits.cold == (marks if any(marks) else [])


def test_without_cold_items_among_the_hits_nothing_is_marked(store: Store, catalogue: Catalogue) -> None:
    write_warm(store, "v1", catalogue, "Flat")
    bundle = with_catalogue(load_bundle(BundleLog(store), "v1"), described(catalogue))
    allowed = ItemKeys(np.array([hash_id(item) for item in catalogue.ids[:9]], np.int64))
    assert asked(bundle, store, history("item-1"), allowed=allowed).cold == []


def test_a_cold_item_in_a_history_counts_and_has_neighbours(store: Store, catalogue: Catalogue) -> None:
    write_warm(store, "v1", catalogue, "IVF4,Flat", nprobe=4)
    bundle = with_catalogue(load_bundle(BundleLog(store), "v1"), described(catalogue))
    hits = asked(bundle, store, history("item-1", "item-190"))
    assert hits.missing == []
    assert hits.ids == catalogue.top(catalogue.user(["item-1", "item-190"]), 20)
    near = asked(bundle, store, ByItem("item-190", hash_id("item-190")))
    assert near.ids == catalogue.top(catalogue.vectors[190], 20, ["item-190"])


def test_only_the_last_ones_are_answered_where_there_are_too_many(store: Store, catalogue: Catalogue) -> None:
    write_warm(store, "v1", catalogue, "Flat")
    cold = cold_of(load_bundle(BundleLog(store), "v1"), described(catalogue), limit=15)
    assert (len(cold), cold.left_out) == (15, COLD - 15)
    assert cold.rows.ids[cold.first + np.arange(15)].tolist() == catalogue.ids[-15:]


def test_an_item_of_which_nothing_is_known_is_not_answered(store: Store, catalogue: Catalogue) -> None:
    write_warm(store, "v1", catalogue, "Flat")
    table = rows_of(catalogue)
    for name in names().dense:
        values = table[name].to_pylist()
        values[170], values[180] = None, 0.0
        table = table.set_column(table.column_names.index(name), name, [values])
    cold = cold_of(load_bundle(BundleLog(store), "v1"), Described.of(table))
    assert len(cold) == COLD - 2
    found = cold.rows.item_rows.look_up(ItemKeys(np.array([hash_id("item-170"), hash_id("item-171")])))
    assert found[0] == -1
    assert found[1] >= cold.first


def write_csv(path: Path, catalogue: Catalogue, count: int) -> None:
    numbers = catalogue.embeddings[2:].astype(np.float64).tolist()
    lines = [",".join(["item_id", *names().dense])]
    lines += [",".join([item, *map(repr, row)]) for item, row in zip(catalogue.ids[:count], numbers, strict=False)]
    draft = path.with_suffix(".draft")
    draft.write_text("\n".join(lines))
    draft.replace(path)


def test_an_item_that_the_catalogue_names_is_answered_from_the_next_look_on(
    store: Store, catalogue: Catalogue, tmp_path: Path
) -> None:
    write_warm(store, "v1", catalogue, "Flat")
    registry, path = CollectorRegistry(), tmp_path / "items.csv"
    files = CatalogueFiles(str(path), features=names())
    bundle, follower = load_bundle(BundleLog(store), "v1"), CatalogueFollower(files, CatalogueMetrics(registry), 30)
    source = ByItem("item-3", hash_id("item-3"))
    for count, answered in ((160, 0), (161, 1), (200, 30)):
        write_csv(path, catalogue, count)
        follower.look(bundle)
        assert len(asked(bundle, store, source, k=200).ids) == 159 + answered
        assert registry.get_sample_value("weir_cold_items") == answered
        assert registry.get_sample_value("weir_cold_items_left_out") == max(0, count - 160 - 30)


@pytest.mark.parametrize("features", [None, FeatureNames()])
def test_without_features_nothing_is_cold(
    store: Store, catalogue: Catalogue, tmp_path: Path, features: FeatureNames | None
) -> None:
    known = None if features is None else identity()
    write_bundle(store, "v1", warm(catalogue), features=known)
    write_csv(path := tmp_path / "items.csv", catalogue, 200)
    files = CatalogueFiles(str(path), features=names() if features is None else features)
    bundle = load_bundle(BundleLog(store), "v1")
    CatalogueFollower(files, CatalogueMetrics(CollectorRegistry()), 30).look(bundle)
    assert bundle.state.view is not None
    assert bundle.state.view.cold is None


@pytest.mark.parametrize("how", ["beside", "in place"])
def test_items_become_cold_and_cease_to_be_with_the_deltas(
    store: Store, catalogue: Catalogue, tmp_path: Path, how: str
) -> None:
    """What a version makes of the one before is what it makes of the whole catalogue."""
    made, random = warm(catalogue), np.random.default_rng(5)
    write_warm(store, "v0", catalogue, "IVF4,Flat", nprobe=4)
    log = BundleLog(store)
    write_csv(path := tmp_path / "items.csv", catalogue, 200)
    follower = CatalogueFollower(
        CatalogueFiles(str(path), features=names()), CatalogueMetrics(CollectorRegistry()), 1000
    )
    manifest, bundle = log.manifest("v0"), load_bundle(log, "v0", places=True)
    follower.look(bundle)
    for number in range(1, 5):
        change = deltas.drawn(made, random, number)
        # Some of the cold items get rows, under their own names.
        change.new = {row: f"item-{160 + 4 * number + place}" for place, row in enumerate(list(change.new)[:4])}
        size = len(made.ids)
        for row in sorted(row for row in list(change.new) if row >= size):
            change.new[size] = change.new.pop(row)
            size += 1
        made = deltas.changed(made, change)
        features = store.write(f"bundles/v{number}/features.npz", identity().encode())
        written = deltas.write_delta(store, f"v{number}", manifest, made, change, promote=False)
        manifest = written.model_copy(update={"files": (*written.files, features)})
        log.commit(manifest)
        route = Route.find(log, f"v{number}", bundle)
        if how == "beside":
            after = route.load("cpu", 1, places=True)
            follower.describe(after, bundle)
        else:
            start = Start.of(route)
            assert start is not None
            ready = Change.prepare(start, route, 1)
            follower.describe(ready.ready, bundle)
            after = ready.take()
        fresh = load_bundle(log, f"v{number}")
        follower.describe(fresh)
        for source in (history("item-1", "item-9"), history("item-190")):
            for allowed in (None, ItemKeys(np.array([hash_id(item) for item in catalogue.ids[100:]], np.int64))):
                mine, its = (asked(one, store, source, 50, allowed=allowed) for one in (after, fresh))
                assert mine.ids == its.ids
                assert mine.cold == its.cold
                assert any(its.cold)
        bundle = after


def test_what_is_absent_follows_from_what_was(store: Store, catalogue: Catalogue) -> None:
    write_warm(store, "v1", catalogue, "Flat")
    about, bundle = described(catalogue), load_bundle(BundleLog(store), "v1")
    absent = absent_entries(about, bundle)
    assert [about.ids[entry].as_py() for entry in absent] == catalogue.ids[-COLD:]
    # Items 3 and 170 have left since, 165 has come: only the bundle tells what is there now.
    gone = ItemKeys(np.array([hash_id("item-3"), hash_id("unheard-of")], np.int64))
    without = replace(bundle, rows=replace(bundle.rows, item_rows=bundle.rows.item_rows.without(gone[:1])))
    found = still_absent(about, without, absent[:-1], gone)
    assert {about.ids[entry].as_py() for entry in found} == {"item-3", *catalogue.ids[-COLD:-1]}
