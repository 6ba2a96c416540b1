"""Follows ``bundles/CURRENT``: loads the promoted bundle, or applies its delta to the served one, and swaps it in.

Everything that can fail is done first, while the served version answers: reading, checksums, the rows, the tower, and a
check that the lists exist. The search thread only makes a few FAISS calls, about 1.5 ms per 1,000 rows.

In two cases no bundle is served until the next refresh has loaded the promoted one from scratch: an in-place delta that
fails midway, and a bundle that does not fit into memory beside the served one.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, Literal, NamedTuple, Self

import numpy as np

from weir.contracts import BundleFile, BundleLog, CorruptArtefactError, EventClock, Store
from weir.contracts.base.arrays import Layers
from weir.contracts.bundles.faiss_index import apply_delta, check_delta
from weir.contracts.bundles.rows import BundleDelta
from weir.contracts.bundles.variants import MAIN, log_of
from weir.runtime.log_once import LogOnce
from weir.serving.bundles.bundle import LoadedBundle
from weir.serving.bundles.loading import Memory, Route, assembled, index_bytes, reading_bytes
from weir.serving.index.index import AnnIndex, Device, exact_index, pick_gpu
from weir.serving.metrics import BundleMetrics

__all__ = ["BundleWatcher", "Change", "DamagedIndexError", "DeltaPolicy", "Start"]

log = logging.getLogger(__name__)

_MANY: Final = 20_000
"""Changed rows up to which a delta is always applied in place: about 30 ms, during which queries wait."""


class DamagedIndexError(Exception):
    """An in-place delta has failed midway: the index does not belong to any version any more."""


class Start(NamedTuple):
    """The start of an in-place change: the `served` bundle, and its FAISS index `ann`, to which deltas are applied."""

    served: LoadedBundle
    ann: AnnIndex

    @classmethod
    def of(cls, route: Route) -> "Start | None":
        """Return the bundle and index that a route starts from; None if its deltas cannot be applied in place."""
        served = route.served
        index = served.changeable if served is not None else None
        if served is None or index is None or not route.deltas:
            return None
        before, after = served.manifest, route.chain[-1].manifest
        same = (before.dimension, before.metric) == (after.dimension, after.metric)
        return cls(served, index) if same and before.index.parameters.keys() == after.index.parameters.keys() else None


@dataclass(frozen=True)
class Change:
    """Turns the served bundle into a new version: prepared while the served one answers, completed by `take`.

    `ready` is the new bundle with the served index, to which `deltas` are still to be applied. `assigned` is the
    inverted list of each row after the deltas.
    """

    start: Start
    deltas: list[BundleDelta]
    ready: LoadedBundle
    assigned: Layers[np.int32] | None

    @classmethod
    def prepare(cls, start: Start, route: Route, threads: int) -> Self:
        """Read and verify the deltas of a route, and build the new bundle except for its index.

        Raises as `weir.serving.bundles.loading.load_bundle`.
        """
        (served, ann), deltas, last = start, [], route.chain[-1]
        rows, index, lists, assigned = served.rows, ann.index, ann.lists, ann.assigned
        for files in route.deltas:
            deltas.append(BundleDelta.read(files))
            rows = rows.changed(files, deltas[-1])
            lists = files.guarded(BundleFile.LISTS, partial(check_delta, index, deltas[-1], lists))
            assigned = _reassigned(assigned, deltas[-1])
        whole = f"cannot be taken in place: the index has {index.ntotal} vectors, its bundle {served.items} items"
        last.require(BundleFile.LISTS, index.ntotal == served.items, whole)
        exact = exact_index(rows.vectors)
        ready = assembled(last, rows, exact, ann, before=served.popular, threads=threads, search=False)
        return cls(start, deltas, replace(ready, size=route.size), assigned)

    def take(self) -> LoadedBundle:
        """Apply the deltas to the index and return the new bundle; called between two batches.

        Raises `DamagedIndexError` if a delta fails; then the served version cannot answer any more.
        """
        try:
            bundle = replace(self.ready, index=self._changed(self.start.ann.index), servable_at=time.time())
        except Exception as error:
            self.start.served.transfer.damaged = True
            raise DamagedIndexError(f"{self.start.served.version} cannot be searched any more: {error}") from error
        self.start.served.transfer.to = bundle
        return bundle

    def _changed(self, index: Any) -> AnnIndex:
        """Apply the deltas to a FAISS index, and return it with the new version's parameters."""
        for delta in self.deltas:
            apply_delta(index, delta)
        if index.ntotal != self.ready.items:
            raise ValueError(f"{index.ntotal} vectors are in the index, {self.ready.items} items in its bundle")
        parameters = {**self.start.ann.parameters, **self.ready.manifest.index.parameters}
        return replace(self.start.ann, parameters=parameters, lists=int(index.nlist), assigned=self.assigned)


def _reassigned(lists: Layers[np.int32] | None, delta: BundleDelta) -> Layers[np.int32] | None:
    """Return the inverted list of each row after a delta, given the `lists` before it; None if they are unknown."""
    if lists is None or delta.lists is None:
        return lists
    return lists.replaced(delta.rows, delta.lists.astype(np.int32), delta.removed)


@dataclass(frozen=True)
class DeltaPolicy:
    """Decides which deltas are applied in place; `how` is the setting ``serving.deltas``."""

    how: Literal["auto", "clone", "in_place"]
    memory: Memory

    @property
    def places(self) -> bool:
        """Whether loaded indexes must keep the place of each row, which in-place deltas need."""
        return self.how != "clone"

    def in_place(self, route: Route) -> Start | None:
        """Return the bundle and index to change in place; None if the version is to be loaded as a second bundle."""
        start = Start.of(route) if self.places else None
        if start is None or self.how == "in_place" or route.changes <= _MANY:
            return start
        return None if self.memory.holds(start.served.size, index_bytes(start.ann.index)) else start


_REFRESHES_PER_LOOK: Final = 16
"""While no bundle is promoted, the existing bundles are listed at every 16th refresh."""


@dataclass
class BundleWatcher:
    """Follows the bundles of one variant, and holds the served `bundle`, which readers take once per request.

    `promoted` is the version to serve. `variant` is the followed variant, and `beside` returns the bytes that bundles
    of other variants take. `between` runs a change while no search runs
    (`weir.serving.batching.batcher.Batcher.between`). `describe` applies the catalogue to a new version before it
    answers (`weir.serving.bundles.catalogue.CatalogueFollower.describe`). If other processes answer
    (`weir.serving.processes`), `share` hands them a version and returns its shared form, and `drop` takes the served
    version away from them.

    One thread calls `refresh`. A refused version is not tried again until another version is promoted, because bundles
    are never rewritten. If the store cannot be read, the next call retries.
    """

    store: Store
    metrics: BundleMetrics
    device: Device = "cpu"
    threads: int = 1
    policy: DeltaPolicy = field(default_factory=lambda: DeltaPolicy("auto", Memory.found()))
    between: Callable[[Callable[[], LoadedBundle]], LoadedBundle] = lambda change: change()
    describe: Callable[[LoadedBundle, LoadedBundle | None], None] = lambda _, __: None
    share: Callable[[LoadedBundle], LoadedBundle] = lambda bundle: bundle
    drop: Callable[[], None] = lambda: None
    variant: str = MAIN
    beside: Callable[[], int] = lambda: 0
    bundle: LoadedBundle | None = None
    promoted: str | None = None
    _refused: str | None = field(default=None, init=False)
    _lost: CorruptArtefactError | None = field(default=None, init=False)
    _vain: int = field(default=0, init=False)
    _once: LogOnce = field(default_factory=lambda: LogOnce(log), init=False)

    @property
    def bundle_log(self) -> BundleLog:
        """The bundle log of the followed variant."""
        return log_of(self.store, self.variant)

    @property
    def loaded(self) -> list[LoadedBundle]:
        """The served bundle as a list, empty if no bundle is served."""
        return [bundle] if (bundle := self.bundle) is not None else []

    def refresh(self) -> bool:
        """Serve the promoted bundle unless it is served already; return whether a bundle was swapped in.

        Never raises: failures are logged once.
        """
        version = None
        try:
            version = self.promoted = self.bundle_log.current()
            if version is None:
                self._look_for_others()
                return False
            self._vain, self._lost = 0, None
            if version == self._refused or (self.bundle and self.bundle.version == version):
                self._once.succeeded()
                return False
            swapped = self._swap(version)
        except CorruptArtefactError as error:
            self._refused = version or self._refused
            self._complain(error, version)
        except Exception as error:  # noqa: BLE001 - object stores have errors of their own, which are no OSErrors
            self._complain(error, version)
        else:
            self._once.succeeded()
            return swapped
        return False

    def _look_for_others(self) -> None:
        """Log once if bundles exist but none is promoted; looked for only every few refreshes, as listing is slow.

        The first bundle is not promoted for a moment after its manifest is written, so only the second sighting is
        logged.
        """
        vain, self._vain = self._vain, self._vain + 1
        if vain > 1 and vain % _REFRESHES_PER_LOOK:
            return
        before, self._lost = self._lost, self.bundle_log.lost()
        if self._lost is None:
            self._once.succeeded()
        elif before is not None and self._once.failed(self._lost, f"no bundle is promoted, {self._served} stays"):
            self.metrics.refused.inc()

    @property
    def _served(self) -> str:
        return "none" if self.bundle is None else self.bundle.version

    def _swap(self, version: str) -> bool:
        """Load and serve a version; return False if the served version was dropped instead, to make room for it."""
        start, before = time.perf_counter(), self.bundle
        route = Route.find(self.bundle_log, version, None if pick_gpu(self.device) else before)
        if before is not None and route.served is None and not self._fits(route, before):
            self._drop(route, before)
            return False
        loaded = self._shared(self._load(route))
        seconds = time.perf_counter() - start
        self._refused = None
        self.metrics.load_seconds.observe(seconds)
        self.show(before)
        log.info("serving bundle %s: %d items, loaded in %.2f s", version, loaded.items, seconds)
        return True

    def show(self, before: LoadedBundle | None) -> None:
        """Set the metrics to the served bundle, which has replaced the bundle `before`."""
        if (served := self.bundle) is not None:
            self.metrics.served(
                served.manifest,
                items=served.items,
                servable_at=served.servable_at,
                happened=self._happened(served.manifest.max_event_ms),
                is_older=before is not None and served.manifest.created_at < before.manifest.created_at,
            )

    def _load(self, route: Route) -> LoadedBundle:
        """Serve the version of a route, by in-place deltas or loaded beside the served one, and return it."""
        start = self.policy.in_place(route)
        if start is not None:
            change = Change.prepare(start, route, self.threads)
            self.describe(change.ready, self.bundle)
            loaded = self._apply(change)
        else:
            loaded = route.load(self.device, self.threads, places=self.policy.places)
            self.describe(loaded, self.bundle)
            self.bundle = loaded
        if route.served is not None:
            self.metrics.deltas.labels("clone" if start is None else "in_place").inc()
        return loaded

    def _shared(self, loaded: LoadedBundle) -> LoadedBundle:
        """Share a version with the other processes, and serve and return its shared form.

        If sharing fails, no bundle is served, and the next refresh loads the version from scratch.
        """
        try:
            self.bundle = self.share(loaded)
        except Exception:
            self.bundle = None
            raise
        return self.bundle

    def _apply(self, change: Change) -> LoadedBundle:
        """Apply a prepared change to the served index between two batches, and serve and return its bundle.

        Raises `DamagedIndexError`; then no bundle is served any more.
        """

        def take() -> LoadedBundle:
            start = time.perf_counter()
            self.bundle = taken = change.take()
            self.metrics.pause_seconds.observe(time.perf_counter() - start)
            return taken

        try:
            return self.between(take)
        except DamagedIndexError:
            self._serve_nothing()
            self.metrics.damaged.inc()
            raise

    def _fits(self, route: Route, before: LoadedBundle) -> bool:
        """Return whether memory has room to read the version of a route and keep it beside the served bundle."""
        reading = max(reading_bytes(files.manifest) for files in route.chain)
        return self.policy.memory.holds(self.beside(), before.size, route.size, reading)

    def _drop(self, route: Route, before: LoadedBundle) -> None:
        """Verify the files of the new version, then drop the served bundle, to make room at the next refresh."""
        for files in route.chain:
            for entry in files.manifest.files:
                files.log.read(files.manifest, entry.name)
        self._serve_nothing()
        self.metrics.dropped.inc()
        gib = (before.size + route.size) / 2**30
        name = files.manifest.version
        log.warning("%s is dropped before %s is read: both would take %.1f GiB", before.version, name, gib)

    def _serve_nothing(self) -> None:
        self.bundle = None
        self.drop()
        self.metrics.nothing()

    def _happened(self, event_ms: int) -> float:
        """Return the wall-clock time of an event, for a metric; NaN if the store's clock cannot be read."""
        try:
            return EventClock.of(self.store).wall_time(event_ms)
        except Exception as error:  # noqa: BLE001 - whatever is wrong with the clock, the bundle is good
            self._once.failed(error, "the time of the newest event is unknown")
            return float("nan")

    def _complain(self, error: Exception, version: str | None) -> None:
        """Log an error once, with the file or the version that it concerns, and count the refusal."""
        current = self.bundle_log.store.path("bundles/CURRENT")
        # A damaged file may name a version with any characters.
        what = current if version is None else f"{current}: bundle {ascii(version)[1:-1]}"
        if self._once.failed(error, f"{what} is refused, {self._served} stays"):
            self.metrics.refused.inc()
