"""The gRPC adapter: parse, queue, answer. Everything that takes time happens in the batcher's thread."""

import asyncio
import logging
import secrets
import time
from collections.abc import Callable
from importlib.metadata import version
from typing import Any, NoReturn

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from contracts import MAX_ID_BYTES
from serving.batcher import Batcher, Outcome
from serving.bundle import LoadedBundle
from serving.config import LimitsConfig
from serving.errors import NoBundleError, RequestError
from serving.metrics import RequestMetrics
from serving.queries import Answer, Task
from serving.requests import embed_task, retrieve_task
from serving.status import DETAILS_KEY, code_of, details_of
from weir.retrieval.v1 import retrieval_pb2 as pb
from weir.retrieval.v1 import retrieval_pb2_grpc

__all__ = ["RetrievalService"]

log = logging.getLogger(__name__)

_ECHOED = ("x-request-id", "traceparent")
_METRICS = {"inner_product": pb.METRIC_INNER_PRODUCT, "cosine": pb.METRIC_COSINE}


class RetrievalService(retrieval_pb2_grpc.RetrievalServiceServicer):
    """Answers from the bundle that `current` returns at the moment a request arrives."""

    def __init__(
        self,
        current: Callable[[], LoadedBundle | None],
        batcher: Batcher[Task, Answer],
        limits: LimitsConfig,
        metrics: RequestMetrics,
    ) -> None:
        self._current, self._batcher, self._limits, self._metrics = current, batcher, limits, metrics

    async def Retrieve(self, request: pb.RetrieveRequest, context: Any) -> pb.RetrieveResponse:  # noqa: N802 - gRPC's name
        """Find the top items of each query."""
        start = time.monotonic()

        def build() -> Task:
            return retrieve_task(request, self._bundle(), self._limits)

        task, outcome = await self._answer(build, context)
        hits = [
            pb.Hits(item_ids=found.ids, scores=found.scores, missing_item_ids=found.missing, fallback=found.fallback)
            for found in outcome.answer.hits
        ]
        self._metrics.fallbacks.inc(sum(found.fallback for found in outcome.answer.hits))
        return pb.RetrieveResponse(
            hits=hits,
            bundle_version=task.bundle.version,
            attribution_token=f"{task.bundle.version}/{secrets.token_hex(8)}",
            timing=self._timing(start, outcome),
        )

    async def Embed(self, request: pb.EmbedRequest, context: Any) -> pb.EmbedResponse:  # noqa: N802 - gRPC's name
        """Make the vector of each query."""
        start = time.monotonic()

        def build() -> Task:
            return embed_task(request, self._bundle(), self._limits)

        task, outcome = await self._answer(build, context)
        vectors = [
            pb.QueryVector(
                values=[] if found.vector is None else found.vector.tolist(),
                missing_item_ids=found.missing,
                fallback=found.fallback,
            )
            for found in outcome.answer.hits
        ]
        timing = self._timing(start, outcome)
        return pb.EmbedResponse(vectors=vectors, bundle_version=task.bundle.version, timing=timing)

    async def GetInfo(self, request: pb.GetInfoRequest, context: Any) -> pb.GetInfoResponse:  # noqa: ARG002, N802
        """Describe the bundle and the limits."""
        try:
            bundle = self._bundle()
        except NoBundleError as error:
            await self._abort(error, context)
        return _info(bundle, self._limits)

    def _bundle(self) -> LoadedBundle:
        bundle = self._current()
        if bundle is None:
            raise NoBundleError
        return bundle

    async def _answer(self, build: Callable[[], Task], context: Any) -> tuple[Task, Outcome[Answer]]:
        metadata = _echoed(context)
        if metadata:
            await context.send_initial_metadata(metadata)
        try:
            task = build()
            left = context.time_remaining()
            deadline = float("inf") if left is None else time.monotonic() + left
            return task, await self._batcher.submit(task, len(task.queries), deadline)
        except asyncio.CancelledError:
            raise
        except RequestError as error:
            await self._abort(error, context)
        except Exception:
            log.exception("a request failed: %s", dict(metadata))
            await self._abort(RequestError("the server failed; its log says why"), context)

    async def _abort(self, error: RequestError, context: Any) -> NoReturn:
        self._metrics.refused.labels(error.reason).inc()
        log.debug("request refused: %s: %s %s", error.reason, error, dict(_echoed(context)))
        await context.abort(code_of(error), str(error), ((DETAILS_KEY, details_of(error)),))
        raise AssertionError("abort always raises")

    def _timing(self, start: float, outcome: Outcome[Answer]) -> pb.Timing:
        answer = outcome.answer
        seconds = (
            ("total", time.monotonic() - start),
            ("queue", outcome.queued),
            ("tower", answer.tower_seconds),
            ("search", answer.search_seconds),
        )
        self._metrics.stage_seconds(seconds)
        return pb.Timing(
            **{stage: Duration(nanos=round(value * 1e9) % 10**9, seconds=int(value)) for stage, value in seconds}
        )


def _echoed(context: Any) -> tuple[tuple[str, str], ...]:
    return tuple((key, value) for key, value in context.invocation_metadata() or () if key in _ECHOED)


def _info(bundle: LoadedBundle, limits: LimitsConfig) -> pb.GetInfoResponse:
    manifest = bundle.manifest
    newest, servable = Timestamp(), Timestamp()
    newest.FromMilliseconds(manifest.max_event_ms)
    servable.FromNanoseconds(round(bundle.servable_at * 1e9))
    return pb.GetInfoResponse(
        bundle_version=manifest.version,
        sketch_version=manifest.trained_window,
        trained_sequence=manifest.trained_sequence,
        index=pb.Index(type=manifest.index.type, parameters=manifest.index.parameters),
        items=bundle.items,
        dimension=manifest.dimension,
        metric=_METRICS[manifest.metric],
        max_event_time=newest,
        servable_time=servable,
        evaluation=manifest.evaluation,
        limits=pb.Limits(**limits.model_dump(), max_id_bytes=MAX_ID_BYTES),
        software_version=version("weir"),
        bundle_software_version=manifest.software_version,
    )
