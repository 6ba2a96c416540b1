"""From the store to a bundle in memory, within the memory of the process.

Loading verifies every checksum, then that the files fit together, then runs tower and search once, so that faults show
before the first request. A delta shares unchanged data with the version before, except for the index, which is copied;
`weir.serving.bundles.watcher` changes it without a copy.
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


_OWN: Final = 256 << 20
"""Bytes of the process without a bundle, its queue included."""

_PER_ROW: Final = 150
"""Bytes per item for id, key, popularity and order, on top of the files' sizes."""

_PER_PLACE: Final = 46
"""Bytes of a row's id in its list and its entry in the table of places (`faiss_index.keep_places`)."""


@dataclass(frozen=True)
class Memory:
    """The memory limit of a process, in bytes."""

    limit: int

    @classmethod
    def found(cls, wanted: int | None = None, root: Path = Path("/")) -> Self:
        """Return the `wanted` limit, else the least of the control groups' limits and the machine's memory."""
        if wanted is not None:
            return cls(wanted)
        machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        return cls(min([machine, *_groups(root)]))

    def shared_by(self, processes: int) -> "Memory":
        """Return the memory left for shared data after the fixed memory of each process."""
        return Memory(self.limit - (processes - 1) * _OWN)

    def holds(self, *sizes: int) -> bool:
        """Return whether the process has room for data of these sizes together."""
        return _OWN + sum(sizes) <= self.limit


def bundle_bytes(manifest: BundleManifest) -> int:
    """Estimate the memory of a bundle, or the memory that a delta adds, in bytes."""
    rows = manifest.changed if manifest.parent else manifest.items
    return sum(file.size for file in manifest.files) + (_PER_ROW + _PER_PLACE) * rows


def reading_bytes(manifest: BundleManifest) -> int:
    """Return the additional bytes while a bundle is read: a file is in memory twice while it is decoded."""
    return max(file.size for file in manifest.files)


def index_bytes(index: Any) -> int:
    """Estimate the memory of a FAISS index with lists, in bytes."""
    return int(index.ntotal * (index.code_size + _PER_PLACE))


def give_back() -> None:
    """Return freed memory to the system: glibc keeps freed blocks between used ones."""
    with suppress(AttributeError, OSError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)


def _groups(root: Path) -> list[int]:
    """Return the memory limits of the process's control groups (v1 or v2), in bytes."""
    found = []
    for line in _lines(root / "proc/self/cgroup"):
        _, controllers, path = line.split(":", 2)
        if controllers not in ("", "memory"):
            continue
        top = root / "sys/fs/cgroup" / controllers
        file = "memory.limit_in_bytes" if controllers else "memory.max"
        # Inside a container its group may be mounted as the root, although its path is that of the host.
        inner = top / path.lstrip("/")
        folders = [folder for folder in (inner, *inner.parents) if folder.is_relative_to(top)]
        found += [int(text) for folder in folders for text in _lines(folder / file) if text.isdigit()]
    return found


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().split("\n")[:-1]
    except OSError:
        return []


Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Route:
    """The way to load a version: the deltas of `chain` on the `served` bundle or, if None, on a complete one."""

    served: LoadedBundle | None
    chain: list[BundleFiles]

    @classmethod
    def find(cls, log: BundleLog, version: str, served: LoadedBundle | None) -> Self:
        """Read the manifests of a version, back to the served bundle if based on it; raises as `load_bundle`."""
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
    """Read, verify and warm up one version, for one thread of the CPU.

    If it is based on the `served` bundle, only the deltas since are read, and the served one stays unchanged; otherwise
    the whole chain is read. With `places`, deltas can be applied in place later (`weir.serving.bundles.watcher`).

    Raises
    ------
    CorruptArtefactError
        If a file does not match the manifest; as `IncompatibleBundleError` if it matches and is still unusable.
    FileNotFoundError
        If the bundle does not exist.
    """
    return Route.find(log, version, served).load("cpu", 1, places=places)


class _Parts(NamedTuple):
    """The parts that deltas change: the rows, and the FAISS index in CPU memory; None: exact search of the rows."""

    rows: BundleRows
    index: Any


def _copied(served: LoadedBundle) -> _Parts:
    """Return a copy of a bundle's index, and its rows, whose unchanged data stays shared."""
    index = served.index
    return _Parts(served.rows, faiss.clone_index(index.index) if isinstance(index, AnnIndex) else None)


def _read(files: BundleFiles, device: Device) -> _Parts:
    """Read a complete bundle."""
    rows = BundleRows.read(files)
    index = files.decode(BundleFile.INDEX, lambda data: faiss.deserialize_index(np.frombuffer(data, np.uint8)))
    shape, wanted = (int(index.ntotal), int(index.d)), (files.manifest.items, files.manifest.dimension)
    files.require(BundleFile.INDEX, shape == wanted, f"holds {shape} vectors, not {wanted}")
    by_inner_product = index.metric_type == faiss.METRIC_INNER_PRODUCT
    files.require(BundleFile.INDEX, by_inner_product, "does not search by inner product")
    # A flat index on the CPU holds the same vectors as exact search: one copy is enough.
    return _Parts(rows, None if files.manifest.index.type == "Flat" and not pick_gpu(device) else index)


def _changed(parts: _Parts, files: BundleFiles) -> _Parts:
    """Apply a delta: rows are copied, the index is changed in place."""
    delta = BundleDelta.read(files)
    rows, index = parts.rows.changed(files, delta), parts.index
    if index is not None:
        index = with_row_ids(index)
        files.guarded(BundleFile.LISTS, partial(apply_delta, index, delta))
        count = f"leave {index.ntotal} vectors in the index, the manifest says {files.manifest.items}"
        files.require(BundleFile.LISTS, index.ntotal == files.manifest.items, count)
    return _Parts(rows, index)


def _placed(index: Any, exact: Exact, files: BundleFiles, device: Device) -> Index:
    """Return the index on its device, or exact search if that holds the same vectors."""
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
    """Build a bundle from its parts and the tower of `files`, and warm it up; with `search`, the index too."""
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
    if not files.has(name):
        return None
    found: FeatureWeights = files.decode(name, FeatureWeights.decode)
    width, wanted = len(found.dense), files.manifest.dimension
    files.require(name, width == wanted, f"is about vectors of {width} dimensions, not {wanted}")
    return found


def warm_users(bundle: LoadedBundle, batch: int) -> Floats:
    """Run the tower for `batch` users, on the first items of the bundle's base."""
    known = bundle.item_rows.keys[: bundle.manifest.history_length]
    return bundle.users(ItemKeys(np.broadcast_to(known, (batch, len(known)))))


def warm_scorer(bundle: LoadedBundle, users: Floats) -> None:
    """Run the scorer for users (n, dimension) on the first row; raises `ValueError` if a score is not finite."""
    rows = IndexRows(np.zeros((len(users), 1), np.int64))
    if bundle.scorer is not None and not np.isfinite(bundle.scorer(users, bundle.exact, rows)).all():
        raise ValueError("gives scores that are not finite")
