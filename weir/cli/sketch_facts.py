"""Facts about a stored sketch, alone and compared with another."""

from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from weir import sketches
from weir.cli.window_facts import find_windows, no_window
from weir.contracts import ITEMS_SCHEMA, Store, WindowLog, WindowManifest, WindowName, columns
from weir.errors import CommandError
from weir.sketches import Counted, CountMinSketch, FrequencyEstimator

__all__ = ["Subject", "compare", "describe", "find"]

_NO_ITEMS: Final = ITEMS_SCHEMA.empty_table()


class Subject(NamedTuple):
    """A sketch and, where they are known, the items that it counted (`ITEMS_SCHEMA`, else empty)."""

    name: str
    estimator: FrequencyEstimator
    items: pa.Table


def find(store: Store, wanted: str | None) -> Subject:
    """Return the sketch of a pane (number or name; None: the newest), or that of a file or folder."""
    log = WindowLog(store)
    path = Path(wanted) if wanted is not None else None
    if path is not None and path.exists():
        return _from_file(path / WindowName.sketch() if path.is_dir() else path)
    manifest = _window(store, log, wanted)
    return Subject(str(manifest.name), sketches.load(log.sketch(manifest)), log.items(manifest))


def _window(store: Store, log: WindowLog, wanted: str | None) -> WindowManifest:
    found = log.newest(1) if wanted is None else find_windows(store, wanted)
    if not found:
        raise CommandError(no_window(store, wanted or ""))
    if len(found) > 1:
        numbers = ", ".join(str(manifest.sequence) for manifest in found)
        raise CommandError(f"{wanted} has {len(found)} panes: name one of {numbers}")
    return found[0]


def _from_file(path: Path) -> Subject:
    """Read a sketch; a window's items file is next to its item sketch and says nothing about its user sketch."""
    try:
        estimator = sketches.load(path.read_bytes())
    except ValueError as error:
        raise CommandError(f"{path}: {error}") from error
    items = path.with_name(WindowName.items())
    if path.name != WindowName.sketch() or not items.exists():
        return Subject(str(path), estimator, _NO_ITEMS)
    try:
        return Subject(str(path), estimator, pq.read_table(items, columns=ITEMS_SCHEMA.names))
    except (OSError, ValueError) as error:
        raise CommandError(f"{items}: {error}") from error


def describe(subject: Subject, top: int) -> dict[str, Any]:
    """Return parameters, totals and the heaviest items; errors against the true counts where items are known."""
    estimator, items = subject.estimator, subject.items
    health = sketches.health(estimator)
    facts = {
        "window": subject.name,
        **sketches.parameters(estimator),
        "bytes": estimator.nbytes,
        "total": estimator.total,
        "distinct_estimated": round(health.distinct, 1),
        "fill": round(health.fill, 6),
        "log_q_error_estimated": round(health.log_q_error, 6),
    }
    if not len(items):
        return facts | {"top": []}
    counts = items[columns.COUNT].to_numpy()
    estimates = estimator.estimate(items[columns.ITEM_KEY].to_numpy())
    error = np.abs(np.log(np.maximum(estimates, 0.5)) - np.log(counts)) @ counts / counts.sum()
    best = np.argsort(-counts, kind="stable")[:top].tolist()
    known = {"events": int(counts.sum()), "items": len(counts), "mean_log_error": round(float(error), 6)}
    ids = items[columns.ITEM_ID]
    heaviest = [
        {"item_id": ids[row].as_py(), "count": int(counts[row]), "estimate": float(estimates[row])} for row in best
    ]
    return facts | known | {"top": heaviest}


def compare(before: Subject, after: Subject, top: int) -> dict[str, Any]:
    """Return how far two sketches are apart: parameters, totals, distance of the heads, and the largest changes.

    Items known to either are looked up in both. Where none are known, the cells of equal count-min sketches are
    compared row by row: their distance cannot exceed that of the items, up to the error of conservative cells.
    """
    mine, theirs = sketches.parameters(before.estimator), sketches.parameters(after.estimator)
    names = [name for name in mine | theirs if mine.get(name) != theirs.get(name)]
    facts = {
        "differing_parameters": {name: [mine.get(name), theirs.get(name)] for name in names},
        "totals": [before.estimator.total, after.estimator.total],
    }
    items = pa.concat_tables([before.items, after.items])
    keys, first = np.unique(items[columns.ITEM_KEY].to_numpy(), return_index=True)
    if not len(keys):
        known = facts | {"distance": _between_cells(before, after), "distance_over": "cells"}
        return known | {"changed_items": 0, "changes": []}
    left, right = before.estimator.estimate(keys), after.estimator.estimate(keys)
    distance = sketches.head_distance(Counted(keys, left), Counted(keys, right))
    moved = int(np.count_nonzero(left / max(left.sum(), 1e-300) != right / max(right.sum(), 1e-300)))
    changes = _changes(items[columns.ITEM_ID].take(pa.array(first)), left, right, top)
    return facts | {
        "distance": _rounded(distance),
        "distance_over": "items",
        "changed_items": moved,
        "changes": changes,
    }


def _changes(
    ids: pa.ChunkedArray, before: npt.NDArray[np.float64], after: npt.NDArray[np.float64], top: int
) -> list[dict[str, Any]]:
    """List the items whose share of the known events has changed most."""
    shares = [counts / max(counts.sum(), 1e-300) for counts in (before, after)]
    moved = shares[1] - shares[0]
    largest = np.argsort(-np.abs(moved), kind="stable")[:top].tolist()
    return [
        {
            "item_id": ids[row].as_py(),
            "estimates": [float(before[row]), float(after[row])],
            "shares": [float(share[row]) for share in shares],
            "change": float(moved[row]),
        }
        for row in largest
        if moved[row] != 0
    ]


def _between_cells(before: Subject, after: Subject) -> float | None:
    pair = before.estimator, after.estimator
    same = sketches.parameters(pair[0]) == sketches.parameters(pair[1])
    if not (same and isinstance(pair[0], CountMinSketch) and isinstance(pair[1], CountMinSketch)):
        return None
    rows = zip(pair[0].cell_counts(), pair[1].cell_counts(), strict=True)
    return _rounded(max(sketches.jensen_shannon(*row) for row in rows))


def _rounded(distance: float) -> float | None:
    """Return a distance for JSON, which knows no NaN; an empty sketch has none."""
    return None if np.isnan(distance) else round(distance, 6)
