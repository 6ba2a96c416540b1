"""Real bundles and windows, small: a FAISS index, an ONNX tower (the mean of the history), committed files."""

import io
import time
from collections.abc import Sequence
from dataclasses import dataclass

import faiss
import numpy as np
import onnx
import pyarrow as pa
from onnx import TensorProto, helper
from prometheus_client import CollectorRegistry

from tests.serving.users import HISTORY_LENGTH, SHARDS, Event, write_users
from weir import sketches
from weir.contracts import (
    BUNDLE_ITEMS_SCHEMA,
    BundleFile,
    BundleLog,
    BundleManifest,
    FeatureNames,
    IndexInfo,
    Layout,
    Store,
    StoreFormat,
    WindowCounts,
    WindowLog,
    WindowManifest,
    WindowName,
    ensure_format,
    examples_schema,
    hash_id,
)
from weir.contracts.base import columns
from weir.contracts.base.models import CommitRef
from weir.contracts.commits.window import ITEMS_SCHEMA
from weir.contracts.interactions.features import MAX_DENSE, FeatureWeights, Moments, UserFeatures
from weir.contracts.storage.artefacts import write_table
from weir.serving.histories.files import FollowedHistories
from weir.serving.metrics import HistoryMetrics

HOUR_MS = 3_600_000
LAYOUT = Layout(window_ms=HOUR_MS, user_shards=SHARDS, sketch={})


def mean_tower(scale: float = 1.0) -> bytes:
    """A tower whose vector is the mean of the history's embeddings, times a scale."""
    nodes = [
        helper.make_node("Cast", ["mask"], ["real"], to=TensorProto.FLOAT),
        helper.make_node("Unsqueeze", ["real", "last"], ["column"]),
        helper.make_node("Mul", ["history", "column"], ["masked"]),
        helper.make_node("ReduceSum", ["masked", "middle"], ["total"], keepdims=0),
        helper.make_node("ReduceSum", ["real", "middle"], ["count"], keepdims=1),
        helper.make_node("Max", ["count", "one"], ["length"]),
        helper.make_node("Div", ["total", "length"], ["mean"]),
        helper.make_node("Mul", ["mean", "scale"], ["user"]),
    ]
    graph = helper.make_graph(
        nodes,
        "mean",
        [
            helper.make_tensor_value_info("history", TensorProto.FLOAT, ["batch", "length", "dimension"]),
            helper.make_tensor_value_info("mask", TensorProto.BOOL, ["batch", "length"]),
        ],
        [helper.make_tensor_value_info("user", TensorProto.FLOAT, ["batch", "dimension"])],
        initializer=[
            helper.make_tensor("last", TensorProto.INT64, [1], [2]),
            helper.make_tensor("middle", TensorProto.INT64, [1], [1]),
            helper.make_tensor("one", TensorProto.FLOAT, [1], [1.0]),
            helper.make_tensor("scale", TensorProto.FLOAT, [1], [scale]),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.checker.check_model(model)
    return bytes(model.SerializeToString())


@dataclass
class Catalogue:
    """The arrays that a bundle is written from; also the oracle's source."""

    ids: list[str]
    vectors: np.ndarray
    embeddings: np.ndarray
    popularity: np.ndarray

    @classmethod
    def random(cls, items: int = 200, dimension: int = 8, seed: int = 0, prefix: str = "item") -> "Catalogue":
        random = np.random.default_rng(seed)
        vectors = random.standard_normal((items, dimension)).astype(np.float32)
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        embeddings = random.standard_normal((items + 2, dimension)).astype(np.float32)
        embeddings[0] = 0
        return cls([f"{prefix}-{i}" for i in range(items)], vectors, embeddings, random.permutation(items) + 1.0)

    def user(self, history: Sequence[str]) -> np.ndarray:
        """The cosine tower's vector of a history, worked out without ONNX or FAISS; unknown items count for nothing."""
        places = [self.ids.index(item) + 2 for item in history if item in self.ids][-HISTORY_LENGTH:]
        mean = self.embeddings[places].mean(axis=0)
        return mean / np.linalg.norm(mean)

    def top(self, vector: np.ndarray, k: int, without: Sequence[str] = ()) -> list[str]:
        """The brute-force answer."""
        order = np.argsort(-(self.vectors @ vector), kind="stable")
        return [self.ids[row] for row in order if self.ids[row] not in without][:k]

    def most_popular(self, k: int, without: Sequence[str] = ()) -> list[str]:
        """The items by popularity."""
        return [self.ids[row] for row in np.argsort(-self.popularity) if self.ids[row] not in without][:k]


def write_bundle(
    store: Store,
    version: str,
    catalogue: Catalogue,
    *,
    index: str = "Flat",
    parameters: dict[str, int | float] | None = None,
    metric: str = "cosine",
    tower: bytes | None = None,
    trained_sequence: int = 0,
    max_event_ms: int = 1_700_000_000_000,
    promote: bool = True,
    features: FeatureWeights | None = None,
    user_features: FeatureWeights | None = None,
    variant: str = "main",
    history_read: int | None = None,
    trained_commit: CommitRef | None = None,
) -> BundleManifest:
    """Write, commit and promote a bundle through the contracts; that of a variant in the store of its line."""
    count, dimension = catalogue.vectors.shape
    built = faiss.index_factory(dimension, index, faiss.METRIC_INNER_PRODUCT)
    built.train(catalogue.vectors)
    built.add(catalogue.vectors)
    items = pa.table(
        {
            columns.ROW: pa.array(range(count), pa.int32()),
            columns.ITEM_ID: pa.array(catalogue.ids),
            columns.ITEM_KEY: pa.array([hash_id(item) for item in catalogue.ids], pa.int64()),
            columns.POPULARITY: pa.array(catalogue.popularity, pa.float64()),
        },
        schema=BUNDLE_ITEMS_SCHEMA,
    )
    folder = f"bundles/{version}"
    files = (
        store.write(f"{folder}/{BundleFile.INDEX}", faiss.serialize_index(built).tobytes()),
        write_table(store, f"{folder}/{BundleFile.ITEMS}", items),
        store.write(f"{folder}/{BundleFile.EMBEDDINGS}", _npy(catalogue.embeddings)),
        store.write(f"{folder}/{BundleFile.VECTORS}", _npy(catalogue.vectors)),
        store.write(f"{folder}/{BundleFile.TOWER}", tower or mean_tower()),
    )
    if features is not None:
        files += (store.write(f"{folder}/{BundleFile.FEATURES}", features.encode()),)
    if user_features is not None:
        files += (store.write(f"{folder}/{BundleFile.USER_FEATURES}", user_features.encode()),)
    manifest = BundleManifest(
        version=version,
        variant=variant,
        created_at=time.time(),
        trained_sequence=trained_sequence,
        trained_window="20231114T220000Z-20231114T230000Z/0000",
        max_event_ms=max_event_ms,
        items=count,
        dimension=dimension,
        metric=metric,
        history_length=HISTORY_LENGTH,
        history_read=history_read,
        trained_commit=trained_commit,
        index=IndexInfo(type=index, parameters=parameters or {}),
        evaluation={"recall@10": 0.25},
        promoted=True,
        verdict="better than before",
        software_version="0.1.0",
        files=files,
    )
    log = BundleLog(store)
    log.commit(manifest)
    if promote:
        log.promote(version)
    return manifest


def user_weights(dimension: int = 8, seed: int = 5) -> FeatureWeights:
    """Return weights of user features, as if they had been trained."""
    draw = np.random.default_rng(seed)
    names = FeatureNames(categorical=("country", "langs"), dense=("age", "since"))
    values, dense = draw.normal(size=(64, dimension)), draw.normal(size=(dimension, MAX_DENSE))
    moments = (Moments(4.0, 40.0, 400.0), Moments(2.0, 0.0, 2.0))
    return FeatureWeights(names, values.astype(np.float32), dense.astype(np.float32), moments)


def _npy(array: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


def write_window(
    store: Store, sequence: int, events: Sequence[Event], start_ms: int | None = None, *, with_users: bool = True
) -> WindowManifest:
    """Write and commit a window of an hour, with the files of its users if asked to."""
    ensure_format(store, StoreFormat(layout=LAYOUT))
    start = start_ms if start_ms is not None else 1_700_000_000_000 // HOUR_MS * HOUR_MS + sequence * HOUR_MS
    name = WindowName(start, start + HOUR_MS)
    histories = [[0] * (HISTORY_LENGTH - len(e.history)) + [hash_id(i) for i in e.history] for e in events]
    values = {
        columns.USER_KEY: [hash_id(e.user) for e in events],
        columns.ITEM_KEY: [hash_id(e.item) for e in events],
        columns.TIMESTAMP: [e.time_ms for e in events],
        columns.HISTORY: histories,
        columns.WEIGHT: [1.0] * len(events),
        columns.LABEL: [e.label for e in events],
        columns.EVENT_KEY: [None] * len(events),
        columns.ATTRIBUTION_TOKEN: [e.token for e in events],
    }
    names = user_weights().names if any(e.said for e in events) else FeatureNames()
    table = pa.table(values, schema=examples_schema(HISTORY_LENGTH))
    if names.all:
        said = pa.array([{one: e.said.get(one) for one in names.all} for e in events], pa.struct(names.fields))
        table = table.append_column(pa.field(columns.USER_FEATURES, said.type, nullable=False), said)
    positives = [e.item for e in events if e.label > 0]
    counts = {item: positives.count(item) for item in sorted(set(positives), key=hash_id)}
    items = pa.table(
        {
            columns.ITEM_KEY: [hash_id(item) for item in counts],
            columns.ITEM_ID: list(counts),
            columns.COUNT: list(counts.values()),
        },
        schema=ITEMS_SCHEMA,
    )
    sketch = sketches.CountMinSketch(width=1024, depth=4)
    sketch.update(np.array([hash_id(item) for item in positives], np.int64))
    times, folder = [e.time_ms for e in events] or [start], name.folder(f"{sequence:04d}")
    manifest = WindowManifest(
        sequence=sequence,
        attempt=f"{sequence:04d}",
        start_ms=start,
        end_ms=start + HOUR_MS,
        pane=0,
        min_event_ms=min(times),
        max_event_ms=max(times),
        committed_at=time.time(),
        counts=WindowCounts(events=len(events), positives=len(positives), negatives=sum(e.label < 0 for e in events)),
        history_length=HISTORY_LENGTH,
        sketch={"kind": "count_min"},
        user_features=UserFeatures.of(table, names),
        files=(
            write_table(store, f"{folder}/{WindowName.examples(0)}", table),
            write_table(store, f"{folder}/{WindowName.items()}", items),
            store.write(f"{folder}/{WindowName.sketch()}", sketch.to_bytes()),
        ),
    )
    stored = write_users(store, sequence, events) if with_users else ()
    WindowLog(store).commit(manifest, histories=stored, covered=sequence + 1 if with_users else 0)
    return manifest


def histories_of(store: Store) -> FollowedHistories:
    """Return histories as a server that starts has them after its first look."""
    histories = FollowedHistories(store, HistoryMetrics(CollectorRegistry()))
    histories.catch_up()
    return histories


def poisonous_tower() -> bytes:
    """A tower that fails on a history with an embedding above 1000: a table of one row is asked for its second."""
    nodes = [
        helper.make_node("ReduceMax", ["history"], ["largest"], axes=[0, 1, 2], keepdims=0),
        helper.make_node("Greater", ["largest", "bound"], ["poisoned"]),
        helper.make_node("Cast", ["poisoned"], ["place"], to=TensorProto.INT64),
        helper.make_node("Gather", ["table", "place"], ["zero"]),
        helper.make_node("ReduceSum", ["history", "middle"], ["total"], keepdims=0),
        helper.make_node("Add", ["total", "zero"], ["user"]),
        helper.make_node("Not", ["mask"], ["unused"]),
    ]
    graph = helper.make_graph(
        nodes,
        "poisonous",
        [
            helper.make_tensor_value_info("history", TensorProto.FLOAT, ["batch", "length", "dimension"]),
            helper.make_tensor_value_info("mask", TensorProto.BOOL, ["batch", "length"]),
        ],
        [
            helper.make_tensor_value_info("user", TensorProto.FLOAT, ["batch", "dimension"]),
            helper.make_tensor_value_info("unused", TensorProto.BOOL, ["batch", "length"]),
        ],
        initializer=[
            helper.make_tensor("bound", TensorProto.FLOAT, [], [1000.0]),
            helper.make_tensor("table", TensorProto.FLOAT, [1], [0.0]),
            helper.make_tensor("middle", TensorProto.INT64, [1], [1]),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.checker.check_model(model)
    return bytes(model.SerializeToString())
