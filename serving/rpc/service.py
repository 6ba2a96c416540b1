"""The gRPC servicer of Retrieve, Embed and GetInfo: check the request, queue it, build the answer.

Tower and search run in the batcher's thread; large requests and answers are checked and built in a background thread,
so that they do not block the event loop.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final, NoReturn, TypeVar

from weir.retrieval.v1 import retrieval_pb2 as pb
from weir.retrieval.v1 import retrieval_pb2_grpc
from weir.serving.batching.batcher import Batcher
from weir.serving.batching.queue import Outcome
from weir.serving.bundles.bundle import LoadedBundle
from weir.serving.config import ServingConfig
from weir.serving.errors import AnswerTooLargeError, DeadlinePassedError, NoBundleError, RequestError
from weir.serving.metrics import RequestMetrics, call_trace
from weir.serving.rpc.admission import Admission
from weir.serving.rpc.decoding import OffloadExecutor
from weir.serving.rpc.instrumentation import is_over, note
from weir.serving.rpc.requests import embed_task, item_ids, retrieve_task
from weir.serving.rpc.responses import TOKEN_BYTES, embed_response, info_response, retrieve_response
from weir.serving.rpc.status import DETAILS_KEY, code_of, details_of
from weir.serving.search.cost import parts_of
from weir.serving.search.queries import Answer, Task, joined
from weir.serving.served_lists import ServedLists
from weir.serving.variants import Request, only

__all__ = ["RetrievalService"]

log = logging.getLogger(__name__)

Made = TypeVar("Made")
Answered = TypeVar("Answered", pb.RetrieveResponse, pb.EmbedResponse)

_LARGE: Final = 2000
"""Ids up to which the event loop checks or builds a message: about a millisecond."""

_ECHOED = ("x-request-id", "traceparent")


class RetrievalService(retrieval_pb2_grpc.RetrievalServiceServicer):
    """Answers each request from one of the bundles that are loaded when it arrives.

    `loaded` returns these bundles, the champion's first, and `choose` picks the one that answers. If no bundle is
    loaded, the error names the version that `promoted` returns.
    """

    def __init__(
        self,
        loaded: Callable[[], Sequence[LoadedBundle]],
        batcher: Batcher[Task, Answer],
        config: ServingConfig,
        metrics: RequestMetrics,
        aside: OffloadExecutor,
        *,
        served: ServedLists,
        admission: Admission,
        promoted: Callable[[], str | None] = lambda: None,
        choose: Callable[[Request, LoadedBundle], LoadedBundle] = only,
    ) -> None:
        self._loaded, self._batcher, self._config, self._metrics = loaded, batcher, config, metrics
        self._choose = choose
        self._aside, self._served, self._admission, self._promoted = aside, served, admission, promoted

    async def Retrieve(self, request: pb.RetrieveRequest, context: Any) -> pb.RetrieveResponse:  # noqa: N802 - gRPC's name
        """Answer a Retrieve call: the top items of each query."""
        start = time.monotonic()

        def build() -> Task:
            return retrieve_task(request, self._choose(request, self._bundle()), self._config.limits)

        task, outcome = await self._answer(request, build, context)
        version, hits = outcome.answer.version, outcome.answer.hits
        self._metrics.fallbacks.inc(sum(found.fallback for found in hits))
        self._metrics.cold.inc(sum(sum(found.cold) for found in hits))
        self._metrics.missing_features.inc(sum(len(found.missing_features) for found in hits))
        items = sum(len(found.ids) for found in hits)
        note(bundle=version, queries=len(hits), items=items)

        def response() -> pb.RetrieveResponse:
            return retrieve_response(version, hits, self._seconds(start, outcome))

        answer = await self._sent(response, items, context)
        # Only answers that are sent are kept as served lists.
        answer.attribution_token = self._served.note(version, task.queries, hits, probe=request.probe)
        return answer

    async def Embed(self, request: pb.EmbedRequest, context: Any) -> pb.EmbedResponse:  # noqa: N802 - gRPC's name
        """Answer an Embed call: the vector of each query."""
        start = time.monotonic()

        def build() -> Task:
            return embed_task(request, self._choose(request, self._bundle()), self._config.limits)

        task, outcome = await self._answer(request, build, context)
        hits = outcome.answer.hits
        note(bundle=outcome.answer.version, queries=len(hits))

        def response() -> pb.EmbedResponse:
            return embed_response(outcome.answer.version, hits, self._seconds(start, outcome))

        return await self._sent(response, len(hits) * task.bundle.manifest.dimension, context)

    async def GetInfo(self, request: pb.GetInfoRequest, context: Any) -> pb.GetInfoResponse:  # noqa: ARG002, N802
        """Answer a GetInfo call: the served bundle and the limits."""
        try:
            bundles = self._bundles()
        except NoBundleError as error:
            await self.refuse(error, context)
        return info_response(bundles, self._config)

    async def refuse(self, error: RequestError, context: Any) -> NoReturn:
        """Count a refusal, and abort the call with its code and status details."""
        self._metrics.refused.labels(error.reason).inc()
        note(reason=error.reason)
        if log.isEnabledFor(logging.DEBUG):
            log.debug("request refused: %s: %s %s", error.reason, error, dict(_echoed(context)))
        await context.abort(code_of(error), str(error), ((DETAILS_KEY, details_of(error)),))
        raise AssertionError("abort always raises")

    def _bundle(self) -> LoadedBundle:
        return self._bundles()[0]

    def _bundles(self) -> Sequence[LoadedBundle]:
        bundles = self._loaded()
        if not bundles:
            raise NoBundleError(self._promoted())
        return bundles

    async def _answer(
        self, request: pb.RetrieveRequest | pb.EmbedRequest, build: Callable[[], Task], context: Any
    ) -> tuple[Task, Outcome[Answer]]:
        metadata = _echoed(context)
        if metadata:
            await context.send_initial_metadata(metadata)
        entry, waited, allowed = self._admission.enter(), False, context.time_remaining()
        try:
            task = await self._task(request, build)
            outcome = await self._searched(task, context.time_remaining())
            waited = True
            return task, outcome
        except DeadlinePassedError as error:
            waited = True
            await self.refuse(error, context)
        except RequestError as error:
            await self.refuse(error, context)
        except asyncio.CancelledError:
            waited = is_over(allowed, context.time_remaining())
            raise
        except Exception:
            log.exception("a request failed: %s", dict(metadata))
            await self.refuse(RequestError("the server failed; its log says why"), context)
        finally:
            self._admission.leave(entry, waited=waited)

    async def _task(self, request: pb.RetrieveRequest | pb.EmbedRequest, build: Callable[[], Task]) -> Task:
        limits = self._config.limits
        ids = item_ids(request, limits.max_queries)
        if ids > limits.max_item_ids:
            ids = 0  # such a request is refused before its ids are read
        if ids > _LARGE:
            self._aside.require_room()
        task = await self._made(build, ids)
        trace = call_trace.get()
        return task if trace is None else replace(task, trace=trace)

    async def _searched(self, task: Task, left: float | None) -> Outcome[Answer]:
        """Queue a task and wait for its answer, at most `left` seconds (None: without a limit)."""
        if task.trace is not None:
            task.trace.queued()
        deadline = float("inf") if left is None else time.monotonic() + left
        outcome = await self._batcher.submit(parts_of(task, self._config.max_batch_cost), deadline)
        return Outcome(joined(outcome.answer), outcome.queued)

    async def _made(self, make: Callable[[], Made], size: int) -> Made:
        """Return the result of `make`, which runs in the background thread if `size` (ids or numbers) is large."""
        return await self._aside.run(make) if size > _LARGE else make()

    async def _sent(self, make: Callable[[], Answered], size: int, context: Any) -> Answered:
        """Return the answer that `make` builds; raise `AnswerTooLargeError` if it exceeds `max_answer_bytes`."""
        answer, most = await self._made(make, size), self._config.limits.max_answer_bytes
        if (found := answer.ByteSize() + TOKEN_BYTES) > most:
            await self.refuse(AnswerTooLargeError(found, most), context)
        return answer

    def _seconds(self, start: float, outcome: Outcome[Answer]) -> list[tuple[str, float]]:
        answer = outcome.answer
        seconds = [
            ("total", time.monotonic() - start),
            ("queue", outcome.queued),
            ("tower", answer.tower_seconds),
            ("search", answer.search_seconds),
        ]
        self._metrics.stage_seconds(seconds)
        return seconds


def _echoed(context: Any) -> tuple[tuple[str, str], ...]:
    return tuple((key, value) for key, value in context.invocation_metadata() or () if key in _ECHOED)
