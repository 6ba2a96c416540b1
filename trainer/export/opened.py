"""Cache of recently used servable bundles."""

import threading
from typing import Final

from weir.contracts import BundleLog, BundleManifest
from weir.trainer.export.servable import Servable

__all__ = ["OpenBundles"]

_MOST: Final = 3
"""Size of the cache: the newest, the promoted and the last confirmed bundle."""


class OpenBundles:
    """An open bundle is not read again, and of a chain only the deltas since are read; thread-safe."""

    def __init__(self) -> None:
        self._lock, self._all = threading.Lock(), list[Servable]()

    def open(self, log: BundleLog, manifest: BundleManifest) -> Servable:
        """Return a servable bundle, as `Servable.open`, and cache it."""
        return self.add(Servable.open(log, manifest, self._all))

    def read(self, log: BundleLog, manifest: BundleManifest) -> Servable:
        """Return a bundle that was just written, read from its own files."""
        return Servable.open(log, manifest, [one for one in self._all if one.manifest.version != manifest.version])

    def add(self, servable: Servable) -> Servable:
        """Cache a bundle, replacing another one of the same version."""
        with self._lock:
            others = [one for one in self._all if one.manifest.version != servable.manifest.version]
            self._all = [servable, *others][:_MOST]
        return servable
