"""Delta bundles for the tests, written file by file, and the complete bundle that says the same."""

import io
from dataclasses import dataclass
from typing import Any

import faiss
import numpy as np
import pyarrow as pa

from tests.serving.support import Catalogue, mean_tower, write_bundle
from weir.contracts import BUNDLE_ITEMS_SCHEMA, BundleFile, BundleLog, BundleManifest, FileEntry, Store, hash_id
from weir.contracts.base import columns
from weir.contracts.storage.artefacts import write_table
from weir.serving.bundles.bundle import LoadedBundle

KINDS = ["Flat", "IVF4,Flat", "IVF4,SQfp16"]
QUERIES = np.random.default_rng(3).standard_normal((6, 8)).astype(np.float32)


@dataclass
class Change:
    """What a delta does: `rows` get other vectors, `new` rows items that were not there, `removed` lose theirs."""

    rows: list[int]
    new: dict[int, str]
    removed: list[int]
    seed: int = 0


def changed(catalogue: Catalogue, change: Change) -> Catalogue:
    """Return the catalogue after a change; a removed row keeps its place, with an empty id."""
    rng = np.random.default_rng(change.seed)
    size = max([len(catalogue.ids), *(row + 1 for row in change.new)])
    more = size - len(catalogue.ids)
    dimension = catalogue.vectors.shape[1]
    made = Catalogue(
        [*catalogue.ids, *[""] * more],
        np.concatenate([catalogue.vectors, np.zeros((more, dimension), np.float32)]),
        np.concatenate([catalogue.embeddings, np.zeros((more, dimension), np.float32)]),
        np.concatenate([catalogue.popularity, np.zeros(more)]),
    )
    for row in change.removed:
        made.ids[row] = ""
    for row, name in change.new.items():
        made.ids[row] = name
    for row in [*change.rows, *change.new]:
        vector = rng.standard_normal(dimension)
        made.vectors[row] = vector / np.linalg.norm(vector)
        made.embeddings[row + 2] = rng.standard_normal(dimension)
        made.popularity[row] = rng.random() * size
    return made


def dense(catalogue: Catalogue) -> Catalogue:
    """Return the catalogue as a complete bundle has it: without empty rows."""
    live = np.array([row for row, name in enumerate(catalogue.ids) if name], np.int64)
    return Catalogue(
        [catalogue.ids[row] for row in live],
        catalogue.vectors[live],
        catalogue.embeddings[np.concatenate([[0, 1], live + 2])],
        catalogue.popularity[live],
    )


def write_delta(
    store: Store,
    version: str,
    parent: BundleManifest,
    catalogue: Catalogue,
    change: Change,
    *,
    promote: bool = True,
    centroids: np.ndarray | None = None,
    **fields: Any,
) -> BundleManifest:
    """Write, commit and promote what leads from a parent to a catalogue."""
    rows, folder = np.array(sorted([*change.rows, *change.new]), np.int64), f"bundles/{version}"
    items = pa.table(
        {
            columns.ROW: pa.array(rows.astype(np.int32)),
            columns.ITEM_ID: pa.array([catalogue.ids[row] for row in rows], pa.string()),
            columns.ITEM_KEY: pa.array([hash_id(catalogue.ids[row]) for row in rows], pa.int64()),
            columns.POPULARITY: pa.array(catalogue.popularity[rows], pa.float64()),
        },
        schema=BUNDLE_ITEMS_SCHEMA,
    )
    embedded = np.concatenate([[0, 1], rows + 2])
    arrays = {
        BundleFile.VECTORS: catalogue.vectors[rows],
        BundleFile.EMBEDDINGS: catalogue.embeddings[embedded],
        BundleFile.REMOVED: np.array(change.removed, np.int32),
    }
    if "IVF" in parent.index.type:
        index = index_of(store, parent.base or parent.version)
        _, lists = index.quantizer.search(catalogue.vectors[rows], 1)
        arrays[BundleFile.LISTS] = lists[:, 0].astype(np.int32)
    if centroids is not None:
        arrays[BundleFile.CENTROIDS] = centroids
    files = [write_table(store, f"{folder}/{BundleFile.ITEMS}", items)]
    files += [write_array(store, f"{folder}/{name}", array) for name, array in arrays.items()]
    files.append(store.write(f"{folder}/{BundleFile.TOWER}", mean_tower()))
    log = BundleLog(store)
    facts = {
        "schema_version": 2,
        "version": version,
        "created_at": parent.created_at + 1,
        "items": sum(bool(name) for name in catalogue.ids),
        "parent": log.manifest_and_ref(parent.version)[1],
        "base": parent.base or parent.version,
        "depth": parent.depth + 1,
        "changed": len(rows),
        "removed": len(change.removed),
        "files": tuple(files),
    }
    manifest = parent.model_copy(update=facts | fields)
    log.commit(manifest)
    if promote:
        log.promote(version)
    return manifest


def index_of(store: Store, base: str) -> Any:
    """Return the index of a complete bundle."""
    return faiss.deserialize_index(np.frombuffer(store.read(f"bundles/{base}/{BundleFile.INDEX}"), np.uint8))


def write_same_centroids(store: Store, version: str, base: BundleManifest, catalogue: Catalogue) -> BundleManifest:
    """Write and commit the complete bundle of a dense catalogue, with the index type and centroids of a base."""
    log, index = BundleLog(store), index_of(store, base.version)
    index.reset()
    index.add(catalogue.vectors)
    count, folder = len(catalogue.ids), f"bundles/{version}"
    items = pa.table(
        {
            columns.ROW: pa.array(range(count), pa.int32()),
            columns.ITEM_ID: pa.array(catalogue.ids, pa.string()),
            columns.ITEM_KEY: pa.array([hash_id(item) for item in catalogue.ids], pa.int64()),
            columns.POPULARITY: pa.array(catalogue.popularity, pa.float64()),
        },
        schema=BUNDLE_ITEMS_SCHEMA,
    )
    files = (
        store.write(f"{folder}/{BundleFile.INDEX}", faiss.serialize_index(index).tobytes()),
        write_table(store, f"{folder}/{BundleFile.ITEMS}", items),
        write_array(store, f"{folder}/{BundleFile.EMBEDDINGS}", catalogue.embeddings),
        write_array(store, f"{folder}/{BundleFile.VECTORS}", catalogue.vectors),
        store.write(f"{folder}/{BundleFile.TOWER}", mean_tower()),
    )
    manifest = base.model_copy(update={"version": version, "items": count, "files": files})
    log.commit(manifest)
    return manifest


def write_array(store: Store, name: str, array: np.ndarray) -> FileEntry:
    """Write a NumPy file."""
    buffer = io.BytesIO()
    np.save(buffer, array)
    return store.write(name, buffer.getvalue(), rows=len(array))


def base(store: Store, kind: str = "Flat", items: int = 40) -> tuple[BundleManifest, Catalogue]:
    catalogue = Catalogue.random(items=items)
    return write_bundle(
        store, "v0", catalogue, index=kind, parameters={"nprobe": 2} if "IVF" in kind else {}
    ), catalogue


def drawn(catalogue: Catalogue, rng: np.random.Generator, number: int) -> Change:
    """Return a random change: some items move, some go, some come into their rows, into empty ones and beyond."""
    live = [row for row, name in enumerate(catalogue.ids) if name]
    empty = [row for row, name in enumerate(catalogue.ids) if not name]
    picked = rng.permutation(live).tolist()
    moved, gone = picked[: rng.integers(0, 9)], picked[9 : 9 + rng.integers(0, 6)]
    taken = [*gone[: rng.integers(0, len(gone) + 1)], *empty[: rng.integers(0, len(empty) + 1)]]
    taken += range(len(catalogue.ids), len(catalogue.ids) + int(rng.integers(0, 4)))
    return Change(moved, {row: f"new-{number}-{row}" for row in taken}, sorted(set(gone) - set(taken)), number)


def assert_same(one: LoadedBundle, other: LoadedBundle, ids: list[str]) -> None:
    """Compare all that a server asks of a bundle; rows differ, what they hold must not."""
    assert one.items == other.items == len(ids)
    for k in (1, 7, len(ids)):
        for name in ("index", "exact"):
            mine, theirs = getattr(one, name).search(QUERIES, k), getattr(other, name).search(QUERIES, k)
            np.testing.assert_allclose(mine.scores, theirs.scores, atol=1e-6)
            for mine_row, theirs_row in zip(mine.rows, theirs.rows, strict=True):
                found = one.ids[mine_row[mine_row >= 0]].tolist()
                assert found == other.ids[theirs_row[theirs_row >= 0]].tolist()
    keys = np.array([hash_id(name) for name in [*ids, "nobody"]], np.int64)
    mine, theirs = one.rows_of(keys), other.rows_of(keys)
    assert one.ids[mine[:-1]].tolist() == ids
    assert mine[-1] == -1
    np.testing.assert_array_equal(one.exact.vectors[mine[:-1]], other.exact.vectors[theirs[:-1]])
    some = mine[: len(ids) // 2]
    among = one.exact.search_among(QUERIES, 5, some)
    scores = other.exact.search_among(QUERIES, 5, theirs[: len(ids) // 2]).scores
    np.testing.assert_allclose(among.scores, scores, atol=1e-6)
    np.testing.assert_allclose(one.users(keys[None, :3]), other.users(keys[None, :3]), atol=1e-6)
    assert one.ids[one.popular.first(len(ids) + 1)].tolist() == other.ids[other.popular.first(len(ids) + 1)].tolist()
