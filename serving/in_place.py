"""Apply a delta to the served index in place, between two batches: no second index, cost in proportion to the delta.

Everything that can fail is done beside the served version first: reading, checksums, the rows, the tower, and a check
that the lists exist. The search thread only makes a few FAISS calls, about 1.5 ms per 1,000 rows.
"""

from dataclasses import dataclass, replace
from functools import partial
from time import time
from typing import Any, Final, Literal, NamedTuple, Self

import numpy as np

from weir.contracts import BundleFile
from weir.contracts.bundle_delta import BundleDelta
from weir.contracts.index_delta import apply_delta, check_delta
from weir.contracts.layers import Layers
from weir.serving.bundle import LoadedBundle
from weir.serving.index import AnnIndex
from weir.serving.layered import exact_index
from weir.serving.loading import Route, assembled
from weir.serving.memory import Memory, index_bytes

__all__ = ["Change", "DamagedIndexError", "DeltaPolicy", "Start"]

_MANY: Final = 20_000
"""Rows that can be changed within about 30 ms; more should not hold up queries without need."""


class DamagedIndexError(Exception):
    """An in-place delta has failed midway: the index no longer belongs to any version."""


class Start(NamedTuple):
    """The served bundle and its index, to which deltas are applied in place."""

    served: LoadedBundle
    ann: AnnIndex

    @classmethod
    def of(cls, route: Route) -> "Start | None":
        """Return the start of a route; None if its deltas cannot be applied in place."""
        served = route.served
        index = served.changeable if served is not None else None
        if served is None or index is None or not route.deltas:
            return None
        before, after = served.manifest, route.chain[-1].manifest
        same = (before.dimension, before.metric) == (after.dimension, after.metric)
        return cls(served, index) if same and before.index.parameters.keys() == after.index.parameters.keys() else None


@dataclass(frozen=True)
class Change:
    """A new version, `ready` except for its index, which still belongs to the served one."""

    start: Start
    deltas: list[BundleDelta]
    ready: LoadedBundle
    assigned: Layers[np.int32] | None

    @classmethod
    def prepare(cls, start: Start, route: Route, threads: int) -> Self:
        """Read and verify the deltas of a route; raises as `weir.serving.loading.load_bundle`."""
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
        """Change the index and return the new version; called by the search thread between two batches.

        Raises `DamagedIndexError` if that fails midway; then the served version cannot answer any more.
        """
        try:
            bundle = replace(self.ready, index=self._changed(self.start.ann.index), servable_at=time())
        except Exception as error:
            self.start.served.handover.damaged = True
            raise DamagedIndexError(f"{self.start.served.version} cannot be searched any more: {error}") from error
        self.start.served.handover.to = bundle
        return bundle

    def _changed(self, index: Any) -> AnnIndex:
        for delta in self.deltas:
            apply_delta(index, delta)
        if index.ntotal != self.ready.items:
            raise ValueError(f"{index.ntotal} vectors are in the index, {self.ready.items} items in its bundle")
        parameters = {**self.start.ann.parameters, **self.ready.manifest.index.parameters}
        return replace(self.start.ann, parameters=parameters, lists=int(index.nlist), assigned=self.assigned)


def _reassigned(lists: Layers[np.int32] | None, delta: BundleDelta) -> Layers[np.int32] | None:
    """Return the list of each row after a delta."""
    if lists is None or delta.lists is None:
        return lists
    return lists.replaced(delta.rows, delta.lists.astype(np.int32), delta.removed)


@dataclass(frozen=True)
class DeltaPolicy:
    """Decides which deltas are applied in place (`weir.serving.config.ServingConfig.deltas`)."""

    how: Literal["auto", "clone", "in_place"]
    memory: Memory

    @property
    def places(self) -> bool:
        """Whether indexes must keep the places of their rows, for in-place deltas."""
        return self.how != "clone"

    def in_place(self, route: Route) -> Start | None:
        """Return the start of an in-place change; None if the version should be loaded beside the served one."""
        start = Start.of(route) if self.places else None
        if start is None or self.how == "in_place" or route.changes <= _MANY:
            return start
        return None if self.memory.holds(start.served.size, index_bytes(start.ann.index)) else start
