"""Runs the compiled front ahead of the Python server, and answers its plain requests on the search thread."""

import asyncio
import logging
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from weir.contracts import MAX_ID_BYTES
from weir.runtime.listening import listening
from weir.serving.access.certificates import Certificate, certificate_of
from weir.serving.batching.batcher import Batcher, Wakeup, WorkSource
from weir.serving.bundles.bundle import LoadedBundle
from weir.serving.config import ServingConfig
from weir.serving.errors import DeadlinePassedError, NoTimeLeftError, QueueFullError, ShuttingDownError
from weir.serving.listeners import HANDSHAKE_SECONDS, warn_of_plain_tokens
from weir.serving.metrics import SECONDS
from weir.serving.native.answering import Answering, spelled
from weir.serving.native.columns import Compiled
from weir.serving.rpc.requests import DEFAULT_K
from weir.serving.search.cost import QUERY, RESCORED, SEEN
from weir.serving.search.queries import Answer, Task
from weir.serving.search.retriever import FEW

__all__ = ["NativeFront"]

log = logging.getLogger(__name__)

_LOOK_SECONDS: Final = 0.25
"""Interval of checks for a new certificate; the front itself cannot check when a caller connects."""

_MOST_ITEMS: Final = FEW - 2
"""Largest k of a plain query: with the query's own item, at most `FEW` rows are fetched."""


@dataclass
class NativeFront(WorkSource):
    """The compiled front: it listens on the gRPC port, and queues plain requests for the search thread.

    Plain requests are defined in `weir.serving.native`; with `answers` False no request counts as plain. All other
    calls are passed to the Python server at `upstream`.
    """

    package: Compiled
    config: ServingConfig
    batcher: Batcher[Task, Answer]
    answering: Answering
    answers: bool
    _folder: tempfile.TemporaryDirectory[str] = field(init=False)
    _front: Any = field(default=None, init=False)
    _bundle: LoadedBundle | None = field(default=None, init=False)
    _shown: Certificate | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        tls = self.config.tls
        self._certificates = None if tls.certificate_file is None else certificate_of(tls, _LOOK_SECONDS)
        self._folder = tempfile.TemporaryDirectory(prefix="weir-front-")

    @property
    def upstream(self) -> Path:
        """Path of the Unix socket on which the Python server must listen; other users cannot open it."""
        return Path(self._folder.name) / "python.sock"

    def start(self) -> int:
        """Listen, and return the port; raises `CannotListenError`."""
        listeners = listening("gRPC", self.config.host, self.config.port, shared=self.config.processes > 1)
        port = int(listeners[0].getsockname()[1])
        warn_of_plain_tokens(self.config)
        self._shown = None if self._certificates is None else self._certificates.get()
        descriptors = [listener.detach() for listener in listeners]
        self._front = self.package.Front(descriptors, self.upstream, self._options(), self._shown)
        self.batcher.attach(self)
        self.follow(next(iter(self.answering.loaded()), None))
        return port

    def follow(self, bundle: LoadedBundle | None) -> None:
        """Accept plain requests by the limits of this bundle from now on; None: pass all calls to Python."""
        if self._front is None or not self.answers or bundle is self._bundle:
            return
        self._bundle = bundle
        self._front.answer_plain(None if bundle is None else self._limits(bundle))

    async def follow_certificate(self) -> None:
        """Keep the front's certificate up to date; runs until cancelled."""
        while self._certificates is not None:
            await asyncio.sleep(_LOOK_SECONDS)
            newest = await asyncio.to_thread(self._certificates.get)
            if self._front is not None and newest is not self._shown:
                self._shown = newest
                self._show(newest)

    def _show(self, certificate: Certificate) -> None:
        try:
            self._front.certify(certificate)
        except ValueError as error:
            log.error("the certificate for gRPC cannot be used, the one before stays: %s", error)

    def counts(self) -> dict[str, Any]:
        """Return the front's counts of calls and stages, by name; empty before it listens."""
        return {} if self._front is None else {**self._front.counts(), "depth": self._front.depth}

    @property
    def waits(self) -> bool:
        """Whether plain requests wait."""
        return bool(self._front.depth)

    def ring(self) -> None:
        """Wake the search thread."""
        self._front.ring()

    def wait(self) -> None:
        """Block until `ring` is called or plain requests wait."""
        self._front.wait()

    def answer(self) -> None:
        """Answer a batch of plain requests."""
        batch = self._front.take(self.config.max_batch_queries, float(self.config.max_batch_cost))
        if batch is not None and (bundle := self.answering(batch)) is not None:
            self.follow(bundle)

    def end(self) -> None:
        """Refuse the waiting requests, and pass all calls to Python from now on, which refuses them."""
        self.follow(None)
        self.answers = False
        while (batch := self._front.take(self.config.max_batch_queries, float(self.config.max_batch_cost))) is not None:
            batch.fail(*spelled(ShuttingDownError()))

    @property
    def under_way(self) -> int:
        """Number of plain calls in progress."""
        return 0 if self._front is None else int(self._front.under_way)

    def stop(self) -> None:
        """Accept no new connections, and ask clients to leave the open ones (GOAWAY)."""
        if self._front is not None:
            self._front.stop()

    async def close(self) -> None:
        """Close all connections and the front."""
        if self._front is not None:
            self.batcher.attach(Wakeup())
            await asyncio.to_thread(self._front.close)
        self._folder.cleanup()

    def _options(self) -> dict[str, Any]:
        config = self.config
        return {
            "max_connections": config.max_connections,
            "max_streams": config.max_streams_per_connection,
            "age_seconds": config.max_connection_age_seconds,
            "idle_seconds": config.max_connection_idle_seconds,
            "handshake_seconds": float(HANDSHAKE_SECONDS),
            "max_calls": config.most_calls,
            "queue_queries": config.queue_queries,
            "bounds": list(SECONDS),
            "no_time": spelled(NoTimeLeftError(config.retry_after_seconds)),
            "queue_full": spelled(
                QueueFullError(config.queue_queries, config.queue_queries, config.retry_after_seconds)
            ),
            "late": spelled(DeadlinePassedError()),
            "stopping": spelled(ShuttingDownError()),
        }

    def _limits(self, bundle: LoadedBundle) -> dict[str, Any]:
        limits = self.config.limits
        return {
            "max_queries": min(limits.max_queries, self.config.max_batch_queries),
            "max_k": min(limits.max_k, _MOST_ITEMS),
            "max_history_item_ids": limits.max_history_item_ids,
            "max_excluded_item_ids": limits.max_excluded_item_ids,
            "max_item_ids": limits.max_item_ids,
            "max_id_bytes": MAX_ID_BYTES,
            "default_k": min(DEFAULT_K, limits.max_k),
            "dimension": bundle.manifest.dimension,
            "query_cost": QUERY + bundle.index.cost() + RESCORED * bundle.rescored,
            "seen_cost": SEEN,
            # More expensive requests wait in a lane of their own, in Python.
            "max_cost": min(limits.max_cost, self.config.max_batch_cost / 2),
            "secret": bytes.fromhex(bundle.key_secret),
        }
