"""Load a bundle from the store into memory, and estimate the memory that it takes.

Loading verifies every checksum, then that the files fit together, then runs tower and search once, so that faults show
before the first request. A delta shares unchanged data with the version before, except for the index, which is copied
here and changed in place by `weir.serving.bundles.watcher`.
"""

import ctypes
import os
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

import faiss
import numpy as np
import numpy.typing as npt

from weir.contracts import BundleFile, BundleLog, BundleManifest, IndexRows, ItemKeys, read_format
from weir.contracts.bundles.faiss_index import apply_delta, keep_places, with_row_ids
from weir.contracts.bundles.files import BundleFiles
from weir.contracts.bundles.rows import BundleDelta, BundleRows
from weir.contracts.interactions.features import FeatureWeights
from weir.serving.bundles.bundle import LoadedBundle, Scorer, Tower
from weir.serving.index.index import AnnIndex, Device, Exact, Index, exact_index, on_device, pick_gpu
from weir.serving.index.popular import Popular

__all__ = [
    "Memory",
    "Route",
    "assembled",
    "bundle_bytes",
    "give_back",
    "index_bytes",
    "load_bundle",
    "reading_bytes",
    "warm_scorer",
    "warm_users",
]

Floats = npt.NDArray[np.float32]

_OWN: Final = 256 << 20
"""Bytes of the process without a bundle, its queue included."""

_PER_ROW: Final = 150
"""Bytes per item for id, key, popularity and order, on top of the files' sizes."""

_PER_PLACE: Final = 46
"""Bytes of a row's id in its list and of its entry in the table of places (`faiss_index.keep_places`)."""


@dataclass(frozen=True)
class Memory:
    """The memory limit of a process, in bytes, and whether given data fits below it."""

    limit: int

    @classmethod
    def found(cls, wanted: int | None = None, root: Path = Path("/")) -> Self:
        """Return the `wanted` limit in bytes; None: the least of the control groups' limits and the machine's memory.

        `root` is the folder that holds ``proc`` and ``sys``.
        """
        if wanted is not None:
            return cls(wanted)
        machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        return cls(min([machine, *_groups(root)]))

    def shared_by(self, processes: int) -> "Memory":
        """Return the memory left for shared data by this many processes, each with fixed memory of its own."""
        return Memory(self.limit - (processes - 1) * _OWN)

    def holds(self, *sizes: int) -> bool:
        """Return whether the process has room for data of all these sizes, in bytes."""
        return _OWN + sum(sizes) <= self.limit


def bundle_bytes(manifest: BundleManifest) -> int:
    """Estimate the memory of a complete bundle, or the memory that a delta adds, in bytes."""
    rows = manifest.changed if manifest.parent else manifest.items
    return sum(file.size for file in manifest.files) + (_PER_ROW + _PER_PLACE) * rows


def reading_bytes(manifest: BundleManifest) -> int:
    """Return the bytes needed while a bundle is read, on top of its memory.

    A file is in memory twice while it is decoded.
    """
    return max(file.size for file in manifest.files)


def index_bytes(index: Any) -> int:
    """Estimate the memory of a FAISS index with lists, in bytes."""
    return int(index.ntotal * (index.code_size + _PER_PLACE))


def give_back() -> None:
    """Return freed memory to the system, because glibc keeps freed blocks between used ones."""
    with suppress(AttributeError, OSError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)


def _groups(root: Path) -> list[int]:
    """Return the memory limits of the process's control groups (v1 or v2), in bytes."""
    limits = []
    for line in _lines(root / "proc/self/cgroup"):
        _, controllers, path = line.split(":", 2)
        if controllers not in ("", "memory"):
            continue
        top = root / "sys/fs/cgroup" / controllers
        file = "memory.limit_in_bytes" if controllers else "memory.max"
        # Inside a container its group may be mounted as the root, although its path is that of the host.
        inner = top / path.lstrip("/")
        folders = [folder for folder in (inner, *inner.parents) if folder.is_relative_to(top)]
        limits += [int(text) for folder in folders for text in _lines(folder / file) if text.isdigit()]
    return limits


def _lines(path: Path) -> list[str]:
    """Return the lines of a file; empty if it cannot be read."""
    try:
        return path.read_text().split("\n")[:-1]
    except OSError:
        return []


@dataclass(frozen=True)
class Route:
    """How to load a version: `chain` has the files of its bundles, oldest first.

    The chain consists of deltas on the `served` bundle or, if that is None, begins with a complete bundle.
    """

    served: LoadedBundle | None
    chain: list[BundleFiles]

    @classmethod
    def find(cls, log: BundleLog, version: str, served: LoadedBundle | None) -> Self:
        """Read the manifests of a version and its ancestors, as far as the served bundle if that is an ancestor.

        Raises as `load_bundle`.
        """
        known = [] if served is None else [served.manifest]
        chain = [BundleFiles(log, one) for one in log.chain(log.manifest(version), known)]
        return cls(served if chain[0].manifest in known else None, chain)

    @property
    def deltas(self) -> list[BundleFiles]:
        """The files of the deltas to apply."""
        return self.chain[1:]

    @property
    def changes(self) -> int:
        """Rows that the deltas change, add and remove."""
        return sum(files.manifest.changed + files.manifest.removed for files in self.deltas)

    @property
    def size(self) -> int:
        """Estimate the version's memory in bytes."""
        before = self.served.size if self.served else bundle_bytes(self.chain[0].manifest)
        return before + sum(bundle_bytes(files.manifest) for files in self.deltas)

    def load(self, device: Device, threads: int, *, places: bool = False) -> LoadedBundle:
        """Read, verify and warm up the version; raises as `load_bundle`."""
        before = self.served.popular if self.served else None
        parts = _copied(self.served) if self.served else _read(self.chain[0], device)
        for files in self.deltas:
            parts = _changed(parts, files)
        exact, last = exact_index(parts.rows.vectors), self.chain[-1]
        index = _placed(parts.index, exact, last, device)
        if places and isinstance(index, AnnIndex) and index.keep is None:
            keep_places(index.index)
        loaded = assembled(last, parts.rows, exact, index, before=before, threads=threads, search=True)
        return replace(loaded, size=self.size)


def load_bundle(
    log: BundleLog,
    version: str,
    served: LoadedBundle | None = None,
    *,
    places: bool = False,
) -> LoadedBundle:
    """Read, verify and warm up one version, for search by one CPU thread.

    If the version is based on the `served` bundle, only the later deltas are read, and `served` stays unchanged;
    otherwise the whole chain is read. With `places`, deltas can be applied to the index in place later
    (`weir.serving.bundles.watcher`).

    Raises
    ------
    CorruptArtefactError
        If a file does not match the manifest; its subclass `IncompatibleBundleError` if a matching file is unusable.
    FileNotFoundError
        If the bundle does not exist.
    """
    return Route.find(log, version, served).load("cpu", 1, places=places)


class _Parts(NamedTuple):
    """The parts of a bundle that deltas change: its rows, and its FAISS index in CPU memory.

    `index` None: the rows are searched exactly.
    """

    rows: BundleRows
    index: Any


def _copied(served: LoadedBundle) -> _Parts:
    """Return a bundle's rows, which are shared with it, and a copy of its index."""
    index = served.index
    return _Parts(served.rows, faiss.clone_index(index.index) if isinstance(index, AnnIndex) else None)


def _read(files: BundleFiles, device: Device) -> _Parts:
    """Read the rows and the index of a complete bundle."""
    rows = BundleRows.read(files)
    index = files.decode(BundleFile.INDEX, lambda data: faiss.deserialize_index(np.frombuffer(data, np.uint8)))
    shape, wanted = (int(index.ntotal), int(index.d)), (files.manifest.items, files.manifest.dimension)
    files.require(BundleFile.INDEX, shape == wanted, f"holds {shape} vectors, not {wanted}")
    by_inner_product = index.metric_type == faiss.METRIC_INNER_PRODUCT
    files.require(BundleFile.INDEX, by_inner_product, "does not search by inner product")
    # A flat index on the CPU holds the same vectors as exact search: one copy is enough.
    return _Parts(rows, None if files.manifest.index.type == "Flat" and not pick_gpu(device) else index)


def _changed(parts: _Parts, files: BundleFiles) -> _Parts:
    """Apply a delta: return changed copies of the rows, and the same index changed in place."""
    delta = BundleDelta.read(files)
    rows, index = parts.rows.changed(files, delta), parts.index
    if index is not None:
        index = with_row_ids(index)
        files.guarded(BundleFile.LISTS, partial(apply_delta, index, delta))
        count = f"leave {index.ntotal} vectors in the index, the manifest says {files.manifest.items}"
        files.require(BundleFile.LISTS, index.ntotal == files.manifest.items, count)
    return _Parts(rows, index)


def _placed(index: Any, exact: Exact, files: BundleFiles, device: Device) -> Index:
    """Return the index on its device; exact search instead if the index is missing or a flat one on the CPU."""
    info = files.manifest.index
    if index is None:
        return exact
    ann: AnnIndex = files.guarded(BundleFile.INDEX, partial(on_device, index, info.parameters, device))
    return exact if info.type == "Flat" and ann.keep is None else ann


def assembled(
    files: BundleFiles,
    rows: BundleRows,
    exact: Exact,
    index: Index,
    *,
    before: Popular | None,
    threads: int,
    search: bool,
) -> LoadedBundle:
    """Build a bundle from its rows and index, and the models in `files`, and run tower and scorer once.

    `before` is the popularity of the version before, `threads` the threads of a tower run. With `search`, the index is
    searched once, too. Raises `IncompatibleBundleError`.
    """
    bundle = LoadedBundle(
        manifest=files.manifest,
        tower=files.decode(BundleFile.TOWER, lambda data: Tower(data, threads)),
        index=index,
        exact=exact,
        rows=rows,
        popular=Popular.of(rows.popularity, before),
        key_secret=found.key_secret if (found := read_format(files.log.root or files.log.store)) else "",
        features=_features(files, BundleFile.FEATURES),
        user_features=_features(files, BundleFile.USER_FEATURES),
        scorer=files.decode(BundleFile.SCORER, lambda data: Scorer(data, threads))
        if files.has(BundleFile.SCORER)
        else None,
    )
    for batch in (1, 2):
        users: Floats = files.guarded(BundleFile.TOWER, partial(warm_users, bundle, batch))
        good = users.shape == (batch, files.manifest.dimension) and bool(np.isfinite(users).all())
        problem = f"gives vectors of shape {users.shape} or values that are not finite"
        files.require(BundleFile.TOWER, good, problem)
        if search and bundle.items:
            bundle.index.search(users, 1)
    if bundle.scorer is not None and len(bundle.rows):
        files.guarded(BundleFile.SCORER, partial(warm_scorer, bundle, users))
    return bundle


def _features(files: BundleFiles, name: str) -> FeatureWeights | None:
    """Read the feature weights in the file `name`; None if the bundle has no such file."""
    if not files.has(name):
        return None
    weights: FeatureWeights = files.decode(name, FeatureWeights.decode)
    width, dimension = len(weights.dense), files.manifest.dimension
    files.require(name, width == dimension, f"is about vectors of {width} dimensions, not {dimension}")
    return weights


def warm_users(bundle: LoadedBundle, batch: int) -> Floats:
    """Run the tower on a batch of equal histories, some items of the bundle; return the vectors (batch, dimension)."""
    history = bundle.item_rows.keys[: bundle.manifest.history_length]
    return bundle.users(ItemKeys(np.broadcast_to(history, (batch, len(history)))))


def warm_scorer(bundle: LoadedBundle, users: Floats) -> None:
    """Score the bundle's first row for users (n, dimension); raises `ValueError` if a score is not finite."""
    rows = IndexRows(np.zeros((len(users), 1), np.int64))
    if bundle.scorer is not None and not np.isfinite(bundle.scorer(users, bundle.exact, rows)).all():
        raise ValueError("gives scores that are not finite")
