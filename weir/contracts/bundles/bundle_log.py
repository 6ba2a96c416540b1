"""The bundles of a store or variant (contract 4): listing, promotion, pins, chains of deltas and retirement.

A bundle, one servable version of the model with its index and ids, lives in ``bundles/<version>/`` and is never
rewritten. ``bundles/CURRENT`` names the promoted bundle and is replaced atomically; ``bundles/PIN`` keeps an operator's
choice promoted. A row number means the same item in the index, the embeddings and the items.

A bundle is complete, or a delta to its parent. The parents of a delta, down to a complete bundle, are its chain, and
are kept as long as the delta. A chain can be compacted: ``bundles/<version>/complete/`` then holds the rows of that
delta as a complete bundle. Later readers start there, and later deltas name that version as their base.
"""

import logging
import math
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from pydantic import Field

from weir.contracts.base.errors import CorruptArtefactError
from weir.contracts.bundles.manifest import COMPACTED, BundleManifest, BundleRef, Version
from weir.contracts.storage.artefacts import MANIFEST
from weir.contracts.storage.documents import Document, decode_document, read_document, write_document
from weir.contracts.storage.local_files import is_draft
from weir.contracts.storage.store import Store, checksum

__all__ = ["BundleLog", "Pin", "Withdrawal"]

logger = logging.getLogger(__name__)

_CURRENT: Final = "bundles/CURRENT"
_PIN: Final = "bundles/PIN"
_WITHDRAWAL: Final = "VERDICT.json"
_GRACE_SECONDS: Final = 3600.0
"""Longest time for an export to write its manifest; an older folder without one is left over from a killed export."""


class _Current(Document):
    version: Version


class Pin(Document):
    """``bundles/PIN``: only `version` is promoted until an operator lifts the pin."""

    version: Version
    by: str = Field(description="who set it")
    at: float = Field(description="wall clock, seconds since 1970")
    why: str = ""

    @property
    def sentence(self) -> str:
        """The pin in a sentence, for verdicts and listings."""
        when = datetime.fromtimestamp(self.at, UTC).strftime("%Y-%m-%d %H:%M")
        return f"pinned to {self.version} by {self.by} at {when} UTC" + (f": {self.why}" if self.why else "")


class Withdrawal(Document):
    """``VERDICT.json`` of a bundle that was promoted, and then failed on events that it had not been trained on."""

    version: Version
    fallback: Version = Field(description="the bundle that is served instead")
    window: str = Field(description="the window that decided it")
    sequence: int = Field(ge=0)
    cases: int = Field(ge=0, description="events that both were measured on")
    at: float = Field(description="wall clock, seconds since 1970")
    verdict: str


@dataclass(frozen=True)
class BundleLog:
    """Lists, promotes, pins and retires the bundles of `store`.

    For a variant, `store` is the variant's part, and `root` the whole store (`weir.contracts.bundles.variants`).
    """

    store: Store
    root: Store | None = None

    def current(self) -> str | None:
        """Return the promoted version, None before the first promotion; raises `CorruptArtefactError`."""
        try:
            return read_document(self.store, _CURRENT, _Current).version
        except FileNotFoundError:
            return None

    def lost(self) -> CorruptArtefactError | None:
        """Return the error if ``CURRENT`` is missing although bundles were promoted, else None.

        Its message names the bundle to promote: the pinned one, or the newest that passed the gate.
        """
        if self.store.exists(_CURRENT):
            return None
        versions = self.versions()
        passed = [manifest.version for manifest in self.manifests() if manifest.promoted] if versions else []
        try:
            pin = self.pin()
            left = [version for version in passed if self.withdrawal(version) is None] or passed
        except CorruptArtefactError:
            pin, left = None, passed
        if not passed and pin is None:
            return None
        wanted = pin.version if pin and pin.version in versions else (left or versions or ["VERSION"])[-1]
        remedy = f"`weir promote {wanted}` serves it, and `weir promote --unpin` lets the trainer promote the next one"
        return CorruptArtefactError(self.store.path(_CURRENT), f"is missing beside {len(versions)} bundles: {remedy}")

    def manifest(self, version: str) -> BundleManifest:
        """Return a bundle's manifest; raises `CorruptArtefactError` or `FileNotFoundError`."""
        return self.manifest_and_ref(version)[0]

    def manifest_and_ref(self, version: str) -> tuple[BundleManifest, BundleRef]:
        """Return a bundle's manifest, and the reference by which deltas name it; raises as `manifest`."""
        name = f"bundles/{version}/{MANIFEST}"
        data = self.store.read(name)
        manifest = decode_document(self.store.path(name), data, BundleManifest)
        if manifest.version != version:
            problem = f"describes version {manifest.version}: it was copied from there; export the bundle again"
            raise CorruptArtefactError(self.store.path(name), problem)
        return manifest, BundleRef(version=version, checksum=checksum(data))

    def versions(self) -> list[str]:
        """Return all versions in order of name, which starts with the sequence of the newest pane trained on."""
        return [name.split("/")[1] for name in self.store.glob(f"bundles/*/{MANIFEST}")]

    def manifests(self) -> list[BundleManifest]:
        """Return the readable manifests in order of export, which after a retraining differs from the order of names.

        Bundles that are retired meanwhile, or have a damaged manifest (logged), are left out.
        """
        found = []
        for version in self.versions():
            try:
                found.append(self.manifest(version))
            except FileNotFoundError:
                continue
            except CorruptArtefactError as error:
                logger.warning("bundle %s is left out: %s", version, error)
        return sorted(found, key=lambda manifest: (manifest.created_at, manifest.version))

    def held(self, newest: BundleManifest | None) -> str | None:
        """Return the reason why the newest bundle is not promoted; None if it is, or is about to be.

        Raises `CorruptArtefactError`.
        """
        if (pin := self.pin()) is not None:
            return pin.sentence
        if newest is None or self.current() == newest.version:
            return None
        withdrawal = self.withdrawal(newest.version)
        return withdrawal.verdict if withdrawal else None if newest.promoted else newest.verdict

    def chain(self, manifest: BundleManifest, known: Collection[BundleManifest] = ()) -> list[BundleManifest]:
        """Return the manifests that make up a bundle, from a complete or a `known` one to the bundle itself.

        Unless a known bundle is on the way, the chain starts at the newest compacted bundle, if any. Raises
        `CorruptArtefactError` if a needed bundle is missing, damaged, or not the one that its child changes.
        """
        found, shortest = [manifest], list[BundleManifest]()
        while (parent := found[-1].parent) is not None and found[-1] not in known:
            if (whole := self.compacted(found[-1])) is not None:
                shortest = shortest or [*found[:-1], whole]
                if not known or whole in known:
                    return [*found[:-1], whole][::-1]
            try:
                found.append(self._parent(parent, found[-1].version))
            except CorruptArtefactError:
                if not shortest:
                    raise
                return shortest[::-1]
        return (found if found[-1] in known else shortest or found)[::-1]

    def compacted(self, delta: BundleManifest) -> BundleManifest | None:
        """Return the compacted bundle of a delta; None if there is none, or a damaged one (logged)."""
        try:
            found = read_document(self.store, f"{delta.folder}/{COMPACTED}/{MANIFEST}", BundleManifest)
        except FileNotFoundError:
            return None
        except CorruptArtefactError as error:
            logger.warning("the whole chain of bundle %s is needed: %s", delta.version, error)
            return None
        # A damaged delta is exported again, perhaps with other rows.
        return found if found.compacts == self.manifest_and_ref(delta.version)[1] else None

    def _parent(self, wanted: BundleRef, child: str) -> BundleManifest:
        path = self.store.path(f"bundles/{wanted.version}/{MANIFEST}")
        try:
            parent, found = self.manifest_and_ref(wanted.version)
        except FileNotFoundError:
            raise CorruptArtefactError(path, f"is missing, and bundle {child} changes it") from None
        if found != wanted:
            problem = f"has checksum {found.checksum}, bundle {child} changes the one with {wanted.checksum}"
            raise CorruptArtefactError(path, problem)
        return parent

    def read(self, manifest: BundleManifest, name: str) -> bytes:
        """Return a verified file of a bundle; raises `CorruptArtefactError`."""
        return self.store.read_verified(manifest.folder, manifest.file(name))

    def commit(self, manifest: BundleManifest) -> BundleRef:
        """Write the manifest, which makes the bundle exist, and return its reference; write the other files first."""
        entry = write_document(self.store, f"{manifest.folder}/{MANIFEST}", manifest)
        return BundleRef(version=manifest.version, checksum=entry.checksum)

    def promote(self, version: str) -> None:
        """Point ``CURRENT`` at a version, even if another one is pinned.

        Raises `FileNotFoundError` if the bundle does not exist, `CorruptArtefactError` if its manifest is damaged.
        """
        self.manifest(version)
        write_document(self.store, _CURRENT, _Current(version=version))

    def publish(self, version: str) -> bool:
        """Promote a version unless a bundle is pinned; return whether it was promoted. Raises as `promote` and `pin`.

        An operator writes the pin before ``CURRENT``: a pin that is found afterwards was set meanwhile, and wins.
        """
        if self.pin() is None:
            self.promote(version)
        if (pin := self.pin()) is None:
            return True
        if self._serves_other_than(pin.version):
            self.promote(pin.version)
        return False

    def _serves_other_than(self, version: str) -> bool:
        try:
            return self.current() != version
        except CorruptArtefactError:
            return True

    def pin(self) -> Pin | None:
        """Return the operator's pin, or None; raises `CorruptArtefactError`."""
        try:
            return read_document(self.store, _PIN, Pin)
        except FileNotFoundError:
            return None

    def set_pin(self, pin: Pin) -> None:
        """Promote a version and keep it promoted, replacing any other pin; raises as `promote`."""
        self.manifest(pin.version)
        write_document(self.store, _PIN, pin)
        self.promote(pin.version)

    def lift_pin(self) -> None:
        """Remove the pin, if any, so that the trainer promotes again."""
        self.store.remove(_PIN)

    def withdraw(self, withdrawal: Withdrawal) -> None:
        """Record that a version failed, so that the trainer does not promote it again."""
        write_document(self.store, f"bundles/{withdrawal.version}/{_WITHDRAWAL}", withdrawal)

    def withdrawal(self, version: str) -> Withdrawal | None:
        """Return the record of a withdrawn version, or None; raises `CorruptArtefactError`."""
        try:
            return read_document(self.store, f"bundles/{version}/{_WITHDRAWAL}", Withdrawal)
        except FileNotFoundError:
            return None

    def retire(self, keep: int = 3, spare: Collection[str] = (), younger_than: float = 0.0) -> list[str]:
        """Remove old bundles and the remains of exports killed more than an hour ago; return the removed versions.

        The `keep` newest, the promoted, the pinned and the `spare` bundles stay, and bundles exported within the last
        `younger_than` seconds, all with their chains. Raises `CorruptArtefactError` if ``CURRENT`` or ``PIN`` is
        damaged: the bundle that it names is unknown, so all stay.
        """
        pin, manifests = self.pin(), self.manifests()
        kept = {self.current(), *spare} | ({pin.version} if pin else set())
        kept |= {manifest.version for manifest in manifests[-keep:]}
        if younger_than:
            kept |= {manifest.version for manifest in manifests if manifest.created_at > time.time() - younger_than}
        kept |= _ancestors(kept, {manifest.version: manifest for manifest in manifests})
        removed = [manifest.version for manifest in manifests if manifest.version not in kept]
        for version in reversed(removed):
            # A delta is removed before its parent; without its manifest a half-removed bundle does not exist.
            self.store.remove(f"bundles/{version}/{COMPACTED}/{MANIFEST}")
            self.store.remove(f"bundles/{version}/{MANIFEST}")
            self.store.remove(f"bundles/{version}")
        self._remove_leftovers(time.time() - _GRACE_SECONDS)
        return removed

    def _remove_leftovers(self, before: float) -> None:
        """Remove folders without a manifest, and half-written files (drafts), that were last written before a time."""
        there, newest = self.store.find("bundles"), dict[str, float]()
        for name, stat in there.items():
            folder, written = name.rpartition("/")[0], math.inf if stat.written is None else stat.written
            newest[folder] = max(newest.get(folder, 0.0), written)
            if is_draft(name) and written < before:
                self.store.remove(name)
        for folder in newest.keys() - {"bundles"}:
            # A compacted bundle is useless without its delta.
            is_whole = all(f"{one}/{MANIFEST}" in there for one in {folder, folder.removesuffix(f"/{COMPACTED}")})
            if not is_whole and newest[folder] < before:
                self.store.remove(folder)


def _ancestors(versions: Collection[str | None], manifests: Mapping[str, BundleManifest]) -> set[str]:
    """Return the ancestors of the given versions, each up to the base that its chain starts at."""
    ancestors: set[str] = set()
    for version in versions:
        manifest = manifests.get(str(version))
        base = manifest.base if manifest else None
        while manifest is not None and manifest.parent is not None and manifest.version != base:
            ancestors.add(manifest.parent.version)
            manifest = manifests.get(manifest.parent.version)
    return ancestors
