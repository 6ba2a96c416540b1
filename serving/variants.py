"""Champion and challenger in one server: follows the bundles of both, and chooses the bundle that answers a call.

When the challenger becomes the champion, its bundle is already in memory: the roles change by one assignment. If a
third variant becomes the champion, the previous champion answers until the new one's bundle is loaded. The bundle of a
variant without a role is dropped.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from prometheus_client import CollectorRegistry, Counter, Gauge

from weir.contracts import Key, Store, hash_id
from weir.contracts.bundles.variants import MAIN, Roles, VariantError, challenges, roles_in
from weir.retrieval.v1 import retrieval_pb2 as pb
from weir.runtime.log_once import LogOnce
from weir.serving.bundles.bundle import LoadedBundle
from weir.serving.bundles.followers import Bundles
from weir.serving.bundles.loading import Memory
from weir.serving.bundles.watcher import BundleWatcher, DeltaPolicy
from weir.serving.config import ServingConfig
from weir.serving.metrics import BundleMetrics

__all__ = ["LineMetrics", "Request", "VariantRouter", "bundles_of", "check_roles", "chosen", "only"]

log = logging.getLogger(__name__)

Request = pb.RetrieveRequest | pb.EmbedRequest

Watching = Callable[[str, BundleMetrics], BundleWatcher]
"""Takes a variant and its metrics, and returns its watcher."""


def only(request: Request, champion: LoadedBundle) -> LoadedBundle:  # noqa: ARG001 - the place of `chosen`
    """Return the bundle that answers a call of a server without variants: the only one."""
    return champion


def chosen(request: Request, champion: LoadedBundle, challenger: LoadedBundle, share: float) -> LoadedBundle:
    """Return which bundle answers all queries of a call, the champion's or the challenger's.

    A call that pins a version is answered by that bundle. Otherwise the first user in a Retrieve call decides, by a
    hash of the user's key (`weir.contracts.bundles.variants.challenges`). The champion answers calls without a user,
    and every Embed call, because its vectors may later be sent back as queries without a user.
    """
    if request.bundle_version:
        return challenger if request.bundle_version == challenger.version else champion
    user = _first_user(request, champion.key_secret) if isinstance(request, pb.RetrieveRequest) else None
    is_challengers = user is not None and challenges(user, challenger.manifest.variant, share)
    return challenger if is_challengers else champion


def _first_user(request: pb.RetrieveRequest, secret: str) -> Key | None:
    for query in request.queries:
        if query.WhichOneof("source") == "user_id":
            return hash_id(query.user_id, secret)
    return None


class LineMetrics:
    """Metrics of the served variants, and of the calls that each variant answered."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.served = Gauge(
            "weir_variant_served_info",
            "The bundles that answer, by line and role; always 1.",
            ("variant", "role", "version"),
            registry=registry,
        )
        self.calls = Counter(
            "weir_variant_calls",
            "Calls by the line that was chosen; probes do not count.",
            ("variant",),
            registry=registry,
        )

    def show(self, roles: Roles, loaded: list[LoadedBundle]) -> None:
        """Set the metrics to the loaded bundles."""
        self.served.clear()
        for bundle in loaded:
            line = bundle.manifest.variant
            role = "champion" if line == roles.champion else "challenger"
            self.served.labels(line, role, bundle.version).set(1)
            self.calls.labels(line)


class _Pair(NamedTuple):
    """The roles, and the watchers of champion and challenger; calls read all of them at once."""

    roles: Roles
    champion: BundleWatcher
    challenger: BundleWatcher | None


@dataclass
class VariantRouter:
    """Follows the bundles of champion and challenger, and chooses the bundle that answers a call.

    `names` are all variants in the settings, `share` is the challenger's share of users, and `watching` makes the
    watcher of a variant. `shown` are the exported bundle metrics, which are the champion's. One thread calls `refresh`.
    """

    store: Store
    names: Sequence[str]
    share: float
    watching: Watching
    shown: BundleMetrics
    metrics: LineMetrics
    _watchers: dict[str, BundleWatcher] = field(default_factory=dict, init=False)
    _pair: _Pair | None = field(default=None, init=False)
    _described: list[LoadedBundle] = field(default_factory=list, init=False)
    _once: LogOnce = field(default_factory=lambda: LogOnce(log), init=False)

    @property
    def bundle(self) -> LoadedBundle | None:
        """The champion's bundle."""
        return self._pair.champion.bundle if self._pair else None

    @property
    def promoted(self) -> str | None:
        """The promoted version of the champion."""
        return self._pair.champion.promoted if self._pair else None

    @property
    def loaded(self) -> list[LoadedBundle]:
        """The loaded bundles, the champion's first."""
        watchers = (self._pair.champion, self._pair.challenger) if self._pair else ()
        return [bundle for one in watchers if one is not None and (bundle := one.bundle) is not None]

    def choose(self, request: Request, champion: LoadedBundle) -> LoadedBundle:
        """Return the bundle that answers a call, and count the call for the bundle's variant unless it is a probe."""
        pair = self._pair
        challenger = pair.challenger.bundle if pair and pair.challenger else None
        bundle = champion if challenger is None else chosen(request, champion, challenger, self.share)
        if not getattr(request, "probe", False):
            self.metrics.calls.labels(bundle.manifest.variant).inc()
        return bundle

    def refresh(self) -> None:
        """Check the roles once, and load the newly promoted bundles of both variants; never raises."""
        roles = self._roles()
        if roles is None:
            return
        for line in roles.lines:
            self._watcher(line)
            if line == roles.champion and self._pair is None:
                self._watchers[line].metrics = self.shown
            self._watchers[line].refresh()
            if line == roles.champion:
                self._switch(roles)
        if (loaded := self.loaded) != self._described and self._pair is not None:
            self._described = loaded
            self.metrics.show(self._pair.roles, loaded)

    def _roles(self) -> Roles | None:
        """Return the roles in the store; if they cannot be read, the previous roles, None without."""
        try:
            roles = roles_in(self.store, self.names)
            self._once.succeeded()
        except Exception as error:  # noqa: BLE001 - object stores have errors of their own, which are no OSErrors
            before = self._pair.roles if self._pair else None
            self._once.failed(error, "the champion cannot be read, the roles stay")
            return before
        return roles

    def _switch(self, roles: Roles) -> None:
        """Switch to new roles, unless the new champion has no bundle yet and the previous champion has."""
        before, champion = self._pair, self._watchers[roles.champion]
        if before is not None and before.roles == roles:
            return
        if champion.bundle is None and self.bundle is not None:
            return
        challenger = self._watcher(roles.challenger) if roles.challenger is not None else None
        self._pair = _Pair(roles, champion, challenger)
        self._watchers = {line: self._watchers[line] for line in roles.lines}
        if before is not None and before.champion is not champion:
            self._hand_over(before.champion, champion)
        log.info("champion: %s, challenger: %s", roles.champion, roles.challenger or "none")

    def _watcher(self, line: str) -> BundleWatcher:
        """Return the watcher of a variant; a new watcher's metrics are not exported."""
        if line not in self._watchers:
            self._watchers[line] = made = self.watching(line, BundleMetrics(CollectorRegistry()))
            made.beside = partial(self._beside, line)
        return self._watchers[line]

    def _beside(self, line: str) -> int:
        """Return the bytes that the bundles of other variants take."""
        return sum(bundle.size for bundle in self.loaded if bundle.manifest.variant != line)

    def _hand_over(self, before: BundleWatcher, champion: BundleWatcher) -> None:
        """Export the bundle metrics of the new champion from now on, instead of the previous champion's."""
        before.metrics = BundleMetrics(CollectorRegistry())
        champion.metrics = self.shown
        champion.show(None)  # None: the previous champion's bundle is not an older version of this one


def check_roles(store: Store, names: Sequence[str]) -> None:
    """Raise `VariantError` if the roles in the store do not fit the variants `names` of the settings.

    If the store cannot be read, a warning is logged.
    """
    try:
        roles_in(store, names)
    except VariantError:
        raise
    except Exception as error:  # noqa: BLE001 - object stores have errors of their own, which are no OSErrors
        log.warning("the champion cannot be read yet: %s", error)


def bundles_of(
    store: Store,
    config: ServingConfig,
    registry: CollectorRegistry,
    names: Sequence[str],
    *,
    between: Callable[[Callable[[], LoadedBundle]], LoadedBundle],
    describe: Callable[[LoadedBundle, LoadedBundle | None], None],
) -> Bundles:
    """Return the holder of a store's bundles: a watcher or, with variant `names`, a router of two variants.

    `registry` gets the bundle metrics; `between` and `describe` are as in `BundleWatcher`.
    """
    policy = DeltaPolicy(config.deltas, Memory.found(config.memory_bytes))

    def watching(variant: str, metrics: BundleMetrics) -> BundleWatcher:
        return BundleWatcher(store, metrics, config.device, config.threads, policy, between, describe, variant=variant)

    shown = BundleMetrics(registry)
    if not names:
        return watching(MAIN, shown)
    return VariantRouter(store, names, config.challenger_share, watching, shown, LineMetrics(registry))
