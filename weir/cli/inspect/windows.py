"""The output of ``weir inspect windows`` and ``sketch``."""

from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from weir import sketches
from weir.cli.terminal.output import minute, print_table
from weir.contracts import ITEMS_SCHEMA, LogState, Store, WindowLog, WindowManifest, WindowName
from weir.contracts.base import columns
from weir.errors import CommandError
from weir.session import Session
from weir.sketches import Counted, CountMinSketch, FrequencyEstimator
from weir.text import counted, in_words, plain

__all__ = [
    "Subject",
    "compare",
    "describe",
    "find",
    "find_windows",
    "no_window",
    "print_windows",
    "window_facts",
    "windows_of",
]

_NO_ITEMS: Final = ITEMS_SCHEMA.empty_table()


def find_windows(store: Store, wanted: str) -> list[WindowManifest]:
    """Return the panes that a text names, in commit order; empty without a match.

    A pane is named by its number, name or folder, and all panes of a window by the window's slice or start.
    """
    return [manifest for manifest in WindowLog(store) if wanted in _names(store, manifest)]


def _names(store: Store, manifest: WindowManifest) -> set[str]:
    names = {str(manifest.sequence), str(manifest.name), manifest.name.slice, minute(manifest.start_ms / 1000)}
    return names | {manifest.folder, store.path(manifest.folder)}


def windows_of(store: Store, wanted: str | None, last: int | None) -> list[WindowManifest]:
    """Return the panes that `wanted` names or, if it is None, the `last` newest panes (None: all).

    Raises `CommandError` if no pane has the name.
    """
    if wanted is None:
        return list(WindowLog(store)) if last is None else WindowLog(store).newest(last)
    if not (found := find_windows(store, wanted)):
        raise CommandError(no_window(store, wanted))
    return found


def no_window(store: Store, wanted: str) -> str:
    """Return the error message that a name matches no window."""
    newest = WindowLog(store).newest(1)
    if not newest:
        return f"{store.path('')} holds no window yet: `weir ingest` commits them"
    first = WindowLog(store).left(-1) + 1
    if wanted.isdecimal():
        return f"there is no pane {wanted}; there are {first} to {newest[0].sequence}"
    return (
        f"{wanted} is neither the number of a pane nor a window of {store.path('')}: `weir inspect windows` lists them"
    )


def print_windows(session: Session, manifests: list[WindowManifest], wanted: str | None) -> None:
    """Print a table of panes; if the panes were `wanted` by name, also their folders."""
    where = session.store.path("")
    if not manifests:
        session.out.print(plain(f"{where} holds no window yet: `weir ingest` commits them"))
        return
    length = in_words((manifests[-1].end_ms - manifests[-1].start_ms) / 1000)
    state = LogState.open(session.store)
    total = counted(sum(panes.count for panes in state.panes), "pane")
    shown = total if len(manifests) == sum(panes.count for panes in state.panes) else f"{len(manifests):,} of {total}"
    title = f"{shown if wanted is None else wanted} in {where}, of {counted(len(state.starts), 'window')}"
    print_table(
        session,
        f"{title} of {length}",
        ["pane", "window from (UTC)", "in window", "events", "negative", "duplicate", "late", "items", "committed"],
        [_row(manifest) for manifest in manifests],
    )
    for manifest in manifests if wanted is not None else ():
        session.out.print(plain(f"{manifest.name}: {manifest.folder}"), soft_wrap=True)


def window_facts(manifest: WindowManifest) -> dict[str, Any]:
    """Return the facts of a pane for JSON."""
    keep = {"sequence", "start_ms", "end_ms", "pane", "min_event_ms", "max_event_ms", "committed_at", "counts"}
    keep |= {"exposed_items", "exposure"}
    return manifest.model_dump(mode="json", include=keep) | {"window": str(manifest.name), "folder": manifest.folder}


def _row(manifest: WindowManifest) -> list[str]:
    counts = manifest.counts
    items = manifest.file(manifest.name.items()).rows
    numbers = [counts.events, counts.negatives, counts.duplicates, counts.late, items]
    return [
        str(manifest.sequence),
        minute(manifest.start_ms / 1000),
        str(manifest.pane),
        *(f"{number:,}" for number in numbers),
        minute(manifest.committed_at, "%H:%M:%S"),
    ]


class Subject(NamedTuple):
    """A frequency sketch, its name, and the items that it counted (`ITEMS_SCHEMA`), empty if they are unknown."""

    name: str
    estimator: FrequencyEstimator
    items: pa.Table


def find(store: Store, wanted: str | None) -> Subject:
    """Return the sketch of a pane, named by its number or name (None: the newest pane), or in a file or folder."""
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
    """Read a sketch from a file; for a window's item sketch also the items from the file beside it."""
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
    """Return a sketch's parameters, totals and `top` heaviest items, for JSON.

    If the items are known, also the sketch's error against their true counts.
    """
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
    """Compare two sketches, for JSON: parameters, totals, the distance of their heads, and the `top` changes.

    Items known for either sketch are looked up in both. If no items are known, the cells of equal count-min sketches
    are compared row by row: their distance cannot exceed that of the items, up to the error of conservative cells.
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
    """Return the `top` items whose share of the known events changed most; `before` and `after` are their counts."""
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
    """Return a distance for JSON; None for NaN, the distance of an empty sketch."""
    return None if np.isnan(distance) else round(distance, 6)
