"""A bundle: the state of the model, as files that can be served."""

import io
import logging
import time
from importlib.metadata import version
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch

from contracts import BUNDLE_ITEMS_SCHEMA, BundleFile, BundleLog, BundleManifest, FileEntry, IndexInfo, Store, columns
from contracts.artefacts import write_table
from trainer.config import TrainerConfig
from trainer.evaluation import figures
from trainer.export.errors import ExportError
from trainer.export.gate import Verdict, judge
from trainer.export.index import build_index
from trainer.export.tower import tower_to_onnx
from trainer.item_table import FIRST_ITEM
from trainer.state import TrainerState
from trainer.towers import project

__all__ = ["bundle_version", "export_bundle", "gate_figure"]

logger = logging.getLogger(__name__)

Floats = npt.NDArray[np.float32]
_SPECIAL: Final = FIRST_ITEM


def bundle_version(state: TrainerState) -> str:
    """Return the version that the state would be exported as; versions sort in the order of the stream."""
    return f"{max(state.position.learnt_sequence, 0):08d}-{state.position.step:010d}"


def gate_figure(config: TrainerConfig) -> str:
    """Return the name of the figure that the gate compares: recall at the middle cut-off."""
    return f"recall@{sorted(config.evaluation_k)[len(config.evaluation_k) // 2]}"


def export_bundle(store: Store, state: TrainerState) -> BundleManifest:
    """Write the bundle of a state, let the gate judge it, promote it if it passes, and retire old ones.

    A bundle that exists already is not written again, only promoted where that had been missed.

    Raises
    ------
    ExportError
        If the table has no item, or the tower does not survive the translation.
    """
    log, name = BundleLog(store), bundle_version(state)
    if not len(state.table):
        raise ExportError("the item table is empty: there is nothing to serve before the first window")
    manifest = log.manifest(name) if name in log.versions() else _write(store, log, state, name)
    if manifest.promoted and log.current() != name:
        log.promote(name)
    logger.info("bundle %s: %s", name, manifest.verdict)
    log.retire(state.config.bundles_kept)
    return manifest


def _write(store: Store, log: BundleLog, state: TrainerState, name: str) -> BundleManifest:
    embeddings, vectors = _arrays(state)
    verdict = _judge(log, state, embeddings)
    files, index = _files(store, f"bundles/{name}", state, embeddings, vectors)
    at, tower = state.position, state.config.tower
    manifest = BundleManifest(
        version=name,
        created_at=time.time(),
        trained_sequence=max(at.learnt_sequence, 0),
        trained_window=at.learnt,
        max_event_ms=at.max_event_ms,
        items=len(vectors),
        dimension=tower.dimension,
        metric="cosine" if tower.normalised else "inner_product",
        history_length=tower.history_length,
        index=index,
        evaluation=figures(state.recent),
        promoted=verdict.promoted,
        verdict=verdict.sentence,
        software_version=version("weir"),
        files=tuple(files),
    )
    log.commit(manifest)
    return manifest


@torch.no_grad()
def _arrays(state: TrainerState) -> tuple[Floats, Floats]:
    """Return ``embeddings.npy`` (2 + items, d) and ``vectors.npy`` (items, d), in the order of table rows."""
    rows = np.concatenate([np.arange(_SPECIAL), state.table.live])
    embeddings = state.item_vectors(rows)
    vectors = project(embeddings[_SPECIAL:], state.config.tower)
    return embeddings.float().cpu().numpy(), vectors.float().cpu().numpy()


def _judge(log: BundleLog, state: TrainerState, embeddings: Floats) -> Verdict:
    current = log.current()
    finite = bool(np.isfinite(embeddings).all()) and all(
        bool(value.isfinite().all()) for value in state.tower.state_dict().values()
    )
    return judge(
        figures(state.recent),
        None if current is None else log.manifest(current).evaluation,
        figure=gate_figure(state.config),
        tolerance=state.config.gate_tolerance,
        finite=finite,
    )


def _files(
    store: Store, folder: str, state: TrainerState, embeddings: Floats, vectors: Floats
) -> tuple[list[FileEntry], IndexInfo]:
    index, info = build_index(vectors, state.config.index, state.config.nprobe)
    entries = [
        store.write(f"{folder}/{BundleFile.INDEX}", index, rows=len(vectors)),
        write_table(store, f"{folder}/{BundleFile.ITEMS}", _items(state)),
        store.write(f"{folder}/{BundleFile.EMBEDDINGS}", _npy(embeddings), rows=len(embeddings)),
        store.write(f"{folder}/{BundleFile.VECTORS}", _npy(vectors), rows=len(vectors)),
        store.write(f"{folder}/{BundleFile.TOWER}", tower_to_onnx(state.tower, state.config.tower)),
    ]
    return entries, info


def _items(state: TrainerState) -> pa.Table:
    live = state.table.live
    values: dict[str, Any] = {
        columns.ROW: np.arange(len(live), dtype=np.int32),
        columns.ITEM_ID: state.table.ids[live].tolist(),
        columns.ITEM_KEY: state.table.keys[live],
        columns.POPULARITY: state.counts[live],
    }
    return pa.table(values, schema=BUNDLE_ITEMS_SCHEMA)


def _npy(array: Floats) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=False)
    return buffer.getvalue()
